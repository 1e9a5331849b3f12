"""Adapters' hardware in the adder arrays that is measured: points of ``synthesis_asap7.toml``.

A tile of unit L, and unit L's controller, are built with it and without; :mod:`romsim.area_adders`
fits the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.adder_sizes import AdderSizes
from romsim_rtl.cell import CellConfig
from romsim_rtl.lside import LSide, LSideConfig
from romsim_rtl.ltile import LTile, LTileConfig
from romsim_rtl.xbuffer import XBufferSizes

__all__ = ["SIDES", "TILES", "adder_parts"]

TILES = ((2, 1, 1), (4, 1, 1), (2, 2, 1), (2, 1, 2), (4, 4, 2))
"""Cells, ports of the x buffer, blocks of 32 in a word; the last is not fitted."""

SIDES = (
    (2, 1, 1, 1, 32),
    (4, 1, 1, 1, 32),
    (2, 2, 1, 1, 32),
    (2, 1, 2, 1, 32),
    (2, 1, 1, 2, 32),
    (2, 1, 1, 1, 64),
    (8, 2, 2, 2, 64),
)
"""Tiles, lane groups, stages of either bus, largest padded rank; the last is not fitted."""

_TRIT_WORDS, _Z_WORDS = 64, 4
_CELLS = 2  # of a tile beside which the controller stands


def adder_parts() -> Iterator[tuple[str, dict[str, Any], Any, bool]]:
    """Yield module, keys, component, and whether it is timed: of each pair first the plain one."""
    for cells, ports, blocks in TILES:
        keys = {"cells": cells, "ports": ports, "blocks": blocks}
        for has in (False, True):
            tile = LTile(config=_tile(cells, ports, blocks, blocks, has=has))
            is_timed = has and (cells, ports, blocks) == TILES[0]
            yield "adder_tile", {**keys, "adapters": has}, tile, is_timed
    for tiles, groups, broadcast, collect, rank in SIDES:
        keys = {"tiles": tiles, "groups": groups, "broadcast": broadcast, "collect": collect}
        for has in (False, True):
            config = LSideConfig(
                tile=_tile(_CELLS, 1, 1, groups, has=has),
                n_tiles=tiles,
                n_lanes=MX_BLOCK * groups,
                collect_cycles=collect,
                adders=_sizes(rank, broadcast) if has else None,
            )
            side = LSide(config=config)
            is_timed = has and (tiles, groups, broadcast, collect, rank) == SIDES[0]
            yield "adder_side", {**keys, "rank": rank, "adapters": has}, side, is_timed


def _tile(cells: int, ports: int, blocks: int, groups: int, *, has: bool) -> LTileConfig:
    cell = CellConfig(
        word_codes=MX_BLOCK * blocks,
        lane_bits=2,
        is_ternary=True,
        plane_shift=1,
        scale_group=MX_BLOCK,
        has_plain=True,
        is_packed=False,
    )
    return LTileConfig(
        n_cells=cells,
        rom_rows=1024,
        ks_logs=tuple(range(ports.bit_length())),
        cell=cell,
        x=XBufferSizes(n_words=16, n_inflight=2, n_groups=groups, word_blocks=blocks),
        trit_words=_TRIT_WORDS if has else 0,
        z_words=_Z_WORDS if has else 0,
    )


def _sizes(rank: int, broadcast: int) -> AdderSizes:
    return AdderSizes(
        bank_words=_TRIT_WORDS,
        n_groups=8,
        max_rank=rank,
        z_words=_Z_WORDS,
        n_rows=512,
        n_inflight=2,
        broadcast_cycles=broadcast,
    )
