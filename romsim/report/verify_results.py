"""What ``romsim verify`` found, as tables: which machines were compared, how much, how it ended."""

from __future__ import annotations

from typing import Any

from romsim.report.model import Cell, Column, Table
from romsim_models.errors import FormatError

__all__ = ["verify_tables"]

_COUNTS = (
    ("tokens", "tokens", "n_tokens"),
    ("values", "values", "n_values"),
    ("logits", "values", "n_logits"),
    ("writes", "elements", "n_writes"),
    ("issues", "instructions", "n_events"),
    ("cycles", "cycles", "n_cycles"),
    ("mismatches", "values", "n_mismatches"),
)
_COUNTED = {
    "formula": "compared one by one, each with its place; RTL also with its cycle",
    "source": "`romsim verify`",
    "grade": "measured",
}


def verify_tables(number: int, values: dict[str, Any]) -> tuple[Table, ...]:
    """Return the tables of one result.

    Parameters
    ----------
    number
        Which of several results, from 1.
    values
        What ``romsim verify --json`` printed.

    Raises
    ------
    FormatError
        If it is not what that command prints.
    """
    try:
        reference = values["reference"]
        rows = [_row("cycle model against integer reference", "whole model", reference)]
        rows += [
            _row("RTL against cycle model", f"{part['name']}: {part['chip']}", part)
            for part in values["rtl"]
        ]
        operators = reference["values_by_operator"].items()
        told = [("note", note) for note in values["notes"]]
        told += [("not covered", one) for one in values["not_covered"]]
        if values["whole"] is not None:
            told.append(("whole chip", values["whole"]["sentence"]))
        verdict = "equal" if values["passed"] else "DIFFERENT"
        tables = (
            _summary(number, str(values["level"]), verdict, rows),
            _operators(number, tuple((str(k), int(n)) for k, n in operators)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"Result of `romsim verify` must be what this version prints with --json, not one "
            f"with {type(error).__name__}: {error}; run it again"
        ) from None
    if not told:
        return tables
    notes = Table(
        key=f"verify_{number}_notes",
        title="What verification did not do, and why",
        note="As `romsim verify` says it.",
        columns=(Column(key="kind", label="kind"), Column(key="note", label="note")),
        rows=tuple((kind, str(note)) for kind, note in told),
    )
    return (*tables, notes)


def _row(machines: str, part: str, values: dict[str, Any]) -> tuple[Cell, ...]:
    first = values["first"]
    return (
        machines,
        part,
        "equal" if values["passed"] else "DIFFERENT",
        *(values.get(key) for _, _, key in _COUNTS),
        "none" if first is None else str(first["sentence"]),
    )


def _summary(number: int, level: str, verdict: str, rows: list[tuple[Cell, ...]]) -> Table:
    return Table(
        key=f"verify_{number}",
        title=f"Verification, level {level}: {verdict}",
        note="Machines written apart from one page of numerics, compared value by value.",
        columns=(
            Column(key="machines", label="machines"),
            Column(key="part", label="part"),
            Column(key="verdict", label="verdict"),
            *(Column(key=k, label=k, unit=unit, **_COUNTED) for k, unit, _ in _COUNTS),
            Column(key="first", label="first difference"),
        ),
        rows=tuple(rows),
    )


def _operators(number: int, counts: tuple[tuple[str, int], ...]) -> Table:
    return Table(
        key=f"verify_{number}_operators",
        title="Values compared by operator",
        note="Cycle model against integer reference.",
        columns=(
            Column(key="operator", label="operator"),
            Column(key="values", label="values", unit="values", **_COUNTED),
        ),
        rows=counts,
    )
