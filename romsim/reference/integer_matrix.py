"""A matrix as integers and scales, and how much its rows can add up to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from romsim_models.errors import FormatError

__all__ = ["ROWS", "IntegerMatrix", "split_fp16", "whole_matrix"]

ROWS = 4096
"""Rows converted at a time: temporaries stay a fraction of the largest tensor."""


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

    def some_rows(self, rows: NDArray[np.int64]) -> IntegerMatrix:
        """Rows by their numbers, in that order, as a matrix."""
        return IntegerMatrix(
            name=self.name,
            values=self.values[rows],
            group=self.group,
            sig=self.sig[rows],
            exp=self.exp[rows],
            minimum_sig=None if self.minimum_sig is None else self.minimum_sig[rows],
            minimum_exp=None if self.minimum_exp is None else self.minimum_exp[rows],
            scale=self.scale,
        )

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
            int(np.abs(self.scaled_rows(first, first + ROWS, least)).sum(axis=1).max())
            for first in range(0, self.shape[0], ROWS)
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


def whole_matrix(name: str, values: NDArray[np.int16], sig: int, exp: int) -> IntegerMatrix:
    """Return a matrix with the one scale ``sig 2^exp``."""
    return IntegerMatrix(
        name=name,
        values=values,
        group=values.shape[1],
        sig=np.ones((len(values), 1), dtype=np.int16),
        exp=np.zeros((len(values), 1), dtype=np.int16),
        scale=(sig, exp),
    )


def _shifted(
    significand: NDArray[np.int16], exponent: NDArray[np.int16], grid: int
) -> NDArray[np.int64]:
    places = np.where(significand != 0, exponent.astype(np.int64) - grid, 0)
    return np.asarray(significand.astype(np.int64) << np.maximum(places, 0))


def _widen(per_group: NDArray[np.int64], group: int, n_cols: int) -> NDArray[np.int64]:
    return np.repeat(per_group, group, axis=1)[:, :n_cols]
