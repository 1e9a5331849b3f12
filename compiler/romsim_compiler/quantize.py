"""Quantising what arrives in floating point (docs/numerics.md, section 8)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numba
import numpy as np
from numpy.typing import NDArray

from romsim_compiler.encoded import BLOCK_WEIGHTS, RomTensor, RowSource, from_encoded
from romsim_compiler.formats import SHIPPED_FORMATS, WeightFormat
from romsim_compiler.ternary_exact import ExactTernary
from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import EncodedTensor
from romsim_models.errors import FormatError, SpecError

__all__ = ["GROUPS", "open_tensor", "quantize_tensor"]

GROUPS = (32, 64, 128)
"""Groups that floating-point weights can be quantised in."""

WHOLE_WEIGHTS = 1 << 26
"""Matrices up to this size are held whole (64 MiB of codes); larger ones are streamed."""


def quantize_tensor(name: str, values: NDArray[np.float32], fmt: WeightFormat) -> RomTensor:
    """Quantise a float matrix.

    Parameters
    ----------
    name
        Canonical tensor name, for messages.
    values
        float32 [n_rows, n_cols].
    fmt
        ``int4``, ``int2`` or ``int8`` by groups, or ``ternary``.

    Returns
    -------
    RomTensor
        With its relative root-mean-square ``error``.

    Raises
    ------
    SpecError
        If the format is not one for floats, or its group does not divide the columns.
    FormatError
        If a weight is not finite, or a scale or minimum overflows binary16.
    """
    _check_format(name, fmt, int(values.shape[1]))
    _check_finite(name, values, 0)
    scale = _absmean(name, iter([values])) if fmt.kind == "ternary" else (1, 0)
    tensor, sums = _quantize_rows(name, values, fmt, scale, 0)
    return _with_error(tensor, _relative([sums]))


def open_tensor(checkpoint: Checkpoint, name: str, fmt: WeightFormat) -> RowSource:
    """Open a matrix of a model for burning.

    A matrix that the file ships in this very format is burnt as shipped; one that is to be ternary
    already is checked, and not rounded; any other is widened to
    float32 and quantised. Up to 2^26 weights are held whole; a larger matrix is read again, a block
    of rows at a time, each time that rows are asked for, after one pass for its error.

    Parameters
    ----------
    checkpoint
        The model.
    name
        Canonical tensor name.
    fmt
        Format in ROM.

    Raises
    ------
    SpecError, FormatError
        As `quantize_tensor`, or as `Checkpoint.read`.
    """
    if fmt.name == "ternary-exact":
        return ExactTernary(checkpoint, name, fmt)
    if math.prod(checkpoint.shape(name)) <= WHOLE_WEIGHTS:
        tensor = checkpoint.read(name)
        if isinstance(tensor, EncodedTensor) and tensor.format == fmt.name:
            return from_encoded(tensor)
        return quantize_tensor(name, tensor.dequantize(), fmt)
    if checkpoint.formats()[name] == fmt.name:
        return _ShippedRows(checkpoint, name, fmt)
    _check_format(name, fmt, int(checkpoint.shape(name)[1]))
    return _FloatRows(checkpoint, name, fmt)


class _ShippedRows:
    """A large matrix of a file, as shipped, read at each use."""

    multiplier = 1
    exponent = 0
    error = None

    def __init__(self, checkpoint: Checkpoint, name: str, fmt: WeightFormat) -> None:
        self.name = name
        self.fmt = fmt
        self.n_rows, self.n_cols = checkpoint.shape(name)
        self._checkpoint = checkpoint

    def rows(self, first: int, last: int) -> RomTensor:
        tensor = self._checkpoint.read_rows(self.name, first, last)
        assert isinstance(tensor, EncodedTensor)  # the checkpoint said so in `formats`
        return from_encoded(tensor)


class _FloatRows:
    """A large float matrix, read and quantised at each use."""

    def __init__(self, checkpoint: Checkpoint, name: str, fmt: WeightFormat) -> None:
        self.name = name
        self.fmt = fmt
        self.n_rows, self.n_cols = checkpoint.shape(name)
        self.error: float | None = None
        self._checkpoint = checkpoint
        is_ternary = fmt.kind == "ternary"
        self.multiplier, self.exponent = _absmean(name, self._blocks()) if is_ternary else (1, 0)
        sums = [self._quantize(first, values)[1] for first, values in self._numbered_blocks()]
        self.error = _relative(sums)

    def rows(self, first: int, last: int) -> RomTensor:
        return _with_error(self._quantize(first, self._read(first, last))[0], self.error)

    def _quantize(
        self, first: int, values: NDArray[np.float32]
    ) -> tuple[RomTensor, NDArray[np.float64]]:
        scale = (self.multiplier, self.exponent)
        return _quantize_rows(self.name, values, self.fmt, scale, first)

    def _read(self, first: int, last: int) -> NDArray[np.float32]:
        return self._checkpoint.read_rows(self.name, first, last).dequantize()

    def _numbered_blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        step = max(1, BLOCK_WEIGHTS // self.n_cols)
        for first in range(0, self.n_rows, step):
            values = self._read(first, min(first + step, self.n_rows))
            _check_finite(self.name, values, first)
            yield first, values

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        return (values for _, values in self._numbered_blocks())


def _check_format(name: str, fmt: WeightFormat, n_cols: int) -> None:
    if fmt.kind != "ternary" and not fmt.name.startswith("int"):
        meaning = (
            "one that files ship" if fmt.name in SHIPPED_FORMATS else "one without a quantiser"
        )
        raise SpecError(
            f"Format of tensor {name!r} must be int2, int4 or int8 with a group, or ternary, to "
            f"quantise it, not {fmt.name!r} ({meaning}); choose for example int4g32"
        )
    if fmt.group and n_cols % fmt.group:
        legal = [group for group in GROUPS if n_cols % group == 0]
        remedy = (
            f"use a group of {' or '.join(map(str, legal))}"
            if legal
            else "no group of 32, 64 or 128 does, so use ternary"
        )
        raise SpecError(
            f"Group of format {fmt.name!r} must divide the {n_cols} columns of tensor {name!r}, "
            f"not be {fmt.group}; {remedy}"
        )


def _check_finite(name: str, values: NDArray[np.float32], first_row: int) -> None:
    fault = int(_first_nonfinite(values.reshape(-1)))
    if fault >= 0:
        row, column = divmod(fault, values.shape[1])
        raise FormatError(
            f"Element [{first_row + row}, {column}] of tensor {name!r} must be a finite number, "
            f"not {float(values[row, column])!r}"
        )


def _with_error(tensor: RomTensor, error: float | None) -> RomTensor:
    return RomTensor(
        name=tensor.name,
        fmt=tensor.fmt,
        codes=tensor.codes,
        scale_bits=tensor.scale_bits,
        minimum_bits=tensor.minimum_bits,
        multiplier=tensor.multiplier,
        exponent=tensor.exponent,
        error=error,
    )


def _relative(sums: list[NDArray[np.float64]]) -> float:
    """Relative error from rows of (squared error, squared weight); free of the blocks' size."""
    squared_error = math.fsum(value for block in sums for value in block[:, 0].tolist())
    squared_weight = math.fsum(value for block in sums for value in block[:, 1].tolist())
    return math.sqrt(squared_error / squared_weight) if squared_weight else 0.0


