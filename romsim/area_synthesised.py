"""Logic as this project's RTL has it: areas of synthesised modules, fitted by structure.

The points stand in ``tables/synthesis_asap7.toml`` (:mod:`romsim.synthesis_points` measures them).
A cell is a fixed part and a part for each block of 32 lanes, to which minima, rounding and planes
add; other modules are taken alike (:mod:`romsim.area_units`). Technologies other than ASAP7 are
scaled as their lanes are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from romsim import area_adapters, area_adders, area_kv, area_units
from romsim.area_parts import Part
from romsim.synthesis_table import module_um2, module_value, table
from romsim_compiler.target import MX_BLOCK, Array, Target
from romsim_compiler.technology import GRADES, Range, Technology
from romsim_compiler.technology_file import load_technology

__all__ = ["RtlParts", "cell_um2", "has_rtl", "htile_um2", "rtl_parts_of"]

_SIZING = Range(1.0, 1.0, 1.3)  # as for lanes: high adds 30 % for sizing under a clock (assumed)
_PLAIN = {"has_minima": True, "may_round": False, "max_planes": 1}


def _cell_point(what: str, encoding: str, blocks: int, **changes: Any) -> float:
    return module_value(what, "cell", encoding=encoding, blocks=blocks, **{**_PLAIN, **changes})


def cell_um2(
    encoding: str,
    blocks: int,
    *,
    has_minima: bool,
    may_round: bool,
    has_planes: bool,
    what: str = "um2",
) -> float:
    """Return the cell area of a cell's logic in um2.

    Parameters
    ----------
    encoding
        ``ternary``, ``int2``, ``int4`` or ``int8``.
    blocks
        Blocks of 32 lanes.
    what
        ``um2``, or ``n_flops``: its flip-flops.
    """
    plain = _cell_point(what, "int4", 1)
    block = _cell_point(what, "int4", 2) - plain
    fixed = plain - block
    per_block = _cell_point(what, encoding, 1) - fixed
    if not has_minima:
        per_block += _cell_point(what, "int4", 1, has_minima=False) - plain
    if may_round:
        per_block += _cell_point(what, "int4", 1, may_round=True) - plain
    if has_planes:
        per_block += _cell_point(what, "int4", 1, max_planes=2) - plain
    return fixed + blocks * per_block


def htile_um2(blocks: int, heads: int, *, what: str = "um2") -> float:
    """Return the cell area of a tile's H-unit in um2, memories apart.

    Parameters
    ----------
    blocks
        Blocks of 32 elements in a KV word.
    heads
        Query heads multiplied with one KV word.
    what
        ``um2``, or ``n_flops``: its flip-flops.
    """
    one, two = (module_value(what, "htile", blocks=1, heads=n) for n in (1, 2))
    return one - (two - one) + blocks * heads * (two - one)


def has_rtl(target: Target) -> bool:
    """Whether there is hardware for a target's units in this project's RTL."""
    array = target.array
    return (
        target.executable
        and target.formats.activation == target.formats.kv == "mxint8"
        and target.attention.word_elems % MX_BLOCK == 0
        and target.schedule.n_batch == 1
        and array.lane_bits in (2, 4, 8)
        and array.word_codes % MX_BLOCK == 0
        and array.scale_bits == 16
        and array.min_bits in (0, 16)
        and array.zero_bits == 0
        and array.scale_group % MX_BLOCK == 0
        and target.vector.n_lanes % MX_BLOCK == 0
    )


def _encoding(array: Array) -> str:
    return "ternary" if array.encoding == "ternary" else f"int{array.lane_bits}"


def _cell_of(array: Array, what: str) -> float:
    return cell_um2(
        _encoding(array),
        array.word_codes // MX_BLOCK,
        has_minima=array.min_bits > 0,
        may_round=False,
        has_planes=array.lane_bits < 8,
        what=what,
    )


def _flop_um2() -> float:
    return load_technology(table()["technology"]).cell_um2["DFFHQNx1"]


class RtlParts:
    """Synthesised parts of one technology: cell area over utilisation.

    Parameters
    ----------
    technology
        What ASAP7's areas are scaled to.
    """

    def __init__(self, technology: Technology) -> None:
        here = technology["lane.int8_mxint8"].range
        there = load_technology(table()["technology"])["lane.int8_mxint8"].range
        self._factor = here.over(Range(there.high, there.mid, there.low)).times(_SIZING)
        self._utilisation = technology["logic.utilisation"]
        self._made: dict[object, Part] = {}
        self._units: dict[object, tuple[tuple[str, str, int, Part], ...]] = {}

    def _part(self, um2: float, formula: str) -> Part:
        scale = self._factor.mid
        scaled = "" if scale == 1 else f" x {scale:.3g}"
        return Part(
            (self._factor * um2).over(self._utilisation.range),
            f"{formula} = {um2:.4g} um2{scaled} / utilisation {self._utilisation.mid:g}",
            table()["source"],
            max("derived", self._utilisation.grade, key=GRADES.index),
        )

    def cell(self, target: Target) -> Part:
        """Return the logic of a ROM cell: lanes, scales, grid shifters, accumulator.

        Codes may have several planes where lanes are narrower than 8 bits. No term rounds, as in
        SmolLM2 as shipped: where one may, a block of 4-bit lanes takes 9 % more.
        """
        array = target.array
        key = (array.encoding, array.lane_bits, array.word_codes, array.min_bits)
        part = self._made.get(key)
        if part is None:
            formula = f"{array.word_codes // MX_BLOCK} blocks of 32 {_encoding(array)} lanes"
            part = self._made[key] = self._part(_cell_of(array, "um2"), formula)
        return part

    def weight_lane(self, array: Array) -> Part:
        """Return the gates of a cell, its flip-flops apart, for each of its lanes."""
        um2 = _cell_of(array, "um2") - _flop_um2() * _cell_of(array, "n_flops")
        return self._part(um2 / array.word_codes, "gates of a cell a lane")

    def kv_lane(self, values: area_kv.KvValues, reads: int) -> Part:
        """Return the gates of a tile's H-unit for each lane of scores, and of values.

        Parameters
        ----------
        values
            Of the KV cache.
        reads
            Cycles of a word, in each of which its share of the lanes works.
        """

        def gates(heads: int) -> float:
            um2, flops = (
                htile_um2(1, heads, what=what)
                + area_kv.kv_tile_um2(values, 1, heads, what=what)
                for what in ("um2", "n_flops")
            )  # fmt: skip
            return um2 - _flop_um2() * flops

        of_head = gates(2) - gates(1)
        return self._part(reads * of_head / (2 * MX_BLOCK), "gates of a tile a lane")

    def row(self) -> Part:
        """Return the requantising of one row."""
        part = self._made.get("row")
        if part is None:
            part = self._made["row"] = self._part(module_um2("row", choices=1), "requantising")
        return part

    def x_port(self, target: Target) -> Part:
        """Return the registers of one port of the x buffer, its memory apart."""
        blocks = target.array.word_codes // MX_BLOCK
        part = self._made.get(("x", blocks))
        if part is None:
            one, two = (module_um2("x_port", blocks=n) for n in (1, 2))
            um2 = one + (blocks - 1) * (two - one)
            part = self._made["x", blocks] = self._part(um2, f"registers of {blocks} blocks")
        return part

    def htile(self, target: Target) -> Part:
        """Return the logic of a tile's H-unit; adapters apart."""
        blocks = target.attention.word_elems // MX_BLOCK
        heads = target.attention.heads_parallel
        values = area_kv.kv_values(target)
        part = self._made.get(("h", blocks, heads, values))
        if part is None:
            part = self._with_kv(
                f"{blocks} blocks of 32 elements x {heads} heads",
                htile_um2(blocks, heads),
                values,
                area_kv.kv_tile_um2(values, blocks, heads),
            )
            self._made["h", blocks, heads, values] = part
        return part

    def _with_kv(self, formula: str, um2: float, values: area_kv.KvValues, added: float) -> Part:
        """Return a part with what the KV cache adds to it."""
        if added:
            formula = (
                f"{formula} = {um2:.4g} um2, KV {', '.join(values)} {added:+.4g} um2, together"
            )
        return self._part(um2 + added, formula)

    def adapters(self, target: Target, rank: int) -> tuple[tuple[str, str, int, Part], ...]:
        """Return the logic of adapters: unit, component, count, and one of it.

        Parameters
        ----------
        rank
            Largest padded rank.
        """
        if target.lora.path == "adders":
            return self._adders(target, rank)
        elems, lanes = target.attention.word_elems, target.vector.n_lanes
        tiles, hops = target.array.n_tiles, target.network
        key = ("lora", elems, lanes, tiles, hops.broadcast_cycles, hops.collect_cycles, rank)
        known = self._units.get(key)
        if known is None:
            groups = lanes // MX_BLOCK
            side = area_adapters.lora_side_um2(
                tiles, groups, hops.broadcast_cycles, hops.collect_cycles
            )
            from_tiles = f"{tiles} tiles, {groups} groups, {hops.collect_cycles} stages"
            known = self._units[key] = (
                (
                    "H-units", "adapter logic", tiles,
                    self._part(
                        area_adapters.lora_tile_um2(elems, lanes, rank),
                        f"words of {elems} codes, {lanes} lanes, rank {rank}",
                    ),
                ),
                ("network", "adapters' side", 1, self._part(side, from_tiles)),
            )  # fmt: skip
        return known

    def _adders(self, target: Target, rank: int) -> tuple[tuple[str, str, int, Part], ...]:
        array, groups = target.array, target.vector.n_lanes // MX_BLOCK
        stages, blocks = target.network.broadcast_cycles, array.word_codes // MX_BLOCK
        key = ("adders", array.n_tiles, array.n_cells, blocks, groups, stages, rank)
        known = self._units.get(key)
        if known is None:
            cells = array.n_cells
            known = self._units[key] = (
                (
                    "L-units", "adapter logic", array.n_tiles,
                    self._part(
                        area_adders.adder_tile_um2(cells, cells, blocks),
                        f"{cells} cells and ports of {blocks} blocks",
                    ),
                ),
                (
                    "network", "adapters' side", 1,
                    self._part(
                        area_adders.adder_side_um2(groups, stages, rank),
                        f"{groups} groups, {stages} stages, rank {rank}",
                    ),
                ),
            )  # fmt: skip
        return known

    def row_sum(self) -> Part:
        """Return one sum of two cells' rows."""
        part = self._made.get("row_sum")
        if part is None:
            part = self._made["row_sum"] = self._part(area_units.row_sum_um2(), "sum of two rows")
        return part

    def tile(self, target: Target) -> Part:
        """Return what joins the cells of a tile."""
        cells = target.array.n_cells
        part = self._made.get(("tile", cells))
        if part is None:
            formula = f"wires and delays of {cells} cells"
            part = self._made["tile", cells] = self._part(area_units.tile_um2(cells), formula)
        return part

    def l_units(self, target: Target) -> tuple[tuple[str, str, int, Part], ...]:
        """Return the logic of the L-units: unit, component, count, and one of it.

        Each cell may have a row and a port of the x buffer alone, and share rows with all others.
        """
        tiles, n_cells = target.array.n_tiles, target.array.n_cells
        every = tiles * n_cells
        return (
            ("L-units", "cells", every, self.cell(target)),
            ("L-units", "rows", every, self.row()),
            ("L-units", "x registers", every, self.x_port(target)),
            ("L-units", "row-sum tree", tiles * (n_cells - 1), self.row_sum()),
            ("L-units", "tile control", tiles, self.tile(target)),
        )

    def units(self, target: Target, activation: str) -> tuple[tuple[str, str, int, Part], ...]:
        """Return what stands around cells and tiles: unit, component, count, and one of it.

        Parameters
        ----------
        activation
            ``silu``, or ``relu2`` with sub-norms.
        """
        tiles, cells = target.array.n_tiles, target.array.n_cells
        groups, network = target.vector.n_lanes // MX_BLOCK, target.network
        hops = (network.broadcast_cycles, network.collect_cycles)
        inflight = target.schedule.n_inflight
        kv = area_kv.kv_values(target)
        key = (tiles, cells, groups, *hops, inflight, activation, kv)
        known = self._units.get(key)
        if known is not None:
            return known
        from_tiles = f"{tiles} tiles, {groups} groups, {hops[1]} stages"
        made = (
            (
                "vector unit", "lane groups", groups,
                self._with_kv(
                    f"{MX_BLOCK} lanes, {activation}",
                    area_units.group_um2(activation), kv, area_kv.kv_group_um2(kv),
                ),
            ),
            (
                "vector unit", "control and scalars", 1,
                self._with_kv(
                    f"{groups} groups, {hops[0]} stages",
                    area_units.vector_um2(groups, hops[0]),
                    kv, area_kv.kv_vector_um2(kv, groups, hops[0]),
                ),
            ),
            (
                "network", "unit L's side", 1,
                self._part(area_units.lside_um2(tiles, cells, groups, hops[1]), from_tiles),
            ),
            (
                "network", "unit H's side", 1,
                self._with_kv(
                    from_tiles,
                    area_units.hside_um2(tiles, groups, hops[1]),
                    kv, area_kv.kv_side_um2(kv, tiles, groups, sum(hops) / 2),
                ),
            ),
            (
                "sequencer", "control", 1,
                self._with_kv(
                    f"{inflight} tokens in flight",
                    area_units.sequencer_um2(inflight), kv, area_kv.kv_control_um2(kv),
                ),
            ),
        )  # fmt: skip
        self._units[key] = made
        return made


@lru_cache(maxsize=64)
def rtl_parts_of(technology: Technology) -> RtlParts:
    """Return the synthesised parts of a technology, the same object every time."""
    return RtlParts(technology)
