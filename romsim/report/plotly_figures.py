"""Plots as plotly's figures: plain JSON that the page's script hands to plotly.js."""

from __future__ import annotations

from typing import Any

from romsim.report.numbers import quantity, span
from romsim.report.plots import (
    Axis,
    BarPlot,
    DotPlot,
    FloorPlot,
    HeatPlot,
    LinePlot,
    Plot,
    Series,
    SpanPlot,
    TreePlot,
)

__all__ = ["figure_of"]

_CLEAR = "rgba(0,0,0,0)"
_GREY = "#8a8f98"
_HEIGHT = 380  # px
_BAR_PX = 30  # of one category sideways
_DOT_PX = 21
_NARROW = 300.0  # a logarithmic axis of fewer decades is labelled at 2 and 5 too
_MANY = 16  # categories of which not all are named
_STEP = 5


def figure_of(plot: Plot) -> dict[str, Any]:
    """Return ``data`` and ``layout`` of a plot; colours of text and grid are the page's."""
    match plot:
        case LinePlot():
            data, layout = _lines(plot)
        case BarPlot():
            data, layout = _bars(plot)
        case DotPlot():
            data, layout = _dots(plot)
        case SpanPlot():
            data, layout = _spans(plot)
        case TreePlot():
            data, layout = _tree(plot)
        case FloorPlot():
            data, layout = _floor(plot)
        case HeatPlot():
            data, layout = _heat(plot)
    common: dict[str, Any] = {
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "hoverlabel": {"align": "left"},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "title": {}},
        "height": _HEIGHT,
    }
    return {"data": data, "layout": {**common, **layout}}


def _axis(axis: Axis, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "title": {"text": axis.title, "standoff": 10},
        "automargin": True,
        "zeroline": False,
        **more,
    }
    if axis.log:
        values |= {"type": "log", "dtick": 1, "minor": {"ticks": "outside", "ticklen": 3}}
    if axis.unit in ("J", "s"):
        values |= {"tickformat": "~s", "ticksuffix": axis.unit}
    elif axis.unit in ("tokens", "cycles", "tokens/s"):
        values |= {"tickformat": "~s"}
    return values


def _lines(plot: LinePlot) -> tuple[list[Any], dict[str, Any]]:
    data: list[Any] = []
    for number, one in enumerate(plot.series):
        if one.low:
            band = {"legendgroup": f"g{number}", "showlegend": False, "hoverinfo": "skip"}
            line = {"mode": "lines", "type": "scatter", "line": {"width": 0}, "x": list(one.x)}
            fill = {"fill": "tonexty", "fillcolor": _faint(one.colour)}
            data.append({**band, **line, "y": list(one.low), "name": f"{one.name}, low"})
            data.append({**band, **line, **fill, "y": list(one.high), "name": f"{one.name}, high"})
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": one.name,
                "legendgroup": f"g{number}",
                "x": list(one.x),
                "y": list(one.y),
                "line": {"color": one.colour, "dash": one.dash, "width": 2},
                "marker": {"size": 5, "color": one.colour},
                "text": _texts(one, plot.x, plot.y),
                "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
            }
        )
    y = _axis(plot.y) if plot.y.log else _axis(plot.y, rangemode="tozero")
    values = [v for one in plot.series for v in (*one.y, *one.low, *one.high)]
    if plot.y.log and max(values) < _NARROW * min(values):
        y |= {"dtick": "D2", "minor": {}}  # label 2 and 5 as well: powers of ten are too few
    return data, {"xaxis": _axis(plot.x), "yaxis": y, "showlegend": len(plot.series) > 1}


