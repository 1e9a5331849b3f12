"""Plots of a chip's energy: by unit and gating, and against context."""

from __future__ import annotations

from romsim.report import power
from romsim.report.model import ChipReport, Table
from romsim.report.plot_names import named, table_of
from romsim.report.plots import COLOURS, Axis, BarPlot, LinePlot, Series

__all__ = ["energy_context_plot", "energy_plot"]

_ENERGY_COLOURS = {
    "L": "rom",
    "H": "sram",
    "V": "vector",
    "network": "network",
    "clock": "clock",
    "leakage": "leakage",
}
_DASHES = {"switching": "dot", "isolated": "solid", "gated": "dash"}


def energy_plot(number: int, chip: ChipReport) -> BarPlot:
    """Return the energy of a token by unit, for each gating."""
    table = table_of(chip, "energy_units")
    rows = {(str(r[0]), str(r[1])): r for r in table.rows}
    gatings = tuple(power.GATING_NAMES.values())

    def values(unit: str, at: int) -> tuple[float, ...]:
        found = [rows.get((gating, unit)) for gating in gatings]
        return tuple(float(r[at] or 0) if r is not None else 0.0 for r in found)

    return BarPlot(
        key=f"energy-{number}",
        title=f"Energy of a token at {chip.context:,} tokens",
        caption="Mid values stacked; the whisker is the range of the whole.",
        x=Axis(title="energy of a token, J", unit="J"),
        y=Axis(title=""),
        series=tuple(
            Series(
                name=name,
                x=gatings,
                y=values(name, 3),
                colour=COLOURS[_ENERGY_COLOURS[key]],
            )
            for key, name in power.UNIT_NAMES.items()
        ),
        stacked=True,
        sideways=True,
        low=values("total", 2),
        high=values("total", 4),
    )


def energy_context_plot(chips: tuple[ChipReport, ...]) -> LinePlot:
    """Return the energy of a token against context."""
    series = []
    for number, chip in enumerate(chips):
        table = table_of(chip, "energy_context")
        names = table.texts("gating")
        for gating, name in power.GATING_NAMES.items():
            picked = [n for n, one in enumerate(names) if one == name]

            def values(key: str, table: Table = table, at: list[int] = picked) -> tuple[float, ...]:
                numbers = table.numbers(key)
                return tuple(numbers[n] for n in at)

            band = gating == "isolated"
            series.append(
                Series(
                    name=named(chips, chip, name),
                    x=values("tokens"),
                    y=values("mid_j"),
                    low=values("low_j") if band else (),
                    high=values("high_j") if band else (),
                    colour=COLOURS[f"chip {number}"],
                    dash=_DASHES[gating],
                )
            )
    return LinePlot(
        key="energy_context",
        title="Energy of a token against context",
        caption="The band is the low to high range with idle units and banks held.",
        x=Axis(title="context, tokens", unit="tokens", log=True),
        y=Axis(title="energy of a token, J", unit="J", log=True),
        series=tuple(series),
    )
