"""The two loops over ROM words that `romsim_compiler.rom_image` is made of (docs/machine.md, 2)."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["pack_words", "unpack_words"]


@numba.njit(cache=True, error_model="numpy")
def pack_words(
    words: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint16],
    minima: NDArray[np.uint16],
    first_row: int,
    wpc: int,
    planes: int,
    ks: int,
    word_codes: int,
    lane_bits: int,
    scale_group: int,
    group: int,
    plane_shift: int,
    digit_mask: int,
) -> None:
    """Write rows ``first_row`` … of the piece into ``words``, which is zero where nothing is."""
    n_tiles, n_cells = words.shape[1], words.shape[2]
    n_rows, n_cols = codes.shape
    rows_per_tile = n_cells // ks
    rows_per_step = n_tiles * rows_per_tile
    n_words = -(-n_cols // word_codes)
    per_byte = 8 // lane_bits
    code_bytes = word_codes // per_byte
    n_fields = word_codes // scale_group
    row = np.zeros(n_words * word_codes, dtype=np.uint8)  # the last word's absent lanes stay 0
    for i in range(n_rows):
        step, r = divmod(first_row + i, rows_per_step)
        tile = r // rows_per_tile
        first_cell = (r % rows_per_tile) * ks
        for k in range(n_cols):
            row[k] = codes[i, k]
        for index in range(n_words):
            cell = first_cell + index // wpc
            address = (step * wpc + index % wpc) * planes
            for plane in range(planes):
                word = words[address + plane, tile, cell]
                lanes = row[index * word_codes : (index + 1) * word_codes]
                shift = plane * plane_shift
                if per_byte == 2:
                    for b in range(code_bytes):
                        word[b] = ((lanes[2 * b] >> shift) & digit_mask) | (
                            ((lanes[2 * b + 1] >> shift) & digit_mask) << 4
                        )
                elif per_byte == 4:
                    for b in range(code_bytes):
                        word[b] = (
                            ((lanes[4 * b] >> shift) & digit_mask)
                            | (((lanes[4 * b + 1] >> shift) & digit_mask) << 2)
                            | (((lanes[4 * b + 2] >> shift) & digit_mask) << 4)
                            | (((lanes[4 * b + 3] >> shift) & digit_mask) << 6)
                        )
                else:
                    for b in range(code_bytes):
                        word[b] = (lanes[b] >> shift) & digit_mask
            if group > 0:
                word = words[address, tile, cell]
                for field in range(n_fields):
                    column = index * word_codes + field * scale_group
                    if column < n_cols:
                        at = code_bytes + 2 * field
                        word[at] = scales[i, column // group] & 0xFF
                        word[at + 1] = scales[i, column // group] >> 8
                        if minima.size > 0:
                            at += 2 * n_fields
                            word[at] = minima[i, column // group] & 0xFF
                            word[at + 1] = minima[i, column // group] >> 8


@numba.njit(cache=True, error_model="numpy")
def unpack_words(
    words: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint16],
    minima: NDArray[np.uint16],
    wpc: int,
    planes: int,
    ks: int,
    word_codes: int,
    lane_bits: int,
    scale_group: int,
    plane_shift: int,
    digit_mask: int,
) -> int:
    """Fill the arrays from every word of the piece, in order of addresses; count stray words."""
    n_addresses, n_tiles, n_cells, word_bytes = words.shape
    n_rows, n_cols = codes.shape
    rows_per_tile = n_cells // ks
    code_bytes = word_codes * lane_bits // 8
    n_fields = word_codes // scale_group
    lane_mask = (1 << lane_bits) - 1
    n_stray = 0
    for address in range(n_addresses):
        step, inner = divmod(address, wpc * planes)
        w, plane = divmod(inner, planes)
        for tile in range(n_tiles):
            for cell in range(n_cells):
                word = words[address, tile, cell]
                i = (step * n_tiles + tile) * rows_per_tile + cell // ks
                first_column = ((cell % ks) * wpc + w) * word_codes
                is_stray = False
                if i >= n_rows or first_column >= n_cols:
                    for b in range(word_bytes):
                        is_stray |= word[b] != 0
                    n_stray += is_stray
                    continue
                n_lanes = min(word_codes, n_cols - first_column)
                shift = plane * plane_shift
                if n_lanes == word_codes and digit_mask == lane_mask and lane_bits < 8:
                    # Whole words of whole lanes: nothing can be stray, and the loop vectorises.
                    row = codes[i, first_column : first_column + word_codes]
                    if lane_bits == 4:
                        for b in range(code_bytes):
                            row[2 * b] |= (word[b] & 15) << shift
                            row[2 * b + 1] |= (word[b] >> 4) << shift
                    else:
                        for b in range(code_bytes):
                            row[4 * b] |= (word[b] & 3) << shift
                            row[4 * b + 1] |= ((word[b] >> 2) & 3) << shift
                            row[4 * b + 2] |= ((word[b] >> 4) & 3) << shift
                            row[4 * b + 3] |= (word[b] >> 6) << shift
                else:
                    for lane in range(word_codes):
                        bit = lane * lane_bits
                        digit = (word[bit >> 3] >> (bit & 7)) & lane_mask
                        if lane < n_lanes:
                            codes[i, first_column + lane] |= np.uint8((digit & digit_mask) << shift)
                            digit &= ~digit_mask
                        is_stray |= digit != 0
                used = code_bytes
                for kind in range(2):
                    held = scales if kind == 0 else minima
                    for field in range(n_fields):
                        at = code_bytes + 2 * (kind * n_fields + field)
                        column = first_column + field * scale_group
                        if plane == 0 and column < n_cols and held.shape[1] > 0:
                            value = np.uint16(word[at]) | (np.uint16(word[at + 1]) << 8)
                            held[i, column // scale_group] = value
                        elif at + 1 < word_bytes:
                            is_stray |= word[at] != 0
                            is_stray |= word[at + 1] != 0
                        if at + 1 < word_bytes:  # else the byte is no field, but padding
                            used = at + 2
                for b in range(used, word_bytes):
                    is_stray |= word[b] != 0
                n_stray += is_stray
    return n_stray
