"""Ternary matrices of the reference: as shipped, taken as ternary, or by the mean magnitude."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from romsim.reference.integer_matrix import ROWS, IntegerMatrix, split_fp16, whole_matrix
from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.errors import SpecError

__all__ = ["absmean", "exact_codes", "exact_floats", "signed_codes"]


def signed_codes(tensor: EncodedTensor) -> NDArray[np.int16]:
    """Codes less their offset."""
    return tensor.codes.astype(np.int16) - np.int16(tensor.code_offset)


def exact_codes(tensor: EncodedTensor) -> IntegerMatrix:
    """Ternary codes whose groups, those of zeros apart, have one and the same scale."""
    values = signed_codes(tensor)
    if tensor.matrix_scale is not None:
        return whole_matrix(tensor.name, values, *tensor.matrix_scale)
    if tensor.minimum_bits is not None or np.abs(values).max(initial=0) > 1:
        raise SpecError(
            f"codes of tensor {tensor.name!r} must be ternary for the choice 'ternary-exact', "
            f"not {tensor.format}"
        )
    grouped = values.reshape(len(values), tensor.n_groups, tensor.group_size)
    sig, exp = split_fp16(tensor.scale_bits)
    is_used = grouped.any(axis=2) & (sig != 0)
    found = set(zip(np.abs(sig[is_used]).tolist(), exp[is_used].tolist(), strict=True))
    if len(found) > 1:
        raise SpecError(
            f"scales of tensor {tensor.name!r} must be one for the choice 'ternary-exact', "
            f"not {len(found)}"
        )
    signs = np.where(is_used, np.sign(sig), np.int16(0))[:, :, None]
    clean = (grouped * signs).reshape(values.shape)
    significand, exponent = found.pop() if found else (0, 0)
    return whole_matrix(tensor.name, clean, significand, exponent)


def exact_floats(tensor: FloatTensor) -> IntegerMatrix:
    """Floats with one magnitude beside 0."""
    magnitudes = np.unique(np.abs(tensor.values))
    found = magnitudes[magnitudes > 0]
    if found.size > 1:
        raise SpecError(
            f"values of tensor {tensor.name!r} must have one magnitude beside 0 for the choice "
            f"'ternary-exact', not {found.size}"
        )
    significand, exponent = _truncate24(float(found[0])) if found.size else (0, 0)
    return whole_matrix(tensor.name, np.sign(tensor.values).astype(np.int16), significand, exponent)


def absmean(tensor: FloatTensor) -> IntegerMatrix:
    """Round to the exact mean of the magnitudes (docs/numerics.md, section 8)."""
    significand, exponent = _truncate24(_mean_magnitude(tensor.values))
    n_rows, n_cols = tensor.shape
    values = np.zeros((n_rows, n_cols), dtype=np.int16)
    if significand:
        scale = np.float32(math.ldexp(significand, exponent))
        for first in range(0, n_rows, ROWS):
            rows = tensor.values[first : first + ROWS]
            values[first : first + ROWS] = np.clip(np.rint(rows / scale), -1, 1)
    return whole_matrix(tensor.name, values, significand, exponent)


def _mean_magnitude(values: NDArray[np.float32]) -> float:
    """Mean of |w| as the float64 nearest to the exact mean: no order of summation enters."""
    total = Fraction(0)
    for first in range(0, len(values), ROWS):
        words = np.ascontiguousarray(values[first : first + ROWS]).view(np.uint32)
        field = ((words >> 23) & 255).ravel()
        fraction = (words & 0x7FFFFF).ravel() + np.where(field > 0, 1 << 23, 0)
        # Sums of 24-bit integers, one per exponent: exact in float64 up to 2^29 elements.
        sums = np.bincount(field, weights=fraction.astype(np.float64), minlength=256)
        for exponent in np.flatnonzero(sums):
            power = max(int(exponent), 1) - 150
            total += int(sums[exponent]) * Fraction(2) ** power
    return float(total / values.size)


def _truncate24(value: float) -> tuple[int, int]:
    """Truncate to 24 significant bits, as binary32 holds them: ``(M, E)`` of ``M 2^E``."""
    mantissa, exponent = math.frexp(value)
    # Below 2^-126 binary32 has fewer bits: its grid ends at 2^-149.
    grid = max(exponent - 24, -149)
    significand = int(math.ldexp(mantissa, exponent - grid))
    return (significand, grid) if significand else (0, 0)
