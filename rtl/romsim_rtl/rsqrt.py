"""The scale of a norm: reciprocal square root by table and two Newton steps (numerics, 3 and 5)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from romsim_models.errors import SpecError
from romsim_rtl.primitives import bit_length, round_shift, wire

__all__ = ["RSQRT_CYCLES", "Rsqrt"]

RSQRT_CYCLES = 10
"""Cycles from a valid N to a valid R: length, normalised, table, two steps of three, product."""

_FIRST, _LAST = 32, 127  # indices of the table RSQ


class Rsqrt(wiring.Component):
    """R = RNE(RSQRT(N).y · SK, 26), one at a time or one a cycle.

    Parameters
    ----------
    table
        ``RSQ[32 … 127]``, 96 entries.

    Members
    -------
    start : In(1)
        ``n`` and ``root`` are valid; ``root`` stays until the result is there.
    n : In(63)
        The sum of squares.
    root : In(24)
        SK.
    half_length : Out(6)
        b/2, valid 1 cycle after ``start`` and held.
    scale : Out(29)
        R, valid 10 cycles after ``start`` and held.

    Raises
    ------
    SpecError
        If the table has another length.
    """

    def __init__(self, *, table: Sequence[int]) -> None:
        if len(table) != _LAST + 1 - _FIRST:
            raise SpecError(f"table RSQ must be 96 entries, not {len(table)!r}")
        # N = 0 alone reads below entry 32, and must stay 0
        self._words = [0] * _FIRST + [int(value) for value in table]
        super().__init__(
            {
                "start": In(1),
                "n": In(63),
                "root": In(24),
                "half_length": Out(6),
                "scale": Out(29),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline."""
        m = Module()
        stages = [Signal(name=f"stage{index}") for index in range(RSQRT_CYCLES)]
        m.d.comb += stages[0].eq(self.start)
        m.d.sync += [after.eq(before) for before, after in itertools.pairwise(stages)]

        length = bit_length(m, Cat(self.n, Const(0, 1)), "length")
        half = Signal(6, reset_less=True)
        held = Signal(63, reset_less=True)
        with m.If(stages[0]):
            m.d.sync += [half.eq((length + 1)[1:]), held.eq(self.n)]
        m.d.comb += self.half_length.eq(half)

        # floor(N · 2^(32-b)): the upper half of N moved up to bit 63; N = 0 stays 0
        up = (64 - (half << 1))[:6]
        normal = Signal(32, reset_less=True)
        moved = (Cat(held, Const(0, 1)) << up)[:64]
        with m.If(stages[1]):
            m.d.sync += normal.eq(moved[32:])

        m.submodules.table = table = Memory(shape=unsigned(16), depth=128, init=self._words)
        port = table.read_port()
        m.d.comb += [port.addr.eq(normal[25:]), port.en.eq(stages[2])]
        n0 = Signal(32, reset_less=True)
        with m.If(stages[2]):
            m.d.sync += n0.eq(normal)
        y: Any = Cat(Const(0, 15), port.data)[:32]  # below 2^31: RSQ < 2^16
        n = n0
        for step in range(2):
            at = 3 + 3 * step
            a = Signal(33, name=f"a{step}", reset_less=True)
            p = Signal(34, name=f"p{step}", reset_less=True)
            y_a, y_p, y_next = (
                Signal(32, name=f"y{step}_{stage}", reset_less=True) for stage in range(3)
            )
            n_a, n_p, n_next = (
                Signal(32, name=f"n{step}_{stage}", reset_less=True) for stage in range(3)
            )
            with m.If(stages[at]):
                m.d.sync += [a.eq((y * y)[30:]), y_a.eq(y), n_a.eq(n)]
            with m.If(stages[at + 1]):
                m.d.sync += [p.eq((n_a * a)[32:]), y_p.eq(y_a), n_p.eq(n_a)]
            with m.If(stages[at + 2]):
                m.d.sync += [y_next.eq((y_p * (3 * 2**30 - p)[:32])[31:]), n_next.eq(n_p)]
            y, n = y_next, n_next

        scale = Signal(29, reset_less=True)
        product = wire(m, Cat(y * self.root, Const(0, 1)).as_signed(), "product")
        with m.If(stages[9]):
            m.d.sync += scale.eq(round_shift(product, 26)[:29])
        m.d.comb += self.scale.eq(scale)
        return m
