"""MXINT8 blocks of adapter factors, their grid and their error (docs/numerics.md, section 6)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from romsim_models.errors import FormatError

__all__ = ["block_grid", "block_values", "product_squares", "quantize_blocks", "relative_error"]

MIN_EXPONENT = -40
IN_ABS_MAX = 2**31


def quantize_blocks(
    values: NDArray[np.float64], block: int, what: str
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Quantise rows to MXINT8 in blocks along their columns.

    Parameters
    ----------
    values
        float64 [n_rows, n_cols].
    block
        Elements that share an exponent; the last block of a row may be shorter.
    what
        Subject of an error message.

    Returns
    -------
    codes, exponents
        int8 [n_rows, n_cols] in -127 … 127, and int8 [n_rows, n_blocks], the least of at least -40
        for which no code exceeds 127; -40 for a block of zeros.

    Raises
    ------
    FormatError
        If a value is not finite, or too large for an 8-bit exponent.
    """
    n_rows, n_cols = values.shape
    n_blocks = -(-n_cols // block)
    padded = np.zeros((n_rows, n_blocks * block))
    padded[:, :n_cols] = values
    blocks = padded.reshape(n_rows, n_blocks, block)
    largest = np.abs(blocks).max(axis=2)
    if not (largest < 2.0**134).all():
        row, column = (int(i) for i in np.argwhere(~(np.abs(values) < 2.0**134))[0])
        raise FormatError(
            f"{what}, element [{row}, {column}], must be a finite number below 2^134, "
            f"not {float(values[row, column])!r}"
        )
    # largest < 2^x, so that no code exceeds 128 at x - 7; it is 128 from 127.5 on (ties to even).
    exponents = np.maximum(np.frexp(largest)[1] - 7, MIN_EXPONENT)
    exponents += np.ldexp(largest, -exponents) >= 127.5
    exponents[largest == 0] = MIN_EXPONENT
    codes = np.rint(np.ldexp(blocks, -exponents[:, :, None])).astype(np.int8)
    codes = codes.reshape(n_rows, n_blocks * block)[:, :n_cols]
    return np.ascontiguousarray(codes), exponents.astype(np.int8)


def block_values(
    codes: NDArray[np.int8], exps: NDArray[np.int8], block: int
) -> NDArray[np.float64]:
    """Return what codes and exponents stand for, exactly."""
    by_column = np.repeat(exps.astype(np.int32), block, axis=1)[:, : codes.shape[1]]
    return np.ldexp(codes.astype(np.float64), by_column)


def block_grid(codes: NDArray[np.int8], exps: NDArray[np.int8], block: int) -> int:
    """Return the grid γ of a factor, as section 4 of the page chooses it.

    The least exponent in use, raised as far as a sum over a row could otherwise reach 2^63.
    """
    n_rows, n_cols = codes.shape
    padded = np.zeros((n_rows, exps.shape[1] * block), dtype=np.int64)
    padded[:, :n_cols] = np.abs(codes.astype(np.int64))
    sums = padded.reshape(n_rows, exps.shape[1], block).sum(axis=2)
    used = exps[sums > 0]
    if not used.size:
        return 0
    least = int(used.min())
    shifts = np.maximum(exps.astype(np.int64) - least, 0)  # below the least only where sums are 0
    # Python integers: exponents may be far apart.
    rows = (sums.astype(object) << shifts.astype(object)).sum(axis=1)
    bound = IN_ABS_MAX * int(max(rows))
    return least + max(0, bound.bit_length() - 63)


def product_squares(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    a_held: NDArray[np.float64],
    b_held: NDArray[np.float64],
) -> tuple[float, float]:
    """Return the squared norms of (held B·A - B·A) and of B·A, from r × r products alone.

    Each factor is normalised first, so that no square overflows; the ratio is what counts.
    """
    size_a, size_b = float(np.abs(a).max()) or 1.0, float(np.abs(b).max()) or 1.0
    a, a_held, b, b_held = a / size_a, a_held / size_a, b / size_b, b_held / size_b
    down, up = np.concatenate([a_held, a]), np.concatenate([b_held, -b], axis=1)
    error = float(((up.T @ up) * (down @ down.T)).sum())
    whole = float(((b.T @ b) * (a @ a.T)).sum())
    factor = (size_a * size_b) ** 2
    return max(error, 0.0) * factor, whole * factor


def relative_error(squares: list[tuple[float, float]]) -> float:
    """Return the relative error to six digits, so that a last bit of a product never shows."""
    whole = math.fsum(pair[1] for pair in squares)
    error = math.fsum(pair[0] for pair in squares)
    return float(f"{math.sqrt(error / whole):.6g}") if whole else 0.0
