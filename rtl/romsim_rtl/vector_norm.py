"""Norm in a lane group: squares of the first pass, scaling of the second (numerics, section 5)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value

from romsim_rtl.primitives import add_tree, lane_signals, left_shift, round_shift_by, wire

__all__ = ["build_norm"]

_U_BITS = 26  # |u| <= 2^24


def build_norm(m: Module, group: Any, source: list[Value]) -> list[Value]:
    """Add both passes of a norm to a group.

    First pass, from ``p[0]`` with a word of ``source``: normalised, squared, sums of eight, sum
    of all (``group.squares``, valid 4 cycles later). Second, from ``s[0]``: moved, times R,
    rounded (n, frac 22), times gain; the result is taken in ``s[4]``.

    Parameters
    ----------
    group
        The `VectorGroup`.
    source
        Words of X, or of Y.
    """
    n_lanes = len(source)
    first = [Signal(name=f"norm_p{index}") for index in range(4)]
    stage = [Signal(name=f"norm_s{index}") for index in range(4)]
    m.d.comb += [one.eq(group.p[index]) for index, one in enumerate(first)]
    m.d.comb += [one.eq(group.is_norm & group.s[index]) for index, one in enumerate(stage)]

    u = lane_signals("norm_u", n_lanes, _U_BITS)
    lefts = [
        wire(m, left_shift(value, group.u_left, 33), f"norm_left{lane}")
        for lane, value in enumerate(source)
    ]
    with m.If(first[0]):
        for lane, left in enumerate(lefts):
            # one of the two shifts is 0
            rounded = round_shift_by(left, group.u_right)
            m.d.sync += u[lane].eq(Mux(group.in_mask[lane], rounded, 0))
    square = lane_signals("norm_square", n_lanes, 2 * (_U_BITS - 1), is_signed=False)
    with m.If(first[1]):
        m.d.sync += [square[lane].eq(u[lane] * u[lane]) for lane in range(n_lanes)]
    n_parts = -(-n_lanes // 8)
    part = [Signal(53, name=f"norm_part{index}", reset_less=True) for index in range(n_parts)]
    with m.If(first[2]):
        m.d.sync += [
            one.eq(add_tree(list(square[8 * index : 8 * index + 8])))
            for index, one in enumerate(part)
        ]
    squares = Signal(54, name="norm_squares", reset_less=True)
    with m.If(first[3]):
        m.d.sync += squares.eq(add_tree(list(part)))
    m.d.comb += group.squares.eq(squares)

    moved = lane_signals("norm_x", n_lanes, 32)
    with m.If(stage[0]):
        for lane, value in enumerate(source):
            left = left_shift(value, group.x_left, 32)
            m.d.sync += moved[lane].eq(Mux(group.in_mask[lane], left, 0))
    scaled = lane_signals("norm_xr", n_lanes, 62)
    with m.If(stage[1]):
        m.d.sync += [scaled[lane].eq(moved[lane] * group.scale) for lane in range(n_lanes)]
    n = lane_signals("norm_n", n_lanes, 32)
    with m.If(stage[2]):
        m.d.sync += [
            n[lane].eq(round_shift_by(scaled[lane], group.n_right)) for lane in range(n_lanes)
        ]
    weighed = lane_signals("norm_nw", n_lanes, 63)
    with m.If(stage[3]):
        m.d.sync += [weighed[lane].eq(n[lane] * group.gain[lane]) for lane in range(n_lanes)]
    return [round_shift_by(one, group.gain_right) for one in weighed]
