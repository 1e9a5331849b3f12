"""A tile's multiply lanes for 16-bit words, half a block at a time (docs/kv.md, sections 1 and 4).

A word is decoded once, into the integer that it stands for, and multiplied by the query's codes or
the numerators of all heads. A block's first and second 16 words are read one after the other, and
its lanes are 0 where the other half stands.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.attention_sizes import CODES_BITS, SHIFT_BITS
from romsim_rtl.half_words import to_integer
from romsim_rtl.htile_softmax import P_BITS
from romsim_rtl.primitives import add_tree, lane_signals, shift_to_grid

__all__ = ["SEEN_BITS", "decode_half", "words_term", "words_value"]

SEEN_BITS = 33
"""Bits of the integer that a word stands for: at most 2^31 in magnitude."""

_HALF = MX_BLOCK // 2
_PRODUCT_BITS = 46  # 32 · 127 · 2^32 and a sign
_SCORE_SHIFT = 16


def decode_half(
    m: Module, enable: Any, name: str, *, words: Any, is_second: Any, is_absent: Any = None
) -> list[Signal]:
    """Integers of a block of which one half is there; one stage.

    Parameters
    ----------
    words
        Sixteen of them.
    is_second
        They are the block's second half.
    is_absent
        The word has no such block; ``None`` if it always has.
    """
    seen = lane_signals(f"seen{name}_", MX_BLOCK, SEEN_BITS)
    for lane, register in enumerate(seen):
        half, inside = divmod(lane, _HALF)
        is_there = is_second if half else ~is_second
        if is_absent is not None:
            is_there = is_there & ~is_absent
        word = words[16 * inside : 16 * inside + 16]
        with m.If(enable):
            m.d.sync += register.eq(Mux(is_there, to_integer(word, SEEN_BITS), 0))
    return seen


def words_term(
    m: Module,
    valid: list[Any],
    name: str,
    *,
    seen: list[Signal],
    query: Any,
    query_shift: Any,
    first_half: Any,
) -> Signal:
    """One lane's term of a block's score, ``SHR(Σ q · k̂, 16 - s(q))``, when both halves were read.

    Parameters
    ----------
    valid
        Enables of the stages, from the cycle in which the words are decoded.
    seen
        Integers of the half, one cycle after the query's block is there.
    query, query_shift
        Codes and exponent of the query's block, a cycle before ``valid[1]``.
    first_half
        The block begins; in the cycle of ``valid[1]``.
    """
    codes = Signal(CODES_BITS, name=f"query{name}", reset_less=True)
    shift0 = Signal(SHIFT_BITS, name=f"shift0_{name}", reset_less=True)
    with m.If(valid[0]):
        m.d.sync += [codes.eq(query), shift0.eq(query_shift)]
    product = Signal(signed(_PRODUCT_BITS), name=f"product{name}", reset_less=True)
    shift1 = Signal(SHIFT_BITS, name=f"shift1_{name}", reset_less=True)
    products = [
        codes[8 * lane : 8 * lane + 8].as_signed() * value for lane, value in enumerate(seen)
    ]
    with m.If(valid[1]):
        m.d.sync += [
            product.eq(add_tree([Mux(first_half, 0, product), *products])),
            shift1.eq(shift0),
        ]
    term = Signal(signed(64), name=f"term{name}", reset_less=True)
    with m.If(valid[2]):
        m.d.sync += term.eq(shift_to_grid(product, shift1, _SCORE_SHIFT, 64))
    return term


def words_value(
    m: Module, valid: list[Any], first: Any, name: str, *, seen: list[Signal], p: Any
) -> Signal:
    """One lane's sums over tokens of a block's 32 values.

    Parameters
    ----------
    valid
        Enables of the stages, from the cycle in which the words are decoded.
    first
        The first half of a head's first token is in the last stage.
    seen
        Integers of the half, one cycle after the numerator is there.
    p
        The numerator, a cycle before ``valid[1]``.
    """
    numerator = Signal(P_BITS, name=f"p{name}", reset_less=True)
    with m.If(valid[0]):
        m.d.sync += numerator.eq(p)
    products = lane_signals(f"product{name}_", MX_BLOCK, P_BITS + SEEN_BITS)
    with m.If(valid[1]):
        m.d.sync += [a.eq(b * numerator) for a, b in zip(products, seen, strict=True)]
    sums = Signal(64 * MX_BLOCK, name=f"sums{name}", reset_less=True)
    with m.If(valid[2]):
        for lane, product in enumerate(products):
            part = sums[64 * lane : 64 * lane + 64]
            m.d.sync += part.eq((Mux(first, 0, part) + product)[:64])
    return sums
