"""A floorplan drawn to scale: every block has the area that the area model gives it.

The areas are the model's; where blocks lie is a sketch, since nothing was placed. The die is a
square with the periphery along one edge, the vector unit, sequencer and trunks in a strip across
the middle, and the tiles in rows above and below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from romsim.area import AreaReport

__all__ = ["KINDS", "Block", "plan_floor"]

KINDS = {
    "rom": "ROM",
    "lanes": "ROM-side lanes and logic",
    "sram": "KV and LoRA SRAM",
    "attention": "attention lanes and buffers",
    "network": "network",
    "vector": "vector unit",
    "sequencer": "sequencer",
    "host": "host port, clock, pads",
}
"""Kinds of blocks, with their names for people."""

_PER_TILE = {"broadcast registers", "collect registers", "collect multiplexers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A rectangle on the die; lengths in mm, the origin at the lower left corner."""

    kind: str
    name: str
    tile: int  # -1 outside the tiles
    x: float
    y: float
    width: float
    height: float

    @property
    def area(self) -> float:
        """Area in mm2."""
        return self.width * self.height


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float

    def columns(self, areas: Sequence[float]) -> list[_Box]:
        """Cut into columns of these areas, which fill the box."""
        boxes, x = [], self.x
        for area in areas:
            width = area / self.height
            boxes.append(_Box(x, self.y, width, self.height))
            x += width
        return boxes

    def rows(self, areas: Sequence[float]) -> list[_Box]:
        """Cut into rows of these areas, the first at the bottom."""
        boxes, y = [], self.y
        for area in areas:
            height = area / self.width
            boxes.append(_Box(self.x, y, self.width, height))
            y += height
        return boxes


def plan_floor(area: AreaReport, n_tiles: int) -> tuple[Block, ...]:
    """Lay out a chip; the blocks' areas sum to the die's mid area.

    Parameters
    ----------
    area
        The chip's area.
    n_tiles
        Number of its tiles.
    """
    tile, middle, host = _areas(area, n_tiles)
    side = math.sqrt(n_tiles * sum(tile.values()) + sum(a for *_, a in middle) + host)
    strips = _row_sizes(n_tiles, side, sum(tile.values()))
    above = len(strips) // 2
    tile_rows = [n * sum(tile.values()) for n in strips]
    # From the bottom up; the first tiles lie at the top, as one reads.
    upper, lower = reversed(tile_rows[:above]), reversed(tile_rows[above:])
    heights = [host, *lower, sum(a for *_, a in middle), *upper]
    boxes = _Box(0.0, 0.0, side, side).rows(heights)
    blocks = [_block("host", KINDS["host"], -1, boxes[0])]
    below = boxes[1 : 1 + len(strips) - above]
    strip = boxes[1 + len(below)]
    cut = strip.columns([a for *_, a in middle])
    for (kind, name, _), box in zip(middle, cut, strict=True):
        blocks.append(_block(kind, name, -1, box))
    rows = [*reversed(boxes[2 + len(below) :]), *reversed(below)]
    number = 0
    for count, row in zip(strips, rows, strict=True):
        for box in row.columns([row.width * row.height / count] * count):
            blocks += _tile(number, box, tile)
            number += 1
    return tuple(block for block in blocks if block.area > 0)


def _areas(
    area: AreaReport, n_tiles: int
) -> tuple[dict[str, float], list[tuple[str, str, float]], float]:
    """Return mm2 of a tile's parts, of the strip's blocks, and of the edge."""
    tile = dict.fromkeys(("rom", "lanes", "sram", "attention", "network"), 0.0)
    middle: dict[tuple[str, str], float] = {}
    host = 0.0
    for row in area.rows:
        mm2 = row.area_um2.mid * 1e-6
        if row.unit == "L-units":
            tile["rom" if row.component == "ROM" else "lanes"] += mm2 / n_tiles
        elif row.unit == "H-units":
            is_bank = row.component in ("K bank", "V bank")
            tile["sram" if is_bank else "attention"] += mm2 / n_tiles
        elif row.unit == "network" and row.component in _PER_TILE:
            tile["network"] += mm2 / row.count
            rest = mm2 * (row.count - n_tiles) / row.count
            _add(middle, ("network", "trunks"), rest)
        elif row.unit == "network":
            _add(middle, ("network", "trunks"), mm2)
        elif row.unit == "vector unit":
            is_sram = row.component == "activation SRAM"
            _add(middle, ("vector", "activation SRAM" if is_sram else "vector lanes"), mm2)
        elif row.unit == "sequencer":
            _add(middle, ("sequencer", "sequencer, program ROM"), mm2)
        else:
            host += mm2
    return tile, [(kind, name, mm2) for (kind, name), mm2 in middle.items()], host


def _add(areas: dict[tuple[str, str], float], key: tuple[str, str], mm2: float) -> None:
    areas[key] = areas.get(key, 0.0) + mm2


def _row_sizes(n_tiles: int, side: float, tile: float) -> list[int]:
    """Return tiles in each row, so that a tile is as nearly square as can be."""

    def skew(n_rows: int) -> float:
        width = side * n_rows / n_tiles
        return abs(math.log(width * width / tile))

    n_rows = min(range(1, n_tiles + 1), key=skew)
    least, more = divmod(n_tiles, n_rows)
    return [least + 1] * more + [least] * (n_rows - more)


def _tile(number: int, box: _Box, areas: dict[str, float]) -> Iterable[Block]:
    left, right = ("rom", "lanes"), ("sram", "attention", "network")
    halves = box.columns([sum(areas[k] for k in left), sum(areas[k] for k in right)])
    for kinds, half in zip((left, right), halves, strict=True):
        parts = half.rows([areas[kind] for kind in reversed(kinds)])
        for kind, part in zip(reversed(kinds), parts, strict=True):
            yield _block(kind, f"tile {number}: {KINDS[kind]}", number, part)


def _block(kind: str, name: str, tile: int, box: _Box) -> Block:
    return Block(
        kind=kind, name=name, tile=tile, x=box.x, y=box.y, width=box.width, height=box.height
    )
