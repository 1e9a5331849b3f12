"""Training of CommVQ's codebooks on a model's own keys and values (docs/kv.md, section 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from romsim_compiler.kv import CODEBOOK_ENTRIES as ENTRIES
from romsim_compiler.kv_codebooks import FRAC, KvCodebooks
from romsim_models.errors import SpecError

__all__ = ["train_codebooks"]

_ROUNDS = 6  # of assigning and solving, a stage
_SWEEPS = 2  # of choosing the groups of a value, as docs/kv.md has it
_ONE_BIT, _TWO_BITS = 0.7979, 0.9957  # of a deviation: level of one bit, step of two
_RIDGE = 1e-3  # samples' worth of zeros, so that entries without a sample have a solution

_Floats = NDArray[np.float64]


def train_codebooks(
    keys: Sequence[_Floats],
    values: Sequence[_Floats],
    *,
    stages: int,
    value_bits: int,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> KvCodebooks:
    """Fit codebooks of every layer and KV head by expectation and maximisation.

    Parameters
    ----------
    keys, values
        Of each layer: float64 [n_samples, n_kv_heads, head_dim], keys not rotated.
    stages
        Of the keys' codebooks.
    value_bits
        Bits of a value's element.
    seed
        Of the samples that entries start from.

    Raises
    ------
    SpecError
        If there are fewer samples than entries.
    """
    n_samples, n_heads, head_dim = keys[0].shape
    if n_samples < ENTRIES:
        raise SpecError(
            f"Samples to train codebooks of {ENTRIES} entries must be at least as many, not "
            f"{n_samples}; give a longer text"
        )
    n_layers = len(keys)
    key_books = np.zeros((n_layers, n_heads, stages, ENTRIES, head_dim), np.int16)
    n_rows = value_bits * head_dim
    value_books = np.zeros((n_layers, n_heads, n_rows + 1, head_dim), np.int16)
    rng = np.random.default_rng(seed)
    for layer in range(n_layers):
        for head in range(n_heads):
            key_books[layer, head] = _key_book(_unit(keys[layer][:, head]), stages, rng)
            value_books[layer, head] = _value_book(_unit(values[layer][:, head]), n_rows)
        if progress is not None:
            progress((layer + 1) / n_layers)
    return KvCodebooks(keys=key_books, values=value_books)


def _unit(samples: _Floats) -> _Floats:
    """Return vectors of length 1, those of length 0 left out."""
    length = np.sqrt((samples**2).sum(axis=1))
    kept = length > 0
    result: _Floats = samples[kept] / length[kept, None]
    return result


def _words(values: _Floats) -> NDArray[np.int16]:
    limit = 2**15 - 1
    return np.clip(np.rint(values * 2.0**FRAC), -limit, limit).astype(np.int16)


def _turned(book: _Floats) -> _Floats:
    """Return vectors with every pair of elements turned by 90 degrees."""
    result: _Floats = np.stack((-book[..., 1::2], book[..., ::2]), axis=-1).reshape(book.shape)
    return result


def _key_book(samples: _Floats, stages: int, rng: np.random.Generator) -> NDArray[np.int16]:
    """Fit stage after stage to what the stages before have left.

    A pair of elements is a complex number, and the turn by 90 degrees a factor i, so that a centre
    is ``u_i + i u_j`` and the best entries for given indices are a linear problem.
    """
    rest = samples
    books = []
    for _ in range(stages):
        book = rest[rng.choice(len(rest), ENTRIES, replace=len(rest) < ENTRIES)] * 0.7
        for _ in range(_ROUNDS):
            first, second = _assign(rest, book)
            book = _solved(rest, first, second, book)
        words = _words(book)
        book = words.astype(np.float64) * 2.0**-FRAC
        first, second = _assign(rest, book)
        rest = rest - book[first] - _turned(book)[second]
        books.append(words)
    return np.stack(books)


def _assign(samples: _Floats, book: _Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the nearest centre of each sample."""
    other = _turned(book)
    squares = (book**2).sum(axis=1)
    centres = squares[:, None] + squares[None] + 2 * _product(book, other.T)
    best = np.zeros(len(samples), np.int64)
    _nearest(centres, 2 * _product(samples, book.T), 2 * _product(samples, other.T), best)
    return best // ENTRIES, best % ENTRIES


@numba.njit(cache=True, error_model="numpy", fastmath={"nnan", "nsz"})
def _nearest(centres: _Floats, a: _Floats, b: _Floats, best: NDArray[np.int64]) -> None:
    """Find the pair of entries of least distance: centres [E, E], products [n, E].

    The least of a row first, which vectorises, and where it is only in a row that is better.
    """
    n_entries = centres.shape[0]
    for n in range(a.shape[0]):
        least = np.inf
        for i in range(n_entries):
            row = np.inf
            for j in range(n_entries):
                row = min(row, centres[i, j] - b[n, j])
            if row - a[n, i] < least:
                least = row - a[n, i]
                for j in range(n_entries):
                    if centres[i, j] - b[n, j] == row:
                        best[n] = i * n_entries + j
                        break


