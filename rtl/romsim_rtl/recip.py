"""The reciprocal of a softmax sum: table and two Newton steps (docs/numerics.md, section 3)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from romsim_models.errors import SpecError
from romsim_rtl.primitives import bit_length, wire

__all__ = ["RECIP_CYCLES", "Recip"]

RECIP_CYCLES = 6
"""Cycles from a valid sum to a valid reciprocal: normalised, table, two steps of two."""


class Recip(wiring.Component):
    """RECIP(l), one a cycle.

    Parameters
    ----------
    table
        ``RCP[0 … 127]``.

    Members
    -------
    start : In(1)
        ``l`` is valid.
    l : In(32)
        The sum.
    length_valid, length : Out(1), Out(6)
        b, 1 cycle later.
    done, y : Out(1), Out(32)
        The reciprocal's significand, frac 30, 6 cycles after ``start``; ``next_done`` and
        ``next_y`` are what they become at the end of the cycle before.

    Raises
    ------
    SpecError
        If the table has another length.
    """

    def __init__(self, *, table: Sequence[int]) -> None:
        if len(table) != 128:
            raise SpecError(f"table RCP must be 128 entries, not {len(table)!r}")
        self._words = [int(value) for value in table]
        super().__init__(
            {
                "start": In(1),
                "l": In(32),
                "length_valid": Out(1),
                "length": Out(6),
                "next_done": Out(1),
                "next_y": Out(32),
                "done": Out(1),
                "y": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline."""
        m = Module()
        stages = [Signal(name=f"stage{index}") for index in range(RECIP_CYCLES + 1)]
        m.d.comb += stages[0].eq(self.start)
        m.d.sync += [after.eq(before) for before, after in itertools.pairwise(stages)]

        measured = bit_length(m, self.l, "measured")
        length = Signal(6, reset_less=True)
        normal = Signal(32, reset_less=True)
        with m.If(stages[0]):
            m.d.sync += [
                length.eq(measured),
                normal.eq((self.l << (32 - measured)[:6])[:32]),
            ]
        m.d.comb += [self.length.eq(length), self.length_valid.eq(stages[1])]

        m.submodules.table = table = Memory(shape=unsigned(17), depth=128, init=self._words)
        port = table.read_port()
        m.d.comb += [port.addr.eq(normal[24:31]), port.en.eq(stages[1])]
        n0 = Signal(32, reset_less=True)
        with m.If(stages[1]):
            m.d.sync += n0.eq(normal)
        # l = 0 is the only one without a top bit: RECIP(0) = 0
        y: Any = wire(m, Cat(Const(0, 15), port.data)[:32] & n0[31].replicate(32), "y_table")
        n = n0
        for step in range(2):
            at = 2 + 2 * step
            p = Signal(33, name=f"p{step}", reset_less=True)
            y_p = Signal(32, name=f"y_p{step}", reset_less=True)
            n_p = Signal(32, name=f"n_p{step}", reset_less=True)
            y_next = Signal(32, name=f"y{step}", reset_less=True)
            n_next = Signal(32, name=f"n{step}", reset_less=True)
            with m.If(stages[at]):
                m.d.sync += [p.eq((n * y)[32:]), y_p.eq(y), n_p.eq(n)]
            stepped = wire(m, (y_p * (2**31 - p)[:33])[30:62], f"stepped{step}")
            with m.If(stages[at + 1]):
                m.d.sync += [y_next.eq(stepped), n_next.eq(n_p)]
            if step == 1:
                m.d.comb += [self.next_y.eq(stepped), self.next_done.eq(stages[at + 1])]
            y, n = y_next, n_next
        m.d.comb += [self.y.eq(y), self.done.eq(stages[RECIP_CYCLES])]
        return m
