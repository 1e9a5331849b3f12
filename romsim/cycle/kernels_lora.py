"""Adapter matrices in MXINT8 and of trits (numerics, section 6)."""

from __future__ import annotations

from typing import Any

import numpy as np

from romsim.cycle.compiled import kernel
from romsim.cycle.kernels_dot import dot32
from romsim.cycle.kernels_primitives import rne, shr, shr_saturate

__all__ = ["adapter_matvec", "ternary_matvec"]


@kernel
def adapter_matvec(
    values: Any,  # int8 [n_rows * n_blocks * 32], zeros where a block is shorter
    exponents: Any,  # int64 [n_rows, n_blocks]
    grid: Any,
    codes: Any,  # int16 [n_blocks * 32]
    shifts: Any,  # int64 [n_blocks]
    shift: Any,
    out: Any,  # int32 [n_rows]
) -> Any:
    """Multiply an adapter matrix by MXINT8 codes; return the saturations."""
    n_blocks = exponents.shape[1]
    clipped = np.int64(0)
    for row in range(out.shape[0]):
        total = np.int64(0)
        for block in range(n_blocks):
            product = dot32(values, (row * n_blocks + block) * 32, codes, block * 32)
            total += shr(product, np.int64(grid) - exponents[row, block] - shifts[block])
        result, clip = shr_saturate(total, shift)
        out[row] = result
        clipped += clip
    return clipped


@kernel
def ternary_matvec(
    values: Any,  # int8 [n_rows * n_blocks * 32] of -1, 0, 1, zeros where a block is shorter
    codes: Any,  # int16 [n_blocks * 32]
    shifts: Any,  # int64 [n_blocks]
    multiplier: Any,
    pre_shift: Any,
    shift: Any,
    out: Any,  # int32 [n_rows]
) -> Any:
    """Multiply a matrix of trits by MXINT8 codes; return the saturations."""
    n_blocks = shifts.shape[0]
    clipped = np.int64(0)
    for row in range(out.shape[0]):
        total = np.int64(0)
        for block in range(n_blocks):
            product = dot32(values, (row * n_blocks + block) * 32, codes, block * 32)
            total += product << shifts[block]
        result, clip = shr_saturate(rne(total, pre_shift) * multiplier, shift)
        out[row] = result
        clipped += clip
    return clipped
