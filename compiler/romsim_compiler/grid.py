"""The grid of a group's accumulators, from the weights' own bound (docs/numerics.md, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from romsim_compiler.encoded import RomTensor, RowSource, row_blocks
from romsim_compiler.target import MX_BLOCK

__all__ = ["PRE_SHIFT_BITS", "GridResult", "choose_grid", "round_half_even"]

ACCUMULATOR_BITS = 63
PRE_SHIFT_BITS = 38  # so that the product with a 24-bit multiplier fits 62 bits and a sign
_UNIT = -24  # exponent of the smallest binary16 number: every weight is a multiple of 2^-24
_N_EXPONENTS = 30  # -24 … 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GridResult:
    """How a group's terms are accumulated.

    Parameters
    ----------
    grid
        Exponent ``γ`` of the accumulator's unit.
    max_abs_bits
        Bits of the largest magnitude that an accumulator can reach, for any input.
    n_rounded_terms
        Terms (one per scale or minimum, block of 32 columns and row) with a significand other than
        0 that lie below the grid, so that their shift may round; 0 unless the grid was raised.
    pre_shift
        Shift ``a`` before the whole-matrix multiplier; 0 where scales stand in the words.
    """

    grid: int
    max_abs_bits: int
    n_rounded_terms: int
    pre_shift: int


def choose_grid(tensors: Sequence[RowSource], in_abs_max: int = 2**31) -> GridResult:
    """Choose the grid of matrices that are fused into one instruction.

    Parameters
    ----------
    tensors
        The group's matrices, all of one format.
    in_abs_max
        Largest magnitude of an input, as an integer of its own unit.

    Returns
    -------
    GridResult
        The bound is exact: the largest row sum of magnitudes of the matrices' own weights.
    """
    histogram = np.zeros(_N_EXPONENTS, dtype=np.int64)
    widest = 0
    for source in tensors:
        for block in row_blocks(source):
            if source.fmt.group:
                widest = max(widest, _scan(block, histogram))
            else:
                widest = max(widest, int(_row_code_sums(block.codes, _value_table(block)).max()))
    if not tensors[0].fmt.group:
        bound = in_abs_max * widest
        pre_shift = 0
        while round_half_even(bound, pre_shift) >= 1 << PRE_SHIFT_BITS:
            pre_shift += 1
        return GridResult(
            grid=0, max_abs_bits=bound.bit_length(), n_rounded_terms=0, pre_shift=pre_shift
        )
    used = np.flatnonzero(histogram)
    grid = int(used[0]) + _UNIT if len(used) else 0
    bound = in_abs_max * widest  # in units of 2^-24
    while bound >> (grid - _UNIT) >= 1 << ACCUMULATOR_BITS:
        grid += 1
    return GridResult(
        grid=grid,
        # A bound that is no whole number of units lies between two accumulator values.
        max_abs_bits=(bound >> (grid - _UNIT)).bit_length(),
        n_rounded_terms=int(histogram[: grid - _UNIT].sum()) if len(used) else 0,
        pre_shift=0,
    )


def round_half_even(value: int, shift: int) -> int:
    """Return ``RNE(value, shift)`` of an integer without a width."""
    quotient, rest = divmod(value, 1 << shift)
    double = rest << 1
    return quotient + (double > 1 << shift or (double == 1 << shift and quotient & 1))


def _scan(block: RomTensor, histogram: NDArray[np.int64]) -> int:
    """Add the block's terms to the histogram of exponents; return its largest row sum in 2^-24."""
    scale_sig, scale_exp = block.scale_sig, block.scale_exp
    blocks_per_group = -(-block.fmt.group // MX_BLOCK)
    _count(histogram, scale_sig, scale_exp, blocks_per_group)
    scales = scale_sig.astype(np.int64) << (scale_exp - np.int8(_UNIT)).astype(np.int64)
    minima = np.zeros((0, 0), dtype=np.int64)
    minimum_sig, minimum_exp = block.minimum_sig, block.minimum_exp
    if minimum_sig is not None and minimum_exp is not None:
        _count(histogram, minimum_sig, minimum_exp, blocks_per_group)
        minima = minimum_sig.astype(np.int64) << (minimum_exp - np.int8(_UNIT)).astype(np.int64)
    halves = np.empty((block.n_rows, 2), dtype=np.int64)
    _row_weight_sums(block.codes, scales, minima, block.fmt.offset, block.fmt.group, halves)
    high, low = halves[:, 0] + (halves[:, 1] >> 32), halves[:, 1] & 0xFFFFFFFF
    highest = int(high.max())
    return (highest << 32) + int(low[high == highest].max())


def _count(
    histogram: NDArray[np.int64],
    sig: NDArray[np.int16],
    exp: NDArray[np.int8],
    blocks_per_group: int,
) -> None:
    counts = np.bincount(exp[sig != 0].astype(np.int64) - _UNIT, minlength=_N_EXPONENTS)
    histogram += counts * blocks_per_group


def _value_table(block: RomTensor) -> NDArray[np.int64]:
    """Magnitude that each code stands for."""
    codes = np.arange(256, dtype=np.int64)
    if block.fmt.kind == "ternary":
        return np.minimum(codes, 1)
    return np.abs(codes - block.fmt.offset)


@numba.njit(cache=True)
def _row_code_sums(codes: NDArray[np.uint8], magnitude: NDArray[np.int64]) -> NDArray[np.int64]:
    result = np.empty(codes.shape[0], dtype=np.int64)
    for i in range(codes.shape[0]):
        total = 0
        for k in range(codes.shape[1]):
            total += magnitude[codes[i, k]]
        result[i] = total
    return result


@numba.njit(cache=True)
def _row_weight_sums(
    codes: NDArray[np.uint8],
    scales: NDArray[np.int64],
    minima: NDArray[np.int64],
    offset: int,
    group: int,
    halves: NDArray[np.int64],
) -> None:
    """Row sums of |weight| in units of 2^-24, as (upper, lower 32 bits plus carries).

    A weight is below 2^49 and a group has at most 256 of them, so that a group's sum fits 57 bits.
    """
    has_minimum = minima.size > 0
    for i in range(codes.shape[0]):
        high = np.int64(0)
        low = np.int64(0)
        for g in range(codes.shape[1] // group):
            scale = scales[i, g]
            base = -offset * scale
            if has_minimum:
                base += minima[i, g]
            total = np.int64(0)
            for k in range(g * group, (g + 1) * group):
                total += abs(np.int64(codes[i, k]) * scale + base)
            high += total >> 32
            low += total & 0xFFFFFFFF
        halves[i, 0] = high
        halves[i, 1] = low
