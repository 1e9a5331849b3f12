"""The 16-bit words of docs/kv.md, section 1, as Amaranth expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Value

from romsim_rtl.primitives import bit_length, wire

__all__ = ["SIGNIFICAND_BITS", "WORD_FRAC", "HalfWord", "split_word", "to_integer", "to_word"]

SIGNIFICAND_BITS = 11

WORD_FRAC = 9
"""A word stands for ``significand · 2^(exponent - 9)``, an integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfWord:
    """FP16 of a magnitude.

    Parameters
    ----------
    word
        Exponent field and fraction, 15 bits, without a sign.
    fraction
        Of the significand whose top bit is set, also where the word is subnormal: 10 bits.
    length
        Bits of the integer: 6 bits.
    value
        The integer, 33 bits, unsigned.
    is_zero
        It is 0.
    """

    word: Any
    fraction: Any
    length: Any
    value: Any
    is_zero: Any


def to_word(m: Module, magnitude: Value, name: str) -> HalfWord:
    """Round a magnitude of 32 bits to 11 significant ones; combinational."""
    length = bit_length(m, magnitude, f"{name}_length")
    normal = wire(m, (magnitude << (32 - length)[:6])[:32], f"{name}_normal")
    is_up = normal[20] & (normal[:20].any() | normal[21])
    rounded = wire(m, (normal[21:] + is_up)[: SIGNIFICAND_BITS + 1], f"{name}_rounded")
    is_over = rounded[SIGNIFICAND_BITS]
    after = wire(m, (length + is_over)[:6], f"{name}_after")
    small = Cat(Const(0, 8), magnitude[:2], Const(0, 5))  # an integer of up to two bits
    word = Mux(after <= 2, small, Cat(rounded[:10], (after - 2)[:5]))
    return HalfWord(
        word=wire(m, word[:15], f"{name}_word"),
        fraction=rounded[:10],
        length=after,
        value=wire(m, (rounded << length)[11:44], f"{name}_value"),
        is_zero=length == 0,
    )


def split_word(word: Value) -> tuple[Value, Value]:
    """Return the significand of a word's magnitude (11 bits) and its exponent (5 bits).

    Parameters
    ----------
    word
        At least 15 bits; the sign's is not read.
    """
    field = word[10:15]
    is_normal = field.any()
    return Cat(word[:10], is_normal), Mux(is_normal, field, 1)[:5]


def to_integer(word: Value, bits: int) -> Value:
    """Return the integer that a word of 16 bits stands for, signed, of that many bits."""
    significand, exponent = split_word(word)
    size = (significand << exponent)[WORD_FRAC : WORD_FRAC + bits - 1]
    return Mux(word[15], -size, size)[:bits].as_signed()
