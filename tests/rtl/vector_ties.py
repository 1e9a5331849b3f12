"""Operands whose products lie at, or a power of two beside, a tie of the rounding that follows."""

from __future__ import annotations

import functools
import random

import numpy as np

from tests.rtl.vector_bench import TABLES

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
    """Give gates whose activation is rounded near a tie: the nearest, and some of each distance."""
    gates = np.arange(1 - (1 << 20), 1 << 20)
    if activation == "silu":
        bits, table = 20, np.array(TABLES["SIG"], dtype=np.int64)
        sizes = np.abs(gates)
        at, rest = sizes >> 10, sizes & 1023
        rise = (table[at + 1] - table[at]) * rest
        sigma = table[at] + (rise + 511 + (rise >> 10 & 1) >> 10)
        exact = gates * np.where(gates < 0, (1 << 20) - sigma, sigma)
    else:
        bits, exact = 16, np.maximum(gates, 0) ** 2
    distances = np.abs(exact % (1 << bits) - (1 << bits >> 1))
    order = np.argsort(distances, kind="stable")
    found = order[:400].tolist()
    for bit in range(bits):
        first, last = np.searchsorted(distances[order], (1 << bit, 2 << bit))
        found += order[first:last][:: max(1, (last - first) // 30)].tolist()
    return [int(gates[index]) for index in found]
