"""Integer weights from a model file: codes as shipped, or floats quantised by the page's section 8.

Nothing of the compiler is used: this is the reference's own way from the file to integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.errors import FormatError, SpecError

__all__ = ["IntegerMatrix", "WeightChoice", "integer_matrix", "split_fp16"]

KINDS = ("shipped", "int4", "int2", "int8", "ternary")

_ROWS = 4096  # rows converted at a time: temporaries stay a fraction of the largest tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChoice:
    """How one matrix becomes integers.

    Parameters
    ----------
    kind
        ``"shipped"`` for codes as the file has them; ``"int4"``, ``"int2"``, ``"int8"`` (by groups)
        or ``"ternary"`` (one scale) for a matrix of floats.
    group
        Columns that share a scale; ``None`` or 0 for ``"shipped"`` and ``"ternary"``.

    Raises
    ------
    SpecError
        If the kind is unknown or the group does not go with it.
    """

    kind: str
    group: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        grouped = self.kind.startswith("int")
        if grouped and (not isinstance(self.group, int) or self.group < 1):
            raise SpecError(f"group of kind {self.kind} must be at least 1, not {self.group!r}")
        if not grouped and self.group:
            raise SpecError(f"group of kind {self.kind} must be None, not {self.group!r}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntegerMatrix:
    """A matrix as integers: ``w = value * sig 2^exp + minimum_sig 2^minimum_exp`` by groups.

    Parameters
    ----------
    name
        Canonical tensor name.
    values
        int16 [n_rows, n_cols]: code minus offset.
    group
        Columns that share one scale.
    sig, exp
        int16 [n_rows, n_groups]; all 1 and 0 where ``scale`` is given.
    minimum_sig, minimum_exp
        As ``sig`` and ``exp``, or ``None``.
    scale
        ``(M, E)`` of the one scale ``M 2^E`` of the whole matrix, or ``None``.
    """

    name: str
    values: NDArray[np.int16]
    group: int
    sig: NDArray[np.int16]
    exp: NDArray[np.int16]
    minimum_sig: NDArray[np.int16] | None = None
    minimum_exp: NDArray[np.int16] | None = None
    scale: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return int(self.values.shape[0]), int(self.values.shape[1])

    def least_exponent(self) -> int | None:
        """Least exponent of a group whose significand is not 0; ``None`` if there is none."""
        candidates = [self.exp[self.sig != 0]]
        if self.minimum_sig is not None and self.minimum_exp is not None:
            candidates.append(self.minimum_exp[self.minimum_sig != 0])
        exponents = np.concatenate(candidates)
        return int(exponents.min()) if exponents.size else None

    def scaled_rows(self, first: int, last: int, grid: int) -> NDArray[np.int64]:
        """Weights of some rows in units of ``2^grid``, int64 [last - first, n_cols].

        Exact where no exponent of a non-zero significand is below ``grid``; the caller looks.
        """
        n_cols = self.shape[1]
        scale = _shifted(self.sig[first:last], self.exp[first:last], grid)
        rows: NDArray[np.int64] = self.values[first:last] * _widen(scale, self.group, n_cols)
        if self.minimum_sig is not None and self.minimum_exp is not None:
            minimum = _shifted(self.minimum_sig[first:last], self.minimum_exp[first:last], grid)
            rows += _widen(minimum, self.group, n_cols)
        return rows

    def largest_row_sum(self) -> int:
        """Largest ``sum |w|`` of a row, exact, in units of two to the `least_exponent`."""
        least = self.least_exponent()
        if least is None:
            return 0
        if int(self.exp.max()) - least > 40:  # no file's fp16 scales; an adapter's powers may
            return self._largest_wide_row_sum(least)
        return max(
            int(np.abs(self.scaled_rows(first, first + _ROWS, least)).sum(axis=1).max())
            for first in range(0, self.shape[0], _ROWS)
        )

    def _largest_wide_row_sum(self, least: int) -> int:
        """`largest_row_sum` in integers without a width; adapters only, which have no minima."""
        columns = np.abs(self.values).astype(np.int64)
        sums = np.add.reduceat(columns, np.arange(0, self.shape[1], self.group), axis=1)
        terms = sums * np.abs(self.sig)
        return max(
            sum(int(t) << (int(e) - least) for t, e in zip(row, exps, strict=True) if t)
            for row, exps in zip(terms, self.exp, strict=True)
        )


def split_fp16(words: NDArray[np.uint16]) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Significand and exponent of IEEE binary16 words: ``value = sig 2^exp``.

    Raises
    ------
    FormatError
        If a word is infinite or not a number.
    """
    field = (words >> 10) & 31
    if bool((field == 31).any()):
        word = int(words[field == 31].flat[0])
        raise FormatError(f"fp16 word must be a finite number, not {word:#06x}")
    magnitude = ((words & 1023) + np.where(field > 0, 1024, 0)).astype(np.int16)
    significand = np.where(words >> 15 != 0, -magnitude, magnitude).astype(np.int16)
    return significand, np.maximum(field, 1).astype(np.int16) - np.int16(25)


