"""A matrix in the form in which it is burnt: unsigned codes, raw scales and minima.

The bridge from what a file ships (`romsim_models.encoded.EncodedTensor`) to ROM words; nothing is
rounded here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.formats import SHIPPED_FORMATS, WeightFormat
from romsim_models.encoded import EncodedTensor
from romsim_models.errors import FormatError

__all__ = ["RomTensor", "RowSource", "fp16_parts", "from_encoded", "row_blocks"]

BLOCK_WEIGHTS = 1 << 23
"""Weights handled at a time where a matrix is streamed: 8 MiB of codes."""

_TERNARY_CODES = np.array([2, 0, 1], dtype=np.uint8)
"""ROM code of a file's code 0, 1, 2 for -1, 0, +1."""

_EXPONENT_BITS = np.uint16(0x7C00)


class RowSource(Protocol):
    """A matrix whose rows can be had a block at a time; a `RomTensor` is one."""

    @property
    def name(self) -> str:
        """Canonical tensor name."""

    @property
    def fmt(self) -> WeightFormat:
        """Format in ROM."""

    @property
    def n_rows(self) -> int:
        """Number of rows (outputs)."""

    @property
    def n_cols(self) -> int:
        """Number of columns (inputs)."""

    @property
    def multiplier(self) -> int:
        """Significand ``M`` of the whole-matrix scale; 1 where scales stand in the words."""

    @property
    def exponent(self) -> int:
        """Exponent ``E`` of the whole-matrix scale; 0 where scales stand in the words."""

    @property
    def error(self) -> float | None:
        """Relative root-mean-square error of the codes; ``None`` where they are as shipped."""

    def rows(self, first: int, last: int) -> RomTensor:
        """Return rows ``first`` to ``last`` (not included)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RomTensor:
    """A matrix in ROM form.

    A weight is ``scale * (code - fmt.offset) + minimum`` with the scale and minimum of its group,
    or ``multiplier * 2**exponent * (code - fmt.offset)`` where one scale serves the whole
    matrix. Ternary codes 0, 1, 2 stand for 0, +1, -1.

    Parameters
    ----------
    name
        Canonical tensor name.
    fmt
        Format in ROM.
    codes
        uint8 [n_rows, n_cols].
    scale_bits
        uint16 [n_rows, n_groups], raw fp16 words; [n_rows, 0] with a whole-matrix scale.
    minimum_bits
        As ``scale_bits``, or ``None`` where the format has no minimum.
    multiplier, exponent
        Whole-matrix scale ``M``, below 2^24, and its exponent ``E``.
    error
        Root of the summed squared error over the summed squared weights; ``None`` where codes are
        as shipped.

    Raises
    ------
    FormatError
        If an array's shape, type or range contradicts the format.
    """

    name: str
    fmt: WeightFormat
    codes: NDArray[np.uint8]
    scale_bits: NDArray[np.uint16]
    minimum_bits: NDArray[np.uint16] | None = None
    multiplier: int = 1
    exponent: int = 0
    error: float | None = None

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.dtype != np.uint8 or self.codes.size == 0:
            raise FormatError(
                f"ROM codes of tensor {self.name!r} must be a uint8 matrix with elements, "
                f"not {self.codes.dtype.name} of {list(self.codes.shape)}"
            )
        top = 2 if self.fmt.kind == "ternary" else (1 << self.fmt.code_bits) - 1
        highest = int(self.codes.max())
        if highest > top:
            row, column = (int(i) for i in np.argwhere(self.codes > top)[0])
            raise FormatError(
                f"ROM code [{row}, {column}] of tensor {self.name!r} must be at most {top} in "
                f"format {self.fmt.name!r}, not {int(self.codes[row, column])}"
            )
        if self.fmt.group and self.n_cols % self.fmt.group:
            raise FormatError(
                f"Number of columns of tensor {self.name!r} must be a multiple of the group "
                f"{self.fmt.group} of format {self.fmt.name!r}, not {self.n_cols}"
            )
        self._check_words("scale", self.scale_bits)
        if (self.minimum_bits is not None) != self.fmt.has_minimum:
            stated = "have" if self.fmt.has_minimum else "not have"
            raise FormatError(
                f"Tensor {self.name!r} must {stated} minima in format {self.fmt.name!r}"
            )
        if self.minimum_bits is not None:
            self._check_words("minimum", self.minimum_bits)
        if not 0 <= self.multiplier < 1 << 24:
            raise FormatError(
                f"Multiplier of tensor {self.name!r} must have at most 24 bits, "
                f"not {self.multiplier!r}"
            )
        self.codes.flags.writeable = False

    @property
    def n_rows(self) -> int:
        """Number of rows (outputs)."""
        return int(self.codes.shape[0])

    @property
    def n_cols(self) -> int:
        """Number of columns (inputs)."""
        return int(self.codes.shape[1])

    @property
    def n_groups(self) -> int:
        """Number of groups in a row; 0 with a whole-matrix scale."""
        return self.n_cols // self.fmt.group if self.fmt.group else 0

    @property
    def scale_sig(self) -> NDArray[np.int16]:
        """Significands of the scales, int16 [n_rows, n_groups]; decoded at each use."""
        return fp16_parts(self.scale_bits)[0]

    @property
    def scale_exp(self) -> NDArray[np.int8]:
        """Exponents of the scales, int8 [n_rows, n_groups]; decoded at each use."""
        return fp16_parts(self.scale_bits)[1]

    @property
    def minimum_sig(self) -> NDArray[np.int16] | None:
        """Significands of the minima, or ``None``."""
        return None if self.minimum_bits is None else fp16_parts(self.minimum_bits)[0]

    @property
    def minimum_exp(self) -> NDArray[np.int8] | None:
        """Exponents of the minima, or ``None``."""
        return None if self.minimum_bits is None else fp16_parts(self.minimum_bits)[1]

    def values(self) -> NDArray[np.int16]:
        """Return the signed values of the codes, int16 [n_rows, n_cols]."""
        if self.fmt.kind == "ternary":
            return np.array([0, 1, -1], dtype=np.int16)[self.codes]
        return self.codes.astype(np.int16) - np.int16(self.fmt.offset)

    def dequantize(self) -> NDArray[np.float64]:
        """Return the weights, float64 [n_rows, n_cols], exact."""
        values = self.values().astype(np.float64)
        if not self.fmt.group:
            return values * math.ldexp(self.multiplier, self.exponent)
        grouped = values.reshape(self.n_rows, self.n_groups, self.fmt.group)
        grouped *= self.scale_bits.view(np.float16).astype(np.float64)[:, :, None]
        if self.minimum_bits is not None:
            grouped += self.minimum_bits.view(np.float16).astype(np.float64)[:, :, None]
        return values

    def rows(self, first: int, last: int) -> RomTensor:
        """Return rows ``first`` to ``last`` (not included), without a copy."""
        if first == 0 and last == self.n_rows:
            return self
        return RomTensor(
            name=self.name,
            fmt=self.fmt,
            codes=self.codes[first:last],
            scale_bits=self.scale_bits[first:last],
            minimum_bits=None if self.minimum_bits is None else self.minimum_bits[first:last],
            multiplier=self.multiplier,
            exponent=self.exponent,
            error=self.error,
        )

    def _check_words(self, what: str, words: NDArray[np.uint16]) -> None:
        shape = (self.n_rows, self.n_groups)
        if words.shape != shape or words.dtype != np.uint16:
            raise FormatError(
                f"ROM {what} words of tensor {self.name!r} must be uint16 of shape {list(shape)}, "
                f"not {words.dtype.name} of {list(words.shape)}"
            )
        bad = np.argwhere((words & _EXPONENT_BITS) == _EXPONENT_BITS)
        if len(bad):
            row, group = (int(i) for i in bad[0])
            raise FormatError(
                f"ROM {what} of row {row}, group {group} of tensor {self.name!r} must be a finite "
                f"number, not {float(words[row, group].view(np.float16))!r}"
            )
        words.flags.writeable = False


def fp16_parts(words: NDArray[np.uint16]) -> tuple[NDArray[np.int16], NDArray[np.int8]]:
    """Split binary16 words into significand and exponent, so that the value is ``sig * 2**exp``.

    Parameters
    ----------
    words
        uint16, finite numbers.

    Returns
    -------
    sig, exp
        int16 in -2047 … 2047 and int8 in -24 … 5, of the same shape.

    Source
    ------
    docs/numerics.md, section 2.
    """
    field = (words >> np.uint16(10)) & np.uint16(31)
    magnitude = (words & np.uint16(0x3FF)) | np.where(field > 0, np.uint16(1024), np.uint16(0))
    sig = magnitude.astype(np.int16)
    np.negative(sig, out=sig, where=words >= np.uint16(0x8000))
    exp = np.maximum(field, np.uint16(1)).astype(np.int8) - np.int8(25)
    return sig, exp


def from_encoded(tensor: EncodedTensor) -> RomTensor:
    """Return a shipped matrix in ROM form; no code, scale or minimum is rounded.

    Raises
    ------
    FormatError
        If no ROM format holds the file's encoding as shipped.
    """
    fmt = SHIPPED_FORMATS.get(tensor.format)
    if fmt is None:
        listed = ", ".join(SHIPPED_FORMATS)
        raise FormatError(
            f"Format of tensor {tensor.name!r} must be one of {listed} to be burnt as shipped, "
            f"not {tensor.format!r}; choose a format to quantise it to, such as int4g32"
        )
    if fmt.group != tensor.group_size or fmt.has_minimum != (tensor.minimum_bits is not None):
        raise FormatError(
            f"Group of tensor {tensor.name!r} must be {fmt.group} in format {fmt.name!r}, "
            f"not {tensor.group_size}"
        )
    if tensor.matrix_scale is not None:
        return RomTensor(
            name=tensor.name,
            fmt=fmt,
            codes=_TERNARY_CODES[tensor.codes],
            scale_bits=tensor.scale_bits,
            multiplier=tensor.matrix_scale[0],
            exponent=tensor.matrix_scale[1],
        )
    if tensor.codes.dtype == np.int8:
        codes = tensor.codes.view(np.uint8) ^ np.uint8(0x80)  # signed + 128
        shift = 128 + tensor.code_offset
    else:
        codes = tensor.codes.view(np.uint8)
        shift = tensor.code_offset
    if shift != fmt.offset:
        raise FormatError(
            f"Code offset of tensor {tensor.name!r} must be {fmt.offset} in format {fmt.name!r}, "
            f"not {shift}"
        )
    return RomTensor(
        name=tensor.name,
        fmt=fmt,
        codes=codes,
        scale_bits=tensor.scale_bits,
        minimum_bits=tensor.minimum_bits,
    )


def row_blocks(source: RowSource, block_weights: int = BLOCK_WEIGHTS) -> Iterator[RomTensor]:
    """Yield all rows of a matrix in order, about ``block_weights`` weights at a time."""
    step = max(1, block_weights // source.n_cols)
    for first in range(0, source.n_rows, step):
        yield source.rows(first, min(first + step, source.n_rows))
