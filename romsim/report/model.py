"""What a report holds: figures, tables, chips; frozen, and the only source of every rendering."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from romsim_compiler.technology import GRADES, Range

__all__ = [
    "SCHEMA_VERSION",
    "Cell",
    "ChipReport",
    "Column",
    "Figure",
    "Report",
    "Table",
    "worst_grade",
]

SCHEMA_VERSION = 1

Cell = float | int | str | None
"""A table's cell; ``None`` where there is nothing to say."""


def worst_grade(*grades: str) -> str:
    """Return the grade of a figure that is made from others: that of the weakest."""
    return max(grades, key=GRADES.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One headline figure.

    Parameters
    ----------
    key, label
        Name in JSON, name for people.
    unit
        Unit of the three values; ``1`` for a pure number, never empty.
    value, low, high
        The figure with its range; all three equal where it is exact.
    formula, source, grade
        How it comes about, from where, and how far it can be trusted.

    Raises
    ------
    ValueError
        If a value is no finite number, or the unit, formula, source or grade is missing.
    """

    key: str
    label: str
    unit: str
    value: float
    low: float
    high: float
    formula: str
    source: str
    grade: str

    def __post_init__(self) -> None:
        if not all(math.isfinite(v) for v in (self.value, self.low, self.high)):
            raise ValueError(f"Figure {self.key!r} must be finite, not {self.value!r}")
        if not (self.unit and self.formula and self.source and self.grade in GRADES):
            raise ValueError(f"Figure {self.key!r} must have unit, formula, source and grade")

    @classmethod
    def ranged(cls, key: str, label: str, unit: str, values: Range, **provenance: str) -> Figure:
        """Return a figure with its range; ``provenance`` is formula, source and grade."""
        low, mid, high = values.low, values.mid, values.high
        return cls(key=key, label=label, unit=unit, value=mid, low=low, high=high, **provenance)

    @classmethod
    def exact(cls, key: str, label: str, unit: str, value: float, **provenance: str) -> Figure:
        """Return a figure without a range; ``provenance`` is formula, source and grade."""
        return cls.ranged(key, label, unit, Range.exact(value), **provenance)

    @property
    def is_exact(self) -> bool:
        """Whether there is no range."""
        return self.low == self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A table's column: text where ``unit`` is empty, else numbers of that unit.

    A column of numbers has formula, source and grade, or its table has columns with these names
    that tell them row by row.
    """

    key: str
    label: str
    unit: str = ""
    formula: str = ""
    source: str = ""
    grade: str = ""

    @property
    def is_number(self) -> bool:
        """Whether its cells are numbers."""
        return bool(self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under columns.

    Parameters
    ----------
    key, title, note
        Name in JSON and of the CSV file, name for people, and what to know before reading it.
    columns, rows
        The contents; every row has a cell for each column.
    listed
        Whether a page shows its rows: a table of thousands is drawn and can be downloaded.

    Raises
    ------
    ValueError
        If a row's length, a cell's kind or the provenance of numbers is not as it must be.
    """

    key: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    listed: bool = True

    def __post_init__(self) -> None:
        by_row = self.tells_by_row
        for column in self.columns:
            if column.is_number and not by_row and not (column.formula and column.source):
                raise ValueError(f"Column {self.key}/{column.key} must have formula and source")
            if column.is_number and not by_row and column.grade not in GRADES:
                raise ValueError(f"Column {self.key}/{column.key} must have a grade")
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"Row of table {self.key!r} must have a cell for each column")
            for column, cell in zip(self.columns, row, strict=True):
                if cell is None:
                    continue
                if isinstance(cell, str) == column.is_number:
                    raise ValueError(f"Cell of {self.key}/{column.key} must be of its kind: {cell}")
                if not isinstance(cell, str) and not math.isfinite(cell):
                    raise ValueError(f"Cell of {self.key}/{column.key} must be finite: {cell}")

    @property
    def tells_by_row(self) -> bool:
        """Whether each row has its own formula, source and grade."""
        return {"formula", "source", "grade"} <= {column.key for column in self.columns}

    def column(self, key: str) -> tuple[Cell, ...]:
        """Return the cells of one column."""
        at = [column.key for column in self.columns].index(key)
        return tuple(row[at] for row in self.rows)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return the cells of a column of numbers; a cell without one counts as 0."""
        return tuple(0.0 if isinstance(v, str) or v is None else float(v) for v in self.column(key))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the cells of a column as text."""
        return tuple("" if v is None else str(v) for v in self.column(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipReport:
    """All about one description."""

    letter: str  # A, B, …: what tells it from the others where there is little room
    label: str  # what tells it from the others: model and target
    name: str
    model: str
    target: str
    technology: str
    summary: str
    context: int  # tokens at which single figures are taken
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]

    def table(self, key: str) -> Table | None:
        """Return a table, or ``None`` where this chip has no such one."""
        return next((table for table in self.tables if table.key == key), None)

    def figure(self, key: str) -> Figure:
        """Return a figure; KeyError if there is none."""
        for figure in self.figures:
            if figure.key == key:
                return figure
        raise KeyError(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One or several chips side by side, and what holds for all."""

    title: str
    commands: tuple[str, ...]  # that reproduce it
    chips: tuple[ChipReport, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]

    def table(self, key: str) -> Table | None:
        """Return a shared table, or ``None``."""
        return next((table for table in self.tables if table.key == key), None)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values, as ``schemas/report.schema.json`` has them."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}
