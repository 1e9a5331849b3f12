"""Adapter factors as trits with one scale each (docs/numerics.md, section 6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.formats import parse_format
from romsim_compiler.grid import PRE_SHIFT_BITS, round_half_even
from romsim_compiler.groups import Group
from romsim_compiler.lora_blocks import product_squares, relative_error
from romsim_compiler.quantize import quantize_tensor
from romsim_compiler.target import MX_BLOCK
from romsim_models.errors import FormatError
from romsim_models.lora import LoraTarget

__all__ = [
    "TernaryFactor",
    "TernaryProjection",
    "ternary_from_json",
    "ternary_projections",
    "ternary_to_json",
]

_IN_BITS = 31  # |code · 2^shift| <= 2^31
_LEAST, _MOST = 2.0**-126, 2.0**32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TernaryFactor:
    """A factor of an adapter: ``trits · multiplier · 2^exponent``.

    Parameters
    ----------
    trits
        int8 [n_rows, n_cols] of -1, 0, 1; the rank is padded with zeros to whole blocks.
    multiplier, exponent
        The scale ``M · 2^E``, ``M`` of at most 24 bits.
    pre_shift
        Shift ``a`` of a row's sum before the multiplier.
    error
        Relative root-mean-square error against the float factor, to six digits.
    """

    trits: NDArray[np.int8]
    multiplier: int
    exponent: int
    pre_shift: int
    error: float

    def __post_init__(self) -> None:
        self.trits.flags.writeable = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TernaryProjection:
    """The adapter of one matrix in the adder arrays: ``y += B (A x)``, the scaling in B's scale.

    Parameters
    ----------
    tensor, operator
        Canonical name and operator of the matrix.
    first_row, n_rows
        Rows of its group.
    rank
        Rank of the float adapter.
    a, b
        The factors, [padded rank, K] and [n_rows, padded rank].
    is_forced
        Whether a factor was made ternary here.
    error
        Relative root-mean-square error of B·A against the float adapter, to six digits.
    """

    tensor: str
    operator: str
    first_row: int
    n_rows: int
    rank: int
    a: TernaryFactor
    b: TernaryFactor
    is_forced: bool
    error: float

    @property
    def block(self) -> int:
        """Elements of z that share a shift: ``min(32, rank)``."""
        return min(MX_BLOCK, self.rank)

    @property
    def padded_rank(self) -> int:
        """Rank, padded to whole blocks."""
        return int(self.a.trits.shape[0])

    @property
    def size_bits(self) -> int:
        """Bits of all trits, two each."""
        return 2 * (self.a.trits.size + self.b.trits.size)


def ternary_projections(
    group: Group,
    targets: Mapping[str, LoraTarget],
    squares: list[tuple[float, float]],
    *,
    is_forced: bool,
) -> tuple[TernaryProjection, ...]:
    """Take a group's adapter as trits.

    Parameters
    ----------
    group, targets
        Matrices that share an input, and float factors by canonical name.
    squares
        Gets, for each matrix, the squared norms of the error of B·A, and of B·A.
    is_forced
        Whether factors that are not ternary are made so.

    Raises
    ------
    FormatError
        If a factor is not ternary and not forced, or a scale is out of range.
    """
    made = []
    for member in group.members:
        target = targets.get(member.tensor)
        if target is None:
            continue
        subject = f"Factor A of {member.tensor!r}"
        a_float = target.a.astype(np.float64)
        trits, scale = _trits(subject, target.a, is_forced=is_forced)
        a = _factor(subject, trits, scale, a_float)
        subject = f"Factor B of {member.tensor!r}"
        b_float = target.b.astype(np.float64) * target.scaling
        trits, scale = _trits(subject, target.b, is_forced=is_forced)
        b = _factor(subject, trits, scale * target.scaling, b_float)
        squares.append(product_squares(a_float, b_float, _held(a), _held(b)))
        padding = -target.rank % min(MX_BLOCK, target.rank)
        made.append(
            TernaryProjection(
                tensor=member.tensor,
                operator=member.operator,
                first_row=member.first_row,
                n_rows=member.n_rows,
                rank=target.rank,
                a=replace(a, trits=np.pad(a.trits, ((0, padding), (0, 0)))),
                b=replace(b, trits=np.pad(b.trits, ((0, 0), (0, padding)))),
                is_forced=not (_is_ternary(target.a) and _is_ternary(target.b)),
                error=relative_error(squares[-1:]),
            )
        )
    return tuple(made)


_FACTOR_VALUES = ("multiplier", "exponent", "pre_shift", "error")
_VALUES = ("tensor", "operator", "first_row", "n_rows", "rank", "is_forced", "error")


def ternary_to_json(
    projection: TernaryProjection, put: Callable[[NDArray[np.int8]], dict[str, Any]]
) -> dict[str, Any]:
    """Return JSON-ready values; ``put`` writes an array and returns where it stands."""
    values = {name: getattr(projection, name) for name in _VALUES}
    for name in ("a", "b"):
        factor: TernaryFactor = getattr(projection, name)
        values[name] = {key: getattr(factor, key) for key in _FACTOR_VALUES}
        values[name]["trits"] = put(factor.trits)
    return values


def ternary_from_json(
    values: dict[str, Any], get: Callable[[dict[str, Any]], NDArray[np.int8]]
) -> TernaryProjection:
    """Read :func:`ternary_to_json`'s values; ``get`` returns the array that stands somewhere."""
    factors: dict[str, Any] = {}
    for name in ("a", "b"):
        numbers = {key: values[name][key] for key in _FACTOR_VALUES}
        factors[name] = TernaryFactor(**numbers, trits=get(values[name]["trits"]))
    return TernaryProjection(**{name: values[name] for name in _VALUES}, **factors)


