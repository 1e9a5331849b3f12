"""Measured modules of the RTL on ASAP7: how ``tables/synthesis_asap7.toml`` is made.

``python -m romsim.synthesis_points --write FILE`` synthesises every point (kept by content) and
writes the table; what :mod:`romsim.area_synthesised` makes of them is fitted by structure.
"""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amaranth.hdl import UnusedElaboratable

from romsim.synthesis_adders import adder_parts
from romsim.synthesis_chips import ChipPoint, chip_modules, chip_points, group_points, sizes_of
from romsim.synthesis_kv import kv_chip_points, kv_sizes_of
from romsim_compiler.target import MX_BLOCK, Target
from romsim_compiler.target_file import load_target
from romsim_compiler.technology_file import load_technology
from romsim_models.shapes import TINY
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.cell import Cell, CellConfig
from romsim_rtl.htile import HTile
from romsim_rtl.lora_side import LoraSide
from romsim_rtl.lora_sizes import LoraSizes
from romsim_rtl.lora_tile import TileLora
from romsim_rtl.ltile_rows import Row
from romsim_rtl.module_timing import STARTS
from romsim_rtl.synthesis import MAPPINGS, ModuleSynthesis, RtlilModule, rtlil_modules
from romsim_rtl.synthesis_cache import synthesise_alone, synthesise_modules
from romsim_rtl.tile_trees import TileMaxima, TileSums
from romsim_rtl.xbuffer import XBuffer, XBufferSizes

__all__ = ["MAXIMA_TILES", "SUMS_TILES", "Point", "cell_points", "main", "measure", "render"]

