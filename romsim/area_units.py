"""Vector unit, controllers and wires as this project's RTL has them, fitted by structure.

Each function gives the cell area of one unit in um2, memories and the modules inside apart, from
the points of ``tables/synthesis_asap7.toml``. Sizes are those of `romsim.synthesis_chips.sizes_of`.
"""

from __future__ import annotations

from functools import cache

from romsim.synthesis_table import module_um2
from romsim_compiler.target import MX_BLOCK

__all__ = [
    "group_um2",
    "hside_um2",
    "lside_um2",
    "row_sum_um2",
    "sequencer_um2",
    "tile_um2",
    "unit_um2",
    "vector_um2",
]

_BASE = {"tiles": 2, "cells": 2, "groups": 1, "broadcast": 1, "collect": 1, "inflight": 2}

_SOURCES = 6  # of a lane with 16 tiles of 16 cells: 4 beats of two cells a row, 2 of four


@cache
def unit_um2(unit: str, **changes: int) -> float:
    """Return the measured area of a unit of the smallest chip but for these sizes."""
    return module_um2(unit, **{**_BASE, **changes})


def group_um2(activation: str, n_lanes: int = MX_BLOCK) -> float:
    """Return the area of a lane group of unit V: a fixed part and one for each lane.

    Parameters
    ----------
    activation
        ``silu``, or ``relu2``: with the sub-norms that go with it in BitNet.
    """
    two, four = (module_um2("vector_group", activation="silu", lanes=n) for n in (2, 4))
    fixed = 2 * two - four
    of_four = module_um2("vector_group", activation=activation, lanes=4)
    return fixed + n_lanes * (of_four - fixed) / 4


def vector_um2(groups: int, broadcast: int) -> float:
    """Return the area of unit V without its lane groups.

    A fixed part; for each group what chooses its scalars, its angles and its share of argmax and
    broadcast; for each group and stage of the broadcast a register.
    """
    one, two = unit_um2("vector"), unit_um2("vector", groups=2)
    stage = unit_um2("vector", broadcast=2) - one
    group = two - one - stage
    return one + (groups - 1) * group + (groups * broadcast - 1) * stage


def lside_um2(
    tiles: int, cells: int, groups: int, collect: int, sources: int | None = None
) -> float:
    """Return the area of unit L's controller and of the wires to unit V.

    A fixed part; one for each tile; for each lane that rows come on a register a stage, and a
    multiplexer for each further place that its rows come from; masks for each group.

    Parameters
    ----------
    sources
        Beats of a step, for all numbers of cells a row together; left out, those of one cell a row.
    """
    lane = (unit_um2("lside", tiles=4, cells=8) - unit_um2("lside", tiles=4)) / 24
    tile = (unit_um2("lside", tiles=4) - unit_um2("lside") - 4 * lane) / 2
    more = unit_um2("lside", tiles=16, cells=16) - unit_um2("lside", tiles=4, cells=8) - 12 * tile
    mux = more / (_SOURCES - 1) / MX_BLOCK
    group = unit_um2("lside", groups=2) - unit_um2("lside")
    stage = unit_um2("lside", collect=2) - unit_um2("lside") - 4 * lane
    fixed = unit_um2("lside") - 2 * tile - 4 * lane - group
    n_lanes = MX_BLOCK * groups
    used = min(tiles * cells, n_lanes)
    n_sources = -(-tiles * cells // n_lanes) if sources is None else sources
    return (
        fixed
        + tiles * tile
        + groups * group
        + used * (lane + (n_sources - 1) * mux)
        + (collect - 1) * (stage + used * lane)
    )


def hside_um2(tiles: int, groups: int, collect: int) -> float:
    """Return the area of unit H's controller, of the wires from the tiles and of the merge tree.

    A fixed part; for each group the join of two blocks and, for each tile but one, the sum of the
    tiles; for each group, tile and stage of the collecting wires a register of 32 sums.
    """
    stage = (unit_um2("hside", collect=2) - unit_um2("hside")) / 2
    tile = (unit_um2("hside", tiles=4) - unit_um2("hside")) / 2 - stage
    group = unit_um2("hside", groups=2) - unit_um2("hside") - tile - 2 * stage
    fixed = unit_um2("hside") - group - tile - 2 * stage
    return fixed + groups * (group + (tiles - 1) * tile + tiles * collect * stage)


def tile_um2(cells: int) -> float:
    """Return the area of what joins the cells of a tile, ports of x and sums of rows apart."""
    two, four = unit_um2("ltile"), unit_um2("ltile", cells=4)
    return two - module_um2("x_port", blocks=1) + (cells - 2) * (four - two) / 2


def row_sum_um2() -> float:
    """Return the area of one sum of two cells' rows, and of the choice whether it is taken.

    In the tile that it is taken from two cells share a row: 8 sums, and two ports of x.
    """
    ports = 2 * module_um2("x_port", blocks=1)
    return (unit_um2("ltile", tiles=8, cells=16) - tile_um2(16) - ports) / 8


def sequencer_um2(inflight: int) -> float:
    """Return the area of the sequencer, and of what the chip has around its units."""
    one, two = unit_um2("sequencer", inflight=1), unit_um2("sequencer")
    return two + (inflight - 2) * (two - one) + unit_um2("top")
