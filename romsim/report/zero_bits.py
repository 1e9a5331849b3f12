"""Zero bits of the ROM as it is burnt: for each bank and for each kind of matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.description import Description

__all__ = ["ZeroBits", "count_zero_bits"]

_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class ZeroBits:
    """Shares of zero bits in written ROM words, padding included.

    Parameters
    ----------
    banks
        float64 [n_tiles, n_cells].
    kinds
        By kind of group: ``qkv``, ``o``, ``gu``, ``down``, ``embd``, ``head``.
    total
        Of the whole ROM.
    """

    banks: NDArray[np.float64]
    kinds: dict[str, float]
    total: float


def count_zero_bits(description: Description) -> ZeroBits:
    """Count the zero bits in the images of a description.

    Raises
    ------
    DescriptionError
        If it has no images.
    """
    array = description.target.array
    ones = np.zeros((array.n_tiles, array.n_cells), dtype=np.int64)
    kinds: dict[str, list[int]] = {}
    words = 0
    for group in description.groups.values():
        n_words = group.mapping.n_words
        found = _ones(description.rom_words(group.base, n_words))
        ones += found
        words += n_words
        kind = kinds.setdefault(group.name.rpartition(".")[2], [0, 0])
        kind[0] += int(found.sum())
        kind[1] += n_words * array.n_tiles * array.n_cells * array.word_bits
    # Padding of a word to whole bytes is 0 and no bit of the ROM: only set bits are counted.
    bits = words * array.word_bits
    return ZeroBits(
        banks=1.0 - ones / bits,
        kinds={name: 1.0 - n / total for name, (n, total) in kinds.items()},
        total=1.0 - float(ones.sum()) / (bits * ones.size),
    )


def _ones(words: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return set bits by tile and cell, int64 [n_tiles, n_cells]."""
    n_words, n_tiles, n_cells, n_bytes = words.shape
    at_a_time = max(1, _CHUNK_BYTES // (n_tiles * n_cells * n_bytes))
    total = np.zeros((n_tiles, n_cells), dtype=np.int64)
    for first in range(0, n_words, at_a_time):
        part = np.ascontiguousarray(words[first : first + at_a_time])
        # Whole machine words where the ROM's are, which is several times as fast.
        whole = part.view(np.uint64) if n_bytes % 8 == 0 else part
        total += np.bitwise_count(whole).sum(axis=(0, 3), dtype=np.int64)
    return total
