"""Words of the embedding's ROM row on their way into the lane groups (docs/rtl.md, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

__all__ = ["EmbedInput", "build_embed_input"]

_MOST_LEFT = 29  # beyond it every code but 0 saturates


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedInput:
    """What embed writes.

    Parameters
    ----------
    result
        A word's residuals are loaded at the end of this cycle.
    mask
        Lanes that it fills, in that cycle.
    x_word
        Word of X that it belongs to, in that cycle.
    """

    result: Signal
    mask: Value
    x_word: Value


def build_embed_input(m: Module, unit: Any, control: Any, groups: list[Any]) -> EmbedInput:
    """Cut ROM words into digits and scales, and follow each through the lane groups."""
    sizes, array = unit.sizes, unit.array
    n_codes, n_lanes = array.word_codes, sizes.n_lanes
    valid = Signal(name="embed_valid")
    complete = Signal(name="embed_complete")
    summed = Signal(name="embed_summed")
    result = Signal(name="embed_result")
    m.d.comb += valid.eq(unit.em_valid)
    m.d.sync += [
        complete.eq(valid & (unit.em_plane + 1 == control.planes)),
        summed.eq(complete),
        result.eq(summed),
    ]
    words = [
        Signal.like(unit.em_word, name=f"embed_word{index}", reset_less=True) for index in range(3)
    ]
    for enable, after, before in zip(
        (valid, complete, summed), words, (unit.em_word, *words), strict=False
    ):
        with m.If(enable):
            m.d.sync += after.eq(before)

    starts = Signal(name="embed_starts")
    m.d.comb += starts.eq(control.first & control.is_embed)
    left, right = (
        Signal(5, name="embed_l", reset_less=True),
        Signal(6, name="embed_r", reset_less=True),
    )
    shift = control.out_shift
    negative = (-shift)[:8]
    with m.If(starts):
        m.d.sync += [
            left.eq(Mux(shift < 0, Mux(negative > _MOST_LEFT, _MOST_LEFT, negative), 0)),
            right.eq(
                Mux(
                    control.has_scales,
                    24 - unit.numerics.residual_frac,
                    Mux(shift < 0, 0, Mux(shift > 62, 62, shift)),
                )
            ),
        ]
    place = (unit.em_plane * array.plane_shift)[:3]
    scales_at = n_codes * array.lane_bits
    minima_at = scales_at + array.n_scales * array.scale_bits
    for index, group in enumerate(groups):
        digits = [
            unit.em_data.word_select((32 * index + lane) % n_codes, array.lane_bits)
            for lane in range(32)
        ]
        field = (32 * index) % n_codes // array.scale_group
        m.d.comb += [
            group.e.eq(Cat(valid, complete, summed)),
            group.e_first.eq(unit.em_plane == 0),
            group.e_place.eq(place),
            group.e_digits.eq(Cat(*digits)),
            group.e_scale.eq(unit.em_data[scales_at + 16 * field :][:16]),
            group.e_has_scale.eq(control.has_scales),
            group.e_offset.eq(control.offset),
            group.e_multiplier.eq(control.multiplier),
            group.e_left.eq(left),
            group.e_right.eq(right),
        ]
        if array.min_bits:
            m.d.comb += [
                group.e_minimum.eq(unit.em_data[minima_at + 16 * field :][:16]),
                group.e_has_minimum.eq(control.has_minimum),
            ]
    return EmbedInput(
        result=result,
        mask=_mask(unit, words[2], n_codes, n_lanes),
        x_word=words[2][(n_lanes // n_codes - 1).bit_length() :],
    )


def _mask(unit: Any, word: Value, n_codes: int, n_lanes: int) -> Value:
    """Lanes that a word fills: its share of a word of X, less what lies past the row."""
    is_last = word == unit.sizes.row_words - 1
    used = (unit.sizes.dim - 1) % n_codes + 1
    part_bits = (n_lanes // n_codes - 1).bit_length()
    bits: list[Any] = []
    for lane in range(n_lanes):
        mine = word[:part_bits] == lane // n_codes if part_bits else Const(1, 1)
        bits.append(mine & ~is_last if lane % n_codes >= used else mine)
    return Cat(*bits)
