"""Published chips in one table: our figure, theirs, the difference, and what was fitted to it.

``python -m romsim.published`` prints the table, ``--write FILE`` writes it as Markdown, ``--fit``
searches the parameters that the papers leave out.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from romsim.published_figures import FIGURES, Chip
from romsim.published_fit import Fit, fit_roma, fit_tom, fit_tom_lane
from romsim_compiler.target_file import load_target
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES

__all__ = [
    "TAGS",
    "Fitted",
    "OtherChip",
    "PublishedRow",
    "chips",
    "contradictions",
    "fit_all",
    "fitted_constants",
    "main",
    "other_chips",
    "published_rows",
    "render_markdown",
    "to_json",
]

TAGS = ("input", "fitted", "predicted", "unexplained")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One figure of a published chip beside ours."""

    chip: str
    quantity: str
    unit: str
    theirs: float | None  # None where the paper has no such figure
    ours: float
    difference: float | None  # ours over theirs, less 1
    bottom_up: float | None  # from our own parts, where ours is calibrated
    ratio: float | None  # bottom_up over theirs
    tag: str
    tolerance: float | None
    source: str
    note: str

    @property
    def within(self) -> bool | None:
        """Whether ours is within the tolerance; ``None`` where there is none."""
        if self.tolerance is None or self.theirs is None:
            return None
        return abs(self.ours - self.theirs) <= self.tolerance * abs(self.theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A parameter that a paper does not publish, with the value chosen."""

    chip: str
    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherChip:
    """A published chip that is no instance of the template."""

    name: str
    kind: str
    node: str
    area_mm2: float | None
    single_tokens_per_s: float | None
    aggregate_tokens_per_s: float | None
    power_w: float | None
    stored_gbit: float | None
    source: str
    note: str
    per_chip: bool  # whether area and rate are those of the same silicon

    @property
    def tokens_per_s_mm2(self) -> float | None:
        """Rate over area, where both are of the same silicon."""
        rate = self.single_tokens_per_s or self.aggregate_tokens_per_s
        if rate is None or self.area_mm2 is None or not self.per_chip:
            return None
        return rate / self.area_mm2

    @property
    def mj_per_token(self) -> float | None:
        """Energy of a token in mJ."""
        rate = self.single_tokens_per_s or self.aggregate_tokens_per_s
        return None if rate is None or self.power_w is None else 1e3 * self.power_w / rate

    @property
    def mbit_per_mm2(self) -> float | None:
        """Stored weight bits over the whole die."""
        if self.stored_gbit is None or self.area_mm2 is None:
            return None
        return 1e3 * self.stored_gbit / self.area_mm2


@cache
def _tables() -> dict[str, Any]:
    source = resources.files("romsim") / "tables" / "published.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


@cache
def chips() -> dict[str, Chip]:
    """Return the published chips that are instances of the template."""
    tables = _tables()
    return {
        key: Chip(
            load_target(one["target"]), SHAPES[one["model"]], one["weights"], tables["constants"]
        )
        for key, one in tables["chips"].items()
    }


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Return the rows of all chips, our figures computed.

    Raises
    ------
    SpecError
        If a row names a figure, source or tag that there is not.
    """
    tables = _tables()
    rows = []
    for row in tables["rows"]:
        where = f"published.toml: row {row['chip']}/{row['quantity']}"
        if row["tag"] not in TAGS:
            raise SpecError(f"{where}: tag must be one of {', '.join(TAGS)}, not {row['tag']!r}")
        if row["source"] not in tables["sources"]:
            raise SpecError(f"{where}: source {row['source']!r} must stand in [sources]")
        for key in ("ours", "bottom_up"):
            if key in row and row[key] not in FIGURES:
                raise SpecError(f"{where}: {key} must name a figure, not {row[key]!r}")
        chip = chips()[row["chip"]]
        theirs = row.get("theirs")
        ours = FIGURES[row["ours"]](chip)
        bottom_up = FIGURES[row["bottom_up"]](chip) if "bottom_up" in row else None
        rows.append(
            PublishedRow(
                chip=tables["chips"][row["chip"]]["name"],
                quantity=row["quantity"],
                unit=row["unit"],
                theirs=theirs,
                ours=ours,
                difference=ours / theirs - 1 if theirs else None,
                bottom_up=bottom_up,
                ratio=bottom_up / theirs if bottom_up is not None and theirs else None,
                tag=row["tag"],
                tolerance=row.get("tolerance"),
                source=tables["sources"][row["source"]],
                note=row.get("note", ""),
            )
        )
    return tuple(rows)


def fitted_constants() -> tuple[Fitted, ...]:
    """Return every parameter that was chosen because the paper leaves it out, with its value."""
    tables = _tables()
    found = []
    for key, one in tables["chips"].items():
        target = chips()[key].target
        for name in one["fitted"]:
            section, _, field = name.partition(".")
            value = (
                tables["constants"][field]
                if section == "published"
                else getattr(getattr(target, section), field)
            )
            found.append(Fitted(chip=one["name"], name=name, value=value))
    return tuple(found)


def contradictions() -> dict[str, tuple[str, ...]]:
    """Return where a paper's figures contradict each other, by chip."""
    return {one["name"]: tuple(one["contradictions"]) for one in _tables()["chips"].values()}


def other_chips() -> tuple[OtherChip, ...]:
    """Return the chips that are no instance of the template."""
    optional = dict.fromkeys(
        ("area_mm2", "single_tokens_per_s", "aggregate_tokens_per_s", "power_w", "stored_gbit")
    )
    return tuple(OtherChip(**{**optional, "per_chip": True, **o}) for o in _tables()["others"])


def to_json() -> dict[str, Any]:
    """Return rows, fitted constants, contradictions and other chips as JSON-ready values."""
    return {
        "rows": [{**asdict(row), "within": row.within} for row in published_rows()],
        "fitted": [asdict(one) for one in fitted_constants()],
        "contradictions": {k: list(v) for k, v in contradictions().items()},
        "others": [
            {
                **asdict(one),
                "tokens_per_s_mm2": one.tokens_per_s_mm2,
                "mj_per_token": one.mj_per_token,
                "mbit_per_mm2": one.mbit_per_mm2,
            }
            for one in other_chips()
        ],
    }


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == 0:
        return "0"
    digits = 4 if abs(value) < 1000 else 0
    return f"{value:,.{digits}g}" if digits else f"{value:,.0f}"


def render_markdown() -> str:
    """Return the tables as Markdown: the contents of docs/published-chips.md."""
    lines = [
        "<!-- AUTO-GENERATED, do not edit: python -m romsim.published "
        "--write docs/published-chips.md -->",
        "",
        "# Published chips",
        "",
        "Our figure, theirs, and the difference. *input*: copied from the same paper. *fitted*: a",
        "parameter that is not published was chosen for it. *predicted*: follows from the rest.",
        "*unexplained*: known not to fit, and left out of the tolerances by name. *Bottom-up* is",
        "our own estimate from parts, with its ratio to theirs, where *ours* uses figures of the",
        "paper.",
    ]
    for name, notes in contradictions().items():
        lines += ["", f"## {name}", ""]
        lines += [
            "| quantity | unit | theirs | ours | difference | tolerance | tag | bottom-up "
            "| ratio |",
            "|---|---|---:|---:|---:|---:|---|---:|---:|",
        ]
        lines += [_line(row) for row in published_rows() if row.chip == name]
        mine = [f for f in fitted_constants() if f.chip == name]
        lines += ["", f"Fitted constants ({len(mine)}):", ""]
        lines += [f"* `{f.name}` = {f.value:g}" for f in mine]
        lines += ["", "Where the figures contradict each other or us:", ""]
        lines += [f"* {note}" for note in notes]
        lines += ["", "Notes and sources:", ""]
        lines += [
            f"* {row.quantity}: {row.note + '. ' if row.note else ''}{row.source}."
            for row in published_rows()
            if row.chip == name
        ]
    lines += [
        "",
        "## Other chips",
        "",
        "Rates of one sequence and of many at once are different figures and stand apart.",
        "",
        "| chip | kind | node | mm² | tokens/s, one | tokens/s, many | W | tokens/s/mm² | mJ/token "
        "| stored Mbit/mm² |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {o.name} | {o.kind} | {o.node} | {_number(o.area_mm2)} | "
        f"{_number(o.single_tokens_per_s)} | {_number(o.aggregate_tokens_per_s)} | "
        f"{_number(o.power_w)} | {_number(o.tokens_per_s_mm2)} | {_number(o.mj_per_token)} | "
        f"{_number(o.mbit_per_mm2)} |"
        for o in other_chips()
    ]
    lines += ["", *(f"* {o.name}: {o.source}. {o.note}." for o in other_chips()), ""]
    return "\n".join(lines)


def _line(row: PublishedRow) -> str:
    difference = "–" if row.difference is None else f"{100 * row.difference:+.1f} %"
    tolerance = "–" if row.tolerance is None else f"{100 * row.tolerance:g} %"
    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
    return (
        f"| {row.quantity} | {row.unit} | {_number(row.theirs)} | {_number(row.ours)} | "
        f"{difference} | {tolerance} | {row.tag} | {_number(row.bottom_up)} | {ratio} |"
    )


def fit_all() -> tuple[Fit, Fit, float]:
    """Return the best parameters for ROMA and TOM, and the energy of TOM's lane in pJ."""
    rows = {row["ours"]: row for row in _tables()["rows"]}
    roma = ("roma_decode_empty", "roma_decode_1k", "roma_ttft_256_r16", "roma_ttft_4k_r16")

    def targets(names: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
        return {n: rows[n]["theirs"] for n in names}, {n: rows[n]["tolerance"] for n in names}

    tom = chips()["tom"]
    return (
        fit_roma(chips()["roma"], *targets(roma)),
        fit_tom(tom, *targets(("tom_decode",))),
        fit_tom_lane(tom, rows["tom_power_gated"]["theirs"]),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, write it, or fit."""
    parser = argparse.ArgumentParser(prog="python -m romsim.published", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--fit", action="store_true", help="search what is not published")
    options = parser.parse_args(arguments)
    if options.fit:
        roma, tom, lane = fit_all()
        for fit in (roma, tom):
            sys.stdout.write(
                f"{fit.chip}: {fit.n_evaluated} evaluated; worst share of a tolerance "
                f"{fit.worst:.2f} (now {fit.current:.2f})\n"
            )
            for name, value in fit.parameters.items():
                sys.stdout.write(f"  {name} = {value:g}\n")
            for name, value in fit.differences.items():
                sys.stdout.write(f"  {name} {100 * value:+.1f} %\n")
        sys.stdout.write(f"tom: published.tom_lane_pj = {lane:.2f}\n")
    elif options.write is not None:
        options.write.write_text(render_markdown(), encoding="utf-8")
    else:
        sys.stdout.write(render_markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
