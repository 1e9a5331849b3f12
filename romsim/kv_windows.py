"""Windows of a text scored under KV configurations, and kept, so that a stopped run goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from romsim.whole_file import write_json
from romsim_compiler.description import Description
from romsim_compiler.digest import manifest_digest
from romsim_compiler.kv import KvConfig
from romsim_compiler.pipeline import serial_prefill
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from romsim.reference import IntegerDecoder
    from romsim_compiler.kv_codebooks import KvCodebooks

__all__ = ["ScoredWindow", "WindowScorer", "with_kv"]

_PACKAGES = ("romsim.reference", "romsim.cycle")  # whose arithmetic the scores are
_FILES = (  # what CommVQ's codebooks and the tables of heads are made by
    ("romsim_compiler", "kv_heads.py"),
    ("romsim_compiler", "kv_training.py"),
    ("romsim", "kv_calibration.py"),
    ("romsim", "texts/calibration.txt"),
)
_PLACES = ("layout", "block")  # where slots lie, which changes no value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredWindow:
    """What a decoder made of a window, from its second token on."""

    losses: list[float]  # nats
    likeliest: list[int]  # token ids
    saturations: int


class WindowScorer:
    """Scores windows with the integer reference, or reads what an earlier run has kept.

    Parameters
    ----------
    description
        The chip; its own KV configuration does not matter.
    decoder
        Integer reference of the same model.
    context
        Tokens of the longest window.
    folder
        Where scores are kept, a file each, or ``None``. A file is named after everything that the
        scores depend on: chip, KV configuration, tokens, and the sources of both machines.

    Raises
    ------
    SpecError
        If the folder is there and is none.
    """

    def __init__(
        self,
        description: Description,
        decoder: IntegerDecoder,
        *,
        context: int,
        folder: Path | None = None,
    ) -> None:
        if folder is not None:
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise SpecError(
                    f"Folder {folder} for finished windows must be one that can be made, not "
                    f"{error.strerror!r}; choose another one"
                ) from None
        self._description, self._decoder = description, decoder
        self._context, self._folder = context, folder
        self._trained: dict[KvConfig, KvCodebooks] = {}
        self._chosen: dict[KvConfig, KvConfig] = {}

    def __call__(self, kv: KvConfig, tokens: Sequence[int]) -> ScoredWindow:
        """Score a window under a configuration."""
        if self._folder is None:
            return self._score(kv, tokens)
        path = self._folder / f"{self._key(kv, tokens)}.json"
        if path.exists():
            return _read(path, len(tokens) - 1)
        done = self._score(kv, tokens)
        write_json(path, asdict(done), what="Scores of a window")
        return done

    def is_kept(self, kv: KvConfig, tokens: Sequence[int]) -> bool:
        """Whether an earlier run has scored that window."""
        return (
            self._folder is not None and (self._folder / f"{self._key(kv, tokens)}.json").exists()
        )

    def _key(self, kv: KvConfig, tokens: Sequence[int]) -> str:
        values = {k: v for k, v in kv.to_json().items() if k not in _PLACES}
        parts = [manifest_digest(self._description.manifest), _sources(), values, list(tokens)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def _score(self, kv: KvConfig, tokens: Sequence[int]) -> ScoredWindow:
        from romsim.comparison import reference_codebooks, reference_kv
        from romsim.reference import score_window

        if kv.is_ranked:
            return self._steps(kv, tokens)
        self._decoder.change_kv(reference_kv(kv), reference_codebooks(self._codebooks(kv)))
        losses, likeliest, clipped = score_window(self._decoder, tokens)
        return ScoredWindow(losses=losses, likeliest=likeliest, saturations=clipped)

    def _codebooks(self, kv: KvConfig) -> KvCodebooks | None:
        """Return CommVQ's codebooks: the chip's own, or those that it would be compiled with."""
        from romsim.kv_calibration import calibrate

        if kv.codec != "commvq":
            return None
        own = self._description.target.kv
        if replace(own, layout=kv.layout, block=kv.block) == kv:
            return self._description.kv_codebooks()
        if kv not in self._trained:
            self._trained[kv] = calibrate(self._decoder, self._calibration_tokens(), kv)
        return self._trained[kv]

    def _with_heads(self, kv: KvConfig) -> KvConfig:
        """Return the configuration with the heads of wider codes that it would be compiled with."""
        from romsim.kv_calibration import calibrate_heads

        own = self._description.target.kv
        if not kv.wide_heads or kv.head_table:
            return kv
        if replace(own, layout=kv.layout, block=kv.block, head_table=()) == kv:
            return replace(kv, head_table=own.head_table)
        if kv not in self._chosen:
            self._chosen[kv] = calibrate_heads(self._decoder, self._calibration_tokens(), kv)
        return self._chosen[kv]

    def _calibration_tokens(self) -> list[int]:
        from romsim.kv_calibration import calibration_tokens
        from romsim.simulate import load_tokenizer

        has_text = self._description.tokenizer_file() is not None
        tokenizer = load_tokenizer(self._description) if has_text else None
        return calibration_tokens(tokenizer, self._description.spec.vocab_size)

    def _steps(self, kv: KvConfig, tokens: Sequence[int]) -> ScoredWindow:
        """Decode token after token on the cycle model.

        Its values are the reference's; where what is kept depends on what was attended to, the
        reference goes token by token too, and is slower.
        """
        import numpy as np

        from romsim.cycle import CycleModel

        scale = 2.0**-self._description.numerics.logit_frac
        model = CycleModel(with_kv(self._description, self._with_heads(kv), context=self._context))
        losses: list[float] = []
        likeliest: list[int] = []
        for token, target in pairwise(tokens):
            values = model.step(token).logits.astype(np.float64) * scale
            top = values.max()
            losses.append(float(top + np.log(np.exp(values - top).sum()) - values[target]))
            likeliest.append(int(values.argmax()))
        return ScoredWindow(losses=losses, likeliest=likeliest, saturations=model.saturations)


def _read(path: Path, n_scored: int) -> ScoredWindow:
    """Read what was kept.

    Raises
    ------
    SpecError
        If it is not what was written.
    """
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        done = ScoredWindow(**values)
        if len(done.losses) != n_scored or len(done.likeliest) != n_scored:
            raise ValueError(f"{len(done.losses)} losses for {n_scored} tokens")
    except (OSError, TypeError, ValueError) as error:
        raise SpecError(
            f"Scores {path} must be as they were written, not changed: {error}; delete the file"
        ) from None
    return done


@lru_cache(maxsize=1)
def _sources() -> str:
    """Digest of the sources whose values the scores are."""
    digest = hashlib.sha256()
    for package, name in _FILES:
        digest.update((resources.files(package) / name).read_bytes())
    for package in _PACKAGES:
        files = [item for item in resources.files(package).iterdir() if item.name.endswith(".py")]
        for item in sorted(files, key=lambda item: item.name):
            digest.update(f"{package}/{item.name}\0".encode() + item.read_bytes())
    return digest.hexdigest()


def with_kv(description: Description, kv: KvConfig, *, context: int) -> Description:
    """Return a chip with another KV cache and context, for running alone.

    Nothing is compiled anew: weights and programs are the description's own. Whether the cache fits
    its SRAM is not asked.
    """
    target, _ = serial_prefill(replace(description.target, kv=kv))
    manifest = {**description.manifest, "target": target.to_json(), "context": context}
    return Description(description.path, manifest)
