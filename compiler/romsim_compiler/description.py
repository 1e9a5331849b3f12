"""The accelerator description: a folder, the only thing that passes from compile to the rest."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from romsim_compiler.digest import MANIFEST, file_digest, manifest_digest
from romsim_compiler.mapping import Mapping
from romsim_compiler.numerics import Numerics
from romsim_compiler.program import PlacedGroup, Program
from romsim_compiler.target import Target
from romsim_models.errors import DescriptionError
from romsim_models.spec import ModelSpec

if TYPE_CHECKING:  # numpy is loaded where an array is read, so that timing starts fast
    import numpy as np
    from numpy.typing import NDArray

    from romsim_compiler.gains import GainVector
    from romsim_compiler.kv_codebooks import KvCodebooks
    from romsim_compiler.lora_image import LoraAdapterImage

__all__ = ["SCHEMA_VERSION", "Description", "group_from_json", "group_to_json"]

SCHEMA_VERSION = 1

_KEYS = (
    "name", "model", "target", "fitted", "executable", "has_images", "numerics", "context",
    "memory", "kv", "rom", "accuracy", "adapters", "n_slots", "dies", "files", "sha256",
)  # fmt: skip
_FILES = ("placement.json", "prefill.json", "program.json", "tables.json", "target.toml")
_IMAGES = ("gains.bin", "rom.bin")


def group_to_json(group: PlacedGroup) -> dict[str, Any]:
    """Return a placed group as JSON-ready values."""
    return asdict(group)


def group_from_json(values: dict[str, Any]) -> PlacedGroup:
    """Build a placed group from :func:`group_to_json`'s values."""
    members = tuple((m[0], m[1], m[2], m[3]) for m in values["members"])
    mapping = Mapping(**values["mapping"])
    return PlacedGroup(**{**values, "mapping": mapping, "members": members})


