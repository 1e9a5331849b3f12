"""The maximum of a head over the tiles, in stages; trees over the tiles alone, for their paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import delay
from romsim_rtl.attention_sizes import MAX_BITS
from romsim_rtl.primitives import add_tree, wire

__all__ = ["TileMaxima", "TileSums", "block_maximum", "maximum_stages"]

_LEVELS = 3
"""Comparisons of 32 bits between two registers: three and what stands around them take 58 FO4."""


def maximum_stages(n_tiles: int) -> int:
    """Return the registers from the tiles' scores to a head's maximum.

    The rounding to the maximum's grid takes the place of a comparison. It has at least one register
    before it.
    """
    levels = (n_tiles - 1).bit_length()
    behind_first = max(0, levels - _LEVELS) + 1
    return 1 + -(-behind_first // _LEVELS)


def block_maximum(
    m: Module, valid: Any, scores: Sequence[Any], where: Mapping[str, Any]
) -> tuple[Any, Signal, dict[str, Any]]:
    """Compare the tiles' scores, pairs first, and round the largest up to a multiple of 2^16.

    Parameters
    ----------
    valid
        Scores are there.
    scores
        Signed, 32 bits, one for each tile.
    where
        What goes along with them.

    Returns
    -------
    tuple
        Valid, the maximum and what went along, `maximum_stages` cycles later.
    """
    values, level = list(scores), 0
    for stage in range(maximum_stages(len(scores)) - 1):
        for _ in range(_LEVELS):
            values = _larger(m, values, level)
            level += 1
        held = {str(index): value for index, value in enumerate(values)} | dict(where)
        valid, held = delay(m, valid, held, 1, f"mx_reduce{stage}")
        where = {name: held[name] for name in where}
        values = [held[str(index)].as_signed() for index in range(len(values))]
    while len(values) > 1:
        values = _larger(m, values, level)
        level += 1
    maximum = Signal(signed(MAX_BITS), name="block_maximum", reset_less=True)
    with m.If(valid):
        m.d.sync += maximum.eq((values[0] + 65535)[16:])
    valid, where = delay(m, valid, where, 1, "mx_round")
    return valid, maximum, dict(where)


def _larger(m: Module, values: list[Any], level: int) -> list[Any]:
    """Return the larger of each pair, and the last where there is no pair."""
    pairs = [
        wire(m, Mux(a > b, a, b), f"larger_score_{level}_{index}")
        for index, (a, b) in enumerate(zip(values[::2], values[1::2], strict=False))
    ]
    return [*pairs, *values[len(pairs) * 2 :]]


class TileMaxima(wiring.Component):
    """The comparison of the tiles' scores as it stands in unit H's side, alone: for its path.

    Parameters
    ----------
    n_tiles
        Scores.

    Ports
    -----
    valid : In(1)
        Scores come.
    score0, ... : In
        Signed, 32 bits.
    maximum : Out
        Of the scores 1 + `maximum_stages` cycles before.
    """

    def __init__(self, *, n_tiles: int) -> None:
        self.names = [f"score{index}" for index in range(n_tiles)]
        scores = {name: In(signed(32)) for name in self.names}
        super().__init__({"valid": In(1), **scores, "maximum": Out(signed(MAX_BITS))})

    def elaborate(self, platform: Any) -> Module:
        """Build all stages."""
        m = Module()
        scores = {name: getattr(self, name) for name in self.names}
        valid, held = delay(m, self.valid, scores, 1, "tiles")
        _, maximum, _ = block_maximum(m, valid, [held[name] for name in self.names], {})
        m.d.comb += self.maximum.eq(maximum)
        return m


class TileSums(wiring.Component):
    """The sum over the tiles of one lane's values as the merge tree has it, alone: for its path.

    Parameters
    ----------
    n_tiles
        Values.

    Ports
    -----
    value0, ... : In
        Signed, 64 bits.
    total : Out
        Of the values two cycles before, modulo 2^64.
    """

    def __init__(self, *, n_tiles: int) -> None:
        self.names = [f"value{index}" for index in range(n_tiles)]
        values = {name: In(signed(64)) for name in self.names}
        super().__init__({**values, "total": Out(64)})

    def elaborate(self, platform: Any) -> Module:
        """Build both registers."""
        m = Module()
        held = [Signal(signed(64), name=f"{name}_held") for name in self.names]
        m.d.sync += [a.eq(getattr(self, name)) for a, name in zip(held, self.names, strict=True)]
        m.d.sync += self.total.eq(add_tree(list(held))[:64])
        return m
