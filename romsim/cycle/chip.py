"""What the cycle model needs of a compiled chip: a loaded description offers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from romsim_compiler.gains import GainVector
    from romsim_compiler.kv_codebooks import KvCodebooks
    from romsim_compiler.lora_image import LoraAdapterImage
    from romsim_compiler.numerics import Numerics
    from romsim_compiler.program import PlacedGroup, Program
    from romsim_compiler.target import Target
    from romsim_models.spec import ModelSpec

__all__ = ["CompiledChip"]


class CompiledChip(Protocol):
    """Read-only view of a compiled chip, as `romsim_compiler.description.Description` has it."""

    @property
    def spec(self) -> ModelSpec:
        """The model's hyperparameters."""

    @property
    def target(self) -> Target:
        """The chip's parameters."""

    @property
    def numerics(self) -> Numerics:
        """Parameters of the numerics page."""

    @property
    def context(self) -> int:
        """Tokens that one sequence may have."""

    @property
    def has_images(self) -> bool:
        """Whether there are weights in it."""

    @property
    def groups(self) -> Mapping[str, PlacedGroup]:
        """Matrix groups by name, in program order."""

    @property
    def decode(self) -> Program:
        """The program of one decoded token."""

    @property
    def gains(self) -> Mapping[str, GainVector]:
        """Norm gains by name."""

    @property
    def phase_increments(self) -> NDArray[np.uint32]:
        """Rotary phase increments, uint32 [head_dim / 2]."""

    @property
    def query_scale(self) -> int:
        """The constant CQ of the numerics page."""

    @property
    def tables(self) -> Mapping[str, NDArray[Any]]:
        """The numerics page's tables by name."""

    @property
    def loras(self) -> Mapping[str, LoraAdapterImage]:
        """Resident adapters by name."""

    def kv_codebooks(self) -> KvCodebooks | None:
        """Return CommVQ's codebooks, or ``None`` under another codec."""

    def prefill(self, n_tokens: int, with_head: bool) -> Program:
        """Return the program of ``n_tokens`` interleaved prompt tokens: 1 or ``n_inflight``."""

    def rom_words(self, base: int, n_words: int) -> NDArray[np.uint8]:
        """Return ROM words, uint8 [n_words, n_tiles, n_cells, word_bytes]."""
