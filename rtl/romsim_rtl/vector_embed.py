"""The embedding row in a lane group: codes of ROM words become residuals (numerics, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib.wiring import In

from romsim_rtl.primitives import lane_signals, left_shift, round_shift_by, wire

__all__ = ["EmbedWord", "build_embed"]

_CODE_BITS = 10  # 8-bit codes less an offset, or signed digits of 8 planes


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedWord:
    """How codes stand in a ROM word.

    Parameters
    ----------
    lane_bits
        Bits of a stored digit.
    is_ternary
        Digits are 00, 01 (+1), 10 (-1).
    has_minima
        Whether the array has minima at all.
    """

    lane_bits: int
    is_ternary: bool
    has_minima: bool

    def members(self, n_lanes: int) -> dict[str, Any]:
        """Ports of a lane group for the operator embed."""
        members: dict[str, Any] = {"e": In(3), "e_first": In(1), "e_place": In(3)}
        members |= {"e_digits": In(n_lanes * self.lane_bits), "e_scale": In(16)}
        if self.has_minima:
            members |= {"e_minimum": In(16), "e_has_minimum": In(1)}
        members |= {"e_has_scale": In(1), "e_offset": In(8), "e_multiplier": In(24)}
        members |= {"e_left": In(5), "e_right": In(6)}
        return members


def build_embed(m: Module, group: Any, word: EmbedWord, n_lanes: int) -> list[Value]:
    """Add the operator embed to a group.

    ``e[0]``: a digit plane is there, ``e_first`` for the lowest, at bit ``e_place``. ``e[1]``,
    one cycle after the last plane: times significand; ``e[2]``: moved to frac 24, plus minimum.
    The result is taken one cycle later.

    Parameters
    ----------
    group
        The `VectorGroup`.
    """
    scale_word = Signal(16, name="embed_scale", reset_less=True)
    minimum_word = Signal(16, name="embed_minimum", reset_less=True)
    codes = lane_signals("embed_code", n_lanes, _CODE_BITS)
    first = Signal(name="embed_first")
    m.d.comb += first.eq(group.e[0] & group.e_first)
    with m.If(first):
        m.d.sync += scale_word.eq(group.e_scale)
        if word.has_minima:
            m.d.sync += minimum_word.eq(group.e_minimum)
    with m.If(group.e[0]):
        for lane in range(n_lanes):
            digit = group.e_digits.word_select(lane, word.lane_bits)
            value = Cat(digit[0] | digit[1], digit[1]).as_signed() if word.is_ternary else digit
            before = Mux(group.e_first, 0, codes[lane])
            m.d.sync += codes[lane].eq(before + (value << group.e_place))

    product = lane_signals("embed_product", n_lanes, _CODE_BITS + 25)
    left = Signal(5, name="embed_left", reset_less=True)
    minimum = Signal(signed(42), name="embed_minimum_moved", reset_less=True)
    significand, place = _half(scale_word)
    whole = Cat(group.e_multiplier, Const(0, 1)).as_signed()
    factor = wire(m, Mux(group.e_has_scale, significand, whole), "embed_factor")
    with m.If(group.e[1]):
        m.d.sync += left.eq(Mux(group.e_has_scale, place, group.e_left))
        if word.has_minima:
            low, low_place = _half(minimum_word)
            moved = left_shift(low, low_place, 42)
            m.d.sync += minimum.eq(Mux(group.e_has_minimum, moved, 0))
        for lane in range(n_lanes):
            code = (codes[lane] - group.e_offset)[:_CODE_BITS].as_signed()
            m.d.sync += product[lane].eq(code * factor)
    total = lane_signals("embed_total", n_lanes, 63)
    with m.If(group.e[2]):
        for lane in range(n_lanes):
            m.d.sync += total[lane].eq(left_shift(product[lane], left, 63) + minimum)
    return [round_shift_by(one, group.e_right) for one in total]


def _half(word: Value) -> tuple[Value, Value]:
    """Signed significand of a binary16 word, and its exponent + 24."""
    field = word[10:15]
    is_normal = field.any()
    size = Cat(word[:10], is_normal, Const(0, 1)).as_signed()
    return Mux(word[15], -size, size)[:12].as_signed(), (field - is_normal)[:5]
