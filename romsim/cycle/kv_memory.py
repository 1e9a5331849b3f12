"""Rows of KV SRAM of one layer, which sequences may share page by page (docs/kv-sharing.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["KvMemory"]


class KvMemory:
    """Keys and values of one layer by row, all sequences together.

    Parameters
    ----------
    n_kv_heads, width
        Of a row: heads, and elements of a head, padded.

    Attributes
    ----------
    seen
        Keys and values as attention sees them: float64 [n_kv_heads, capacity, width] each, exact
        integers of frac 16.
    largest
        Bound of the values' magnitude.
    """

    def __init__(self, n_kv_heads: int, width: int) -> None:
        shape = (n_kv_heads, 0, width)
        self.seen: list[NDArray[np.float64]] = [np.zeros(shape), np.zeros(shape)]
        self.largest = 0.0

    def grow(self, n_rows: int) -> None:
        """Have at least that many rows."""
        for side, before in enumerate(self.seen):
            n_heads, n_before, width = before.shape
            if n_rows > n_before:
                self.seen[side] = np.zeros((n_heads, max(n_rows, 2 * n_before), width))
                self.seen[side][:, :n_before] = before

    def copy(self, source: int, target: int, n_rows: int) -> None:
        """Copy rows that follow one another, keys and values."""
        self.grow(target + n_rows)
        for values in self.seen:
            values[:, target : target + n_rows] = values[:, source : source + n_rows]
