"""Names and tables that the modules of plots look up in the same way."""

from __future__ import annotations

from romsim.report.model import ChipReport, Table

__all__ = ["named", "table_of"]


def table_of(chip: ChipReport, key: str) -> Table:
    """Return a table that every chip has."""
    table = chip.table(key)
    assert table is not None, key
    return table


def named(chips: tuple[ChipReport, ...], chip: ChipReport, what: str) -> str:
    """Return a series' name: with the chip where there are several."""
    return what if len(chips) == 1 else f"{chip.letter}, {what}"
