"""The comparison of the tiles' scores as it stands in unit H's side, alone: for its path."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.primitives import largest_of

__all__ = ["TileMaxima"]


class TileMaxima(wiring.Component):
    """The largest of the tiles' scores, between registers; latency 2.

    Parameters
    ----------
    n_tiles
        Scores.

    Ports
    -----
    score0, ... : In
        Signed, 32 bits.
    largest : Out
        Of the scores two cycles before.
    """

    def __init__(self, *, n_tiles: int) -> None:
        self.names = [f"score{index}" for index in range(n_tiles)]
        scores = {name: In(signed(32)) for name in self.names}
        super().__init__({**scores, "largest": Out(signed(32))})

    def elaborate(self, platform: Any) -> Module:
        """Build both stages."""
        m = Module()
        held = [Signal(signed(32), name=f"{name}_held") for name in self.names]
        m.d.sync += [
            now.eq(getattr(self, name)) for now, name in zip(held, self.names, strict=True)
        ]
        m.d.sync += self.largest.eq(largest_of(m, list(held), "larger_score"))
        return m
