"""Plots of a chip's silicon and memory: treemap, floorplan, ROM map, KV capacity."""

from __future__ import annotations

import math

from romsim.report.floorplan import KINDS
from romsim.report.model import ChipReport
from romsim.report.numbers import quantity
from romsim.report.plot_names import named, table_of
from romsim.report.plots import (
    COLOURS,
    Axis,
    BarPlot,
    FloorPlot,
    HeatPlot,
    Rectangle,
    Series,
    TreeItem,
    TreePlot,
)

__all__ = ["codecs_plot", "floorplan_plot", "rom_map_plot", "treemap_plot"]

_UNIT_COLOURS = {
    "L-units": "rom",
    "H-units": "sram",
    "vector unit": "vector",
    "network": "network",
    "sequencer": "sequencer",
    "periphery": "host",
}
_MAP_COLUMNS = 64


def treemap_plot(number: int, chip: ChipReport) -> TreePlot:
    """Return the area of each component, in its unit."""
    table = table_of(chip, "area")
    items = []
    spans = zip(*(table.numbers(k) for k in ("low_mm2", "mid_mm2", "high_mm2")), strict=True)
    counts = zip(*(table.numbers(k) for k in ("count", "share")), strict=True)
    texts = zip(*(table.texts(k) for k in ("unit", "component", "formula", "grade")), strict=True)
    for (low, mid, high), (count, share), (unit, component, formula, grade) in zip(
        spans, counts, texts, strict=True
    ):
        text = (
            f"{mid:.4g} mm² ({low:.3g} – {high:.3g}), {share:.2g} %<br>{count:,.0f} × {formula}"
            f"<br>grade: {grade}"
        )
        colour = COLOURS[_UNIT_COLOURS[unit]]
        items.append(TreeItem(name=component, parent=unit, value=mid, colour=colour, text=text))
    die = chip.figure("area_mm2")
    return TreePlot(
        key=f"treemap-{number}",
        title="Area",
        caption=f"Die of {die.value:.3g} mm² ({die.low:.3g} to {die.high:.3g}); mid values drawn.",
        root=f"die, {die.value:.3g} mm²",
        unit="mm²",
        items=tuple(items),
    )


def floorplan_plot(number: int, chip: ChipReport) -> FloorPlot:
    """Return the die, drawn to scale."""
    table = table_of(chip, "floorplan")
    keys = ("x_mm", "y_mm", "width_mm", "height_mm")
    lengths = zip(*(table.numbers(key) for key in keys), strict=True)
    names = zip(table.texts("kind"), table.texts("block"), strict=True)
    rectangles = [
        Rectangle(kind=kind, x=x, y=y, width=w, height=h, text=f"{name}<br>{w * h:.4g} mm²")
        for (kind, name), (x, y, w, h) in zip(names, lengths, strict=True)
    ]
    side = math.sqrt(sum(r.width * r.height for r in rectangles))
    present = {r.kind for r in rectangles}
    return FloorPlot(
        key=f"floorplan-{number}",
        title="Floorplan",
        caption=(
            f"{side:.3g} mm × {side:.3g} mm. Areas are those of the area table; positions are a "
            "sketch, nothing was placed."
        ),
        side=side,
        rectangles=tuple(rectangles),
        colours={name: COLOURS[kind] for kind, name in KINDS.items() if name in present},
    )


def rom_map_plot(number: int, chip: ChipReport) -> HeatPlot:
    """Return every bank: a row for each cell of a tile, folded where there are many tiles."""
    table = table_of(chip, "rom_banks")
    tiles, cells = (table.numbers(key) for key in ("tile", "cell"))
    n_tiles, n_cells = int(max(tiles)) + 1, int(max(cells)) + 1
    width = min(n_tiles, _MAP_COLUMNS)
    bands = -(-n_tiles // width)
    grid: list[list[float | None]] = [[None] * width for _ in range(bands * n_cells)]
    names = [[""] * width for _ in grid]
    for tile, cell, zero in zip(tiles, cells, table.numbers("zero_bits"), strict=True):
        band, column = divmod(int(tile), width)
        row = band * n_cells + int(cell)
        grid[row][column] = zero
        names[row][column] = f"tile {int(tile)}, cell {int(cell)}<br>{zero:.2f} % zero bits"
    folded = f", {width} tiles a band" if bands > 1 else ""
    return HeatPlot(
        key=f"rom_map-{number}",
        title="ROM map: zero bits of each bank",
        caption=(
            f"{n_tiles * n_cells:,} banks{folded}; padding included. "
            f"{chip.figure('zero_bits').value:.4g} % of all written bits are 0."
        ),
        x=Axis(title="tile" if bands == 1 else f"tile, modulo {width}"),
        y=Axis(title="cell" if bands == 1 else "band of tiles, cell"),
        value=Axis(title="zero bits, %", unit="%"),
        grid=tuple(tuple(row) for row in grid),
        names=tuple(tuple(row) for row in names),
    )


def codecs_plot(chips: tuple[ChipReport, ...]) -> BarPlot:
    """Return the tokens that fit with each codec."""
    series: list[Series] = []
    for number, chip in enumerate(chips):
        table = table_of(chip, "kv_codecs")
        labels = tuple(
            f"{name} ({quantity(bits, 'bit')})" + (" ◂" if status.startswith("this") else "")
            for name, bits, status in zip(
                table.texts("codec"), table.numbers("bits"), table.texts("status"), strict=True
            )
        )
        series.append(
            Series(
                name=named(chips, chip, "tokens that fit"),
                x=labels if number == 0 else series[0].x,
                y=table.numbers("tokens"),
                colour=COLOURS[f"chip {number}"],
            )
        )
    return BarPlot(
        key="kv_codecs",
        title="KV capacity by codec",
        caption="◂ is the chip's own; the rest says what the same SRAM would hold.",
        x=Axis(title="tokens that fit the tiles' SRAM", unit="tokens"),
        y=Axis(title="codec (bits of an element)"),
        series=tuple(series),
        stacked=False,
        sideways=True,
    )
