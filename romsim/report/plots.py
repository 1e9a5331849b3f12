"""What is drawn, without saying how: plots as data, for the page and for pictures alike."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "COLOURS",
    "Axis",
    "BarPlot",
    "DotPlot",
    "FloorPlot",
    "HeatPlot",
    "LinePlot",
    "Plot",
    "Rectangle",
    "Series",
    "SpanPlot",
    "TreeItem",
    "TreePlot",
]

COLOURS = {
    "rom": "#3b6fb6",
    "lanes": "#8ab4de",
    "sram": "#c4506a",
    "attention": "#e6a1ae",
    "network": "#c9a227",
    "vector": "#2f9c8a",
    "sequencer": "#8e5aa8",
    "host": "#8a8f98",
    "clock": "#dd8a3c",
    "leakage": "#6f7681",
    "latency": "#a3a9b3",
    "chip 0": "#3b6fb6",
    "chip 1": "#c4506a",
    "chip 2": "#2f9c8a",
    "chip 3": "#c9a227",
}
"""Colours by what they stand for; legible on white and on near-black."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis: its title with the unit in it, and its scale."""

    title: str
    unit: str = ""  # of numbers read from it
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, or one layer of bars."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    colour: str
    dash: str = "solid"  # "solid", "dash", "dot"
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlot:
    """Lines over numbers; a band where a series has a range."""

    key: str
    title: str
    caption: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlot:
    """Bars over categories: stacked, or side by side. ``low`` and ``high`` mark the stacks."""

    key: str
    title: str
    caption: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    stacked: bool
    sideways: bool = False
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DotPlot:
    """One dot for each label, with a tolerance about zero."""

    key: str
    title: str
    caption: str
    x: Axis
    labels: tuple[str, ...]
    values: tuple[float, ...]
    groups: tuple[str, ...]  # of each dot
    colours: dict[str, str]  # by group
    tolerances: tuple[float, ...]  # 0 where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlot:
    """One dot with its range for each label."""

    key: str
    title: str
    caption: str
    x: Axis
    labels: tuple[str, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    groups: tuple[str, ...]  # of each dot
    colours: dict[str, str]  # by group


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeItem:
    """A leaf of a treemap, under its parent's name."""

    name: str
    parent: str
    value: float
    colour: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlot:
    """Areas in areas."""

    key: str
    title: str
    caption: str
    root: str
    unit: str
    items: tuple[TreeItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """A block of a floorplan, in mm."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorPlot:
    """Rectangles to scale."""

    key: str
    title: str
    caption: str
    side: float
    rectangles: tuple[Rectangle, ...]
    colours: dict[str, str]  # by kind, in the legend's order


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatPlot:
    """A grid of numbers."""

    key: str
    title: str
    caption: str
    x: Axis
    y: Axis
    value: Axis
    grid: tuple[tuple[float | None, ...], ...]  # rows from the top
    names: tuple[tuple[str, ...], ...]


Plot = LinePlot | BarPlot | DotPlot | SpanPlot | TreePlot | FloorPlot | HeatPlot
"""Any of them; each has ``key``, ``title`` and ``caption``."""
