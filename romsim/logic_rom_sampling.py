"""Estimating a total from sampled parts: ratio estimates, their confidence intervals, and a fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = [
    "CONFIDENCE",
    "AreaFit",
    "Estimate",
    "estimate_total",
    "fit_area",
    "student_t",
    "sum_estimates",
]

CONFIDENCE = 0.95
"""Probability that an interval is to hold the true value with."""

# Two-sided quantiles of Student's distribution at 0.95, for 1 to 10 degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.959964


@dataclass(frozen=True, slots=True)
class Estimate:
    """A total with the half width of its confidence interval.

    The width is ``None`` where one bank of several was sampled: nothing is known of their spread.
    """

    total: float
    half_width: float | None


def student_t(degrees: int) -> float:
    """Return the two-sided quantile of Student's distribution at `CONFIDENCE`."""
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = _NORMAL  # Cornish and Fisher's expansion: 0.003 off at 10 degrees, less above
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2


def estimate_total(
    areas: Sequence[float], sizes: Sequence[int], n_parts: int, total_size: int
) -> Estimate:
    """Estimate a total area from parts drawn without replacement, in proportion to their sizes.

    Parameters
    ----------
    areas, sizes
        Area and bits of each sampled part.
    n_parts, total_size
        Parts there are, and the bits of all of them.
    """
    n = len(areas)
    ratio = sum(areas) / sum(sizes)
    total = ratio * total_size
    if n == n_parts:
        return Estimate(total, 0.0)
    if n == 1:
        return Estimate(total, None)
    spread = sum((a - ratio * b) ** 2 for a, b in zip(areas, sizes, strict=True)) / (n - 1)
    error = n_parts * math.sqrt((1 - n / n_parts) * spread / n)
    return Estimate(total, student_t(n - 1) * error)


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaFit:
    """Cell area of a bit, ``constant + zero_bits * share + doubling * log2(words)``, in um2."""

    constant: float
    zero_bits: float
    doubling: float
    r2: float
    n_banks: int

    def to_json(self) -> dict[str, Any]:
        """Return the fit as JSON-ready values."""
        return asdict(self)


def fit_area(
    um2_per_bit: Sequence[float], zero_bits: Sequence[float], words: Sequence[int]
) -> AreaFit | None:
    """Fit the area of a bit against the share of zero bits and the depth, by least squares.

    Returns
    -------
    AreaFit or None
        ``None`` where the banks are fewer than four or do not differ in both.
    """
    x = np.stack([np.ones(len(words)), np.asarray(zero_bits), np.log2(words)], axis=1)
    y = np.asarray(um2_per_bit)
    if len(y) < 4 or min(np.ptp(x[:, 1]), np.ptp(x[:, 2])) < 1e-9:
        return None
    solution, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
    if rank < 3:
        return None
    left = float(((y - x @ solution) ** 2).sum())
    around = float(((y - y.mean()) ** 2).sum())
    return AreaFit(
        constant=float(solution[0]),
        zero_bits=float(solution[1]),
        doubling=float(solution[2]),
        r2=1 - left / around if around else 1.0,
        n_banks=len(y),
    )


def sum_estimates(estimates: Iterable[Estimate]) -> Estimate:
    """Add independent estimates."""
    listed = list(estimates)
    halves = [e.half_width for e in listed]
    known = [h for h in halves if h is not None]
    half = math.sqrt(sum(h * h for h in known)) if len(known) == len(halves) else None
    return Estimate(sum(e.total for e in listed), half)
