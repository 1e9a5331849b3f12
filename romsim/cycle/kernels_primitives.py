"""Integer primitives of the numerics page (section 1) and its functions (section 3), compiled.

Everything here is int64 or uint64: Numba turns a mixture of the two into floating point, so words
change their type only through ``np.int64`` and ``np.uint64``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from romsim.cycle.compiled import inlined

__all__ = [
    "INT32_MAX",
    "INT32_MIN",
    "bitlen",
    "exp2n",
    "reciprocal",
    "rne",
    "rsqrt",
    "saturate",
    "shr",
    "shr_saturate",
    "sine_quarter",
]

INT32_MAX = 2**31 - 1
INT32_MIN = -(2**31)
_QUARTER = 1 << 30  # a quarter turn of the 32-bit phase


@inlined
def rne(value: Any, shift: Any) -> Any:
    """``RNE(value, shift)`` for ``shift >= 0``."""
    if shift <= 0:
        return value
    if shift >= 63:
        return np.int64(0)
    quotient = value >> shift
    rest = value - (quotient << shift)  # 0 ... 2^shift - 1
    half = np.int64(1) << (shift - np.int64(1))
    # Above the half, or at the half with an odd quotient; without a branch, for speed.
    return quotient + np.int64(rest + (quotient & np.int64(1)) > half)


@inlined
def shr(value: Any, shift: Any) -> Any:
    """``SHR(value, shift)``, the left shift modulo 2^64."""
    if shift >= 0:
        return rne(value, shift)
    if shift <= -64:
        return np.int64(0)  # a machine's shift by 64 or more is undefined
    return value << -shift


@inlined
def saturate(value: Any) -> Any:
    """``SAT32(value)`` and 1 if it was clipped, else 0."""
    if value > INT32_MAX:
        return np.int64(INT32_MAX), np.int64(1)
    if value < INT32_MIN:
        return np.int64(INT32_MIN), np.int64(1)
    return value, np.int64(0)


@inlined
def shr_saturate(value: Any, shift: Any) -> Any:
    """``SAT32(SHR(value, shift))`` of the mathematical integers: no left shift wraps."""
    if shift >= 0:
        return saturate(rne(value, shift))
    if value == 0:
        return np.int64(0), np.int64(0)
    if shift <= -32 or value > INT32_MAX or value < INT32_MIN:
        return (np.int64(INT32_MAX) if value > 0 else np.int64(INT32_MIN)), np.int64(1)
    return saturate(value << -shift)


@inlined
def bitlen(value: Any) -> Any:
    """Return the number of bits of a non-negative int64."""
    bits = np.int64(0)
    step = np.int64(32)
    while step > 0:
        if (value >> step) != 0:
            value >>= step
            bits += step
        step >>= np.int64(1)
    return bits + value  # what is left is 0 or 1


@inlined
def rsqrt(value: Any, table: Any) -> Any:
    """``RSQRT(value)``: ``(y, half)`` with ``1/sqrt(value) = y * 2^-30 * 2^-half``.

    ``table`` is RSQ with its entry for ``i = 32`` at index 0.
    """
    if value == 0:
        return np.int64(0), np.int64(0)
    bits = bitlen(value)
    bits += bits & np.int64(1)
    down = bits - np.int64(32)
    n = np.uint64(value >> down if down > 0 else value << -down)
    y = np.uint64(table[np.int64(n >> np.uint64(25)) - 32]) << np.uint64(15)
    three = np.uint64(3 << 30)
    for _ in range(2):
        a = (y * y) >> np.uint64(30)
        p = (n * a) >> np.uint64(32)
        y = (y * (three - p)) >> np.uint64(31)
    return np.int64(y), bits >> np.int64(1)


@inlined
def reciprocal(value: Any, table: Any) -> Any:
    """``RECIP(value)``: ``(y, bits)`` with ``1/value = y * 2^-30 * 2^-bits``."""
    if value == 0:
        return np.int64(0), np.int64(0)
    bits = bitlen(value)
    n = np.uint64(value << (np.int64(32) - bits))
    y = np.uint64(table[np.int64(n >> np.uint64(24)) & np.int64(127)]) << np.uint64(15)
    two = np.uint64(1 << 31)
    for _ in range(2):
        p = (n * y) >> np.uint64(32)
        y = (y * (two - p)) >> np.uint64(30)
    return np.int64(y), bits


@inlined
def exp2n(distance: Any, table: Any) -> Any:
    """``EXP2N(distance)``: ``(v, n)`` with ``2^(-distance / 2^16) = v * 2^-20 * 2^-n``."""
    i = (distance >> np.int64(8)) & np.int64(255)
    r = distance & np.int64(255)
    step = table[i] - table[i + 1]
    return table[i] - rne(step * r, np.int64(8)), distance >> np.int64(16)


@inlined
def sine_quarter(phase: Any, table: Any) -> Any:
    """``SINQ(phase)`` for 0 ... 2^30, frac 20."""
    if phase == _QUARTER:
        return table[256]
    i = phase >> np.int64(22)
    r = phase & np.int64((1 << 22) - 1)
    return table[i] + rne((table[i + 1] - table[i]) * r, np.int64(22))