def _is_ternary(values: NDArray[np.float32]) -> bool:
    magnitudes = np.abs(values)
    return bool(((magnitudes == 0) | (magnitudes == magnitudes.max())).all())


def _trits(
    subject: str, values: NDArray[np.float32], *, is_forced: bool
) -> tuple[NDArray[np.int8], float]:
    """Return trits and their scale as a float64, exactly."""
    if _is_ternary(values):
        return np.sign(values).astype(np.int8), float(np.abs(values).max())
    if not is_forced:
        magnitudes = np.abs(values)
        scale = magnitudes[magnitudes != 0][0]
        row, column = (int(i) for i in np.argwhere((magnitudes != 0) & (magnitudes != scale))[0])
        raise FormatError(
            f"{subject}, element [{row}, {column}], must be 0 or {float(scale)!r} in magnitude, as "
            f"those before it, to run in the adder arrays, not {float(values[row, column])!r}; "
            f"train the factor ternary, add --force-ternary-adapter, or use lora.path 'int8'"
        )
    coded = quantize_tensor(subject, values, parse_format("ternary"))
    trits = np.array([0, 1, -1], dtype=np.int8)[coded.codes]
    return trits, math.ldexp(coded.multiplier, coded.exponent)


def _factor(
    subject: str, trits: NDArray[np.int8], scale: float, values: NDArray[np.float64]
) -> TernaryFactor:
    """Truncate a scale to 24 bits, and find the shift before it."""
    if scale and not _LEAST <= scale < _MOST:
        raise FormatError(
            f"{subject} must have a scale of at least 2^-126 and below 2^32 to run in the adder "
            f"arrays, not {scale!r}; scale the adapter, or use lora.path 'int8'"
        )
    fraction, exponent = math.frexp(scale)
    multiplier = int(fraction * (1 << 24))
    bound = int(np.abs(trits.astype(np.int64)).sum(axis=1).max()) << _IN_BITS
    pre_shift = 0
    while round_half_even(bound, pre_shift) >= 1 << PRE_SHIFT_BITS:
        pre_shift += 1
    made = TernaryFactor(
        trits=trits,
        multiplier=multiplier,
        exponent=exponent - 24 if multiplier else 0,
        pre_shift=pre_shift,
        error=0.0,
    )
    size = float(np.abs(values).max()) or 1.0  # so that no square overflows
    error = float(np.square((_held(made) - values) / size).sum())
    whole = float(np.square(values / size).sum())
    return replace(made, error=relative_error([(error, whole)]))


def _held(factor: TernaryFactor) -> NDArray[np.float64]:
    """Return what a factor stands for, exactly."""
    return factor.trits.astype(np.float64) * math.ldexp(factor.multiplier, factor.exponent)
