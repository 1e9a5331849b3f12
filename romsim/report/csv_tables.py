"""Tables as CSV: units in the header, every column, full precision."""

from __future__ import annotations

import csv
import io

from romsim.report.model import Table

__all__ = ["csv_of"]


def csv_of(table: Table) -> str:
    """Return a table as CSV with a header line, lines ending in a line feed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(f"{c.label} [{c.unit}]" if c.unit else c.label for c in table.columns)
    for row in table.rows:
        writer.writerow("" if cell is None else cell for cell in row)
    return out.getvalue()
