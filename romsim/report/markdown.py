"""The report as Markdown: figures with ranges, then every table that a page lists."""

from __future__ import annotations

from romsim.report.model import Cell, ChipReport, Column, Report, Table
from romsim.report.numbers import plain, quantity, span
from romsim.report.sections import SECTIONS, shared_tables

__all__ = ["render_markdown"]

_SHORT = 40  # rows of a table that are shown


def render_markdown(report: Report) -> str:
    """Return the report as Markdown; the same report gives the same bytes."""
    lines = [f"# {report.title}", ""]
    for chip in report.chips:
        name = f"**{chip.letter}** = {chip.label}: " if len(report.chips) > 1 else ""
        lines += [f"{name}{chip.summary}.", ""]
    lines += ["## Figures", "", *_figures(report), ""]
    lines += [f"* {note}" for note in report.notes]
    for chip in report.chips:
        letter = f"{chip.letter}: " if len(report.chips) > 1 else ""
        lines += [f"* {letter}{note}" for note in chip.notes]
    for section in SECTIONS:
        tables: list[str] = []
        for name in section.tables:
            for chip in report.chips:
                table = chip.table(name)
                if table is not None and table.listed:
                    tables += _table(table, chip if len(report.chips) > 1 else None)
        for shared in shared_tables(report, section):
            tables += _table(shared, None)
        if tables:
            lines += ["", f"## {section.title}", "", section.intro, *tables]
    lines += ["", "## Reproduce", "", "```sh", *report.commands, "```", ""]
    return "\n".join(lines)


def _figures(report: Report) -> list[str]:
    """Return the headline figures as a table, a column of values for each chip."""
    heads = [c.letter if len(report.chips) > 1 else "value" for c in report.chips]
    columns = [f"{head} | range" for head in heads]
    lines = [
        f"| figure | {' | '.join(columns)} | grade | formula |",
        f"|---|{'---:|---|' * len(heads)}---|---|",
    ]
    keys = dict.fromkeys(f.key for chip in report.chips for f in chip.figures)
    for key in keys:
        cells, first = [], None
        for chip in report.chips:
            figure = next((f for f in chip.figures if f.key == key), None)
            if figure is None:
                cells.append("– | ")
                continue
            first = first or figure
            ends = (
                "–"
                if figure.is_exact
                else span(figure.low, figure.high, figure.unit, like=figure.value)
            )
            cells.append(f"{quantity(figure.value, figure.unit)} | {ends}")
        assert first is not None
        lines.append(
            f"| {first.label} | {' | '.join(cells)} | {first.grade} | {_escaped(first.formula)} |"
        )
    return lines


def _table(table: Table, chip: ChipReport | None) -> list[str]:
    letter = f"{chip.letter}: " if chip is not None else ""
    hidden = ("formula", "source") if table.tells_by_row else ()
    columns = [c for c in table.columns if c.key not in hidden]
    picked = [table.columns.index(c) for c in columns]
    lines = ["", f"### {letter}{table.title}", "", table.note, ""]
    lines.append("| " + " | ".join(_head(c) for c in columns) + " |")
    lines.append("|" + "|".join("---:" if c.is_number else "---" for c in columns) + "|")
    for row in table.rows[:_SHORT]:
        cells = [_cell(row[n], table.columns[n]) for n in picked]
        lines.append("| " + " | ".join(cells) + " |")
    if len(table.rows) > _SHORT:
        lines += ["", f"{len(table.rows) - _SHORT:,} more rows are in the CSV and the JSON."]
    told = [f"*{c.label}*: {c.formula} ({c.grade}; {c.source})" for c in columns if c.formula]
    if told:
        lines += ["", *(f"* {one}" for one in told)]
    return lines


def _head(column: Column) -> str:
    named = column.unit not in ("", "1", "row's unit", "parameter's unit")
    return f"{column.label}, {column.unit}" if named else column.label


def _cell(cell: Cell, column: Column) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return _escaped(cell)
    if column.unit in ("J", "s"):
        return quantity(cell, column.unit)
    return plain(cell, 4)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
