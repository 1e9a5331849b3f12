"""Hardware of adapters on int8 lanes as this project's RTL has it, fitted by structure.

Cell areas in um2, memories apart, from the points ``lora_tile`` and ``lora_side`` of
``tables/synthesis_asap7.toml``.
"""

from __future__ import annotations

from functools import cache

from romsim.synthesis_table import module_um2
from romsim_compiler.row_parts import part_sum_cycles
from romsim_compiler.target import MX_BLOCK, Target

__all__ = ["lora_side_um2", "lora_tile_um2", "why_no_adapter_area"]

_TILE = {"elems": 32, "lanes": 32, "rank": 16}
_SIDE = {"tiles": 2, "groups": 1, "broadcast": 1, "collect": 1, "rank": 16}
_ROW_BITS = 64  # of a row of A on its way from a tile
_LANE_BITS = 32  # of a row of B
_ADDER_TILES = 256  # whose number the configuration port names


@cache
def _tile(**changes: int) -> float:
    return module_um2("lora_tile", **{**_TILE, **changes})


@cache
def _side(**changes: int) -> float:
    return module_um2("lora_side", **{**_SIDE, **changes})


def lora_tile_um2(elems: int, lanes: int, rank: int) -> float:
    """Return the area of a tile's adapter path.

    A fixed part; for each element of a word a product, and codes of z for three projections; for
    each row that the tile finishes in a cycle its shifts; for each lane of a beat the choice of
    its row; for each code of the largest rank its place.

    Parameters
    ----------
    elems
        Codes in a word of A or B.
    lanes
        Lanes of unit V.
    rank
        Largest rank, padded.
    """
    elem = (_tile(elems=64) - _tile()) / 32
    lane = (_tile(lanes=64) - _tile()) / 32
    row = (_tile(elems=64, lanes=64) - _tile()) / 32 - elem - lane
    code = (_tile(rank=32) - _tile()) / 16
    fixed = _tile() - 32 * (elem + lane + row)
    return fixed + elems * elem + lanes * lane + min(elems, lanes) * row + (rank - 16) * code


def lora_side_um2(tiles: int, groups: int, broadcast: int, collect: int) -> float:
    """Return the area of what adapters have once: controller, sums over tiles, z, wires.

    A fixed part; one for each tile, whose rows of A are added up, shifted and measured; one for
    each lane group; for each group and tile a register of 32 rows of B and its part of their join;
    the same registers for each further stage of the collecting wires, and for each stage between
    the tiles' sums; for each stage of the broadcast the command, and codes of z for each group.
    """
    stage = _side(collect=2) - _side()
    bit = stage / (2 * (_ROW_BITS + MX_BLOCK * _LANE_BITS))
    sent = _side(broadcast=2, groups=2) - _side(groups=2)
    per_group = sent - (_side(broadcast=2) - _side())
    command = _side(broadcast=2) - _side() - per_group
    both = _side(tiles=4, groups=2) - _side(tiles=4) - _side(groups=2) + _side()
    joined = both / 2
    tile = (_side(tiles=4) - _side()) / 2 - joined
    group = _side(groups=2) - _side() - 2 * joined
    fixed = _side() - 2 * tile - group - 2 * joined
    sums = tiles * _ROW_BITS * bit * (part_sum_cycles(tiles) - part_sum_cycles(2))
    return (
        fixed
        + tiles * tile
        + groups * group
        + tiles * groups * joined
        + sums
        + (collect - 1) * tiles * (_ROW_BITS + groups * MX_BLOCK * _LANE_BITS) * bit
        + (broadcast - 1) * (command + groups * per_group)
    )


def why_no_adapter_area(target: Target, rank: int) -> str | None:
    """Say why adapters' hardware is not counted on a target with RTL, or None where it is.

    Parameters
    ----------
    rank
        Largest padded rank.
    """
    if target.lora.path == "adders":
        if target.array.n_tiles > _ADDER_TILES:
            return (
                f"the RTL has adapters in the adder arrays of at most {_ADDER_TILES} tiles, not of "
                f"{target.array.n_tiles}"
            )
        return None
    if rank > target.attention.word_elems:
        return (
            f"the RTL has ranks up to attention.word_elems, {target.attention.word_elems}, "
            f"not {rank}"
        )
    if target.array.n_tiles > target.vector.n_lanes:
        return (
            f"the RTL has adapters on at most as many tiles as lanes, {target.vector.n_lanes}, "
            f"not on {target.array.n_tiles}"
        )
    return None