def _texts(one: Series, x: Axis, y: Axis) -> list[str]:
    texts = []
    for number, (at, value) in enumerate(zip(one.x, one.y, strict=True)):
        place = at if isinstance(at, str) else quantity(at, x.unit)
        text = f"{place}<br>{quantity(value, y.unit)}"
        if one.low:
            text += f"<br>{span(one.low[number], one.high[number], y.unit, like=value)}"
        texts.append(text)
    return texts


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _bars(plot: BarPlot) -> tuple[list[Any], dict[str, Any]]:
    along, value = ("y", "x") if plot.sideways else ("x", "y")
    unit = plot.x.unit if plot.sideways else plot.y.unit
    data: list[Any] = []
    for one in plot.series:
        data.append(
            {
                "type": "bar",
                "orientation": "h" if plot.sideways else "v",
                "name": one.name,
                along: list(one.x),
                value: list(one.y),
                "marker": {"color": one.colour, "line": {"width": 0}},
                "text": [
                    f"{at}<br>{quantity(v, unit)}" for at, v in zip(one.x, one.y, strict=True)
                ],
                "textposition": "none",
                "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
            }
        )
    if plot.low:
        totals = [sum(values) for values in zip(*(s.y for s in plot.series), strict=True)]
        spans = zip(plot.low, plot.high, totals, strict=True)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "whole, with range",
                along: list(plot.series[0].x),
                value: totals,
                "marker": {"color": _GREY, "symbol": "line-ns-open", "size": 10},
                f"error_{value}": {
                    "type": "data",
                    "symmetric": False,
                    "array": [h - t for h, t in zip(plot.high, totals, strict=True)],
                    "arrayminus": [t - low for low, t in zip(plot.low, totals, strict=True)],
                    "color": _GREY,
                    "thickness": 1.5,
                    "width": 6,
                },
                "text": [f"{quantity(t, unit)}<br>{span(a, b, unit, like=t)}" for a, b, t in spans],
                "hovertemplate": "%{text}<extra>whole</extra>",
            }
        )
    category = {"type": "category", "showgrid": False}
    if plot.sideways:
        y = {**_axis(plot.y), **category, "autorange": "reversed"}
        axes = {"xaxis": _axis(plot.x, rangemode="tozero"), "yaxis": y}
    else:
        x = {**_axis(plot.x), **category, "tickangle": 0}
        names = plot.series[0].x
        if len(names) > _MANY:
            x |= {"tickmode": "array", "tickvals": [names[0], *names[1 + _STEP :: _STEP]]}
        axes = {"xaxis": x, "yaxis": _axis(plot.y)}
    layout: dict[str, Any] = {
        **axes,
        "barmode": "stack" if plot.stacked else "group",
        "bargap": 0.25 if len(plot.series[0].x) < 12 else 0.12,
        "showlegend": len(plot.series) > 1,
        # Read in the order of the stack.
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
    }
    if plot.sideways:
        n_bars = len(plot.series[0].x) * (1 if plot.stacked else len(plot.series))
        layout["height"] = max(_HEIGHT, 150 + _BAR_PX * n_bars)
    return data, layout


def _dots(plot: DotPlot) -> tuple[list[Any], dict[str, Any]]:
    data: list[Any] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "tolerance",
            "y": list(plot.labels),
            "x": [2 * t for t in plot.tolerances],
            "base": [-t for t in plot.tolerances],
            "marker": {"color": "rgba(138,143,152,0.28)", "line": {"width": 0}},
            "hovertemplate": "%{text}<extra>tolerance</extra>",
            "text": [f"± {quantity(t, plot.x.unit)}" if t else "none" for t in plot.tolerances],
            "textposition": "none",
        }
    ]
    for group, colour in plot.colours.items():
        picked = [n for n, one in enumerate(plot.groups) if one == group]
        if not picked:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": group,
                "x": [plot.values[n] for n in picked],
                "y": [plot.labels[n] for n in picked],
                "marker": {"color": colour, "size": 9},
                "text": [f"{plot.labels[n]}<br>{plot.values[n]:+.2f} %" for n in picked],
                "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
            }
        )
    return data, {
        "xaxis": _axis(plot.x, ticksuffix=" %") | {"zeroline": True},
        "yaxis": _labelled(plot.labels),
        "height": 130 + _DOT_PX * len(plot.labels),
        "bargap": 0.3,
    }


def _spans(plot: SpanPlot) -> tuple[list[Any], dict[str, Any]]:
    data: list[Any] = []
    for group, colour in plot.colours.items():
        picked = [n for n, one in enumerate(plot.groups) if one == group]
        if not picked:
            continue
        values = [plot.values[n] for n in picked]
        ends = [(plot.low[n], plot.high[n]) for n in picked]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": group,
                "x": values,
                "y": [plot.labels[n] for n in picked],
                "marker": {"color": colour, "size": 9},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - v for v, (_, high) in zip(values, ends, strict=True)],
                    "arrayminus": [v - low for v, (low, _) in zip(values, ends, strict=True)],
                    "color": colour,
                    "thickness": 1.5,
                    "width": 4,
                },
                "text": [
                    f"{plot.labels[n]}<br>{quantity(v, plot.x.unit)}"
                    f"<br>{span(low, high, plot.x.unit, like=v)}"
                    for n, v, (low, high) in zip(picked, values, ends, strict=True)
                ],
                "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
            }
        )
    return data, {
        "xaxis": _axis(plot.x),
        "yaxis": _labelled(plot.labels),
        "height": 130 + _DOT_PX * len(plot.labels),
    }


