"""Plots as PNG and SVG, drawn with matplotlib; the same report gives the same bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Literal

from romsim.report.numbers import quantity
from romsim.report.plots import (
    Axis,
    BarPlot,
    DotPlot,
    FloorPlot,
    HeatPlot,
    LinePlot,
    Plot,
    SpanPlot,
    TreePlot,
)
from romsim.report.squarify import squarify
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["render_picture"]

_STYLES = {"solid": "-", "dash": "--", "dot": ":"}
_STYLE: Any = {
    "svg.hashsalt": "romsim",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # matplotlib's own: the same on every machine
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_DPI = 150
_NARROW = 300.0  # a logarithmic axis of fewer decades is labelled at 2 and 5 too
_MANY, _STEP = 16, 5  # of more categories every fifth is named


def render_picture(plot: Plot, form: Literal["png", "svg"]) -> bytes:
    """Return a plot as a file's bytes.

    Parameters
    ----------
    form
        ``png`` or ``svg``.

    Raises
    ------
    SpecError
        If matplotlib is not installed.
    """
    # Figures of their own, without pyplot: no display, no state between calls.
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecError(
            "Report pictures must have matplotlib, which is not installed; install "
            "romsim[report], or write .json or .md"
        ) from None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_size(plot), layout="constrained")
        axes = figure.add_subplot()
        match plot:
            case LinePlot():
                _lines(axes, plot)
            case BarPlot():
                _bars(axes, plot)
            case DotPlot():
                _dots(axes, plot)
            case SpanPlot():
                _spans(axes, plot)
            case TreePlot():
                _tree(axes, plot)
            case FloorPlot():
                _floor(axes, plot)
            case HeatPlot():
                image = _heat(axes, plot)
                figure.colorbar(image, ax=axes, label=plot.value.title)
        axes.set_title(plot.title, fontsize=10, loc="left")
        out = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(out, format=form, dpi=_DPI, metadata=metadata)
    return out.getvalue()


def _size(plot: Plot) -> tuple[float, float]:
    match plot:
        case DotPlot() | SpanPlot():
            return 8.0, 1.2 + 0.2 * len(plot.labels)
        case FloorPlot():
            return 7.6, 5.6
        case BarPlot() if plot.sideways:
            return 7.6, max(3.0, 1.4 + 0.34 * len(plot.series[0].x))
        case TreePlot():
            return 7.6, 5.0
        case _:
            return 7.6, 4.0


def _axis(axes: Axes, side: Literal["x", "y"], axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set(**{f"{side}label": axis.title})
    if axis.log:
        axes.set(**{f"{side}scale": "log"})
    if axis.unit:
        unit = axis.unit if axis.unit in ("J", "s") else "1"
        line = {"x": axes.xaxis, "y": axes.yaxis}[side]
        line.set_major_formatter(FuncFormatter(lambda value, _: quantity(value, unit)))
        low, high = axes.get_xlim() if side == "x" else axes.get_ylim()
        if axis.log and high < _NARROW * low:
            line.set_minor_formatter(FuncFormatter(lambda v, _: _named(v, unit)))


def _named(value: float, unit: str) -> str:
    """Return the label of 2 and 5 times a power of ten; other marks have none."""
    leading = f"{value:.0e}"[0]
    return quantity(value, unit) if leading in "25" else ""


def _legend(axes: Axes, n_entries: int, *, beside: bool = False) -> None:
    if n_entries > 1 and beside:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    elif n_entries > 1:
        axes.legend(loc="best")


def _lines(axes: Axes, plot: LinePlot) -> None:
    for one in plot.series:
        x = [float(v) for v in one.x]
        axes.plot(
            x, one.y, _STYLES[one.dash], color=one.colour, label=one.name, marker=".", markersize=4
        )
        if one.low:
            axes.fill_between(x, one.low, one.high, color=one.colour, alpha=0.15, linewidth=0)
    _axis(axes, "x", plot.x)
    _axis(axes, "y", plot.y)
    if not plot.y.log:
        axes.set_ylim(bottom=0)
    axes.grid(True)
    _legend(axes, len(plot.series))


def _bars(axes: Axes, plot: BarPlot) -> None:
    names = [str(v) for v in plot.series[0].x]
    places = list(range(len(names)))
    width = 0.8 if plot.stacked else 0.8 / len(plot.series)
    base = [0.0] * len(names)
    for number, one in enumerate(plot.series):
        at = places if plot.stacked else [p - 0.4 + width * (number + 0.5) for p in places]
        if plot.sideways:
            axes.barh(at, one.y, width, left=base, color=one.colour, label=one.name)
        else:
            axes.bar(at, one.y, width, bottom=base, color=one.colour, label=one.name)
        if plot.stacked:
            base = [a + b for a, b in zip(base, one.y, strict=True)]
    if plot.low:
        below = [t - low for t, low in zip(base, plot.low, strict=True)]
        above = [high - t for t, high in zip(base, plot.high, strict=True)]
        ends = [below, above]
        xerr, yerr = (ends, None) if plot.sideways else (None, ends)
        x, y = (base, places) if plot.sideways else (places, base)
        axes.errorbar(x, y, fmt="none", ecolor="#444444", capsize=3, lw=1, xerr=xerr, yerr=yerr)
    _axis(axes, "x", plot.x)
    _axis(axes, "y", plot.y)
    if plot.sideways:
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.grid(True, axis="x")
    else:
        shown = places if len(places) <= _MANY else [0, *places[1 + _STEP :: _STEP]]
        axes.set_xticks(shown, [names[n] for n in shown])
        axes.grid(True, axis="y")
    _legend(axes, len(plot.series), beside=plot.sideways)


def _dots(axes: Axes, plot: DotPlot) -> None:
    places = list(range(len(plot.labels)))
    width = [2 * t for t in plot.tolerances]
    axes.barh(places, width, 0.6, left=[-t for t in plot.tolerances], color="#8a8f98", alpha=0.3)
    for group, colour in plot.colours.items():
        picked = [n for n, one in enumerate(plot.groups) if one == group]
        if picked:
            axes.scatter([plot.values[n] for n in picked], picked, color=colour, label=group, s=24)
    axes.axvline(0, color="#444444", linewidth=0.8)
    axes.set_yticks(places, list(plot.labels))
    axes.invert_yaxis()
    axes.set_xlabel(plot.x.title)
    axes.grid(True, axis="x")
    axes.legend(loc="best")


def _spans(axes: Axes, plot: SpanPlot) -> None:
    for group, colour in plot.colours.items():
        picked = [n for n, one in enumerate(plot.groups) if one == group]
        if picked:
            values = [plot.values[n] for n in picked]
            below = [v - plot.low[n] for n, v in zip(picked, values, strict=True)]
            above = [plot.high[n] - v for n, v in zip(picked, values, strict=True)]
            axes.errorbar(
                values, picked, xerr=[below, above], fmt="o", color=colour, label=group, capsize=2
            )
    axes.set_yticks(list(range(len(plot.labels))), list(plot.labels))
    axes.invert_yaxis()
    _axis(axes, "x", plot.x)
    axes.grid(True, axis="x")
    axes.legend(loc="best")


def _tree(axes: Axes, plot: TreePlot) -> None:
    from matplotlib.patches import Rectangle as Patch

    units: dict[str, float] = {}
    for item in plot.items:
        units[item.parent] = units.get(item.parent, 0.0) + item.value
    total = sum(units.values())
    for (unit, value), box in zip(
        units.items(), squarify(list(units.values()), (0.0, 0.0, 1.6, 1.0)), strict=True
    ):
        mine = [item for item in plot.items if item.parent == unit]
        for item, (x, y, w, h) in zip(mine, squarify([i.value for i in mine], box), strict=True):
            axes.add_patch(Patch((x, y), w, h, facecolor=item.colour, edgecolor="white", lw=0.6))
            if w > 0.16 and h > 0.07:
                text = f"{item.name}\n{quantity(item.value, plot.unit)}"
                middle = (x + w / 2, y + h / 2)
                axes.annotate(text, middle, ha="center", va="center", color="white", fontsize=7)
        x, y, w, h = box
        label = f"{unit}, {100 * value / total:.2g} %"
        axes.add_patch(Patch((x, y), w, h, fill=False, edgecolor="#222222", lw=1.4, label=label))
        if w > 0.3 and h > 0.15:
            axes.annotate(label, (x + 0.01, y + h - 0.03), va="center", color="white", fontsize=8)
    axes.set(xlim=(0, 1.6), ylim=(0, 1))
    axes.set_axis_off()


def _floor(axes: Axes, plot: FloorPlot) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Patch as Key
    from matplotlib.patches import Rectangle as Patch

    keys = []
    for kind, colour in plot.colours.items():
        mine = [Patch((r.x, r.y), r.width, r.height) for r in plot.rectangles if r.kind == kind]
        axes.add_collection(
            PatchCollection(mine, facecolor=colour, edgecolor="white", linewidth=0.3)
        )
        keys.append(Key(facecolor=colour, label=kind))
    axes.set(xlim=(0, plot.side), ylim=(0, plot.side), xlabel="mm", ylabel="mm", aspect="equal")
    axes.legend(handles=keys, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _heat(axes: Axes, plot: HeatPlot) -> Any:
    import numpy as np

    grid = np.array([[np.nan if v is None else v for v in row] for row in plot.grid])
    image = axes.imshow(grid, aspect="auto", cmap="viridis", interpolation="nearest")
    axes.set(xlabel=plot.x.title, ylabel=plot.y.title)
    return image
