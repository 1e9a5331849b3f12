"""Engines: machines that turn token ids into logits, one interface for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from romsim_compiler.description import Description
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from romsim_models.checkpoint import Checkpoint

__all__ = ["ENGINES", "CycleEngine", "Engine", "ReferenceEngine", "make_engine", "open_source"]

ENGINES = ("cycle", "reference", "timing")


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
    """The integer reference: values without a clock, from the model file."""

    def __init__(
        self,
        description: Description,
        checkpoint: Checkpoint,
        *,
        adapter: str | None = None,
        device: str = "cpu",
    ) -> None:
        from romsim.verify import make_reference

        self._decoder = make_reference(description, checkpoint, device=device)
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


def make_engine(
    name: str,
    description: Description,
    *,
    model: str | None = None,
    adapter: str | None = None,
    device: str = "cpu",
) -> Engine:
    """Return the engine of that name, ready for a prompt.

    Raises
    ------
    SpecError
        If there is none of that name, or it cannot run this description.
    """
    if adapter is not None and adapter not in description.manifest["adapters"]:
        resident = ", ".join(sorted(description.manifest["adapters"])) or "none"
        raise SpecError(
            f"Adapter must be one that is resident in {description.path} ({resident}), not "
            f"{adapter!r}; compile with --lora {adapter}=FOLDER"
        )
    if not description.has_images:
        twin = description.target.name + ("-int8" if not description.target.executable else "")
        raise SpecError(
            f"Engine {name!r} must have ROM images to run, but {description.path} has none: it is "
            f"a shape without weights or its target {description.target.name!r} is not executable; "
            f"use --engine timing, or compile a model with weights for an executable target such "
            f"as {twin!r}"
        )
    if name == "cycle":
        return CycleEngine(description, adapter=adapter)
    if name == "reference":
        checkpoint = open_source(description, model)
        return ReferenceEngine(description, checkpoint, adapter=adapter, device=device)
    raise SpecError(f"Engine must be one of {', '.join(ENGINES)}, not {name!r}")
