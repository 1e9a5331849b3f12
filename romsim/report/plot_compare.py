"""Plots of the chip beside GPU decode: one sequence, all sequences, energy."""

from __future__ import annotations

from romsim.report.model import Report, Table
from romsim.report.plots import COLOURS, Axis, SpanPlot

__all__ = ["comparison_plots"]

_COLOURS = {
    "chip": COLOURS["rom"],
    "gpu": COLOURS["sram"],
    "cpu": COLOURS["network"],
}
_ONE = "one sequence"


def comparison_plots(report: Report) -> tuple[SpanPlot, ...]:
    """Return the plots of every result of ``romsim compare`` in the report."""
    found: list[SpanPlot] = []
    for table in report.tables:
        if not (table.key.startswith("compare_") and table.key.endswith("_rows")):
            continue
        number = table.key.split("_")[1]
        found += [
            _plot(
                table,
                key=f"gpu_rates-{number}",
                title="one sequence beside GPU decode",
                value="single",
                axis=Axis(title="tokens/s of one sequence", unit="tokens/s", log=True),
                streams=_ONE,
            ),
            _plot(
                table,
                key=f"gpu_aggregate-{number}",
                title="all sequences beside GPU decode, best batch",
                value="aggregate",
                axis=Axis(title="tokens/s of all sequences", unit="tokens/s", log=True),
                streams="best batch",
            ),
            _plot(
                table,
                key=f"gpu_energy-{number}",
                title="energy of a token, one sequence",
                value="token_j",
                axis=Axis(title="energy of a token, J", unit="J", log=True),
                streams=_ONE,
            ),
            _plot(
                table,
                key=f"gpu_energy_best-{number}",
                title="energy of a token, best batch",
                value="token_j",
                axis=Axis(title="energy of a token, J", unit="J", log=True),
                streams="best batch",
            ),
        ]
    return tuple(plot for plot in found if plot.labels)


def _plot(table: Table, *, key: str, title: str, value: str, axis: Axis, streams: str) -> SpanPlot:
    """Return the rows with these streams, and the chip's, whatever it runs."""
    ends = [table.column(f"{value}_{end}") for end in ("low", "mid", "high")]
    sides, kinds = table.texts("side"), table.texts("kind")
    picked = [
        n
        for n, one in enumerate(table.texts("streams"))
        if (one == streams or sides[n] == "chip") and ends[1][n] is not None
    ]
    devices, formats = table.texts("device"), table.texts("format")
    labels: list[str] = []
    for n in picked:
        detail = "" if sides[n] == "chip" else f", {formats[n]}"
        label = f"{devices[n]}{detail}" + (f", {kinds[n]}" if kinds[n] == "measured" else "")
        labels.append(label if label not in labels else f"{label} ({n})")
    low, mid, high = (tuple(float(one[n] or 0) for n in picked) for one in ends)
    return SpanPlot(
        key=key,
        title=f"{table.title.partition(' beside ')[0]}: {title}",
        caption="The line is the low to high range; GPU joules are at rated power.",
        x=axis,
        labels=tuple(labels),
        values=mid,
        low=low,
        high=high,
        groups=tuple(sides[n] for n in picked),
        colours=_COLOURS,
    )
