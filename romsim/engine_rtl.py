"""The RTL as an engine: text out of the Verilated chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from romsim_compiler.description import Description
from romsim_rtl.driver import RtlRun
from romsim_rtl.driver_build import BuildOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RtlEngine"]


class RtlEngine:
    """The chip in Verilator: values and cycles from its own gates.

    Parameters
    ----------
    description
        The compiled chip.
    adapter
        Resident adapter to use.
    options
        How the chip is compiled.
    progress
        Called while the chip is built, and for every token of a prompt.

    Raises
    ------
    SpecError
        If the description has no images, or the RTL has no hardware for it.
    ToolError
        If a tool is missing or the build fails.
    """

    def __init__(
        self,
        description: Description,
        *,
        adapter: str | None = None,
        options: BuildOptions | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        self._chip = RtlRun(description, options=options, progress=progress)
        self._chip.use_adapter(adapter)
        self._cycles = 0
        self._saturations = 0

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """Run the prompt's programs; begin a sequence."""
        results = self._chip.prefill(tokens, begin=True)
        self._cycles = sum(result.cycles for result in results)
        self._saturations += sum(result.clipped for result in results)
        return results[-1].logits

    def step(self, token: int) -> NDArray[np.int32]:
        """Run the decode program once."""
        result = self._chip.step(token)
        self._cycles = result.cycles
        self._saturations += result.clipped
        return result.logits

    @property
    def cycles(self) -> int | None:
        """Cycles of the last call."""
        return self._cycles

    @property
    def saturations(self) -> int:
        """Values clipped since the start."""
        return self._saturations

    def close(self) -> None:
        """End the simulation."""
        self._chip.close()
