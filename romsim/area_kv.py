"""Hardware of the KV cache's choices as this project's RTL has it, fitted by structure.

What a codec, a retention policy or a layout adds to a module is the difference from the same module
with the plain cache, from the points of ``tables/synthesis_asap7.toml`` whose names end in ``_kv``.
Choices on several axes add up. Cell areas are in um2, memories apart: masses, tables and windows
are among the KV cache's SRAM (:func:`romsim_compiler.kv_sram.sequence_bits`).
"""

from __future__ import annotations

from functools import cache

from romsim.area_units import unit_um2
from romsim.synthesis_table import module_value
from romsim_compiler.kv import KvConfig
from romsim_compiler.target import MX_BLOCK, Target

__all__ = [
    "KvValues",
    "kv_control_um2",
    "kv_group_um2",
    "kv_side_um2",
    "kv_tile_um2",
    "kv_values",
    "kv_vector_um2",
    "reads_per_word",
    "why_no_kv_area",
]

KvValues = tuple[str, ...]
"""Measured values, by name."""

_SMALL = {"tiles": 2, "groups": 1, "blocks": 1, "heads": 2, "hops": 1}
_PLAIN_KEYS = {  # what the sizes of a plain module's point are called
    "htile": {"blocks": "blocks", "heads": "heads"},
    "hside": {"tiles": "tiles", "groups": "groups", "hops": "collect"},
    "vector": {"groups": "groups", "hops": "broadcast"},
    "sequencer": {},
    "top": {},
}


def kv_values(target: Target) -> KvValues:
    """Return the measured values of a target's cache that differ from the plain one's.

    KIVI with keys of 2 bits and values of 4 has the encoders of that with 4 and 2. A cache that the
    RTL does not have (`why_no_kv_area`) is taken to be the plain one.
    """
    if why_no_kv_area(target) is not None:
        return ()
    kv = target.kv
    values = []
    if kv.codec in ("fp16", "int4", "int2"):
        values.append(kv.codec)
    elif kv.codec == "kivi":
        wide, narrow = sorted((kv.key_bits, kv.value_bits), reverse=True)
        values.append(f"kivi-k{wide}v{narrow}")
    if kv.retention == "stream":
        values.append("sinks" if kv.sinks else "window")
    elif kv.retention == "h2o":
        values.append("h2o")
    if kv.layout == "paged":
        values.append("forks" if target.schedule.n_slots > 1 else "paged")
    return tuple(values)


def why_no_kv_area(target: Target) -> str | None:
    """Say why a cache's hardware is not counted on a target with RTL, or None where it is."""
    kv, lanes, slots = target.kv, target.vector.n_lanes, target.schedule.n_slots
    tiles = target.array.n_tiles
    if kv.codec in ("tiered", "commvq"):
        return f"the RTL has no codec {kv.codec!r}"
    if kv.codec == "kivi" and kv.group != MX_BLOCK:
        return f"the RTL has KIVI in groups of {MX_BLOCK}, not {kv.group}"
    if kv.codec == "kivi" and (MX_BLOCK % tiles or kv.plain_sinks % tiles):
        return f"the RTL has KIVI on tiles that divide its groups and plain sinks, not on {tiles}"
    if kv.group and lanes % kv.group:
        return f"the RTL has groups that divide its {lanes} vector lanes, not of {kv.group}"
    if slots > 1 and (kv.layout != "paged" or kv.retention == "h2o" or kv.codec == "kivi"):
        return f"the RTL has {slots} sequences in pages alone, without h2o and kivi"
    return None


def reads_per_word(kv: KvConfig) -> int:
    """Return the cycles that a tile takes for a word: two where its elements have 16 bits.

    KIVI's tokens are mostly codes, which take one.
    """
    return 2 if kv.codec == "fp16" else 1


@cache
def _added(unit: str, name: str, what: str = "um2", **sizes: int) -> float:
    """Return what a value adds to a unit of the smallest chip but for these sizes.

    ``what`` as of `kv_tile_um2`; of other units than tiles always ``um2``.
    """
    found = {**_SMALL, **sizes}
    keys = {plain: found[size] for size, plain in _PLAIN_KEYS[unit].items()}
    plain = module_value(what, unit, **keys) if unit == "htile" else unit_um2(unit, **keys)
    return module_value(what, f"{unit}_kv", kv=name, **found) - plain


def kv_tile_um2(values: KvValues, blocks: int, heads: int, *, what: str = "um2") -> float:
    """Return what a cache adds to a tile's H-unit.

    A fixed part; one for each block of 32 elements; one for each block and head.

    Parameters
    ----------
    blocks
        Blocks of 32 elements in a KV word.
    heads
        Query heads multiplied with one KV word.
    what
        ``um2``, or ``n_flops``: its flip-flops.
    """
    total = 0.0
    for name in values:
        one = _added("htile", name, what, heads=1)
        both = _added("htile", name, what) - one
        block = _added("htile", name, what, heads=1, blocks=2) - one - both
        total += one - block - both + blocks * block + blocks * heads * both
    return total


def kv_side_um2(values: KvValues, tiles: int, groups: int, hops: float) -> float:
    """Return what a cache adds to unit H's side.

    A fixed part; one for each tile, for each lane group, for each stage of the wires.

    Parameters
    ----------
    hops
        Stages of the wires to the tiles and from them, the mean of both.
    """
    total = 0.0
    for name in values:
        one = _added("hside", name)
        tile = (_added("hside", name, tiles=4) - one) / 2
        group = _added("hside", name, groups=2) - one
        stage = _added("hside", name, hops=2) - one
        total += one + (tiles - 2) * tile + (groups - 1) * group + (hops - 1) * stage
    return total


def kv_vector_um2(values: KvValues, groups: int, broadcast: int) -> float:
    """Return what a cache adds to unit V without its lane groups: as the plain unit is fitted."""
    total = 0.0
    for name in values:
        one = _added("vector", name)
        stage = _added("vector", name, hops=2) - one
        group = _added("vector", name, groups=2) - one - stage
        total += one + (groups - 1) * group + (groups * broadcast - 1) * stage
    return total


def kv_group_um2(values: KvValues) -> float:
    """Return what a cache adds to a lane group of 32 lanes."""
    plain = module_value("um2", "vector_group", activation="silu", lanes=MX_BLOCK)
    return sum(
        module_value("um2", "vector_group_kv", kv=name, lanes=MX_BLOCK) - plain for name in values
    )


def kv_control_um2(values: KvValues) -> float:
    """Return what a cache adds to the sequencer and to what stands around the units."""
    return sum(_added(unit, name) for name in values for unit in ("sequencer", "top"))
