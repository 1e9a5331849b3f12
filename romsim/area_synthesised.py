"""Logic as this project's RTL has it: areas of synthesised modules, fitted by structure.

The points stand in ``tables/synthesis_asap7.toml`` (:mod:`romsim.synthesis_points` measures them).
A cell is a fixed part and a part for each block of 32 lanes, to which minima, rounding and planes
add; other modules are taken alike. Technologies other than ASAP7 are scaled as their lanes are.
"""

from __future__ import annotations

import tomllib
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from romsim.area_parts import Part
from romsim_compiler.target import MX_BLOCK, Target
from romsim_compiler.technology import GRADES, Range, Technology
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError

__all__ = ["RtlParts", "cell_um2", "has_rtl", "htile_um2", "module_um2", "rtl_parts_of", "table"]

_SIZING = Range(1.0, 1.0, 1.3)  # as for lanes: high adds 30 % for sizing under a clock (assumed)
_PLAIN = {"has_minima": True, "may_round": False, "max_planes": 1}


@cache
def table() -> dict[str, Any]:
    """Return the measured points and where they come from."""
    source = resources.files("romsim") / "tables" / "synthesis_asap7.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


def module_um2(module: str, **keys: Any) -> float:
    """Return the cell area of a measured module in um2.

    Raises
    ------
    SpecError
        If it was not measured.
    """
    for point in table()["points"]:
        if point["module"] == module and all(point.get(k) == v for k, v in keys.items()):
            return float(point["um2"])
    raise SpecError(
        f"Synthesised module must be one of the points of synthesis_asap7.toml, not {module!r} "
        f"with {keys}; measure it with python -m romsim.synthesis_points"
    )


def _cell_point(encoding: str, blocks: int, **changes: Any) -> float:
    return module_um2("cell", encoding=encoding, blocks=blocks, **{**_PLAIN, **changes})


def cell_um2(
    encoding: str, blocks: int, *, has_minima: bool, may_round: bool, has_planes: bool
) -> float:
    """Return the cell area of a cell's logic in um2.

    Parameters
    ----------
    encoding
        ``ternary``, ``int2``, ``int4`` or ``int8``.
    blocks
        Blocks of 32 lanes.
    """
    block = _cell_point("int4", 2) - _cell_point("int4", 1)
    fixed = _cell_point("int4", 1) - block
    per_block = _cell_point(encoding, 1) - fixed
    if not has_minima:
        per_block += _cell_point("int4", 1, has_minima=False) - _cell_point("int4", 1)
    if may_round:
        per_block += _cell_point("int4", 1, may_round=True) - _cell_point("int4", 1)
    if has_planes:
        per_block += _cell_point("int4", 1, max_planes=2) - _cell_point("int4", 1)
    return fixed + blocks * per_block


def htile_um2(blocks: int, heads: int) -> float:
    """Return the cell area of a tile's H-unit in um2, memories apart.

    Parameters
    ----------
    blocks
        Blocks of 32 elements in a KV word.
    heads
        Query heads multiplied with one KV word.
    """
    one, two = (module_um2("htile", blocks=1, heads=n) for n in (1, 2))
    return one - (two - one) + blocks * heads * (two - one)


def has_rtl(target: Target) -> bool:
    """Whether there is hardware for a target's units L and H in this project's RTL."""
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
    )


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
        SmolLM2 as shipped: where one may, a block of 4-bit lanes takes 16 % more.
        """
        array = target.array
        key = (array.encoding, array.lane_bits, array.word_codes, array.min_bits)
        part = self._made.get(key)
        if part is None:
            encoding = "ternary" if array.encoding == "ternary" else f"int{array.lane_bits}"
            blocks = array.word_codes // MX_BLOCK
            um2 = cell_um2(
                encoding,
                blocks,
                has_minima=array.min_bits > 0,
                may_round=False,
                has_planes=array.lane_bits < 8,
            )
            part = self._made[key] = self._part(um2, f"{blocks} blocks of 32 {encoding} lanes")
        return part

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
        """Return the logic of a tile's H-unit for the plain KV cache, without adapters."""
        blocks = target.attention.word_elems // MX_BLOCK
        heads = target.attention.heads_parallel
        part = self._made.get(("h", blocks, heads))
        if part is None:
            formula = f"{blocks} blocks of 32 elements x {heads} heads"
            part = self._part(htile_um2(blocks, heads), formula)
            self._made["h", blocks, heads] = part
        return part


@lru_cache(maxsize=64)
def rtl_parts_of(technology: Technology) -> RtlParts:
    """Return the synthesised parts of a technology, the same object every time."""
    return RtlParts(technology)