_ASAP7 = load_technology("asap7")
_AREA_ALONE = ((1, 1), (2, 1))  # blocks and heads of tiles that are not timed; the last not fitted
MAXIMA_TILES = (8, 16, 64, 256)
"""Tiles whose maxima are compared alone."""
SUMS_TILES = (16, 64, 256)
"""Tiles whose values are added up alone."""
_BLOCK_BITS = 4  # of a block's index on the broadcast bus
_LANE_BITS = {"ternary": 2, "int2": 2, "int4": 4, "int8": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured module.

    Parameters
    ----------
    module
        ``cell``, ``row``, ``x_port`` (registers of one port of the x buffer), ``htile``,
        ``lora_tile`` and ``lora_side`` (adapters on int8 lanes), ``adder_tile`` and ``adder_side``
        (units L with and without adapters), ``vector_group``, ``maxima`` and ``sums`` (over the
        tiles' scores and values), or one of `romsim.synthesis_chips.UNITS`, without the modules
        inside; with ``_kv`` behind it of a chip with a KV value.
    keys
        What it was built for.
    um2
        Cell area, mapped for area; memories and modules inside apart.
    n_flops
        Flip-flops.
    depth_fo4
        Longest path that begins at a flip-flop or at a port and ends inside, mapped for area, and
        mapped for speed; none where only the area is measured.
    sram_fo4, rom_fo4
        The same of paths that begin at an SRAM's or a ROM's output; none where no path does.
    """

    module: str
    keys: dict[str, Any]
    um2: float
    n_flops: int
    depth_fo4: tuple[float, float] | None = None
    sram_fo4: tuple[float, float] | None = None
    rom_fo4: tuple[float, float] | None = None


def _cell(encoding: str, blocks: int, **changes: Any) -> tuple[dict[str, Any], CellConfig]:
    keys = {"has_minima": True, "may_round": False, "max_planes": 1, **changes}
    bits = _LANE_BITS[encoding]
    config = CellConfig(
        word_codes=MX_BLOCK * blocks,
        lane_bits=bits,
        is_ternary=encoding == "ternary",
        plane_shift=1 if encoding == "ternary" else bits,
        scale_group=MX_BLOCK,
        is_packed=False,
        **keys,
    )
    return {"encoding": encoding, "blocks": blocks, **keys}, config


def cell_points() -> list[tuple[dict[str, Any], CellConfig]]:
    """Return the cells that are synthesised: what each is built for, and its configuration."""
    return [
        _cell("int4", 1),
        _cell("int4", 2),
        _cell("int4", 4),  # not fitted: holds the fit to account
        _cell("ternary", 1),
        _cell("int2", 1),
        _cell("int8", 1),
        _cell("int4", 1, has_minima=False),
        _cell("int4", 1, may_round=True),
        _cell("int4", 1, max_planes=2),
        _cell("ternary", 2, has_minima=False),  # not fitted
    ]


def _parts() -> Iterable[tuple[str, dict[str, Any], Any, bool]]:
    """Yield what is built without a chip around it: module, keys, component, whether timed."""
    for keys, config in cell_points():
        yield "cell", keys, Cell(config=config), True
    for choices in (1, 4):
        yield "row", {"choices": choices}, Row(ks_logs=tuple(range(choices))), True
    for blocks in (1, 2):
        sizes = XBufferSizes(n_words=16, n_inflight=2, n_groups=blocks, word_blocks=blocks)
        _, config = _cell("int4", blocks)
        yield "x_port", {"blocks": blocks}, XBuffer(sizes=sizes, config=config), True
    small = load_target("small")
    for blocks, heads in ((1, 2), *_AREA_ALONE):
        attention = replace(small.attention, word_elems=MX_BLOCK * blocks, heads_parallel=heads)
        tile = replace(small, attention=attention)
        sizes_h = AttentionSizes.of(tile, TINY["tiny-int4"], context=96)
        is_timed = (blocks, heads) not in _AREA_ALONE
        yield "htile", {"blocks": blocks, "heads": heads}, HTile(sizes=sizes_h), is_timed
    yield from _adapters(small)
    yield from adder_parts()
    for tiles in MAXIMA_TILES:
        yield "maxima", {"tiles": tiles}, TileMaxima(n_tiles=tiles), True
    for tiles in SUMS_TILES:
        yield "sums", {"tiles": tiles}, TileSums(n_tiles=tiles), True


def _adapters(small: Target) -> Iterable[tuple[str, dict[str, Any], Any, bool]]:
    """Yield adapters' hardware in a tile and beside the tiles; the last of each is not fitted.

    The smallest are timed, and the large side.
    """
    for elems, lanes, rank in (
        (32, 32, 16),
        (64, 32, 16),
        (32, 64, 16),
        (64, 64, 16),
        (32, 32, 32),
        (64, 128, 32),
    ):
        sizes = _adapter_sizes(small, elems=elems, groups=lanes // MX_BLOCK)
        keys = {"elems": elems, "lanes": lanes, "rank": rank}
        is_timed = (elems, lanes, rank) == (32, 32, 16)
        yield "lora_tile", keys, TileLora(sizes=sizes, lora=_lora_sizes(rank)), is_timed
    for tiles, groups, broadcast, collect, rank in (
        (2, 1, 1, 1, 16),
        (4, 1, 1, 1, 16),
        (2, 2, 1, 1, 16),
        (4, 2, 1, 1, 16),
        (2, 1, 1, 2, 16),
        (2, 1, 2, 1, 16),
        (2, 2, 2, 1, 16),
        (2, 1, 1, 1, 32),
        (8, 2, 2, 2, 16),
    ):
        sizes = _adapter_sizes(
            small, tiles=tiles, groups=groups, broadcast=broadcast, collect=collect
        )
        keys = {"tiles": tiles, "groups": groups, "broadcast": broadcast, "collect": collect}
        side = LoraSide(sizes=sizes, lora=_lora_sizes(rank), block_bits=_BLOCK_BITS)
        is_timed = tiles == 8 or (tiles, groups, broadcast, collect, rank) == (2, 1, 1, 1, 16)
        yield "lora_side", {**keys, "rank": rank}, side, is_timed


def _adapter_sizes(
    small: Target,
    *,
    tiles: int = 2,
    elems: int = MX_BLOCK,
    groups: int = 1,
    broadcast: int = 1,
    collect: int = 1,
) -> AttentionSizes:
    target = replace(
        small,
        array=replace(small.array, n_tiles=tiles),
        attention=replace(small.attention, word_elems=elems),
        vector=replace(small.vector, n_lanes=MX_BLOCK * groups),
        network=replace(small.network, broadcast_cycles=broadcast, collect_cycles=collect),
    )
    return AttentionSizes.of(target, TINY["tiny-int4"], context=96)


def _lora_sizes(rank: int) -> LoraSizes:
    return LoraSizes(max_rank=rank, n_entries=8, a_words=64, b_words=64, n_cols=256, n_rows=512)


def measure(progress: Callable[[float], None] | None = None) -> list[Point]:
    """Synthesise every point; those in the cache are taken from there.

    Raises
    ------
    ToolError
        If yosys or ABC is missing or fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedElaboratable)  # of a chip some modules are wanted
        points = _measure(progress or (lambda _: None))
        gc.collect()
    return points


def _measure(progress: Callable[[float], None]) -> list[Point]:
    points = []
    parts, chips = list(_parts()), chip_points() + kv_chip_points()
    total = len(parts) + len(chips) + 1
    for index, (module, keys, component, is_timed) in enumerate(parts):
        modules = rtlil_modules(f"romsim_{module}", component)
        points.append(_point(module, keys, modules, is_timed))
        progress((index + 1) / total)
    for keys, group in group_points():
        um2, n_flops = _area(synthesise_alone(group, _ASAP7))
        points.append(Point(module="vector_group", keys=keys, um2=um2, n_flops=n_flops))
    for index, chip in enumerate(chips):
        points += _chip(chip)
        progress((len(parts) + 2 + index) / total)
    return points


def _area(module: ModuleSynthesis) -> tuple[float, int]:
    return round(module.area_um2(_ASAP7.cell_um2), 2), module.n_flops


def _chip(chip: ChipPoint) -> Iterable[Point]:
    """Yield the points of one chip, with paths where it is whole: there of lane groups too."""
    modules = chip_modules(chip)
    named = {module.name.removeprefix("romsim_"): module for module in modules}
    of = "_kv" if chip.kv else ""
    keys = {"kv": chip.kv, **kv_sizes_of(chip.target)} if chip.kv else sizes_of(chip.target)
    if not chip.is_whole:
        for unit in chip.units:
            area = synthesise_alone(named[unit], _ASAP7)
            if chip.is_timed:
                yield _timed(
                    unit, keys, area, synthesise_alone(named[unit], _ASAP7, mapping="speed")
                )
            else:
                um2, n_flops = _area(area)
                yield Point(module=f"{unit}{of}", keys=keys, um2=um2, n_flops=n_flops)
        return
    mapped = [synthesise_modules(modules, _ASAP7, mapping=mapping) for mapping in MAPPINGS]
    group = {"kv": chip.kv} if chip.kv else {"activation": "silu"}
    for unit in ("vector_group", *chip.units):
        own = {**group, "lanes": 32} if unit == "vector_group" else keys
        yield _timed(f"{unit}{of}", own, *(found[f"romsim_{unit}"] for found in mapped))


def _timed(unit: str, keys: dict[str, Any], area: ModuleSynthesis, speed: ModuleSynthesis) -> Point:
    um2, n_flops = _area(area)
    paths = [_from(start, area, speed) for start in STARTS]
    return Point(
        module=unit,
        keys=keys,
        um2=um2,
        n_flops=n_flops,
        depth_fo4=paths[0],
        sram_fo4=paths[1],
        rom_fo4=paths[2],
    )


def _point(
    module: str, keys: dict[str, Any], modules: Sequence[RtlilModule], is_timed: bool
) -> Point:
    area = synthesise_modules(modules, _ASAP7)[f"romsim_{module}"]
    speed = None
    if is_timed:
        speed = synthesise_modules(modules, _ASAP7, mapping="speed")[f"romsim_{module}"]
    return Point(
        module=module,
        keys=keys,
        um2=_area(area)[0],
        n_flops=area.n_flops,
        depth_fo4=None if speed is None else (_depth(area), _depth(speed)),
        sram_fo4=None if speed is None else _from("sram", area, speed),
    )


def _depth(module: ModuleSynthesis) -> float:
    """Return the longest path that ends inside, from a flip-flop or, of a part, from a port."""
    return round(max(module.delays.inner[0], *module.delays.inputs.values()), 1)


def _from(start: str, *mapped: ModuleSynthesis) -> tuple[float, float] | None:
    area, speed = (round(module.delays.inner[STARTS.index(start)], 1) for module in mapped)
    return None if area < 0 else (area, speed)


def render(points: Sequence[Point]) -> str:
    """Return the table as TOML."""
    lines = [
        "# Modules of the RTL as ASAP7 cells: cell area in um2 (mapped for area, memories and the",
        "# modules inside apart), flip-flops, and in FO4 the longest path that ends inside, from",
        "# flip-flops (and ports, of what stands in tiles), from an SRAM's and from a ROM's",
        "# output, mapped for area and for speed.",
        "# Made by: python -m romsim.synthesis_points --write romsim/tables/synthesis_asap7.toml",
        "",
        'technology = "asap7"',
        'grade = "measured"',
        "source = \"this project's RTL, yosys 0.70 + ABC (balance; map -a), ASAP7 cell table: "
        'python -m romsim.synthesis_points"',
    ]
    for point in points:
        lines += ["", "[[points]]", f'module = "{point.module}"']
        lines += [f"{key} = {_toml(value)}" for key, value in point.keys.items()]
        lines += [
            f"um2 = {point.um2:.2f}",
            f"n_flops = {point.n_flops}",
        ]
        for name in ("depth_fo4", "sram_fo4", "rom_fo4"):
            depths = getattr(point, name)
            if depths is not None:
                lines.append(f"{name} = [{depths[0]:.1f}, {depths[1]:.1f}]")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _show(fraction: float) -> None:
    sys.stderr.write(f"synthesising: {fraction:.0%}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(prog="python -m romsim.synthesis_points", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table")
    options = parser.parse_args(arguments)
    text = render(measure(_show))
    if options.write is None:
        sys.stdout.write(text)
    else:
        options.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