def integer_matrix(
    tensor: EncodedTensor | FloatTensor, choice: WeightChoice | None, *, block: int
) -> IntegerMatrix:
    """Make integers of one matrix of the model file.

    Parameters
    ----------
    tensor
        As the file has it.
    choice
        How to make integers of it; ``None`` is the same as ``"shipped"``.
    block
        Activations that share a shift; a group is a multiple of it, or the row.

    Raises
    ------
    SpecError
        If the choice does not go with what the file holds, or with its shape.
    FormatError
        If a scale is not finite in binary16.
    """
    if len(tensor.shape) != 2:
        raise SpecError(
            f"tensor {tensor.name!r} must be a matrix, not of shape {list(tensor.shape)!r}"
        )
    n_cols = tensor.shape[1]
    kind = "shipped" if choice is None else choice.kind
    if isinstance(tensor, EncodedTensor):
        if kind != "shipped":
            raise SpecError(
                f"choice of tensor {tensor.name!r} must be 'shipped' because its file holds "
                f"{tensor.format} codes, not {kind!r}; codes are never rounded again"
            )
        _check_group(tensor.group_size, n_cols, block, tensor.name)
        return _shipped(tensor)
    if choice is None or kind == "shipped":
        raise SpecError(
            f"choice of tensor {tensor.name!r} must be one of {', '.join(KINDS[1:])} because its "
            f"file holds {tensor.format} values, not {kind!r}"
        )
    if kind == "ternary":
        return _ternary(tensor)
    group = choice.group
    assert group is not None  # WeightChoice gives every grouped kind one
    _check_group(group, n_cols, block, tensor.name)
    return _grouped(tensor, group, _GROUP_QUANTISERS[kind])


def _check_group(group: int, n_cols: int, block: int, name: str) -> None:
    if n_cols % group or (group % block and group != n_cols):
        raise SpecError(
            f"group of tensor {name!r} must be the row of {n_cols} or a multiple of {block} that "
            f"divides it, not {group!r}"
        )


def _shifted(
    significand: NDArray[np.int16], exponent: NDArray[np.int16], grid: int
) -> NDArray[np.int64]:
    places = np.where(significand != 0, exponent.astype(np.int64) - grid, 0)
    return np.asarray(significand.astype(np.int64) << np.maximum(places, 0))


def _widen(per_group: NDArray[np.int64], group: int, n_cols: int) -> NDArray[np.int64]:
    return np.repeat(per_group, group, axis=1)[:, :n_cols]


def _shipped(tensor: EncodedTensor) -> IntegerMatrix:
    sig, exp = split_fp16(tensor.scale_bits)
    minimum_sig, minimum_exp = None, None
    if tensor.minimum_bits is not None:
        minimum_sig, minimum_exp = split_fp16(tensor.minimum_bits)
    return IntegerMatrix(
        name=tensor.name,
        values=tensor.codes.astype(np.int16) - np.int16(tensor.code_offset),
        group=tensor.group_size,
        sig=sig,
        exp=exp,
        minimum_sig=minimum_sig,
        minimum_exp=minimum_exp,
    )


_Groups = NDArray[np.float32]  # [n_rows, n_groups, group]
_Coded = tuple[NDArray[np.int16], NDArray[np.float16], NDArray[np.float16] | None]


