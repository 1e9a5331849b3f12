"""CommVQ of one layer: codebooks, the window of words, what a full window becomes (docs/kv.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle.kernels_kv_vectors import encode_key, encode_value, pair_squares
from romsim.cycle.kernels_vector import rotate, sine_cosine

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LayerBooks"]


class LayerBooks:
    """Codebooks of one layer as its ROM holds them, and what is computed from them.

    Parameters
    ----------
    keys
        int16 [n_kv_heads, stages, entries, head_dim].
    values
        int16 [n_kv_heads, rows + 1, head_dim]; the last row is always in.
    increments
        Phase of each pair a position, int64 [head_dim / 2].
    tables
        The numerics page's tables.
    """

    def __init__(
        self,
        keys: NDArray[np.int16],
        values: NDArray[np.int16],
        *,
        increments: NDArray[np.int64],
        tables: Mapping[str, NDArray[np.int64]],
    ) -> None:
        self._keys, self._values = keys.astype(np.int64), values.astype(np.int64)
        shape = (*keys.shape[:3], keys.shape[2])
        self._squares = np.zeros(shape, np.int64)
        for head in range(len(keys)):
            pair_squares(self._keys[head], self._squares[head])
        self._increments, self._tables = increments, tables

    def rotated(self, keys: NDArray[np.int32], position: int) -> int:
        """Rotate a token's keys in place, int32 [n_kv_heads * head_dim]; return the clips."""
        sines = np.zeros(len(self._increments), np.int64)
        cosines = np.zeros(len(self._increments), np.int64)
        sine_cosine(self._increments, position, self._tables["SIN"], sines, cosines)
        return int(rotate(keys, sines, cosines))

    def encode(
        self,
        keys: NDArray[np.int64],
        values: NDArray[np.int64],
        note: Callable[[str, NDArray[Any]], None],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Encode a window of tokens, int64 [n_kv_heads, n_tokens, head_dim], keys not rotated.

        Returns
        -------
        tuple
            Decoded keys and values of the same shape, and the bits of the words.
        """
        n_heads, n_tokens, _ = keys.shape
        indices = np.zeros((n_heads, n_tokens, 2 * self._keys.shape[1]), np.uint8)
        symbols = np.zeros((n_heads, n_tokens, self._values.shape[1] // 2), np.uint8)
        norms = np.zeros((2, n_heads, n_tokens), np.uint16)
        decoded = np.zeros_like(keys), np.zeros_like(values)
        table = self._tables["RSQ"]
        for head in range(n_heads):
            for t in range(n_tokens):
                norms[0, head, t] = encode_key(
                    keys[head, t], self._keys[head], self._squares[head], table,
                    indices[head, t], decoded[0][head, t],
                )  # fmt: skip
                norms[1, head, t] = encode_value(
                    values[head, t], self._values[head], table, symbols[head, t],
                    decoded[1][head, t],
                )  # fmt: skip
        for name, part in (("k", indices), ("v", symbols)):
            note(f"{name}.vector.codes", part)
        for name, words in zip("kv", norms, strict=True):
            note(f"{name}.vector.norms", words)
        bits = 6 * indices.size + 2 * symbols.size + 16 * norms.size
        return decoded[0], decoded[1], bits
