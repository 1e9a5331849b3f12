"""A tile's multiply lanes for affine codes: ``zero + code · scale`` (docs/kv.md, sections 2 and 4).

A block of 32 has one zero and one scale, words of 11 significant bits, so the lanes multiply codes
alone: scores take ``zero · Σ q + scale · Σ q · code``, values ``p · zero + (p · scale) · code``.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.attention_sizes import CODES_BITS, SHIFT_BITS
from romsim_rtl.half_words import SIGNIFICAND_BITS, WORD_FRAC, split_word
from romsim_rtl.htile_softmax import P_BITS
from romsim_rtl.primitives import add_tree, left_shift, shift_to_grid, wire

__all__ = ["affine_term", "affine_value"]

_SUM_BITS = 13  # 32 · 127 and a sign
_SCORE_BITS = 46  # 32 · 127 · (2^32 + 2^20) and a sign; each of its two parts is smaller
_SCORE_SHIFT = 16


def _at_exponent(product: Any, exponent: Any, bits: int) -> Any:
    """Return ``product · 2^(exponent - 9)``, which is an integer of that many bits."""
    return left_shift(product, exponent, bits + WORD_FRAC)[WORD_FRAC:].as_signed()


def _words(block: Any) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
    """Return sign, significand and exponent of a block's zero, and the last two of its scale."""
    return (block[15], *split_word(block[:16])), split_word(block[16:])


def affine_term(
    m: Module,
    valid: list[Any],
    name: str,
    *,
    codes: Any,
    block: Any,
    query: Any,
    query_shift: Any,
    is_absent: Any = None,
) -> Signal:
    """One lane's term of a block's score: ``SHR(Σ q · k̂, 16 - s(q))``, four stages.

    Parameters
    ----------
    valid
        Enables of the stages, from the cycle in which the words are there.
    codes, block
        Of the key: 32 codes; zero, and scale above it.
    query, query_shift
        Codes and exponent of the query's block.
    is_absent
        The word has no such block; ``None`` if it always has.
    """
    bits = len(codes) // MX_BLOCK
    elements = [query[at : at + 8].as_signed() for at in range(0, CODES_BITS, 8)]
    dots = [q * codes[bits * n : bits * (n + 1)] for n, q in enumerate(elements)]
    dot = Signal(signed(_SUM_BITS + bits), name=f"dot{name}", reset_less=True)
    total = Signal(signed(_SUM_BITS), name=f"query{name}", reset_less=True)
    words = Signal(32, name=f"words{name}", reset_less=True)
    shift0 = Signal(SHIFT_BITS, name=f"shift0_{name}", reset_less=True)
    sums = [add_tree(dots), add_tree(elements)]
    if is_absent is not None:
        sums = [Mux(is_absent, 0, one) for one in sums]
    with m.If(valid[0]):
        m.d.sync += [dot.eq(sums[0]), total.eq(sums[1]), words.eq(block), shift0.eq(query_shift)]

    (sign, zero, zero_at), (scale, scale_at) = _words(words)
    by_zero = Signal(signed(_SUM_BITS + SIGNIFICAND_BITS), name=f"zero{name}", reset_less=True)
    by_scale = Signal(signed(len(dot) + SIGNIFICAND_BITS), name=f"scale{name}", reset_less=True)
    exponents = [Signal(5, name=f"at_{which}{name}", reset_less=True) for which in ("z", "s")]
    shift1 = Signal(SHIFT_BITS, name=f"shift1_{name}", reset_less=True)
    signed_total = wire(m, Mux(sign, -total, total)[:_SUM_BITS].as_signed(), f"signed_total{name}")
    with m.If(valid[1]):
        m.d.sync += [
            by_zero.eq(signed_total * zero),
            by_scale.eq(dot * scale),
            exponents[0].eq(zero_at),
            exponents[1].eq(scale_at),
            shift1.eq(shift0),
        ]

    product = Signal(signed(_SCORE_BITS), name=f"product{name}", reset_less=True)
    shift2 = Signal(SHIFT_BITS, name=f"shift2_{name}", reset_less=True)
    with m.If(valid[2]):
        m.d.sync += [
            product.eq(
                _at_exponent(by_zero, exponents[0], _SCORE_BITS)
                + _at_exponent(by_scale, exponents[1], _SCORE_BITS)
            ),
            shift2.eq(shift1),
        ]

    term = Signal(signed(64), name=f"term{name}", reset_less=True)
    with m.If(valid[3]):
        m.d.sync += term.eq(shift_to_grid(product, shift2, _SCORE_SHIFT, 64))
    return term


def affine_value(
    m: Module, valid: list[Any], first: Any, name: str, *, codes: Any, block: Any, p: Any
) -> Signal:
    """One lane's sums over tokens of a block's 32 values, three stages.

    Parameters
    ----------
    valid
        Enables of the stages, from the cycle in which the words are there.
    first
        A head's first token is in the last stage.
    codes, block, p
        Of the value: 32 codes; zero, and scale above it. The numerator.
    """
    bits = len(codes) // MX_BLOCK
    (sign, zero, zero_at), (scale, scale_at) = _words(block)
    by_scale = Signal(P_BITS + SIGNIFICAND_BITS, name=f"scale{name}", reset_less=True)
    by_zero = Signal(signed(P_BITS + SIGNIFICAND_BITS + 1), name=f"zero{name}", reset_less=True)
    exponents = [Signal(5, name=f"at_{which}{name}", reset_less=True) for which in ("z", "s")]
    kept = Signal(len(codes), name=f"codes{name}", reset_less=True)
    by = wire(m, p * zero, f"p_zero{name}")
    with m.If(valid[0]):
        m.d.sync += [
            by_scale.eq(p * scale),
            by_zero.eq(Mux(sign, -by, by)),
            exponents[0].eq(zero_at),
            exponents[1].eq(scale_at),
            kept.eq(codes),
        ]

    offset = Signal(signed(64), name=f"offset{name}", reset_less=True)
    at = Signal(5, name=f"at{name}", reset_less=True)
    products = [
        Signal(len(by_scale) + bits, name=f"product{name}_{n}", reset_less=True)
        for n in range(MX_BLOCK)
    ]
    with m.If(valid[1]):
        m.d.sync += [offset.eq(_at_exponent(by_zero, exponents[0], 64)), at.eq(exponents[1])]
        for n, product in enumerate(products):
            m.d.sync += product.eq(kept[bits * n : bits * (n + 1)] * by_scale)

    sums = Signal(64 * MX_BLOCK, name=f"sums{name}", reset_less=True)
    added = []
    for n, product in enumerate(products):
        before = Mux(first, 0, sums[64 * n : 64 * n + 64])
        scaled = _at_exponent(Cat(product, Const(0, 1)).as_signed(), at, 64)
        added.append((before + offset.as_unsigned() + scaled.as_unsigned())[:64])
    with m.If(valid[2]):
        m.d.sync += sums.eq(Cat(*added))
    return sums
