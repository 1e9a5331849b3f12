"""Operands whose products lie at, or a power of two beside, a tie of the rounding that follows."""

from __future__ import annotations

import functools
import random

from tests.rtl.vector_bench import TABLES
from tests.rtl.vector_golden import Golden

__all__ = ["factor_near_tie", "gates_near_ties", "near_half"]


def near_half(rnd: random.Random, bits: int) -> int:
    """Give half of 2^bits, or that and a power of two below it, more or less."""
    return (1 << bits >> 1) + rnd.choice([0, 1, 1, -1]) * (1 << rnd.randrange(bits))


def factor_near_tie(rnd: random.Random, other: int, bits: int, more: int = 0) -> int | None:
    """Find a factor with ``factor * other + more`` near half of 2^bits, modulo 2^bits.

    Returns
    -------
    int or None
        Signed, of ``bits`` bits; None if none was found.
    """
    if other == 0:
        return None
    twos = (other & -other).bit_length() - 1
    for _ in range(8):
        wanted = near_half(rnd, bits) - more
        if twos < bits and wanted % (1 << twos) == 0:
            odd = (other >> twos) % (1 << bits)
            factor = (wanted >> twos) * pow(odd, -1, 1 << bits) % (1 << (bits - twos))
            return factor - (rnd.randrange(2) << (bits - twos))
    return None


@functools.cache
def gates_near_ties(activation: str) -> list[int]:
    """Give gates whose activation is rounded near a tie, the nearest of many."""
    rnd, golden = random.Random(1), Golden(TABLES)
    bits = 20 if activation == "silu" else 16
    found = []
    for _ in range(20_000):
        gate = rnd.randrange(-(1 << 21), 1 << 21) >> rnd.randrange(8)
        exact = gate * golden.sigmoid(gate) if activation == "silu" else max(gate, 0) ** 2
        found.append((abs(exact % (1 << bits) - (1 << bits >> 1)), gate))
    return [gate for _, gate in sorted(found)[:600]]
