"""The tables of docs/kv.md, section 9: quality as it was measured, room and rate computed anew.

``python reports/kv_quality.py`` rewrites the tables' rows and the line that says what the chip is;
every other line of the page stays as it is. ``--add FILE`` takes in what ``romsim kv-eval --json``
printed, into ``reports/kv_quality.json``: perplexities take hours and change with the arithmetic
alone, while tokens/s change with every latency and cost seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import romsim
from romsim.kv_quality import BASELINE, room_and_rate
from romsim.whole_file import write_json, write_text
from romsim_compiler.description import Description
from romsim_compiler.kv import parse_kv

__all__ = ["add_rows", "main", "rewrite_page"]

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "kv.md"
MEASURED = Path(__file__).resolve().with_suffix(".json")
HEAD = [
    "| KV cache | bits/element | bytes/token | tokens that fit | tokens/s | perplexity | change "
    "| same token |",
    "|---|---|---|---|---|---|---|---|",
]
CHIP = "The chip: "
TEXT_KEYS = ("n_tokens", "n_scored", "window", "skip")
ROW_KEYS = (
    "config",
    "perplexity",
    "change_percent",
    "change_error_percent",
    "agreement",
    "saturations",
)


def compile_chip(folder: Path) -> Description:
    """Compile the chip whose room and rates the tables give."""
    return romsim.compile("smollm2", folder, target="roma-7nm-g32", fit=True, context=2048)


def add_rows(tables: list[dict[str, Any]], found: dict[str, Any]) -> None:
    """Put the rows of a run into the table of its tokens and windows, in place of older ones."""
    facts = {key: found[key] for key in TEXT_KEYS}
    rows = [{key: row[key] for key in ROW_KEYS} for row in found["rows"]]
    for table in tables:
        if {key: table[key] for key in TEXT_KEYS} == facts:
            known = {row["config"]: row for row in table["rows"]}
            new = {row["config"]: row for row in rows}
            before, now = (rows[BASELINE]["perplexity"] for rows in (known, new))
            if not math.isclose(before, now, rel_tol=1e-9):
                raise ValueError(f"perplexity of {BASELINE} must be {before}, not {now}: add all")
            table["rows"] = list({**known, **new}.values())
            return
    tables.append({**facts, "float_perplexity": found["float_perplexity"], "rows": rows})


def rewrite_page(page: str, tables: list[dict[str, Any]], chip: Description) -> str:
    """Give the page with the rows of each table, and the chip, as they are now."""
    result: list[str] = []
    rest = list(tables)
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        if lines[at].startswith(CHIP):
            result.append(_chip_line(chip))
        elif lines[at : at + 2] == HEAD:
            table = rest.pop(0)
            # The baseline of all but the first table stands in the text above it.
            shown = table["rows"][0 if table is tables[0] else 1 :]
            result += [*HEAD, *(_row_line(row, table, chip) for row in shown)]
            at += 2
            while at < len(lines) and lines[at].startswith("|"):
                at += 1
            continue
        else:
            result.append(lines[at])
        at += 1
    if rest:
        n = len(tables) - len(rest)
        raise ValueError(f"tables of the page must be the {len(tables)} measured, not {n}")
    return "\n".join(result) + "\n"


def _chip_line(chip: Description) -> str:
    target = chip.target
    sram = target.array.n_tiles * target.attention.sram_kib * 1024 / 1e6
    return (
        f"{CHIP}{target.array.n_tiles} tiles, {sram:.1f} MB of tile SRAM, "
        f"{target.vector.n_lanes} vector lanes, {target.clock_mhz:g} MHz."
    )


def _row_line(row: dict[str, Any], table: dict[str, Any], chip: Description) -> str:
    room = room_and_rate(chip, parse_kv(row["config"]), table["window"])
    fit = "no end" if room["tokens_fit"] is None else f"{room['tokens_fit']:,}"
    change, same = "–", "–"
    if row["config"] != BASELINE:
        change = f"{row['change_percent']:+.2f} ± {row['change_error_percent']:.2f} %"
        same = f"{100 * row['agreement']:.1f} %"
    return (
        f"| `{row['config']}` | {round(room['bits_per_element'], 3):g} | "
        f"{room['bytes_per_token']:,.0f} | {fit} | {room['tokens_per_s']:,.0f} | "
        f"{row['perplexity']:.3f} | {change} | {same} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Take in measured rows, if any, and rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--add", type=Path, action="append", default=[], metavar="FILE")
    options = parser.parse_args(arguments)
    tables = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else []
    for path in options.add:
        add_rows(tables, json.loads(path.read_text(encoding="utf-8")))
    if options.add:
        write_json(MEASURED, tables, what="Measured rows")
    with tempfile.TemporaryDirectory() as folder:
        chip = compile_chip(Path(folder) / "chip")
        page = rewrite_page(PAGE.read_text(encoding="utf-8"), tables, chip)
    write_text(PAGE, page, what="Page")
    return 0


if __name__ == "__main__":
    sys.exit(main())
