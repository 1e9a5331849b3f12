"""Engines: machines that turn token ids into logits, one interface for all."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from romsim_compiler.description import Description
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from romsim_models.checkpoint import Checkpoint
    from romsim_models.lora import LoraAdapter

__all__ = [
    "ENGINES",
    "CycleEngine",
    "Engine",
    "ReferenceEngine",
    "check_engine",
    "check_resident",
    "make_engine",
    "open_adapters",
    "open_source",
    "require_images",
]

ENGINES = ("cycle", "reference", "rtl", "timing")


class Engine(Protocol):
    """What text generation needs of a machine."""

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """Take a prompt; return the last token's logits."""

    def step(self, token: int) -> NDArray[np.int32]:
        """Take one token; return its logits."""

    @property
    def cycles(self) -> int | None:
        """Cycles of the last call, or ``None`` where the engine has no clock."""

    @property
    def saturations(self) -> int:
        """Values clipped since the start."""


class CycleEngine:
    """The cycle-level model: values and cycles from the description alone."""

    def __init__(self, description: Description, *, adapter: str | None = None) -> None:
        from romsim.cycle import CycleModel

        self._model = CycleModel(description)
        self._adapter = adapter
        self._cycles = 0

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """Run the prefill program over the prompt."""
        result = self._model.prefill(tokens, adapter=self._adapter)
        self._cycles = result.cycles
        return result.logits

    def step(self, token: int) -> NDArray[np.int32]:
        """Run the decode program once."""
        result = self._model.step(token, adapter=self._adapter)
        self._cycles = result.cycles
        return result.logits

    @property
    def cycles(self) -> int | None:
        """Cycles of the last call."""
        return self._cycles

    @property
    def saturations(self) -> int:
        """Values clipped since the start."""
        return self._model.saturations


class ReferenceEngine:
    """The integer reference: values without a clock, from the files of model and adapters."""

    def __init__(
        self,
        description: Description,
        checkpoint: Checkpoint,
        *,
        adapter: str | None = None,
        loras: Mapping[str, LoraAdapter] | None = None,
        device: str = "cpu",
    ) -> None:
        from romsim.comparison import make_reference

        self._decoder = make_reference(description, checkpoint, loras=loras, device=device)
        self._adapter = adapter

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """Take all tokens at once."""
        logits = self._decoder.forward(tokens, adapter=self._adapter)
        return logits.cpu().numpy().reshape(-1)

    def step(self, token: int) -> NDArray[np.int32]:
        """Take one token."""
        return self.prefill([token])

    @property
    def cycles(self) -> int | None:
        """Nothing: the reference has no clock."""
        return None

    @property
    def saturations(self) -> int:
        """Values clipped since the start."""
        return int(self._decoder.saturations)


def open_source(description: Description, model: str | None) -> Checkpoint:
    """Open the model that a description was compiled from.

    Parameters
    ----------
    model
        File, folder or name; ``None`` takes the name in the manifest, if it is a known one.

    Raises
    ------
    SpecError
        If the model is needed and not given, or is another one than was compiled.
    """
    from romsim_models.registry import named_models, open_model

    source = description.manifest["model"]["source"]
    if model is None:
        known = {m.file.sha256: n for n, m in named_models().items() if m.file is not None}
        model = known.get(source["sha256"])
        if model is None and source["name"] in named_models():
            model = source["name"]
        if model is None:
            raise SpecError(
                f"The model file of {description.path} must be given, since {source['name']!r} is "
                f"no built-in model: add --model FILE"
            )
    checkpoint = open_model(model)
    if checkpoint.source.sha256 != source["sha256"]:
        raise SpecError(
            f"Model {model} must be the one that {description.path} was compiled from (SHA-256 "
            f"{source['sha256']}), not one with SHA-256 {checkpoint.source.sha256}; give the right "
            f"--model or compile again"
        )
    return checkpoint


