"""What an audit reports: counts, and the first places where the two sides part."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["AuditReport", "Difference", "Tally"]

SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where the description and the model file part."""

    subject: str  # tensor, norm, group or table
    kind: str  # "code", "scale", "minimum", "gain", "padding", or the name of a constant
    place: tuple[int, ...]
    expected: int | str
    found: int | str

    def __str__(self) -> str:
        place = f" {list(self.place)}" if self.place else ""
        return (
            f"{self.kind}{place} of {self.subject!r} must be {self.expected} as in the model file, "
            f"not {self.found}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What was compared, and what differs.

    Parameters
    ----------
    n_codes, n_scales, n_minima, n_gains
        Values compared; a whole-matrix scale counts as one scale.
    n_constants
        Other numbers compared: grids, shifts, formats, norm constants, table entries.
    n_differences
        All differences.
    differences
        The first ten.
    """

    n_codes: int
    n_scales: int
    n_minima: int
    n_gains: int
    n_constants: int
    n_differences: int
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {**asdict(self), "differences": [asdict(d) for d in self.differences]}


@dataclass(slots=True)
class Tally:
    """The counts and differences of an audit that is under way."""

    counts: dict[str, int] = field(default_factory=dict)
    n_differences: int = 0
    differences: list[Difference] = field(default_factory=list)

    def compare(
        self,
        subject: str,
        kind: str,
        expected: NDArray[Any],
        found: NDArray[Any],
        *,
        first_row: int = 0,
    ) -> None:
        """Compare two arrays of one shape; count and keep their differences."""
        wrong = expected != found
        n_wrong = int(np.count_nonzero(wrong))
        if not n_wrong:
            return
        self.n_differences += n_wrong
        for index in np.argwhere(wrong)[: SHOWN - len(self.differences)]:
            place = tuple(int(i) for i in index)
            self.differences.append(
                Difference(
                    subject=subject,
                    kind=kind,
                    place=(place[0] + first_row, *place[1:]),
                    expected=int(expected[place]),
                    found=int(found[place]),
                )
            )

    def count(self, kind: str, number: int) -> None:
        """Note that so many values of a kind were compared."""
        self.counts[kind] = self.counts.get(kind, 0) + number

    def constant(self, subject: str, kind: str, expected: int | str, found: int | str) -> None:
        """Compare one number or name."""
        self.count("constants", 1)
        if expected != found:
            self.add(subject, kind, expected, found)

    def add(self, subject: str, kind: str, expected: int | str, found: int | str) -> None:
        """Note a difference that is not in an array."""
        self.n_differences += 1
        if len(self.differences) < SHOWN:
            self.differences.append(
                Difference(subject=subject, kind=kind, place=(), expected=expected, found=found)
            )

    def report(self) -> AuditReport:
        """Return what was compared so far."""
        kinds = ("codes", "scales", "minima", "gains", "constants")
        return AuditReport(
            **{f"n_{kind}": self.counts.get(kind, 0) for kind in kinds},
            n_differences=self.n_differences,
            differences=tuple(self.differences),
        )
