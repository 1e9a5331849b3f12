"""Hardware of adapters in the adder arrays as this project's RTL has it, fitted by structure.

Cell areas in um2, memories apart, from the pairs of points ``adder_tile`` and ``adder_side`` of
``tables/synthesis_asap7.toml``: the same module with adapters and without.
"""

from __future__ import annotations

from functools import cache

from romsim.synthesis_table import module_um2
from romsim_compiler.target import MX_BLOCK

__all__ = ["adder_side_um2", "adder_tile_um2"]

_TILE = {"cells": 2, "ports": 1, "blocks": 1}
_SIDE = {"tiles": 2, "groups": 1, "broadcast": 1, "collect": 1, "rank": 32}


@cache
def _added(module: str, **keys: int) -> float:
    there, without = (module_um2(module, **keys, adapters=has) for has in (True, False))
    return there - without


def adder_tile_um2(cells: int, ports: int, blocks: int) -> float:
    """Return what adapters add to a tile of unit L.

    A fixed part; for each block of 32 codes of each cell the choice between its ROM's word and its
    trits; for each block of each port that between x and z.

    Parameters
    ----------
    ports
        Words of the x buffer that are read in one cycle.
    blocks
        Blocks of 32 codes in a word.
    """
    plain = _added("adder_tile", **_TILE)
    cell = (_added("adder_tile", **{**_TILE, "cells": 4}) - plain) / 2
    port = _added("adder_tile", **{**_TILE, "ports": 2}) - plain
    return plain - 2 * cell - port + blocks * (cells * cell + ports * port)


def adder_side_um2(groups: int, broadcast: int, rank: int) -> float:
    """Return what adapters add to unit L's side: table of runs, z, its quantiser and wires.

    A fixed part; one for each lane group, for each stage of the broadcast, for each block of 32 of
    the largest rank.

    Parameters
    ----------
    rank
        Largest padded rank.
    """
    plain = _added("adder_side", **_SIDE)
    group = _added("adder_side", **{**_SIDE, "groups": 2}) - plain
    stage = _added("adder_side", **{**_SIDE, "broadcast": 2}) - plain
    block = _added("adder_side", **{**_SIDE, "rank": 64}) - plain
    n_blocks = -(-rank // MX_BLOCK)
    return plain + (groups - 1) * group + (broadcast - 1) * stage + (n_blocks - 1) * block
