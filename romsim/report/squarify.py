"""Rectangles that fill a rectangle, each of a given share of it and as square as can be."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Box", "squarify"]

Box = tuple[float, float, float, float]
"""Left, bottom, width, height."""


def squarify(values: Sequence[float], box: Box) -> list[Box]:
    """Return a rectangle for each value, in the values' order.

    Parameters
    ----------
    values
        Positive numbers; the areas are in their proportion.
    box
        What the rectangles fill.

    Source
    ------
    Bruls, Huizing, van Wijk, Squarified Treemaps (2000): the largest value first, a row along the
    shorter side as long as that makes its worst rectangle more square.
    """
    x, y, width, height = box
    scale = width * height / sum(values)
    order = sorted(range(len(values)), key=lambda n: -values[n])
    boxes: list[Box] = [box] * len(values)
    at = 0
    while at < len(order):
        side = min(width, height)
        count = 1
        while at + count < len(order) and _worst(
            [values[n] * scale for n in order[at : at + count + 1]], side
        ) <= _worst([values[n] * scale for n in order[at : at + count]], side):
            count += 1
        row = order[at : at + count]
        depth = sum(values[n] for n in row) * scale / side
        along = 0.0
        for n in row:
            length = values[n] * scale / depth
            boxes[n] = (
                (x, y + along, depth, length) if width >= height else (x + along, y, length, depth)
            )
            along += length
        if width >= height:
            x, width = x + depth, width - depth
        else:
            y, height = y + depth, height - depth
        at += count
    return boxes


def _worst(areas: Sequence[float], side: float) -> float:
    total = sum(areas)
    return max(max(side**2 * a / total**2, total**2 / (side**2 * a)) for a in areas)
