"""Ternary weights: codes 0, 1, 2 for -1, 0, +1, their check, and scales as exact integers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from romsim_models.encoded import EncodedTensor
from romsim_models.errors import FormatError

__all__ = [
    "absmean_codes",
    "absmean_scale",
    "check_codes",
    "codes_of_values",
    "float32_parts",
    "ternary_tensor",
    "unpack_rows",
]

_NO_SCALES = 0  # columns of scale words where one scale serves the whole matrix


def ternary_tensor(
    *, name: str, format: str, codes: NDArray[np.uint8], scale: tuple[int, int]
) -> EncodedTensor:
    """Make a tensor of codes 0, 1, 2 with one scale ``(M, E)``.

    Raises
    ------
    FormatError
        If a code is 3, or the scale is no float32 number of at least 0.
    """
    check_codes(codes, name, format)
    n_rows, n_cols = codes.shape
    return EncodedTensor(
        name=name,
        shape=(n_rows, n_cols),
        format=format,
        code_bits=2,
        code_offset=1,
        group_size=0,
        codes=codes,
        scale_bits=np.empty((n_rows, _NO_SCALES), dtype=np.uint16),
        matrix_scale=scale,
    )


def check_codes(codes: NDArray[np.uint8], name: str, format: str) -> None:
    """Refuse a code that stands for no ternary value, naming its place.

    Raises
    ------
    FormatError
        With row and column of the first such code.
    """
    if codes.size and int(codes.max()) > 2:
        row, column = (int(index) for index in np.argwhere(codes > 2)[0])
        raise FormatError(
            f"code [{row}, {column}] of tensor {name!r} must be 0, 1 or 2 in {format}, "
            f"not {int(codes[row, column])}; the file is corrupt, or packed in another way"
        )


def codes_of_values(
    values: NDArray[np.float32], name: str, first_row: int = 0
) -> NDArray[np.uint8]:
    """Turn floats that are -1, 0 or 1 into codes.

    Raises
    ------
    FormatError
        If a value is none of them, with its place.
    """
    wrong = (values != 0) & (np.abs(values) != 1)
    if wrong.any():
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        raise FormatError(
            f"element [{first_row + row}, {column}] of tensor {name!r} must be -1, 0 or 1 beside a "
            f"weight_scale, not {float(values[row, column])!r}; the weights were not made ternary, "
            "or belong to quantization_mode 'online'"
        )
    return (values.astype(np.int8) + np.int8(1)).view(np.uint8)


def float32_parts(value: float) -> tuple[int, int]:
    """Significand and exponent of a float32 number of at least 0: the value is ``M * 2**E``.

    ``M`` has at most 24 bits and is as a binary32 word holds it; 0 is ``(0, 0)``.
    """
    word = int(np.float32(value).view(np.uint32))
    field, fraction = word >> 23 & 255, word & 0x7FFFFF
    if field == 0:
        return (fraction, -149) if fraction else (0, 0)
    return fraction | 1 << 23, field - 150


def unpack_rows(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack transformers' layout: byte row r holds the codes of rows r, r + n, r + 2n, r + 3n.

    Parameters
    ----------
    packed
        [n, n_cols]; the first row's codes are the lowest two bits.

    Returns
    -------
    uint8 [4 * n, n_cols]

    Source
    ------
    transformers ``integrations/bitnet.py::unpack_weights``.
    """
    return np.concatenate([packed >> np.uint8(shift) & np.uint8(3) for shift in (0, 2, 4, 6)])


def absmean_scale(blocks: Iterable[NDArray[np.float32]]) -> tuple[int, int]:
    """Mean of |w| over a matrix: exact, rounded once to float64, truncated to 24 bits.

    Parameters
    ----------
    blocks
        Rows of the matrix, some at a time.

    Returns
    -------
    tuple
        ``(M, E)``; ``(0, 0)`` where the mean is below the least float32 number.

    Source
    ------
    docs/numerics.md, section 8.
    """
    total, n_weights = Fraction(0), 0
    for values in blocks:
        n_weights += values.size
        fractions, exponents = np.frexp(np.abs(values))
        whole = np.ldexp(fractions, 24).astype(np.int64)  # 24 bits: a sum of 2^39 of them is exact
        for exponent in np.unique(exponents):
            amount = int(whole[exponents == exponent].sum())
            total += amount * Fraction(2) ** (int(exponent) - 24)
    mean = float(total / n_weights)
    significand, exponent = float32_parts(mean)
    if float(np.float32(mean)) > mean:  # rounded up: truncation is the number before it
        significand, exponent = float32_parts(float(np.nextafter(np.float32(mean), np.float32(0))))
    return significand, exponent


def absmean_codes(values: NDArray[np.float32], scale: tuple[int, int]) -> NDArray[np.uint8]:
    """Codes of ``clip(rint(w / scale), -1, 1)`` in float32; a scale of 0 gives zeros.

    Source
    ------
    docs/numerics.md, section 8.
    """
    significand, exponent = scale
    if not significand:
        return np.ones(values.shape, dtype=np.uint8)
    divisor = np.float32(math.ldexp(significand, exponent))
    ternary: NDArray[np.float32] = np.clip(np.rint(values / divisor), -1, 1)
    return (ternary.astype(np.int8) + np.int8(1)).view(np.uint8)
