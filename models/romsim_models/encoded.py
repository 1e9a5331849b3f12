"""Tensors as a file ships them: `EncodedTensor` (codes and scales), `FloatTensor` (floats)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from romsim_models.errors import FormatError

__all__ = ["EncodedTensor", "FloatTensor", "Tensor", "check_finite"]

_FLOAT_BITS = {"f32": 32, "f16": 16, "bf16": 16}
_FP16_EXPONENT = np.uint16(0x7C00)  # all ones in an fp16 word: infinity or not a number


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedTensor:
    """A quantised matrix, bit for bit as its file has it.

    A weight is ``scale * (code - code_offset) + minimum`` with the scale and minimum of its group;
    a group is ``group_size`` neighbouring columns of one row. A matrix may have one scale for all
    of it instead (BitNet). Nothing is ever rounded again.

    Parameters
    ----------
    name
        Canonical tensor name.
    shape
        (n_rows, n_cols) = (outputs, inputs).
    format
        Name of the file format's encoding: ``"q4_0"``, ``"q4_1"``, ``"q8_0"``, ``"tq1_0"``,
        ``"tq2_0"``, ``"i2_s"``, ``"bitnet"``.
    code_bits
        Bits of one code.
    code_offset
        Subtracted from a code to give its value (8 for q4_0, 1 for ternary codes, else 0).
    group_size
        Columns that share one scale; divides ``n_cols``. 0: one scale for the whole matrix.
    codes
        uint8 or int8 [n_rows, n_cols]; set read-only here.
    scale_bits
        uint16 [n_rows, n_cols / group_size], raw fp16 words; set read-only here. [n_rows, 0] with
        one scale for the whole matrix.
    minimum_bits
        As ``scale_bits``, or ``None`` where the encoding has no minimum.
    matrix_scale
        ``(M, E)`` of the one scale ``M * 2**E`` of the whole matrix, ``0 <= M < 2**24``; ``None``
        where groups have scales.

    Raises
    ------
    FormatError
        If an array's shape, type or range contradicts the rest, or a scale or minimum is not
        finite.
    """

    name: str
    shape: tuple[int, int]
    format: str
    code_bits: int
    code_offset: int
    group_size: int
    codes: NDArray[np.uint8] | NDArray[np.int8]
    scale_bits: NDArray[np.uint16]
    minimum_bits: NDArray[np.uint16] | None = None
    matrix_scale: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        n_cols = self.shape[1]
        if self.matrix_scale is not None:
            _check_matrix_scale(self)
        elif self.group_size < 1 or n_cols % self.group_size:
            raise FormatError(
                f"number of columns of tensor {self.name!r} must be a multiple of the group size "
                f"{self.group_size} of {self.format}, not {n_cols!r}"
            )
        if self.codes.shape != self.shape or self.codes.dtype not in (np.uint8, np.int8):
            raise FormatError(
                f"codes of tensor {self.name!r} must be 8-bit integers of shape "
                f"{list(self.shape)}, not {self.codes.dtype.name} of {list(self.codes.shape)}"
            )
        self.codes.flags.writeable = False
        _check_words(self.scale_bits, "scale", self)
        if self.minimum_bits is not None:
            _check_words(self.minimum_bits, "minimum", self)

    @property
    def n_groups(self) -> int:
        """Groups in one row; 0 with one scale for the whole matrix."""
        return self.shape[1] // self.group_size if self.group_size else 0

    @property
    def size_bits(self) -> int:
        """Bits of all codes, scales and minima; a whole matrix's scale is 32 bits."""
        n_rows, n_cols = self.shape
        words = 1 if self.minimum_bits is None else 2
        bits = n_rows * (n_cols * self.code_bits + 16 * words * self.n_groups)
        return bits if self.matrix_scale is None else bits + 32

    @property
    def bits_per_weight(self) -> float:
        """Effective bits of one weight: codes, scales and minima."""
        return self.size_bits / (self.shape[0] * self.shape[1])

    @property
    def scales(self) -> NDArray[np.float32]:
        """Scales as float32 [n_rows, n_groups], exact."""
        return self.scale_bits.view(np.float16).astype(np.float32)

    @property
    def minima(self) -> NDArray[np.float32] | None:
        """Minima as float32 [n_rows, n_groups], exact, or ``None``."""
        if self.minimum_bits is None:
            return None
        return self.minimum_bits.view(np.float16).astype(np.float32)

    def dequantize(self) -> NDArray[np.float32]:
        """Weights in float32 [n_rows, n_cols].

        Code times scale is exact; only adding a minimum rounds, as ggml's dequantisation does.
        """
        values = self.codes.astype(np.float32)
        if self.code_offset:
            values -= np.float32(self.code_offset)
        if self.matrix_scale is not None:
            values *= np.float32(math.ldexp(*self.matrix_scale))
            return values
        grouped = values.reshape(self.shape[0], self.n_groups, self.group_size)
        grouped *= self.scales[:, :, None]
        minima = self.minima
        if minima is not None:
            grouped += minima[:, :, None]
        return values

    def rows(self, first: int, last: int) -> EncodedTensor:
        """Rows ``first`` to ``last`` (not included) as a tensor of their own, without a copy."""
        return EncodedTensor(
            name=self.name,
            shape=(len(range(*slice(first, last).indices(self.shape[0]))), self.shape[1]),
            format=self.format,
            code_bits=self.code_bits,
            code_offset=self.code_offset,
            group_size=self.group_size,
            codes=self.codes[first:last],
            scale_bits=self.scale_bits[first:last],
            minimum_bits=None if self.minimum_bits is None else self.minimum_bits[first:last],
            matrix_scale=self.matrix_scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FloatTensor:
    """A tensor that its file holds in floating point.

    Parameters
    ----------
    name
        Canonical tensor name.
    shape
        (n_rows, n_cols) of a matrix, (n,) of a norm.
    format
        Type in the file: ``"f32"``, ``"f16"`` or ``"bf16"``. All three convert exactly.
    values
        float32, of that shape; set read-only here.

    Raises
    ------
    FormatError
        If the values have another shape or type, or one of them is not finite.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    values: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.format not in _FLOAT_BITS:
            listed = ", ".join(_FLOAT_BITS)
            raise FormatError(
                f"format of tensor {self.name!r} must be one of {listed}, not {self.format!r}"
            )
        if self.values.shape != self.shape or self.values.dtype != np.float32:
            raise FormatError(
                f"values of tensor {self.name!r} must be float32 of shape {list(self.shape)}, "
                f"not {self.values.dtype.name} of {list(self.values.shape)}"
            )
        check_finite(self.values, self.name)
        self.values.flags.writeable = False

    @property
    def size_bits(self) -> int:
        """Bits of the tensor in its file."""
        return _FLOAT_BITS[self.format] * int(self.values.size)

    @property
    def bits_per_weight(self) -> float:
        """Bits of one element in the file."""
        return float(_FLOAT_BITS[self.format])

    def dequantize(self) -> NDArray[np.float32]:
        """Return the values, as `EncodedTensor.dequantize` does for codes."""
        return self.values


Tensor: TypeAlias = EncodedTensor | FloatTensor


def check_finite(values: NDArray[np.float32], name: str) -> None:
    """Refuse a value that is infinite or not a number, naming its place.

    Raises
    ------
    FormatError
        With the coordinates of the first such value, in row-major order.
    """
    # The sum of a row is finite if its values are; only a suspect row is searched. (It can overflow
    # without a fault, which then is merely searched for nothing.)
    with np.errstate(all="ignore"):
        row_sums = values.sum(axis=-1, keepdims=True)
    for row in np.argwhere(~np.isfinite(row_sums)):
        place = tuple(int(index) for index in row[:-1])
        bad = np.flatnonzero(~np.isfinite(values[place]))
        if bad.size:
            place = (*place, int(bad[0]))
            raise FormatError(
                f"element {list(place)} of tensor {name!r} must be a finite number, "
                f"not {float(values[place])!r}"
            )


def _check_matrix_scale(tensor: EncodedTensor) -> None:
    """Check that one scale stands alone, and that it is 24 bits of a float32."""
    assert tensor.matrix_scale is not None
    significand, exponent = tensor.matrix_scale
    if tensor.group_size or tensor.minimum_bits is not None:
        raise FormatError(
            f"group size of tensor {tensor.name!r} must be 0 and its minima absent where one scale "
            f"serves the whole matrix, not {tensor.group_size!r}"
        )
    if not 0 <= significand < 1 << 24 or not -149 <= exponent <= 104:
        raise FormatError(
            f"scale of tensor {tensor.name!r} must be a float32 number of at least 0, "
            f"not {significand} * 2^{exponent}"
        )


def _check_words(words: NDArray[np.uint16], what: str, tensor: EncodedTensor) -> None:
    """Check shape and type of scales or minima, and that none is infinite or not a number."""
    shape = (tensor.shape[0], tensor.n_groups)
    if words.shape != shape or words.dtype != np.uint16:
        raise FormatError(
            f"{what} words of tensor {tensor.name!r} must be uint16 of shape {list(shape)}, "
            f"not {words.dtype.name} of {list(words.shape)}"
        )
    bad = np.argwhere((words & _FP16_EXPONENT) == _FP16_EXPONENT)
    if len(bad):
        row, group = (int(index) for index in bad[0])
        value = float(words[row, group].view(np.float16))
        raise FormatError(
            f"{what} of row {row}, group {group} of tensor {tensor.name!r} must be a finite "
            f"number, not {value!r}"
        )
    words.flags.writeable = False