def _tree(plot: TreePlot) -> tuple[list[Any], dict[str, Any]]:
    parents: dict[str, float] = {}
    colours: dict[str, str] = {}
    for item in plot.items:
        parents[item.parent] = parents.get(item.parent, 0.0) + item.value
        colours[item.parent] = item.colour
    total = sum(parents.values())
    names = [plot.root, *parents, *(item.name for item in plot.items)]
    values = [total, *parents.values(), *(item.value for item in plot.items)]
    texts = ["", *(f"{100 * v / total:.3g} % of the die" for v in parents.values())]
    data = {
        "type": "treemap",
        "branchvalues": "total",
        "ids": ["die", *(f"die/{name}" for name in parents)]
        + [f"die/{item.parent}/{item.name}" for item in plot.items],
        "parents": ["", *("die" for _ in parents)] + [f"die/{item.parent}" for item in plot.items],
        "labels": names,
        "values": values,
        "text": [quantity(v, plot.unit) for v in values],
        "customdata": [*texts, *(item.text for item in plot.items)],
        "texttemplate": "%{label}<br>%{text}",
        "hovertemplate": "<b>%{label}</b><br>%{text}<br>%{customdata}<extra></extra>",
        "marker": {
            "colors": [_CLEAR, *colours.values(), *(item.colour for item in plot.items)],
            "line": {"width": 1},
            "pad": {"t": 22, "l": 3, "r": 3, "b": 3},
        },
        "tiling": {"packing": "squarify", "pad": 1},
        "pathbar": {"visible": True, "thickness": 20},
    }
    return [data], {"height": 560, "showlegend": False}


def _floor(plot: FloorPlot) -> tuple[list[Any], dict[str, Any]]:
    data: list[Any] = []
    for kind, colour in plot.colours.items():
        mine = [r for r in plot.rectangles if r.kind == kind]
        xs: list[float | None] = []
        ys: list[float | None] = []
        for r in mine:
            left, right = round(r.x, 4), round(r.x + r.width, 4)
            bottom, top = round(r.y, 4), round(r.y + r.height, 4)
            xs += [left, right, right, left, left, None]
            ys += [bottom, bottom, top, top, bottom, None]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": kind,
                "legendgroup": kind,
                "x": xs,
                "y": ys,
                "fill": "toself",
                "fillcolor": colour,
                "line": {"width": 0.6, "color": "rgba(255,255,255,0.55)"},
                "hoverinfo": "skip",
            }
        )
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{kind}, centres",
                "legendgroup": kind,
                "showlegend": False,
                "x": [round(r.x + r.width / 2, 4) for r in mine],
                "y": [round(r.y + r.height / 2, 4) for r in mine],
                "marker": {"size": 10, "opacity": 0, "color": colour},
                "text": [r.text for r in mine],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    edge = [0, round(plot.side, 4)]
    across = {"range": edge, "showgrid": False, "constrain": "domain", "automargin": True}
    return data, {
        "xaxis": {**across, "title": {"text": "mm"}, "zeroline": False},
        "yaxis": {**across, "title": {"text": "mm"}, "scaleanchor": "x", "zeroline": False},
        "height": 560,
        "hovermode": "closest",
    }


def _heat(plot: HeatPlot) -> tuple[list[Any], dict[str, Any]]:
    data = {
        "type": "heatmap",
        "z": [list(row) for row in plot.grid],
        "text": [list(row) for row in plot.names],
        "hovertemplate": "%{text}<extra></extra>",
        "colorscale": "Viridis",
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": plot.value.title, "side": "right"}, "thickness": 12},
    }
    rows = len(plot.grid)
    return [data], {
        "xaxis": _axis(plot.x, showgrid=False, **_whole(len(plot.grid[0]))),
        "yaxis": _axis(plot.y, showgrid=False, autorange="reversed", **_whole(rows)),
        "height": min(620, 170 + max(14, min(26, 420 // rows)) * rows),
    }


def _whole(n_places: int) -> dict[str, Any]:
    """Return marks at whole numbers, where an axis would otherwise have others."""
    return {"dtick": 1} if n_places <= _MANY else {}


def _labelled(labels: tuple[str, ...]) -> dict[str, Any]:
    """Return an axis of labels from the top down, each named, without room above or below."""
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": list(labels),
        "range": [len(labels) - 0.5, -0.5],
        "automargin": True,
        "dtick": 1,
        "showgrid": True,
    }