@dataclass(frozen=True)
class Description:
    """A compiled chip, read from its folder.

    Parameters
    ----------
    path
        The folder.
    manifest
        Contents of ``manifest.json``.
    """

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> Description:
        """Read a description.

        Parameters
        ----------
        verify
            Compare every file, and the manifest itself, with the manifest's SHA-256.

        Raises
        ------
        DescriptionError
            If the folder is no description, of another schema version, or a file is missing or
            changed.
        """
        folder = Path(path)
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except OSError:
            raise DescriptionError(
                f"{folder} must be a compiled description with a {MANIFEST}, which cannot be read; "
                f"make one with `romsim compile MODEL -o {folder}`"
            ) from None
        except ValueError as error:
            raise DescriptionError(
                f"{folder / MANIFEST} must be JSON, not what it holds ({error}); compile again"
            ) from None
        if not isinstance(manifest, dict):
            raise DescriptionError(
                f"{folder / MANIFEST} must be a JSON object, not {type(manifest).__name__}; "
                f"compile again"
            )
        version = manifest.get("schema_version")
        if version != SCHEMA_VERSION:
            raise DescriptionError(
                f"{folder / MANIFEST}: schema_version must be {SCHEMA_VERSION}, not {version!r}; "
                f"compile again with this version of romsim"
            )
        missing = [key for key in _KEYS if key not in manifest]
        if missing:
            raise DescriptionError(
                f"{folder / MANIFEST}: key {missing[0]!r} must be present, not missing; compile "
                f"again"
            )
        needed = _FILES + (_IMAGES if manifest["has_images"] else ())
        unlisted = [name for name in needed if name not in manifest["files"]]
        if unlisted:
            raise DescriptionError(
                f"{folder / MANIFEST}: file {unlisted[0]!r} must be listed, not missing; compile "
                f"again"
            )
        for name, entry in sorted(manifest["files"].items()):
            file = folder / name
            if not file.is_file():
                raise DescriptionError(f"{file} must exist, but it is missing; compile again")
            size = file.stat().st_size
            if size != entry["bytes"]:
                raise DescriptionError(
                    f"{file} must have {entry['bytes']} bytes, not {size}; compile again"
                )
            if verify and file_digest(file) != entry["sha256"]:
                raise DescriptionError(
                    f"{file} must have the SHA-256 {entry['sha256']} of the manifest, not "
                    f"{file_digest(file)}; it was changed: compile again"
                )
        if verify and manifest_digest(manifest) != manifest["sha256"]:
            raise DescriptionError(
                f"{folder / MANIFEST} must have the values that were compiled (SHA-256 "
                f"{manifest['sha256']}), not others; it was changed: compile again"
            )
        return cls(folder, manifest)

    def _json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    @property
    def name(self) -> str:
        """Name of the description."""
        return str(self.manifest["name"])

    @property
    def whole(self) -> Description:
        """The chip with all its instructions: this one; see `romsim_compiler.reduced`."""
        return self

    @property
    def context(self) -> int:
        """Tokens that one sequence may have."""
        return int(self.manifest["context"])

    @property
    def has_images(self) -> bool:
        """Whether there are weights in it, or only a shape."""
        return bool(self.manifest["has_images"])

    @cached_property
    def spec(self) -> ModelSpec:
        """The model's hyperparameters."""
        return ModelSpec.from_json(json.dumps(self.manifest["model"]["spec"]))

    @cached_property
    def target(self) -> Target:
        """The chip."""
        return Target.from_json(self.manifest["target"])

    @cached_property
    def numerics(self) -> Numerics:
        """Parameters of the numerics page."""
        return Numerics(**self.manifest["numerics"])

    @cached_property
    def placement(self) -> dict[str, Any]:
        """Contents of ``placement.json``."""
        values: dict[str, Any] = self._json("placement.json")
        return values

    @cached_property
    def groups(self) -> dict[str, PlacedGroup]:
        """Matrix groups by name, in program order."""
        return {g["name"]: group_from_json(g) for g in self.placement["groups"]}

    @cached_property
    def decode(self) -> Program:
        """The program of one decoded token."""
        return Program.from_json(self._json("program.json"))

    @cached_property
    def _prefills(self) -> dict[str, Any]:
        values: dict[str, Any] = self._json("prefill.json")
        return values

    def prefill(self, n_tokens: int, with_head: bool) -> Program:
        """Return the program of ``n_tokens`` interleaved prompt tokens.

        Raises
        ------
        DescriptionError
            If the description has none for that number; it has 1 (without head) and
            ``n_inflight``.
        """
        if n_tokens == 1 and with_head:
            return self.decode
        key = f"{n_tokens}" + ("_head" if with_head else "")
        if key not in self._prefills:
            raise DescriptionError(
                f"{self.path}: number of interleaved tokens must be 1 or "
                f"{self.target.schedule.n_inflight}, not {n_tokens}"
            )
        return Program.from_json(self._prefills[key])

    @cached_property
    def _rom(self) -> NDArray[np.uint8]:
        import numpy as np

        array = self.target.array
        shape = (
            self.placement["n_words"],
            array.n_tiles,
            array.n_cells,
            array.word_bytes,
        )
        return np.memmap(self.path / "rom.bin", np.uint8, "r", shape=shape)

    def rom_words(self, base: int, n_words: int) -> NDArray[np.uint8]:
        """Return ROM words as bytes, shape [n_words, n_tiles, n_cells, word_bytes].

        Raises
        ------
        DescriptionError
            If the description has no images.
        """
        if not self.has_images:
            raise DescriptionError(
                f"{self.path} must have ROM images, but it was compiled from a shape without "
                f"weights; compile a model with weights, or use --engine timing"
            )
        return self._rom[base : base + n_words]

    @cached_property
    def gains(self) -> dict[str, GainVector]:
        """Norm gains by name (``blk.0.attn_norm``, ``output_norm``)."""
        import numpy as np

        from romsim_compiler.gains import GainVector

        words = np.fromfile(self.path / "gains.bin", "<i4")
        result = {}
        for name, entry in self.placement["gains"].items():
            values = words[entry["first"] : entry["first"] + entry["length"]]
            values.setflags(write=False)
            fields = {k: v for k, v in entry.items() if k not in ("first", "length")}
            result[name] = GainVector(name=name, values=values, **fields)
        return result

    def kv_codebooks(self) -> KvCodebooks | None:
        """Return CommVQ's codebooks, or ``None`` under another codec."""
        if self.target.kv.codec != "commvq":
            return None
        from romsim_compiler.kv_codebooks import CODEBOOK_FILE, read_codebooks

        return read_codebooks(self.path / CODEBOOK_FILE, self.spec, self.target.kv)

    @cached_property
    def phase_increments(self) -> NDArray[np.uint32]:
        """Rotary phase increments, uint32 [head_dim / 2]."""
        import numpy as np

        return np.array(self.placement["phase_increments"], dtype=np.uint32)

    @property
    def query_scale(self) -> int:
        """The constant CQ of the numerics page."""
        return int(self.placement["query_scale"])

    @cached_property
    def tables(self) -> dict[str, NDArray[np.int64]]:
        """The numerics page's tables by name."""
        import numpy as np

        return {k: np.array(v, dtype=np.int64) for k, v in self._json("tables.json").items()}

    @cached_property
    def loras(self) -> dict[str, LoraAdapterImage]:
        """Resident adapters by name."""
        from romsim_compiler.lora_image import load_lora

        return {name: load_lora(self.path / "lora" / name) for name in self.manifest["adapters"]}

    @property
    def lora_rank(self) -> int:
        """Largest rank of resident adapters, as hardware has it: a power of two; 0 for none."""
        ranks = [int(one["max_rank"]) for one in self.manifest["adapters"].values()]
        return 1 << (max(ranks) - 1).bit_length() if ranks else 0

    def tokenizer_file(self) -> Path | None:
        """Return the tokenizer's file, or ``None`` where the model brought none."""
        file = self.path / "tokenizer.json"
        return file if file.is_file() else None