def _absmean(name: str, blocks: Iterator[NDArray[np.float32]]) -> tuple[int, int]:
    """Mean magnitude, truncated to a 24-bit significand: (M, E) with the value M * 2**E."""
    row_sums: list[float] = []
    n_weights = 0
    for values in blocks:
        row_sums += _row_magnitudes(values).tolist()
        n_weights += values.size
    mean = math.fsum(row_sums) / n_weights
    if mean == 0.0:
        return 0, 0
    fraction, exponent = math.frexp(mean)
    if exponent < -125:
        raise FormatError(
            f"Mean magnitude of tensor {name!r} must be at least 2^-126 to be a ternary scale, "
            f"not {mean!r}"
        )
    return int(fraction * (1 << 24)), exponent - 24


def _to_fp16(
    name: str, what: str, values: NDArray[np.float32], first_row: int
) -> NDArray[np.uint16]:
    """Round to binary16, refusing an overflow."""
    with np.errstate(over="ignore"):
        words = values.astype(np.float16)
    bad = np.argwhere(~np.isfinite(words))
    if len(bad):
        row, group = (int(i) for i in bad[0])
        raise FormatError(
            f"{what} of row {first_row + row}, group {group} of tensor {name!r} must be at most "
            f"65504, the largest binary16 number, not {float(values[row, group])!r}; scale the "
            "weights down"
        )
    words += np.float16(0)  # one word for zero: 0x0000, also where the sign was negative
    return words.view(np.uint16)


