"""Matrix times vector (numerics, section 4) and the rows of the embedding (section 5).

Weights are held as signed values ``v = code - offset`` (int8, rows padded with zeros to whole
blocks of 32). Two kernels compute the same integers:

* :func:`matvec_exact` where every term is an exact left shift (the rule): significands already
  shifted to the grid, so that a block's term is ``(P * scale + S * minimum) << s``, summed modulo
  2^64 in whatever order is fast;
* :func:`matvec_rounded` where the compiler had to raise the grid, so that a term may round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from romsim.cycle.compiled import kernel, shared_kernel
from romsim.cycle.kernels_dot import dot32, scaled_row
from romsim.cycle.kernels_primitives import rne, saturate, shr, shr_saturate
from romsim.cycle.kernels_sharing import CLAIMED, CLIPPED, FINISHED, fetch_add

__all__ = ["add_saturated", "embed_row", "matvec_exact", "matvec_rounded"]


@shared_kernel
def matvec_exact(
    counters: Any,
    rows_per_piece: Any,
    values: Any,  # int8 [n_rows * n_blocks * 32]
    scales: Any,  # int32 [n_rows * n_groups], on the grid
    minima: Any,  # int32 [n_rows * n_groups] or [0]
    n_groups: Any,
    blocks_per_group: Any,
    codes: Any,  # int16 [n_blocks * 32]
    shifts: Any,  # int64 [n_blocks]
    sums: Any,  # int64 [n_blocks]
    multiplier: Any,
    pre_shift: Any,
    shift: Any,
    out: Any,  # int32 [n_rows]
) -> None:
    """Multiply; count the saturated outputs."""
    n_rows = out.shape[0]
    n_blocks = (codes.shape[0] + 31) // 32
    has_minimum = minima.shape[0] > 0
    group_sums = np.zeros(n_groups, np.int64)  # of the codes, shifted: what a minimum multiplies
    for block in range(n_blocks):
        group_sums[block // blocks_per_group] += sums[block] << shifts[block]
    while True:
        first = fetch_add(counters, CLAIMED, 1) * rows_per_piece
        if first >= n_rows:
            return
        clipped = np.int64(0)
        for row in range(first, min(first + rows_per_piece, n_rows)):
            at = row * n_groups
            total = scaled_row(
                values,
                row * n_blocks * 32,
                codes,
                scales,
                at,
                shifts,
                n_groups,
                blocks_per_group,
            )
            if has_minimum:
                for group in range(n_groups):
                    total += group_sums[group] * np.int64(minima[at + group])
            result, clip = shr_saturate(rne(total, pre_shift) * multiplier, shift)
            out[row] = result
            clipped += clip
        fetch_add(counters, CLIPPED, clipped)
        fetch_add(counters, FINISHED, 1)


@shared_kernel
def matvec_rounded(
    counters: Any,
    rows_per_piece: Any,
    values: Any,  # int8 [n_rows * n_blocks * 32]
    significands: Any,  # int16 [n_rows * n_groups]
    exponents: Any,  # int8 [n_rows * n_groups]
    min_significands: Any,  # int16 [n_rows * n_groups] or [0]
    min_exponents: Any,  # int8 [n_rows * n_groups] or [0]
    grid: Any,
    n_groups: Any,
    blocks_per_group: Any,
    codes: Any,  # int16 [n_blocks * 32]
    shifts: Any,  # int64 [n_blocks]
    sums: Any,  # int64 [n_blocks]
    shift: Any,
    out: Any,  # int32 [n_rows]
) -> None:
    """Multiply, each term shifted or rounded to the grid on its own; count the saturations."""
    n_rows = out.shape[0]
    n_blocks = (codes.shape[0] + 31) // 32
    has_minimum = min_significands.shape[0] > 0
    while True:
        first = fetch_add(counters, CLAIMED, 1) * rows_per_piece
        if first >= n_rows:
            return
        clipped = np.int64(0)
        for row in range(first, min(first + rows_per_piece, n_rows)):
            total = np.int64(0)
            for block in range(n_blocks):
                group = row * n_groups + block // blocks_per_group
                product = dot32(values, (row * n_blocks + block) * 32, codes, block * 32)
                down = np.int64(grid) - shifts[block]
                scale = np.int64(significands[group])
                total += shr(product * scale, down - np.int64(exponents[group]))
                if has_minimum:
                    minimum = np.int64(min_significands[group])
                    total += shr(sums[block] * minimum, down - np.int64(min_exponents[group]))
            result, clip = shr_saturate(total, shift)
            out[row] = result
            clipped += clip
        fetch_add(counters, CLIPPED, clipped)
        fetch_add(counters, FINISHED, 1)


@kernel
def embed_row(
    values: Any,  # int8 [n_blocks * 32] of the token's row
    significands: Any,  # int32 [n_groups] of the row; [1] with M for a whole-matrix scale
    exponents: Any,  # int8 [n_groups]; E of the whole matrix
    min_significands: Any,  # int16 [n_groups] or [0]
    min_exponents: Any,  # int8 [n_groups] or [0]
    group: Any,  # elements of a group; 0: whole-matrix scale
    residual_frac: Any,
    out: Any,  # int32 [dim]
) -> Any:
    """Widen a row of the embedding to the residual stream; return the saturations."""
    clipped = np.int64(0)
    for i in range(out.shape[0]):
        if group == 0:
            total = np.int64(values[i]) * np.int64(significands[0])
            down = -np.int64(exponents[0]) - np.int64(residual_frac)
        else:
            g = i // group
            total = np.int64(values[i]) * np.int64(significands[g])
            total <<= np.int64(exponents[g]) + np.int64(24)
            if min_significands.shape[0] > 0:
                low = np.int64(min_significands[g])
                total += low << (np.int64(min_exponents[g]) + np.int64(24))
            down = np.int64(24) - np.int64(residual_frac)
        result, clip = shr_saturate(total, down)
        out[i] = result
        clipped += clip
    return clipped


@kernel
def add_saturated(left: Any, right: Any, out: Any) -> Any:
    """``out = SAT32(left + right)``, int32 arrays of one length; return the saturations."""
    clipped = np.int64(0)
    for i in range(out.shape[0]):
        result, clip = saturate(np.int64(left[i]) + np.int64(right[i]))
        out[i] = result
        clipped += clip
    return clipped
