"""Sine and cosine of rotary phases by a quarter-wave table (docs/numerics.md, sections 3 and 5)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from romsim_models.errors import SpecError
from romsim_rtl.memory import address_bits
from romsim_rtl.primitives import lane_signals, round_shift, wire

__all__ = ["SINCOS_CYCLES", "SinCos"]

SINCOS_CYCLES = 4
"""Cycles from an index to its sines: increment, phase, table, interpolation."""

_SLOPE_BITS = 13  # 2^20 · sin(π/512) is 6,434


class SinCos(wiring.Component):
    """Sine and cosine of ``n_parallel`` pairs a cycle, frac 20.

    Parameters
    ----------
    table
        ``SIN[0 … 256]``.
    increments
        ``inc_j`` of every pair.
    n_parallel
        Pairs a cycle; pair ``index · n_parallel + k`` is on output k.

    Members
    -------
    start, index : In(1), In
        Word of increments to turn.
    pos : In(16)
        Position, one cycle after ``start``.
    done : Out(1)
        4 cycles after ``start``.
    sin, cos : Out(signed(22)).array(n_parallel)
        The values.

    Raises
    ------
    SpecError
        If a table has another length.
    """

    def __init__(self, *, table: Sequence[int], increments: Sequence[int], n_parallel: int) -> None:
        if len(table) != 257:
            raise SpecError(f"table SIN must be 257 entries, not {len(table)!r}")
        sines = [int(value) for value in table]
        slopes = [after - before for before, after in itertools.pairwise(sines)] + [0]
        self._sines = [sine | slope << 21 for sine, slope in zip(sines, slopes, strict=True)]
        padded = [int(value) for value in increments]
        padded += [0] * (-len(padded) % n_parallel)
        self._increments = [
            sum(value << 32 * k for k, value in enumerate(padded[at : at + n_parallel]))
            for at in range(0, len(padded), n_parallel)
        ]
        self.n_parallel = n_parallel
        super().__init__(
            {
                "start": In(1),
                "index": In(address_bits(len(self._increments))),
                "pos": In(16),
                "done": Out(1),
                "sin": Out(signed(22)).array(n_parallel),
                "cos": Out(signed(22)).array(n_parallel),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline."""
        m = Module()
        stages = [Signal(name=f"stage{index}") for index in range(SINCOS_CYCLES + 1)]
        m.d.comb += [stages[0].eq(self.start), self.done.eq(stages[SINCOS_CYCLES])]
        m.d.sync += [after.eq(before) for before, after in itertools.pairwise(stages)]

        m.submodules.increments = words = Memory(
            shape=unsigned(32 * self.n_parallel),
            depth=len(self._increments),
            init=self._increments,
        )
        word = words.read_port()
        m.d.comb += [word.addr.eq(self.index), word.en.eq(stages[0])]
        m.submodules.quarter = quarter = Memory(
            shape=unsigned(21 + _SLOPE_BITS), depth=257, init=self._sines
        )
        phases = lane_signals("phase", self.n_parallel, 32, is_signed=False)
        for k, phase in enumerate(phases):
            with m.If(stages[1]):
                m.d.sync += phase.eq(word.data.word_select(k, 32) * self.pos)
            forward = phase[:30]
            backward = (Const(1 << 30, 31) - forward)[:31]
            a = self._look_up(m, quarter, stages[2], forward, f"forward{k}")
            b = self._look_up(m, quarter, stages[2], backward, f"backward{k}")
            quadrant = Signal(2, name=f"quadrant{k}", reset_less=True)
            with m.If(stages[2]):
                m.d.sync += quadrant.eq(phase[30:])
            is_odd, is_back = quadrant[0], quadrant[1]
            sine = wire(m, Mux(is_odd, b, a), f"sine{k}")
            cosine = wire(m, Mux(is_odd, a, b), f"cosine{k}")
            results = lane_signals(f"result{k}_", 2, 22)
            with m.If(stages[3]):
                m.d.sync += [
                    results[0].eq(Mux(is_back, -sine, sine)),
                    results[1].eq(Mux(is_back ^ is_odd, -cosine, cosine)),
                ]
            m.d.comb += [self.sin[k].eq(results[0]), self.cos[k].eq(results[1])]
        return m

    def _look_up(self, m: Module, quarter: Memory, enable: Value, angle: Value, name: str) -> Any:
        """SINQ of a quarter-wave angle of 30 or 31 bits, one cycle later."""
        port = quarter.read_port()
        m.d.comb += [port.addr.eq(angle[22:]), port.en.eq(enable)]
        rest = Signal(22, name=f"{name}_rest", reset_less=True)
        with m.If(enable):
            m.d.sync += rest.eq(angle[:22])
        rise = wire(m, Cat(port.data[21:] * rest, Const(0, 1)).as_signed(), f"{name}_rise")
        value = Cat(port.data[:21], Const(0, 1)) + round_shift(rise, 22)
        return wire(m, value[:22].as_signed(), name)
