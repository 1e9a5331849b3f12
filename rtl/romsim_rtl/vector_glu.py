"""Gated activation in a lane group: SiLU or squared ReLU, times up (numerics, section 5)."""

from __future__ import annotations

import itertools
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib.memory import Memory

from romsim_rtl.primitives import lane_signals, magnitude, round_shift, saturate32, wire

__all__ = ["build_glu"]

_SLOPE_BITS = 13  # 2^20 · (SIG(1/64) - SIG(0)) is 4,096


def build_glu(
    m: Module, group: Any, sums: list[Signal], turned: list[Value], config: Any
) -> tuple[list[Value], Signal | None, Signal]:
    """Add the operator glu to a group.

    Words of up and gate alternate: a word of up is kept in ``u1``, the gate's that follows it
    passes ``s[1]`` one cycle later. Magnitude, table, sigmoid, times gate, times up; the result
    is taken in ``s[6]``. A new pair begins every second cycle, so each value is kept for two.

    Parameters
    ----------
    group
        The `VectorGroup`.
    sums, turned
        Y + D; the same with the up half's lanes in their places.
    config
        The `GroupConfig`.

    Returns
    -------
    tuple
        Results, clips of the squared ReLU or None, and whether these are valid.
    """
    n_lanes = len(sums)
    stage = [Signal(name=f"glu_s{index}") for index in range(6)]
    m.d.comb += [one.eq(group.is_glu & group.s[index]) for index, one in enumerate(stage)]

    ups = [lane_signals(f"glu_up{index}_", n_lanes, 32) for index in range(3)]
    for enable, after, before in (
        (group.u1, ups[0], turned),
        (stage[2], ups[1], ups[0]),
        (stage[4], ups[2], ups[1]),
    ):
        with m.If(enable):
            m.d.sync += [after[lane].eq(before[lane]) for lane in range(n_lanes)]
    gate = lane_signals("glu_gate", n_lanes, 32)
    with m.If(stage[1]):
        m.d.sync += [gate[lane].eq(sums[lane]) for lane in range(n_lanes)]

    active = lane_signals("glu_active", n_lanes, 32)
    clips = None
    if config.activation == "silu":
        _silu(m, stage, sums, gate, active, config.sigmoid)
    else:
        clips = Signal(n_lanes, reset_less=True)
        _squared_relu(m, stage, gate, active, clips, config.linear_frac)
    product = lane_signals("glu_product", n_lanes, 64)
    with m.If(stage[5]):
        m.d.sync += [product[lane].eq(active[lane] * ups[2][lane]) for lane in range(n_lanes)]
    return [round_shift(one, config.linear_frac) for one in product], clips, stage[5]


def _silu(
    m: Module,
    stage: list[Signal],
    sums: list[Signal],
    gate: list[Signal],
    active: list[Signal],
    sigmoid: Any,
) -> None:
    """``active`` = RNE(g · σ, 20) at the end of ``s[4]``."""
    n_lanes = len(gate)
    sizes = lane_signals("glu_size", n_lanes, 32, is_signed=False)
    with m.If(stage[1]):
        m.d.sync += [sizes[lane].eq(magnitude(sums[lane])) for lane in range(n_lanes)]
    entries = [int(value) for value in sigmoid]
    words = [value | (after - value) << 21 for value, after in itertools.pairwise(entries)]
    m.submodules.sigmoid = table = Memory(
        shape=unsigned(21 + _SLOPE_BITS), depth=len(words), init=words
    )
    gates = lane_signals("glu_held", n_lanes, 32)
    weights = lane_signals("glu_weight", n_lanes, 22)
    one = Const(1 << 20, 22)
    for lane in range(n_lanes):
        port = table.read_port()
        m.d.comb += [port.addr.eq(sizes[lane][10:20]), port.en.eq(stage[2])]
        rest = sizes[lane][:10]
        rise = wire(m, Cat(port.data[21:] * rest, Const(0, 1)).as_signed(), f"glu_rise{lane}")
        step = round_shift(rise, 10)
        inner = (Cat(port.data[:21], Const(0, 1)) + step)[:22]
        share = wire(m, Mux(sizes[lane][20:].any(), one, inner), f"glu_share{lane}")
        with m.If(stage[3]):
            m.d.sync += [
                weights[lane].eq(Mux(gate[lane][-1], (one - share)[:22], share).as_signed()),
                gates[lane].eq(gate[lane]),
            ]
        weighed = wire(m, gates[lane] * weights[lane], f"glu_weighed{lane}")
        with m.If(stage[4]):
            m.d.sync += active[lane].eq(round_shift(weighed, 20))


def _squared_relu(
    m: Module,
    stage: list[Signal],
    gate: list[Signal],
    active: list[Signal],
    clips: Signal,
    frac: int,
) -> None:
    """``active`` = SAT32(RNE(max(g, 0)², F_A)) at the end of ``s[4]``."""
    n_lanes = len(gate)
    squares = lane_signals("glu_square", n_lanes, 63)
    with m.If(stage[3]):
        for lane in range(n_lanes):
            positive = Mux(gate[lane][-1], 0, gate[lane][:31])
            m.d.sync += squares[lane].eq(positive * positive)
    values = [
        saturate32(wire(m, round_shift(square, frac), f"glu_rounded{lane}"))
        for lane, square in enumerate(squares)
    ]
    with m.If(stage[4]):
        for lane, (value, is_clipped) in enumerate(values):
            m.d.sync += [active[lane].eq(value), clips[lane].eq(is_clipped)]
