"""Integer weights from a model file: codes as shipped, or floats quantised by the page's section 8.

Nothing of the compiler is used: this is the reference's own way from the file to integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from romsim.reference.integer_matrix import ROWS, IntegerMatrix, split_fp16, whole_matrix
from romsim.reference.ternary_weights import absmean, exact_codes, exact_floats, signed_codes
from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.errors import FormatError, SpecError

__all__ = ["WeightChoice", "integer_matrix"]

KINDS = ("shipped", "int4", "int2", "int8", "ternary", "ternary-exact")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChoice:
    """How one matrix becomes integers.

    Parameters
    ----------
    kind
        ``"shipped"`` for codes as the file has them; ``"int4"``, ``"int2"``, ``"int8"`` (by groups)
        or ``"ternary"`` (one scale) to round a matrix; ``"ternary-exact"`` for one that is ternary
        already, with one scale.
    group
        Columns that share a scale; ``None`` or 0 for ``"shipped"`` and the ternary kinds.

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
        if kind == "shipped":
            if tensor.matrix_scale is not None:
                return whole_matrix(tensor.name, signed_codes(tensor), *tensor.matrix_scale)
            _check_group(tensor.group_size, n_cols, block, tensor.name)
            return _shipped(tensor)
        if kind == "ternary-exact":
            return exact_codes(tensor)
        tensor = _widened(tensor)
    if choice is None or kind == "shipped":
        raise SpecError(
            f"choice of tensor {tensor.name!r} must be one of {', '.join(KINDS[1:])} because its "
            f"file holds {tensor.format} values, not {kind!r}"
        )
    if kind == "ternary":
        return absmean(tensor)
    if kind == "ternary-exact":
        return exact_floats(tensor)
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


def _shipped(tensor: EncodedTensor) -> IntegerMatrix:
    sig, exp = split_fp16(tensor.scale_bits)
    minimum_sig, minimum_exp = None, None
    if tensor.minimum_bits is not None:
        minimum_sig, minimum_exp = split_fp16(tensor.minimum_bits)
    return IntegerMatrix(
        name=tensor.name,
        values=signed_codes(tensor),
        group=tensor.group_size,
        sig=sig,
        exp=exp,
        minimum_sig=minimum_sig,
        minimum_exp=minimum_exp,
    )


def _widened(tensor: EncodedTensor) -> FloatTensor:
    """Codes as float32, to be rounded anew (section 8): the product is exact, the sum rounds."""
    codes = signed_codes(tensor).astype(np.float64)
    grouped = codes.reshape(tensor.shape[0], -1, tensor.group_size or 1)
    if tensor.matrix_scale is not None:
        values = grouped * math.ldexp(*tensor.matrix_scale)
    else:
        values = grouped * tensor.scale_bits.view(np.float16).astype(np.float64)[:, :, None]
        if tensor.minimum_bits is not None:
            values += tensor.minimum_bits.view(np.float16).astype(np.float64)[:, :, None]
    return FloatTensor(
        name=tensor.name,
        shape=tensor.shape,
        format="f32",
        values=values.reshape(tensor.shape).astype(np.float32),
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
    for first in range(0, n_rows, ROWS):
        rows = tensor.values[first : first + ROWS]
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
