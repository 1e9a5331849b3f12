"""A finished row: the sum of its cells, requantised to 32 bits."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_models.errors import SpecError
from romsim_rtl.primitives import saturate32

__all__ = ["ROW_CYCLES", "Row", "round_floor"]

ROW_CYCLES = 3
"""Cycles from a row's sum to the row: shift before, times the multiplier, shift and saturate."""


def round_floor(value: Value, shift: Value) -> Value:
    """``RNE(value, shift)`` of any 64-bit value without a wider sum.

    Parameters
    ----------
    value
        Signed, 64 bits.
    shift
        Unsigned, 6 bits; 63 gives 0, as the definition has it from there on.
    """
    floor = (value >> shift).as_signed()[:64]
    unit = (Const(1, 64) << shift)[:64]
    below = value.as_unsigned() & (unit - 1)[:64]
    half = unit >> 1
    up = (below > half) | ((below == half) & floor[0] & (shift != 0))
    return Mux(shift == 63, 0, (floor + up)[:64]).as_signed()


class Row(wiring.Component):
    """Requantise a row (docs/numerics.md, section 4).

    Parameters
    ----------
    ks_logs
        Levels of the tree, base-2 logarithms of cells a row, whose sums may be taken.

    Members
    -------
    v_pre, v_times, v_round : In(1)
        Stages: take the sum and shift; times the multiplier; shift and saturate.
    sums : In(64) array
        One for each of ``ks_logs``, with ``v_pre``.
    ks_log2, pre_shift, multiplier, out_shift : In
        Of the matrix.
    row : Out(signed(32))
        From the cycle after ``v_round`` until the next.
    clipped : Out(1)
        Whether it was clipped, in the same cycles.
    """

    def __init__(self, *, ks_logs: tuple[int, ...]) -> None:
        if not ks_logs:
            raise SpecError(f"ks_logs must not be empty, not {ks_logs!r}")
        self.ks_logs = ks_logs
        super().__init__(
            {
                "v_pre": In(1),
                "v_times": In(1),
                "v_round": In(1),
                "sums": In(64).array(len(ks_logs)),
                "ks_log2": In(4),
                "pre_shift": In(6),
                "multiplier": In(24),
                "out_shift": In(signed(8)),
                "row": Out(signed(32)),
                "clipped": Out(1),
            }
        )

    @staticmethod
    def unread_bits() -> dict[str, str]:
        """Ports of which some bits are not read, for the emission of Verilog."""
        return {
            "rst": "all registers here are data, which is not reset",
            "ks_log2": "cells a row that no matrix has",
        }

    def elaborate(self, platform: Any) -> Module:
        """Build the three stages."""
        m = Module()
        total: Value = self.sums[0]
        for index, log in enumerate(self.ks_logs[1:], start=1):
            total = Mux(self.ks_log2 == log, self.sums[index], total)
        pre = Signal(signed(64), reset_less=True)
        with m.If(self.v_pre):
            m.d.sync += pre.eq(round_floor(total.as_signed(), self.pre_shift))
        product = Signal(signed(64), reset_less=True)
        with m.If(self.v_times):
            m.d.sync += product.eq((pre * Cat(self.multiplier, Const(0, 40)))[:64].as_signed())

        left_by = (-self.out_shift)[:8]
        left = Mux(left_by > 32, 32, left_by[:6])
        right = Mux(self.out_shift > 63, 63, self.out_shift[:6])
        # a left shift keeps 32 bits first: what is clipped then is clipped after it as well
        narrow, _ = saturate32(product)
        moved = (Cat(narrow[:32], narrow[31].replicate(32)) << left)[:64].as_signed()
        exact = Mux(self.out_shift < 0, moved, round_floor(product, right))
        value, is_clipped = saturate32(exact[:64].as_signed())
        row = Signal(signed(32), name="result", reset_less=True)
        clipped = Signal(name="clip", reset_less=True)
        with m.If(self.v_round):
            m.d.sync += [row.eq(value), clipped.eq(is_clipped)]
        m.d.comb += [self.row.eq(row), self.clipped.eq(clipped)]
        return m
