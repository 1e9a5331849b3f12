"""CommVQ: keys and values as sums of codebook vectors (docs/kv.md, section 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from romsim.cycle.compiled import inlined, kernel
from romsim.cycle.kernels_kv_codec import fp16_word
from romsim.cycle.kernels_primitives import bitlen, rne, rsqrt, saturate

__all__ = ["encode_key", "encode_value", "pair_squares"]

_FRAC = 14


@inlined
def _unit(vector: Any, table: Any, out: Any) -> Any:
    """Scale a vector to length 1, frac 14, into ``out``; return its length's word and integer."""
    largest = np.int64(0)
    for value in vector:
        largest |= abs(value)
    down = max(np.int64(0), bitlen(largest) - np.int64(24))
    square = np.int64(0)
    for d in range(vector.shape[0]):
        out[d] = rne(vector[d], down)
        square += out[d] * out[d]
    y, half = rsqrt(square, table)
    for d in range(vector.shape[0]):
        out[d] = rne(out[d] * y, np.int64(16) + half)
    cut = max(np.int64(0), bitlen(square) - np.int64(31))
    length = rne(rne(square, cut) * y, np.int64(30) + half - cut - down)
    return fp16_word(min(length, np.int64(2**31 - 1)))


@inlined
def _scale(unit: Any, rest: Any, length: Any, out: Any) -> None:
    for d in range(unit.shape[0]):
        value, _ = saturate(rne((unit[d] - rest[d]) * length, np.int64(_FRAC)))
        out[d] = value


@kernel
def pair_squares(book: Any, squares: Any) -> None:
    """Compute ``|u_i + J u_j|^2``: book int64 [stages, E, D], squares int64 [stages, E, E]."""
    for s in range(book.shape[0]):
        for i in range(book.shape[1]):
            for j in range(book.shape[1]):
                total = np.int64(0)
                for d in range(0, book.shape[2], 2):
                    a = book[s, i, d] - book[s, j, d + 1]
                    b = book[s, i, d + 1] + book[s, j, d]
                    total += a * a + b * b
                squares[s, i, j] = total


@kernel
def encode_key(
    key: Any,  # int64 [D], not rotated
    book: Any,  # int64 [stages, E, D]
    squares: Any,  # int64 [stages, E, E]
    rsq_table: Any,
    codes: Any,  # uint8 [2 * stages]
    decoded: Any,  # int64 [D]
) -> Any:
    """Encode a key; return the word of its length."""
    dim, n_entries = key.shape[0], book.shape[1]
    unit = np.zeros(dim, np.int64)
    word, length = _unit(key, rsq_table, unit)
    rest = unit.copy()
    a, b = np.zeros(n_entries, np.int64), np.zeros(n_entries, np.int64)
    for s in range(book.shape[0]):
        for i in range(n_entries):
            a[i] = 0
            b[i] = 0
            for d in range(0, dim, 2):
                a[i] += book[s, i, d] * rest[d] + book[s, i, d + 1] * rest[d + 1]
                b[i] += book[s, i, d] * rest[d + 1] - book[s, i, d + 1] * rest[d]
        first, second = 0, 0
        least = squares[s, 0, 0] - np.int64(2) * (a[0] + b[0])
        for i in range(n_entries):
            for j in range(n_entries):
                cost = squares[s, i, j] - np.int64(2) * (a[i] + b[j])
                if cost < least:
                    least, first, second = cost, i, j
        for d in range(0, dim, 2):
            rest[d] -= book[s, first, d] - book[s, second, d + 1]
            rest[d + 1] -= book[s, first, d + 1] + book[s, second, d]
        codes[2 * s] = first
        codes[2 * s + 1] = second
    _scale(unit, rest, length, decoded)
    return word


@kernel
def encode_value(
    value: Any,  # int64 [D]
    book: Any,  # int64 [rows + 1, D]; the last row is always in
    rsq_table: Any,
    symbols: Any,  # uint8 [rows / 2]
    decoded: Any,  # int64 [D]
) -> Any:
    """Encode a value; return the word of its length."""
    dim = value.shape[0]
    unit = np.zeros(dim, np.int64)
    word, length = _unit(value, rsq_table, unit)
    rest = unit - book[book.shape[0] - 1]
    symbols[:] = 0
    for _ in range(2):
        for g in range(symbols.shape[0]):
            x, y = np.int64(symbols[g] & 1), np.int64(symbols[g] >> 1)
            p = q = pp = qq = pq = np.int64(0)
            for d in range(dim):
                one, two = book[2 * g, d], book[2 * g + 1, d]
                rest[d] += x * one + y * two
                p += rest[d] * one
                q += rest[d] * two
                pp += one * one
                qq += two * two
                pq += one * two
            best, least = 0, np.int64(0)
            for k in range(1, 4):
                cost = np.int64(0)
                if k & 1:
                    cost += pp - np.int64(2) * p
                if k & 2:
                    cost += qq - np.int64(2) * q
                if k == 3:
                    cost += np.int64(2) * pq
                if cost < least:
                    least, best = cost, k
            symbols[g] = best
            x, y = np.int64(best & 1), np.int64(best >> 1)
            for d in range(dim):
                rest[d] -= x * book[2 * g, d] + y * book[2 * g + 1, d]
    _scale(unit, rest, length, decoded)
    return word
