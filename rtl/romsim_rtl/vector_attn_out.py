"""Attention output in a lane group: sums times the reciprocal of l (numerics, section 5)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from romsim_rtl.primitives import lane_signals, round_shift, round_shift_by

__all__ = ["build_attn_out"]

_REDUCED_BITS = 34  # |o| <= 127 · 2^25 · l, so |RNE(o, b)| < 2^33


def build_attn_out(m: Module, group: Any) -> list[Value]:
    """Add the operator attn_out to a group.

    From ``s[0]`` with a word of O: reduced by b, times y; the result is taken in ``s[2]``.

    Parameters
    ----------
    group
        The `VectorGroup`; ``l_length`` belongs to ``s[0]``, ``l_recip`` to ``s[1]``.
    """
    n_lanes = len(group.in_mask)
    stage = [Signal(name=f"attn_s{index}") for index in range(2)]
    m.d.comb += [one.eq(group.is_attn & group.s[index]) for index, one in enumerate(stage)]
    reduced = lane_signals("attn_reduced", n_lanes, _REDUCED_BITS)
    with m.If(stage[0]):
        for lane in range(n_lanes):
            value = round_shift_by(group.o[lane], group.l_length)
            m.d.sync += reduced[lane].eq(Mux(group.in_mask[lane], value, 0))
    product = lane_signals("attn_product", n_lanes, 64)
    factor = Cat(group.l_recip, Const(0, 1)).as_signed()
    with m.If(stage[1]):
        m.d.sync += [product[lane].eq(reduced[lane] * factor) for lane in range(n_lanes)]
    return [round_shift(one, 30) for one in product]
