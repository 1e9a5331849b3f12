"""The running argmax over logits: lowest row among the largest (docs/numerics.md, section 7)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_models.errors import SpecError

__all__ = ["ARGMAX_CYCLES", "Argmax"]

ARGMAX_CYCLES = 4
"""Cycles from the last beat of logits to the result: three of comparisons, one running."""

_LEVELS = 3  # of pairs, in each comparing stage


class Argmax(wiring.Component):
    """Keep the largest of the rows that have come by since row 0.

    Parameters
    ----------
    n_lanes
        Rows a beat, a power of two up to 512.
    row_bits
        Width of a row number.

    Members
    -------
    valid, row, mask, data : In
        A beat: row of lane 0 (a multiple of ``n_lanes``), lanes that count, values. Rows come in
        ascending order; several beats may fill one word of rows. Row 0 starts anew.
    best_row, best_value : Out
        Result, 4 cycles after the last beat.

    Raises
    ------
    SpecError
        If the number of lanes is no power of two or over 512.
    """

    def __init__(self, *, n_lanes: int, row_bits: int) -> None:
        if n_lanes < 2 or n_lanes & (n_lanes - 1) or n_lanes > 1 << 3 * _LEVELS:
            raise SpecError(f"Argmax lanes must be a power of two from 2 to 512, not {n_lanes!r}")
        self.n_lanes, self.row_bits = n_lanes, row_bits
        super().__init__(
            {
                "valid": In(1),
                "row": In(row_bits),
                "mask": In(n_lanes),
                "data": In(signed(32)).array(n_lanes),
                "best_row": Out(row_bits),
                "best_value": Out(signed(32)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the comparisons."""
        m = Module()
        lane_bits = (self.n_lanes - 1).bit_length()
        # an absent lane is below every int32
        absent = Const(-(1 << 32), signed(33))
        found: list[tuple[Value, Value]] = [
            (Mux(self.mask[lane], self.data[lane], absent), Const(lane, lane_bits))
            for lane in range(self.n_lanes)
        ]
        valid: Value = self.valid
        row: Value = self.row
        first: Value = (self.row == 0) & self.mask[0]
        for stage in range(3):
            for _ in range(_LEVELS):
                if len(found) > 1:
                    found = [_larger(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
            values = [
                Signal(signed(33), name=f"value{stage}_{k}", reset_less=True)
                for k in range(len(found))
            ]
            lanes = [
                Signal(lane_bits, name=f"lane{stage}_{k}", reset_less=True)
                for k in range(len(found))
            ]
            next_row = Signal(self.row_bits, name=f"row{stage}", reset_less=True)
            next_valid = Signal(name=f"valid{stage}")
            next_first = Signal(name=f"first{stage}", reset_less=True)
            m.d.sync += next_valid.eq(valid)
            with m.If(valid):
                m.d.sync += [next_row.eq(row), next_first.eq(first)]
                for (value, lane), to_value, to_lane in zip(found, values, lanes, strict=True):
                    m.d.sync += [to_value.eq(value), to_lane.eq(lane)]
            found = list(zip(values, lanes, strict=True))
            valid, row, first = next_valid, next_row, next_first
        value, lane = found[0]
        best = Signal(signed(33), reset_less=True)
        best_row = Signal(self.row_bits, reset_less=True)
        takes = Signal()
        m.d.comb += takes.eq(valid & (first | (value > best)))
        with m.If(takes):
            m.d.sync += [best.eq(value), best_row.eq(Cat(lane, row[lane_bits:]))]
        m.d.comb += [self.best_row.eq(best_row), self.best_value.eq(best[:32])]
        return m


def _larger(a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    """Keep the larger of two, and the one on the left of equal ones."""
    takes_right = b[0] > a[0]
    return Mux(takes_right, b[0], a[0]), Mux(takes_right, b[1], a[1])
