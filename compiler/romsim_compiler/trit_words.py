"""A ternary factor as SRAM words beside the cells; apart from its cycles, which need no numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.mapping import Mapping
from romsim_compiler.target import Target

__all__ = ["pack_trits"]


def pack_trits(trits: NDArray[np.int8], mapping: Mapping, target: Target) -> NDArray[np.uint8]:
    """Place a factor's trits as a matrix's codes are placed (docs/machine.md, section 2).

    Parameters
    ----------
    trits
        int8 [n_rows, n_cols] of -1, 0, 1.

    Returns
    -------
    uint8 [n_words, n_tiles, n_cells, word_codes / 4]
        Words, lane 0 in the least significant bits: 01 is +1, 10 is -1.
    """
    array = target.array
    shared, n_words, codes = mapping.ks, mapping.wpc, array.word_codes
    rows_of_tile = array.n_cells // shared
    padded = np.zeros(
        (mapping.steps * mapping.rows_per_step, shared * n_words * codes), dtype=np.uint8
    )
    padded[: trits.shape[0], : trits.shape[1]] = np.where(trits < 0, 2, trits)
    # [step, tile, row, share, word, lane] -> [step, word, tile, row, share, lane]
    placed = padded.reshape(
        mapping.steps, array.n_tiles, rows_of_tile, shared, n_words, codes
    ).transpose(0, 4, 1, 2, 3, 5)
    quads = placed.reshape(mapping.n_words, array.n_tiles, array.n_cells, codes // 4, 4)
    words: NDArray[np.uint8] = np.bitwise_or.reduce(
        quads << np.arange(0, 8, 2, dtype=np.uint8), axis=-1
    )
    return words
