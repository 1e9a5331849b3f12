"""The report as one HTML page that needs nothing else: style, script, plotly and data inside."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any
from urllib.parse import quote

import jinja2

from romsim.report.csv_tables import csv_of
from romsim.report.model import Cell, ChipReport, Column, Figure, Report, Table
from romsim.report.numbers import plain, quantity, span
from romsim.report.plot_report import arranged, report_plots
from romsim.report.plotly_figures import figure_of
from romsim.report.plots import Plot
from romsim.report.sections import SECTIONS, Section, shared_tables
from romsim_models.errors import SpecError

__all__ = ["HEADLINES", "render_html"]

HEADLINES = (
    "tokens_per_s",
    "tokens_per_s_aggregate",
    "ttft_s",
    "context_limit",
    "area_mm2",
    "density",
    "token_j",
    "power_w",
)
"""Figures that stand first, in large letters."""

_SHORT, _LONG = 24, 48  # characters of a cell
_ROW_PROVENANCE = ("formula", "source", "grade")


def render_html(report: Report, *, with_plotly: bool = True) -> str:
    """Return the page; the same report gives the same bytes.

    Parameters
    ----------
    with_plotly
        Put plotly.js into the page. Without it there are no plots; for tests of the rest.

    Raises
    ------
    SpecError
        If plotly is not installed.
    """
    plots = report_plots(report)
    figures = {plot.key: figure_of(plot) for group in plots.values() for plot in group}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("romsim.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    return template.render(
        report=report,
        headlines=[_headline(report, key) for key in HEADLINES],
        figures=_figure_rows(report),
        sections=[
            view
            for section in SECTIONS
            if (view := _section(report, plots, section))["tables"] or view["plots"]
        ],
        style=_template("style.css"),
        script=_template("page.js"),
        plotly=_plotly() if with_plotly else "",
        plots=_embedded(figures),
        data=_embedded(report.to_json()),
    )


def _template(name: str) -> str:
    file = resources.files("romsim.report") / "templates" / name
    return file.read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise SpecError(
            "Report page must have plotly, which is not installed; install romsim[report], or "
            "write .json or .md"
        ) from None
    return str(get_plotlyjs())


def _embedded(values: Any) -> str:
    """Return JSON that can stand in a script element."""
    text = json.dumps(values, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _headline(report: Report, key: str) -> dict[str, Any]:
    first = report.chips[0].figure(key)
    return {
        "label": first.label,
        "figures": [_figure_view(chip, chip.figure(key)) for chip in report.chips],
    }


def _figure_view(chip: ChipReport, figure: Figure) -> dict[str, Any]:
    number, _, unit = quantity(figure.value, figure.unit).partition(" ")
    return {
        "letter": chip.letter,
        "number": number,
        "unit": unit,
        "span": "" if figure.is_exact else _span(figure),
        "grade": figure.grade,
        "tip": _tip(figure.formula, figure.source, figure.grade),
        "told": f"{figure.formula}\n{figure.source}",
    }


def _span(figure: Figure) -> str:
    return span(figure.low, figure.high, figure.unit, like=figure.value)


def _tip(formula: str, source: str, grade: str) -> str:
    return f"Formula: {formula}\nSource: {source}\nGrade: {grade}"


def _figure_rows(report: Report) -> list[dict[str, Any]]:
    """Return all headline figures, a row each, with those of every chip."""
    keys = list(dict.fromkeys(f.key for chip in report.chips for f in chip.figures))
    rows = []
    for key in keys:
        found = [next((f for f in chip.figures if f.key == key), None) for chip in report.chips]
        label = next(f.label for f in found if f is not None)
        rows.append(
            {
                "label": label,
                "cells": [
                    None if f is None else _figure_view(chip, f)
                    for chip, f in zip(report.chips, found, strict=True)
                ],
                "ratio": _ratio(found),
            }
        )
    return rows


def _ratio(found: list[Figure | None]) -> str:
    """Return the second chip's figure over the first's, where there are two."""
    if len(found) != 2 or found[0] is None or found[1] is None or not found[0].value:
        return ""
    return f"{plain(found[1].value / found[0].value)} ×"


def _section(
    report: Report, plots: dict[str, tuple[Plot, ...]], section: Section
) -> dict[str, Any]:
    tables = []
    for name in section.tables:
        for number, chip in enumerate(report.chips):
            table = chip.table(name)
            if table is not None:
                tables.append(_table_view(table, chip.letter, number, len(report.chips) > 1))
    tables += [_table_view(table, "") for table in shared_tables(report, section)]
    return {
        "key": section.key,
        "title": section.title,
        "intro": section.intro,
        "plots": arranged([plots[name] for name in section.plots if name in plots]),
        "tables": tables,
    }


def _table_view(
    table: Table, letter: str, number: int = 0, several: bool = False
) -> dict[str, Any]:
    has_row_tips = table.tells_by_row
    hidden = _ROW_PROVENANCE if has_row_tips else ()
    columns = [c for c in table.columns if c.key not in hidden]
    rows = [_row_view(table, columns, row, has_row_tips) for row in table.rows]
    suffix = f"-{chr(ord('a') + number)}" if several else ""
    return {
        "id": f"table-{table.key}{suffix}",
        "title": f"{letter}: {table.title}" if several else table.title,
        "note": table.note,
        "columns": [
            {
                "label": c.label,
                "unit": "" if c.unit in ("1", "row's unit", "parameter's unit") else c.unit,
                "number": c.is_number,
                "tip": _tip(c.formula, c.source, c.grade) if c.formula else "",
            }
            for c in columns
        ],
        "has_row_tips": has_row_tips,
        "rows": rows if table.listed else [],
        "n_rows": len(table.rows),
        "listed": table.listed,
        "file": f"{table.key}{suffix}.csv",
        "href": "data:text/csv;charset=utf-8," + quote(csv_of(table)),
    }


def _row_view(
    table: Table, columns: list[Column], row: tuple[Cell, ...], has_row_tips: bool
) -> dict[str, Any]:
    cells = {column.key: cell for column, cell in zip(table.columns, row, strict=True)}
    return {
        "cells": [
            {
                "text": _cell(cells[column.key], column),
                "style": "number" if column.is_number else _width(cells[column.key]),
            }
            for column in columns
        ],
        "grade": str(cells["grade"]) if has_row_tips else "",
        "tip": _tip(*(str(cells[k]) for k in _ROW_PROVENANCE)) if has_row_tips else "",
    }


def _width(cell: Cell) -> str:
    """Return the class of a text's cell: short ones on one line, long ones with room."""
    length = len(cell) if isinstance(cell, str) else 0
    return "long" if length > _LONG else "short" if length <= _SHORT else ""


def _cell(cell: Cell, column: Column) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if column.unit in ("J", "s"):
        return quantity(cell, column.unit)
    if column.unit == "W":
        return plain(cell)
    return plain(cell, 4 if column.unit != "%" else 3)