def _asymmetric(levels: int) -> Callable[[_Groups], _Coded]:
    """Quantiser with a scale and a minimum; codes 0 … levels."""

    def code(groups: _Groups) -> _Coded:
        zero = np.float32(0)
        low = np.minimum(zero, groups.min(axis=2))
        high = np.maximum(zero, groups.max(axis=2))
        scale = ((high - low) / np.float32(levels)).astype(np.float16)
        minimum = low.astype(np.float16)
        wide = minimum.astype(np.float32)[:, :, None]
        ratio = _divide(groups - wide, scale.astype(np.float32)[:, :, None])
        return np.clip(np.rint(ratio), 0, levels).astype(np.int16), scale, minimum

    return code


def _symmetric(groups: _Groups) -> _Coded:
    """Quantiser with a scale only; codes -127 … 127."""
    scale = (np.abs(groups).max(axis=2) / np.float32(127)).astype(np.float16)
    ratio = _divide(groups, scale.astype(np.float32)[:, :, None])
    return np.clip(np.rint(ratio), -127, 127).astype(np.int16), scale, None


_GROUP_QUANTISERS: Mapping[str, Callable[[_Groups], _Coded]] = {
    "int4": _asymmetric(15),
    "int2": _asymmetric(3),
    "int8": _symmetric,
}


def _divide(values: _Groups, scale: _Groups) -> _Groups:
    """Quotient in float32; 0 where the scale is 0."""
    quotient = np.zeros_like(values)
    np.divide(values, scale, out=quotient, where=np.broadcast_to(scale != 0, values.shape))
    return quotient


def _grouped(tensor: FloatTensor, group: int, code: Callable[[_Groups], _Coded]) -> IntegerMatrix:
    n_rows, n_cols = tensor.shape
    parts = []
    for first in range(0, n_rows, _ROWS):
        rows = tensor.values[first : first + _ROWS]
        with np.errstate(over="ignore"):  # looked for, and refused, below
            codes, scale, minimum = code(rows.reshape(len(rows), n_cols // group, group))
        for what, halves in (("scale", scale), ("minimum", minimum)):
            if halves is not None and not np.isfinite(halves).all():
                row, place = (int(i) for i in np.argwhere(~np.isfinite(halves))[0])
                raise FormatError(
                    f"{what} of row {first + row}, group {place} of tensor {tensor.name!r} must "
                    "fit binary16, whose largest number is 65504, not overflow it"
                )
        parts.append((codes.reshape(len(rows), n_cols), scale, minimum))
    sig, exp = split_fp16(np.concatenate([scale for _, scale, _ in parts]).view(np.uint16))
    minimum_sig, minimum_exp = None, None
    minima = [minimum for _, _, minimum in parts if minimum is not None]
    if minima:
        minimum_sig, minimum_exp = split_fp16(np.concatenate(minima).view(np.uint16))
    return IntegerMatrix(
        name=tensor.name,
        values=np.concatenate([codes for codes, _, _ in parts]),
        group=group,
        sig=sig,
        exp=exp,
        minimum_sig=minimum_sig,
        minimum_exp=minimum_exp,
    )


def _ternary(tensor: FloatTensor) -> IntegerMatrix:
    significand, exponent = _truncate24(_mean_magnitude(tensor.values))
    n_rows, n_cols = tensor.shape
    values = np.zeros((n_rows, n_cols), dtype=np.int16)
    if significand:
        scale = np.float32(math.ldexp(significand, exponent))
        for first in range(0, n_rows, _ROWS):
            rows = tensor.values[first : first + _ROWS]
            values[first : first + _ROWS] = np.clip(np.rint(rows / scale), -1, 1)
    return IntegerMatrix(
        name=tensor.name,
        values=values,
        group=n_cols,
        sig=np.ones((n_rows, 1), dtype=np.int16),
        exp=np.zeros((n_rows, 1), dtype=np.int16),
        scale=(significand, exponent),
    )


def _mean_magnitude(values: NDArray[np.float32]) -> float:
    """Mean of |w| as the float64 nearest to the exact mean: no order of summation enters."""
    total = Fraction(0)
    for first in range(0, len(values), _ROWS):
        words = np.ascontiguousarray(values[first : first + _ROWS]).view(np.uint32)
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
