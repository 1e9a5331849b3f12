"""All plots of a report, from its tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from romsim.report.kv_results import kv_plots
from romsim.report.model import Report
from romsim.report.plot_compare import comparison_plots
from romsim.report.plot_power import energy_context_plot, energy_plot
from romsim.report.plot_silicon import codecs_plot, floorplan_plot, rom_map_plot, treemap_plot
from romsim.report.plot_speed import (
    layers_plot,
    limits_plot,
    rates_plot,
    resources_plot,
    ttft_plot,
)
from romsim.report.plots import COLOURS, Axis, BarPlot, DotPlot, Plot

__all__ = ["arranged", "report_plots"]


def report_plots(report: Report) -> dict[str, tuple[Plot, ...]]:
    """Return the plots by the name of what they show: one, or one for each chip."""
    chips = report.chips
    found: dict[str, tuple[Plot, ...]] = {
        "treemap": tuple(treemap_plot(n, chip) for n, chip in enumerate(chips)),
        "floorplan": tuple(floorplan_plot(n, chip) for n, chip in enumerate(chips)),
        "rates": (rates_plot(chips),),
        "ttft": (ttft_plot(chips),),
        "layers": tuple(layers_plot(n, chip) for n, chip in enumerate(chips)),
        "resources": tuple(resources_plot(n, chip) for n, chip in enumerate(chips)),
        "roofline": tuple(limits_plot(n, chip) for n, chip in enumerate(chips)),
        "energy": tuple(energy_plot(n, chip) for n, chip in enumerate(chips)),
        "energy_context": (energy_context_plot(chips),),
        "rom_map": tuple(rom_map_plot(n, c) for n, c in enumerate(chips) if c.table("rom_banks")),
        "kv_codecs": (codecs_plot(chips),),
        "kv_quality": kv_plots(report),
        "comparison": comparison_plots(report),
        "published": (_published(report),),
    }
    for name, plots in found.items():
        if len(plots) == len(chips) > 1 and plots[0].key.endswith("-0"):  # one for each chip
            titled = zip(plots, chips, strict=True)
            found[name] = tuple(replace(p, title=f"{c.letter}: {p.title}") for p, c in titled)
    return {name: plots for name, plots in found.items() if plots}


def _published(report: Report) -> DotPlot:
    table = report.table("published")
    assert table is not None
    rows = [row for row in table.rows if row[6] is not None]
    return DotPlot(
        key="published",
        title="Published chips: our figure against theirs",
        caption="The bar about zero is the tolerance, where a row has one.",
        x=Axis(title="ours ÷ theirs − 1, %", unit="%"),
        labels=tuple(f"{row[0]}: {row[1]}" for row in rows),
        values=tuple(float(row[6] or 0) for row in rows),
        groups=tuple(str(row[3]) for row in rows),
        colours={
            "input": COLOURS["host"],
            "fitted": COLOURS["network"],
            "predicted": COLOURS["rom"],
            "unexplained": COLOURS["sram"],
        },
        tolerances=tuple(float(row[7] or 0) for row in rows),
    )


def arranged(groups: Sequence[tuple[Plot, ...]]) -> list[tuple[Plot, bool]]:
    """Return plots in the order of two columns, with whether one takes both of them.

    Parameters
    ----------
    groups
        Plots that show the same, one for each chip or one for all: a group of several starts a
        row, so that chips stand side by side, and what would stand alone in a row fills it.
    """
    found: list[tuple[Plot, bool]] = []
    row: list[Plot] = []

    def close() -> None:
        found.extend((plot, len(row) == 1) for plot in row)
        row.clear()

    for group in groups:
        for number, plot in enumerate(group):
            if len(row) == 2 or (number == 0 and len(group) > 1) or _is_long(plot, len(group)):
                close()
            row.append(plot)
            if _is_long(plot, len(group)):
                close()
    close()
    return found


def _is_long(plot: Plot, n_chips: int) -> bool:
    """Whether a plot has more labels than half a page's width can hold."""
    if isinstance(plot, DotPlot):
        return True
    bars = isinstance(plot, BarPlot) and not plot.sideways and len(plot.series[0].x) > 16
    return bars and n_chips == 1
