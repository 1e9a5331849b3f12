"""The MXINT8 quantiser (docs/numerics.md, section 2): 32 values become codes, a shift and a sum."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.primitives import (
    add_tree,
    bit_length,
    lane_signals,
    magnitude,
    round_shift_by,
    wire,
)

__all__ = ["QUANTIZER_CYCLES", "MxQuantizer"]

QUANTIZER_CYCLES = 4
"""Cycles from valid values to valid codes: OR, codes, codes anew if one was 128, sum."""


class MxQuantizer(wiring.Component):
    """Quantise one block of 32 a cycle.

    Positions that a short block lacks must be 0.

    Parameters
    ----------
    n_lanes
        Values of a block; fewer than 32 are built only to be measured.

    Members
    -------
    measure : In(1)
        ``values`` are valid: ``magnitude`` is their OR of magnitudes one cycle later.
    start : In(1)
        They are to be quantised as well; only together with ``measure``.
    values : In(signed(32)).array(n_lanes)
        The block.
    magnitude : Out(32)
        OR of the magnitudes of the last measured block.
    done : Out(1)
        The results of the block that was started 4 cycles ago are valid.
    codes : Out(8 * n_lanes)
        Codes, signed 8 bits each, position 0 in the least significant.
    shift : Out(5)
        The block's exponent.
    total : Out(signed(13))
        Sum of the codes.
    """

    def __init__(self, *, n_lanes: int = MX_BLOCK) -> None:
        self.n_lanes = n_lanes
        super().__init__(
            {
                "measure": In(1),
                "start": In(1),
                "values": In(signed(32)).array(n_lanes),
                "magnitude": Out(32),
                "done": Out(1),
                "codes": Out(8 * n_lanes),
                "shift": Out(5),
                "total": Out(signed(13)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline."""
        m = Module()
        n_lanes = self.n_lanes
        started = Signal()
        coded = Signal()
        selected = Signal()
        m.d.sync += [started.eq(self.start), coded.eq(started), selected.eq(coded)]
        m.d.sync += self.done.eq(selected)

        held = lane_signals("held", n_lanes, 32)
        measured = Signal(32, reset_less=True)
        any_bit = magnitude(self.values[0])
        for lane in range(1, n_lanes):
            any_bit = any_bit | magnitude(self.values[lane])
        with m.If(self.measure):
            m.d.sync += measured.eq(any_bit)
        with m.If(self.start):
            m.d.sync += [held[lane].eq(self.values[lane]) for lane in range(n_lanes)]
        m.d.comb += self.magnitude.eq(measured)

        length = bit_length(m, measured, "length")
        exponent = wire(m, Mux(length > 7, length - 7, 0)[:5], "exponent")
        first_shift = Signal(5, reset_less=True)
        first = lane_signals("first", n_lanes, 8)
        first_held = lane_signals("first_held", n_lanes, 32)
        with m.If(started):
            m.d.sync += first_shift.eq(exponent)
            for lane in range(n_lanes):
                m.d.sync += [
                    first[lane].eq(_narrow(held[lane], exponent)),
                    first_held[lane].eq(held[lane]),
                ]

        # as 8 bits, ±128 is the only code with bit 7 set and the lower bits clear
        is_over = wire(m, Cat(code[7] & ~code[:7].any() for code in first).any(), "is_over")
        next_shift = wire(m, (first_shift + 1)[:5], "next_shift")
        second_shift = Signal(5, reset_less=True)
        second = lane_signals("second", n_lanes, 8)
        with m.If(coded):
            m.d.sync += second_shift.eq(first_shift + is_over)
            for lane in range(n_lanes):
                anew = _narrow(first_held[lane], next_shift)
                m.d.sync += second[lane].eq(Mux(is_over, anew[:8], first[lane]))

        codes = Signal(8 * n_lanes, reset_less=True)
        shift = Signal(5, reset_less=True)
        total = Signal(signed(13), reset_less=True)
        with m.If(selected):
            m.d.sync += [
                codes.eq(Cat(*second)),
                shift.eq(second_shift),
                total.eq(add_tree(list(second))),
            ]
        m.d.comb += [self.codes.eq(codes), self.shift.eq(shift), self.total.eq(total)]
        return m


def _narrow(value: Any, shift: Any) -> Any:
    # |value| <= 2^31: one more bit leaves room for the half that is added
    return round_shift_by(Cat(value, value[-1]).as_signed(), shift)[:9].as_signed()
