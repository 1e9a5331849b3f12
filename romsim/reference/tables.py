"""The page's tables and constants, from decimal arithmetic of 60 digits (200 bits)."""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

__all__ = [
    "exp2_table",
    "norm_epsilon",
    "norm_fracs",
    "query_scale",
    "reciprocal_table",
    "rope_increment",
    "rsqrt_table",
    "sigmoid_table",
    "sine_table",
    "sqrt_length",
]

_DIGITS = 60
_CONTEXT = decimal.Context(prec=_DIGITS, rounding=decimal.ROUND_HALF_EVEN)


def _in_context(function: Callable[[], tuple[int, ...]]) -> Callable[[], tuple[int, ...]]:
    """Evaluate once, with the digits of this module."""

    @functools.cache
    @functools.wraps(function)
    def evaluate() -> tuple[int, ...]:
        with decimal.localcontext(_CONTEXT):
            return function()

    return evaluate


def _nearest(value: Decimal) -> int:
    return int(value.to_integral_value(rounding=decimal.ROUND_HALF_EVEN))


@functools.cache
def _pi() -> Decimal:
    """Pi by Machin's formula, ``16 atan(1/5) - 4 atan(1/239)``."""

    def arctangent_of_inverse(n: int) -> Decimal:
        term = Decimal(1) / n
        total, k = term, 1
        while abs(term) > Decimal(10) ** -(_DIGITS + 5):
            term = -term / (n * n)
            k += 2
            total += term / k
        return total

    with decimal.localcontext(_CONTEXT):
        return 16 * arctangent_of_inverse(5) - 4 * arctangent_of_inverse(239)


def _sine(angle: Decimal) -> Decimal:
    """Sine of an angle of 0 to pi/2 by its power series."""
    term = angle
    total, k = term, 1
    while abs(term) > Decimal(10) ** -(_DIGITS + 5):
        term = -term * angle * angle / ((k + 1) * (k + 2))
        k += 2
        total += term
    return total


@_in_context
def sine_table() -> tuple[int, ...]:
    """``2^20 sin(pi/2 i/256)`` for i = 0 … 256."""
    quarter = _pi() / 2
    # At i = 256 the series ends in the 60th digit; the value itself is exactly 2^20.
    return tuple(_nearest(2**20 * _sine(quarter * i / 256)) for i in range(257))


@_in_context
def exp2_table() -> tuple[int, ...]:
    """``2^20 2^(-i/256)`` for i = 0 … 256."""
    ln2 = Decimal(2).ln()
    return tuple(_nearest(2**20 * (-ln2 * i / 256).exp()) for i in range(257))


@_in_context
def sigmoid_table() -> tuple[int, ...]:
    """``2^20 / (1 + e^(-i/64))`` for i = 0 … 1024."""
    return tuple(_nearest(2**20 / (1 + (Decimal(-i) / 64).exp())) for i in range(1025))


@_in_context
def rsqrt_table() -> tuple[int, ...]:
    """``2^15 / sqrt((i + 1/2) / 128)`` for i = 32 … 127; entry 0 is i = 32."""
    half = Decimal(1) / 2
    return tuple(_nearest(2**15 / ((i + half) / 128).sqrt()) for i in range(32, 128))


@_in_context
def reciprocal_table() -> tuple[int, ...]:
    """``2^15 / ((128 + i + 1/2) / 256)`` for i = 0 … 127."""
    half = Decimal(1) / 2
    return tuple(_nearest(2**15 / ((128 + i + half) / 256)) for i in range(128))


def rope_increment(radians: float) -> int:
    """Phase that a rotary pair gains per position, in 2^-32 turns, modulo 2^32."""
    with decimal.localcontext(_CONTEXT):
        return _nearest(Decimal(radians) / (2 * _pi()) * 2**32) % 2**32


@functools.cache
def query_scale(head_dim: int) -> int:
    """``2^20 log2(e) / sqrt(head_dim)``, rounded."""
    with decimal.localcontext(_CONTEXT):
        return _nearest(2**20 / (Decimal(2).ln() * Decimal(head_dim).sqrt()))


def sqrt_length(length: int) -> int:
    """``sqrt(length) 2^16``, rounded."""
    # The root of an integer is never half an integer, so (root rounded down + 1) // 2 of the double
    # scale is the nearest.
    return (math.isqrt(length << 34) + 1) // 2


def norm_epsilon(epsilon: float, length: int, input_frac: int) -> int:
    """``epsilon length 2^(20 + 2 input_frac)``, rounded from the exact value of ``epsilon``."""
    return round(Fraction(epsilon) * (length << (20 + 2 * input_frac)))


def norm_fracs(largest_gain: float, length: int) -> tuple[int, int]:
    """Fraction bits ``(g, F_y)`` of a norm's gains and of its output.

    Parameters
    ----------
    largest_gain
        ``max |w|`` of the gains, above 0.
    length
        Elements of the vector.
    """
    gain = Fraction(largest_gain)
    exponent = math.frexp(largest_gain)[1] - 1  # floor(log2), exactly
    # ceil(log2(sqrt(K) m)) is the least n with 4^n >= K m^2: no logarithm, no rounding.
    square = length * gain * gain
    n = int(exponent)
    while 2 ** (2 * max(n, 0)) < square * 2 ** (2 * max(-n, 0)):
        n += 1
    return 22 - exponent, min(24, 30 - n)
