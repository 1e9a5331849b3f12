"""Tables of a chip's silicon: area by component, the floorplan, ROM by matrix and by bank."""

from __future__ import annotations

from romsim.area import AreaReport
from romsim.design_point import DesignPoint
from romsim.report.floorplan import KINDS, plan_floor
from romsim.report.model import Column, Table
from romsim.report.zero_bits import ZeroBits
from romsim_compiler.groups import Group

__all__ = ["area_table", "floorplan_table", "rom_bank_table", "rom_group_table"]

_PLACEMENT = "placement of the description (docs/machine.md, section 2)"
_IMAGES = "ROM images of the description, every written word counted"


def area_table(area: AreaReport) -> Table:
    """Return the components of the die; they sum to it."""
    total = area.total_um2.mid
    return Table(
        key="area",
        title="Area by component",
        note=(
            f"A bottom-up estimate in {area.technology}; the rows sum to the die. "
            "Nothing was placed and routed."
        ),
        columns=(
            Column(key="unit", label="unit"),
            Column(key="component", label="component"),
            Column(key="count", label="count", unit="1"),
            Column(key="low_mm2", label="low", unit="mm²"),
            Column(key="mid_mm2", label="mid", unit="mm²"),
            Column(key="high_mm2", label="high", unit="mm²"),
            Column(key="share", label="share of mid", unit="%"),
            Column(key="formula", label="formula of one"),
            Column(key="source", label="source"),
            Column(key="grade", label="grade"),
        ),
        rows=tuple(
            (
                row.unit,
                row.component,
                row.count,
                row.area_um2.low * 1e-6,
                row.area_um2.mid * 1e-6,
                row.area_um2.high * 1e-6,
                100 * row.area_um2.mid / total,
                row.formula,
                row.source,
                row.grade,
            )
            for row in area.rows
        ),
    )


def floorplan_table(area: AreaReport, n_tiles: int) -> Table:
    """Return the rectangles of the floorplan."""
    shared = {
        "formula": "mid area of the block's components; positions are a sketch",
        "source": "the area table of this report",
        "grade": "derived",
    }
    return Table(
        key="floorplan",
        title="Floorplan",
        note="Areas to scale, positions a sketch: nothing was placed.",
        listed=False,
        columns=(
            Column(key="kind", label="kind"),
            Column(key="block", label="block"),
            *(
                Column(key=f"{key}_mm", label=label, unit="mm", **shared)
                for key, label in (
                    ("x", "left"),
                    ("y", "bottom"),
                    ("width", "width"),
                    ("height", "height"),
                )
            ),
        ),
        rows=tuple(
            (KINDS[b.kind], b.name, b.x, b.y, b.width, b.height) for b in plan_floor(area, n_tiles)
        ),
    )


_STEMS = {
    "qkv": "query, key, value",
    "o": "attention output",
    "gu": "gate and up",
    "down": "down",
    "embd": "embedding",
    "head": "LM head",
}


def rom_group_table(point: DesignPoint, zeros: ZeroBits | None) -> Table:
    """Return what each kind of matrix takes of the ROM, with its zero bits where there are any."""
    array = point.target.array
    n_cells = array.n_tiles * array.n_cells
    by_kind: dict[tuple[str, str], list[Group]] = {}
    for group in point.groups:
        mapping = point.mappings[group.name]
        key = (group.name.rpartition(".")[2], _format(group, mapping.planes))
        by_kind.setdefault(key, []).append(group)
    place = {"source": _PLACEMENT, "grade": "derived"}
    rows = []
    for (stem, fmt), groups in by_kind.items():
        pairs = [(g, point.mappings[g.name], point.repetitions[g.name]) for g in groups]
        words = sum(m.n_words * n for _, m, n in pairs)
        used = sum(m.n_rows * m.n_cols * m.planes * n for _, m, n in pairs)
        rows.append(
            (
                _STEMS.get(stem, stem),
                fmt,
                sum(n for *_, n in pairs),
                sum(m.n_rows * m.n_cols * n for _, m, n in pairs),
                words,
                words * n_cells * array.word_bits,
                100 * words / array.rom_rows,
                100 * used / (words * n_cells * array.word_codes),
                None if zeros is None else 100 * zeros.kinds[stem],
            )
        )
    return Table(
        key="rom",
        title="ROM by kind of matrix",
        note=(
            "Zero bits are counted in the images, padding included."
            if zeros is not None
            else "A shape without weights: there are no bits to count zeros in."
        ),
        columns=(
            Column(key="matrix", label="matrix"),
            Column(key="format", label="format"),
            Column(key="count", label="groups", unit="1", formula="groups placed", **place),
            Column(
                key="weights", label="weights", unit="weights", formula="rows × columns", **place
            ),
            Column(
                key="words",
                label="words in every cell",
                unit="words",
                formula="steps × words of a row × planes",
                **place,
            ),
            Column(
                key="bits", label="bits", unit="bit", formula="words × cells × word bits", **place
            ),
            Column(
                key="share",
                label="share of capacity",
                unit="%",
                formula="words ÷ words that a cell has",
                **place,
            ),
            Column(
                key="used",
                label="code slots used",
                unit="%",
                formula="weights × planes ÷ (words × cells × codes of a word)",
                **place,
            ),
            Column(
                key="zero_bits",
                label="zero bits",
                unit="%",
                formula="1 − set bits ÷ bits of written words",
                source=_IMAGES,
                grade="measured",
            ),
        ),
        rows=tuple(rows),
    )


def _format(group: Group, n_planes: int) -> str:
    fmt = group.fmt
    scale = f"groups of {fmt.group}" if fmt.group else "one scale"
    minimum = " with minima" if fmt.has_minimum else ""
    planes = f", {n_planes} planes" if n_planes > 1 else ""
    return f"{fmt.code_bits} bits {fmt.kind}, {scale}{minimum}{planes}"


def rom_bank_table(zeros: ZeroBits) -> Table:
    """Return the share of zero bits in each ROM bank."""
    found = {"source": _IMAGES, "grade": "measured"}
    place = {"source": _PLACEMENT, "grade": "derived"}
    n_tiles, n_cells = zeros.banks.shape
    return Table(
        key="rom_banks",
        title="Zero bits of each ROM bank",
        note="One bank in each cell; written words only.",
        listed=False,
        columns=(
            Column(key="tile", label="tile", unit="1", formula="number of the tile", **place),
            Column(key="cell", label="cell", unit="1", formula="number in the tile", **place),
            Column(
                key="zero_bits",
                label="zero bits",
                unit="%",
                formula="1 − set bits ÷ bits of written words",
                **found,
            ),
        ),
        rows=tuple(
            (tile, cell, 100 * float(zeros.banks[tile, cell]))
            for tile in range(n_tiles)
            for cell in range(n_cells)
        ),
    )