def open_adapters(
    description: Description,
    adapter: str | None,
    folders: Mapping[str, str | Path] | None,
) -> dict[str, LoraAdapter]:
    """Read the file of the adapter that a run uses, for the machine that reads files.

    Parameters
    ----------
    adapter
        Name of the adapter, or ``None`` for a run without.
    folders
        Name to PEFT folder.

    Raises
    ------
    SpecError
        If the adapter is not resident, its folder is not given, or holds another one than was
        compiled.
    """
    given = dict(folders or {})
    for name in given:
        check_resident(description, name)
    if adapter is None:
        if given:
            raise SpecError(
                f"--lora {next(iter(given))}=FOLDER must be given with --adapter NAME, not alone"
            )
        return {}
    check_resident(description, adapter)
    if adapter not in given:
        raise SpecError(
            f"The folder of adapter {adapter!r} must be given, since the reference reads its file: "
            f"add --lora {adapter}=FOLDER"
        )
    from romsim_models.lora import read_adapter

    opened = {}
    for name, folder in given.items():
        found = read_adapter(Path(folder), description.spec)
        expected = description.manifest["adapters"][name]["source"]["sha256"]
        if found.sha256 != expected:
            raise SpecError(
                f"Adapter in {folder} must be the one that {description.path} was compiled with as "
                f"{name!r} (SHA-256 {expected}), not one with SHA-256 {found.sha256}; give the "
                f"right folder or compile again"
            )
        opened[name] = found
    return opened


def check_resident(description: Description, adapter: str) -> None:
    """Refuse the name of an adapter that a description does not hold.

    Raises
    ------
    SpecError
        With the names that it holds.
    """
    if adapter not in description.manifest["adapters"]:
        resident = ", ".join(sorted(description.manifest["adapters"])) or "none"
        raise SpecError(
            f"Adapter must be one that is resident in {description.path} ({resident}), not "
            f"{adapter!r}; compile with --lora {adapter}=FOLDER"
        )


def require_images(description: Description, subject: str) -> None:
    """Refuse a description without weights.

    Parameters
    ----------
    subject
        What needs them, for the message.

    Raises
    ------
    SpecError
        With the reason and the remedy.
    """
    if description.has_images:
        return
    target = description.target
    if target.executable:
        reason = "it was compiled from a shape without weights"
        remedy = "compile a model with weights"
    else:
        from romsim_compiler.target_file import list_targets

        twin = f"{target.name}-int8"
        known = twin if twin in list_targets() else "roma-7nm-g32"
        reason = f"its target {target.name!r} is not executable"
        remedy = f"compile for an executable target such as {known!r}"
    raise SpecError(
        f"{subject} must have ROM images, but {description.path} has none: {reason}; {remedy}, or "
        f"use --engine timing"
    )


def check_engine(name: str, description: Description) -> None:
    """Refuse an engine that there is not, or that cannot give values of a description.

    Raises
    ------
    SpecError
        With the engines that there are, or what the description lacks.
    """
    if name not in ENGINES:
        near = difflib.get_close_matches(name, ENGINES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"Engine must be one of {', '.join(ENGINES)}, not {name!r}{hint}")
    if name == "timing":
        raise SpecError(
            "Engine must be cycle, reference or rtl to give values, not 'timing', which gives "
            "cycles alone"
        )
    require_images(description, f"Engine {name!r}")


def make_engine(
    name: str,
    description: Description,
    *,
    model: str | None = None,
    adapter: str | None = None,
    loras: Mapping[str, str | Path] | None = None,
    device: str = "cpu",
    progress: Callable[[str, float], None] | None = None,
) -> Engine:
    """Return the engine of that name, ready for a prompt.

    Parameters
    ----------
    model
        Model file for the reference; ``None`` for the built-in model of the description's name.
    adapter
        Resident adapter to use.
    loras
        Name to PEFT folder of the adapter, for the reference.
    progress
        Called with stages of an engine's preparation: the RTL is built first.

    Raises
    ------
    SpecError
        If there is none of that name, or it cannot run this description.
    """
    check_engine(name, description)
    if adapter is not None:
        check_resident(description, adapter)
    if name in ("cycle", "rtl"):
        for option, value in (("--model", model), ("--lora", loras)):
            if value:
                raise SpecError(
                    f"{option} must be used with --engine reference, not with {name}, which runs "
                    f"from the description alone"
                )
        if name == "cycle":
            return CycleEngine(description, adapter=adapter)
        from romsim.engine_rtl import RtlEngine

        return RtlEngine(description, adapter=adapter, progress=progress)
    opened = open_adapters(description, adapter, loras)
    checkpoint = open_source(description, model)
    return ReferenceEngine(description, checkpoint, adapter=adapter, loras=opened, device=device)