def _solved(
    samples: _Floats, first: NDArray[np.int64], second: NDArray[np.int64], book: _Floats
) -> _Floats:
    """Return the entries of least squares for given indices; unused ones stay."""
    wanted = samples[:, ::2] + 1j * samples[:, 1::2]
    before = book[:, ::2] + 1j * book[:, 1::2]
    gram = np.zeros((ENTRIES, ENTRIES), np.complex128)
    # A sample's row of the problem is 1 at its first entry plus i at its second.
    np.add.at(gram, (first, first), 1)
    np.add.at(gram, (second, second), 1)
    np.add.at(gram, (first, second), 1j)
    np.add.at(gram, (second, first), -1j)
    right = _RIDGE * before
    np.add.at(right, first, wanted)
    np.add.at(right, second, -1j * wanted)
    found = _solve(gram + _RIDGE * np.eye(ENTRIES), right)
    result: _Floats = np.stack((found.real, found.imag), axis=-1).reshape(book.shape)
    return result


@numba.njit(cache=True, error_model="numpy")
def _product(a: _Floats, b: _Floats) -> _Floats:
    """Multiply matrices in one order of additions, whatever library and threads there are."""
    result = np.zeros((a.shape[0], b.shape[1]))
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                result[i, j] += a[i, k] * b[k, j]
    return result


@numba.njit(cache=True, error_model="numpy")
def _solve(gram: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Solve a positive definite system, ``gram`` and ``right`` overwritten, in one order."""
    n = gram.shape[0]
    for k in range(n):
        for i in range(k + 1, n):
            factor = gram[i, k] / gram[k, k]
            if factor != 0:
                gram[i, k:] -= factor * gram[k, k:]
                right[i] -= factor * right[k]
    for k in range(n - 1, -1, -1):
        for i in range(k + 1, n):
            right[k] -= gram[k, i] * right[i]
        right[k] /= gram[k, k]
    return right


def _value_book(samples: _Floats, n_rows: int) -> NDArray[np.int16]:
    """Fit the rows of which a value's bits choose a sum, and the constant that is always in it."""
    n, dim = samples.shape
    # The start: each element by itself, on the levels that serve a normal distribution best.
    deviation = samples.std(axis=0)
    mean = samples.mean(axis=0)
    book = np.zeros((n_rows + 1, dim))
    axes = np.arange(dim)
    if n_rows == dim:
        book[axes, axes] = 2 * _ONE_BIT * deviation
        book[n_rows] = mean - _ONE_BIT * deviation
    else:
        book[2 * axes, axes] = _TWO_BITS * deviation
        book[2 * axes + 1, axes] = 2 * _TWO_BITS * deviation
        book[n_rows] = mean - 1.5 * _TWO_BITS * deviation
    bits = np.ones((n, n_rows + 1), np.int64)
    for _ in range(_ROUNDS):
        _choose(samples - book[n_rows], book[:n_rows], bits, _SWEEPS)
        book = _fitted(bits, samples, _RIDGE * n, book)
    return _words(book)


def _fitted(bits: NDArray[np.int64], wanted: _Floats, ridge: float, before: _Floats) -> _Floats:
    """Return the rows of least squares for given bits [n, rows], drawn to what they were."""
    chosen = np.ascontiguousarray(bits.T, np.float64)
    gram = _product(chosen, bits.astype(np.float64)) + ridge * np.eye(len(before))
    result: _Floats = _solve(gram, _product(chosen, wanted) + ridge * before)
    return result


@numba.njit(cache=True, error_model="numpy")
def _choose(samples: _Floats, book: _Floats, bits: NDArray[np.int64], sweeps: int) -> None:
    """Choose the bits of each sample, two rows at a time: [n, D], [rows, D], [n, rows or more]."""
    dim = samples.shape[1]
    rest = np.zeros(dim)
    for n in range(samples.shape[0]):
        bits[n, : book.shape[0]] = 0
        rest[:] = samples[n]
        for _ in range(sweeps):
            for row in range(0, book.shape[0], 2):
                p = q = pp = qq = pq = 0.0
                x, y = bits[n, row], bits[n, row + 1]
                for d in range(dim):
                    a, b = book[row, d], book[row + 1, d]
                    rest[d] += x * a + y * b
                    p += rest[d] * a
                    q += rest[d] * b
                    pp += a * a
                    qq += b * b
                    pq += a * b
                costs = (0.0, pp - 2 * p, qq - 2 * q, pp + qq + 2 * pq - 2 * (p + q))
                best = 0
                for k in range(1, 4):
                    if costs[k] < costs[best]:
                        best = k
                x, y = best & 1, best >> 1
                bits[n, row], bits[n, row + 1] = x, y
                for d in range(dim):
                    rest[d] -= x * book[row, d] + y * book[row + 1, d]
