"""Norm gains as integers, and the constants of their norms (docs/numerics.md, section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from romsim_models.errors import FormatError, SpecError

__all__ = ["GainVector", "gain_vector"]

GAIN_BITS = 22
MAX_LENGTH = 16384
"""Longest vector whose sum of squares of 24-bit numbers fits 62 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GainVector:
    """The gains of one norm.

    Parameters
    ----------
    name
        Name of the norm, such as ``blk.0.attn_norm``.
    values
        ``W``, int32 [K]; set read-only here. A gain is ``W * 2**-shift``.
    shift
        ``g``.
    out_frac
        ``F_y``: fraction bits of the norm's output.
    eps_term
        ``E0``.
    root
        ``SK``: the square root of K with 16 fraction bits.
    in_frac
        Fraction bits of the norm's input.
    """

    name: str
    values: NDArray[np.int32]
    shift: int
    out_frac: int
    eps_term: int
    root: int
    in_frac: int

    def __post_init__(self) -> None:
        self.values.flags.writeable = False

    def scalars(self) -> dict[str, int]:
        """Return all fields but the name and the values."""
        return {
            "shift": self.shift,
            "out_frac": self.out_frac,
            "eps_term": self.eps_term,
            "root": self.root,
            "in_frac": self.in_frac,
        }


def gain_vector(
    name: str, values: NDArray[np.float32], *, eps: float, in_frac: int = 14
) -> GainVector:
    """Turn a norm's gains into integers.

    Parameters
    ----------
    name
        Name of the norm.
    values
        Gains, float32 [K], finite.
    eps
        Added to the mean square.
    in_frac
        Fraction bits of the norm's input: the residual stream's, or a sub-norm's.

    Returns
    -------
    GainVector
        Every rounding is exact: to nearest, ties to even.

    Raises
    ------
    FormatError
        If the gains are all zero or not finite.
    SpecError
        If the vector is too long, or ``eps`` too large for the sum of squares.
    """
    length = int(values.size)
    if not 0 < length <= MAX_LENGTH:
        raise SpecError(
            f"Length of norm {name!r} must be 1 to {MAX_LENGTH}, not {length}: the sum of squares "
            "must fit 63 bits"
        )
    faults = np.flatnonzero(~np.isfinite(values))
    if len(faults):
        at = int(faults[0])
        raise FormatError(
            f"Gain {at} of norm {name!r} must be a finite number, not {float(values[at])!r}"
        )
    largest = float(np.abs(values).max())
    if largest == 0.0:
        raise FormatError(
            f"Gains of norm {name!r} must not all be 0: nothing would pass; check the model file"
        )
    # frexp: largest = fraction * 2^exponent with the fraction in [1/2, 1).
    shift = GAIN_BITS - (math.frexp(largest)[1] - 1)
    # Exact: a float32 times a power of two is a float64.
    integers = np.rint(np.ldexp(values.astype(np.float64), shift)).astype(np.int32)
    eps_term = round(Fraction(eps) * length * 2 ** (20 + 2 * in_frac))
    if eps_term >= 1 << 62:
        raise SpecError(
            f"Epsilon of norm {name!r} must be below {2.0 ** (42 - 2 * in_frac) / length:g} for "
            f"{length} elements, not {eps!r}: the sum of squares must fit 63 bits"
        )
    return GainVector(
        name=name,
        values=integers,
        shift=shift,
        out_frac=min(24, 30 - _ceil_log2_square(Fraction(largest) ** 2 * length)),
        eps_term=eps_term,
        root=_root(length),
        in_frac=in_frac,
    )


def _ceil_log2_square(square: Fraction) -> int:
    """Return ``ceil(log2(sqrt(square)))``: the least integer n with ``square <= 4**n``."""
    n = (square.numerator.bit_length() - square.denominator.bit_length()) // 2 - 1
    while square > Fraction(4) ** n:
        n += 1
    return n


def _root(length: int) -> int:
    """Return ``round(sqrt(length) * 2**16)``; a tie is impossible for a square root."""
    scaled = length << 32
    floor = math.isqrt(scaled)
    return floor + (scaled - floor * floor > floor)  # above (floor + 1/2)^2 = floor^2 + floor + 1/4