def _quantize_rows(
    name: str,
    values: NDArray[np.float32],
    fmt: WeightFormat,
    whole_scale: tuple[int, int],
    first_row: int,
) -> tuple[RomTensor, NDArray[np.float64]]:
    """Quantise some rows; also return squared error and squared weight of each, [n_rows, 2]."""
    n_rows, n_cols = values.shape
    codes = np.empty((n_rows, n_cols), dtype=np.uint8)
    sums = np.empty((n_rows, 2), dtype=np.float64)
    if fmt.kind == "ternary":
        scale = math.ldexp(*whole_scale)
        _ternary_codes(values, np.float32(scale), codes, sums)
        tensor = RomTensor(
            name=name,
            fmt=fmt,
            codes=codes,
            scale_bits=np.empty((n_rows, 0), dtype=np.uint16),
            multiplier=whole_scale[0],
            exponent=whole_scale[1],
        )
        return tensor, sums
    bounds = np.empty((2, n_rows, n_cols // fmt.group), dtype=np.float32)
    _group_bounds(values, fmt.group, bounds)
    low, high = bounds[0], bounds[1]
    minimum_bits = None
    minimum = np.zeros_like(low)
    if fmt.has_minimum:
        low_code, top_code = 0, (1 << fmt.code_bits) - 1
        with np.errstate(over="ignore"):  # an overflow is refused by _to_fp16
            step = (high - low) / np.float32(top_code)
        minimum_bits = _to_fp16(name, "Minimum", low, first_row)
        minimum = minimum_bits.view(np.float16).astype(np.float32)
    else:
        low_code, top_code = -127, 127
        step = np.maximum(high, -low) / np.float32(127)
    scale_bits = _to_fp16(name, "Scale", step, first_row)
    scales = scale_bits.view(np.float16).astype(np.float32)
    _group_codes(
        values, scales, minimum, fmt.group, np.float32(low_code), np.float32(top_code), fmt.offset,
        codes, sums,
    )  # fmt: skip
    tensor = RomTensor(
        name=name, fmt=fmt, codes=codes, scale_bits=scale_bits, minimum_bits=minimum_bits
    )
    return tensor, sums


@numba.njit(cache=True)
def _first_nonfinite(values: NDArray[np.float32]) -> int:
    for start in range(0, values.size, 4096):
        stop = min(start + 4096, values.size)
        fault = False
        for k in range(start, stop):
            fault |= not abs(values[k]) <= np.float32(3.4028235e38)
        if fault:
            for k in range(start, stop):
                if not abs(values[k]) <= np.float32(3.4028235e38):
                    return k
    return -1


@numba.njit(cache=True)
def _row_magnitudes(values: NDArray[np.float32]) -> NDArray[np.float64]:
    # One order of summation on every machine, which NumPy's pairwise sum does not promise.
    result = np.empty(values.shape[0], dtype=np.float64)
    for i in range(values.shape[0]):
        total = 0.0
        for k in range(values.shape[1]):
            total += abs(np.float64(values[i, k]))
        result[i] = total
    return result


@numba.njit(cache=True)
def _group_bounds(values: NDArray[np.float32], group: int, bounds: NDArray[np.float32]) -> None:
    for i in range(values.shape[0]):
        for g in range(values.shape[1] // group):
            low = np.float32(0)
            high = np.float32(0)
            for k in range(g * group, (g + 1) * group):
                low = min(low, values[i, k])
                high = max(high, values[i, k])
            bounds[0, i, g] = low
            bounds[1, i, g] = high


@numba.njit(cache=True, error_model="numpy")
def _group_codes(
    values: NDArray[np.float32],
    scales: NDArray[np.float32],
    minima: NDArray[np.float32],
    group: int,
    low_code: np.float32,
    top_code: np.float32,
    offset: int,
    codes: NDArray[np.uint8],
    sums: NDArray[np.float64],
) -> None:
    for i in range(values.shape[0]):
        squared_error = 0.0
        squared_weight = 0.0
        for g in range(values.shape[1] // group):
            scale = scales[i, g]
            minimum = minima[i, g]
            for k in range(g * group, (g + 1) * group):
                code = np.float32(0)
                if scale > np.float32(0):
                    code = np.rint((values[i, k] - minimum) / scale)
                    code = min(max(code, low_code), top_code)
                codes[i, k] = np.uint8(np.int32(code) + offset)
                weight = np.float64(values[i, k])
                error = weight - (np.float64(code) * np.float64(scale) + np.float64(minimum))
                squared_error += error * error
                squared_weight += weight * weight
        sums[i, 0] = squared_error
        sums[i, 1] = squared_weight


@numba.njit(cache=True, error_model="numpy")
def _ternary_codes(
    values: NDArray[np.float32],
    scale: np.float32,
    codes: NDArray[np.uint8],
    sums: NDArray[np.float64],
) -> None:
    for i in range(values.shape[0]):
        squared_error = 0.0
        squared_weight = 0.0
        for k in range(values.shape[1]):
            code = np.float32(0)
            if scale > np.float32(0):
                code = np.rint(values[i, k] / scale)
                code = min(max(code, np.float32(-1)), np.float32(1))
            codes[i, k] = np.uint8(0) if code == 0 else np.uint8(1) if code > 0 else np.uint8(2)
            weight = np.float64(values[i, k])
            error = weight - np.float64(code) * np.float64(scale)
            squared_error += error * error
            squared_weight += weight * weight
        sums[i, 0] = squared_error
        sums[i, 1] = squared_weight
