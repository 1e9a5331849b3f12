"""Rotary positions and query scaling in a lane group (docs/numerics.md, section 5)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed

from romsim_rtl.primitives import lane_signals, round_shift, saturate32, wire

__all__ = ["build_rope"]


def build_rope(
    m: Module,
    group: Any,
    sums: list[Signal],
    pairs: list[tuple[Value, Value]],
    query_scale: int,
) -> tuple[list[Value], Signal, Signal]:
    """Add the operator rope to a group.

    From ``s[1]`` with a word of Y + D: four products a pair, rotated (values of v pass), times
    the query scale; the result is taken in ``s[4]``.

    Parameters
    ----------
    group
        The `VectorGroup`; ``is_q`` and ``turns`` belong to the word in ``s[0]``.
    sums
        Y + D.
    pairs
        Sine and cosine of each pair, valid in ``s[1]``.
    query_scale
        ``CQ``.

    Returns
    -------
    tuple
        Results, clips of the rotation, and whether these are valid.
    """
    n_lanes = len(sums)
    stage = [Signal(name=f"rope_s{index}") for index in range(4)]
    m.d.comb += [one.eq(group.is_rope & group.s[index]) for index, one in enumerate(stage)]
    is_q = [Signal(name=f"rope_is_q{index}", reset_less=True) for index in range(1, 5)]
    turns = [Signal(name=f"rope_turns{index}", reset_less=True) for index in range(1, 3)]
    for enable, after, before in zip(stage, is_q, [group.is_q, *is_q], strict=False):
        with m.If(enable):
            m.d.sync += after.eq(before)
    for enable, after, before in zip(stage, turns, [group.turns, *turns], strict=False):
        with m.If(enable):
            m.d.sync += after.eq(before)

    with_sine = lane_signals("rope_sine", n_lanes, 54)
    with_cosine = lane_signals("rope_cosine", n_lanes, 54)
    kept = lane_signals("rope_kept", n_lanes, 32)
    with m.If(stage[1]):
        for lane, value in enumerate(sums):
            sine, cosine = pairs[lane // 2]
            m.d.sync += [
                with_sine[lane].eq(value * sine),
                with_cosine[lane].eq(value * cosine),
                kept[lane].eq(value),
            ]
    rotated = lane_signals("rope_rotated", n_lanes, 32)
    clips = Signal(n_lanes, reset_less=True)
    values = []
    for lane in range(n_lanes):
        other = with_sine[lane ^ 1]
        total = with_cosine[lane] + other if lane & 1 else with_cosine[lane] - other
        rounded = round_shift(wire(m, total, f"rope_total{lane}"), 20)
        values.append(saturate32(wire(m, rounded, f"rope_turned{lane}")))
    with m.If(stage[2]):
        for lane, (value, is_clipped) in enumerate(values):
            m.d.sync += [
                rotated[lane].eq(Mux(turns[1], value, kept[lane])),
                clips[lane].eq(is_clipped & turns[1]),
            ]
    scaled = lane_signals("rope_scaled", n_lanes, 54)
    passed = lane_signals("rope_passed", n_lanes, 32)
    # factors of two are left to the rounding shift: the lowest bits of the product would be 0
    n_twos = min(19, (query_scale & -query_scale).bit_length() - 1)
    constant = Const(query_scale >> n_twos, signed(22))
    with m.If(stage[3]):
        for lane in range(n_lanes):
            m.d.sync += [
                scaled[lane].eq(rotated[lane] * constant),
                passed[lane].eq(rotated[lane]),
            ]
    # clips are loaded in s[2]
    return (
        [
            Mux(is_q[3], round_shift(scaled[lane], 20 - n_twos), passed[lane])
            for lane in range(n_lanes)
        ],
        clips,
        stage[3],
    )
