"""Chips whose KV hardware is measured: points of ``synthesis_asap7.toml`` for each axis's value.

What a codec, a retention policy or a layout adds to unit H, to unit V and to the sequencer is the
difference from the same module with the plain cache; :mod:`romsim.area_kv` fits it.
"""

from __future__ import annotations

from dataclasses import replace

from romsim.synthesis_chips import ChipPoint
from romsim_compiler.kv import parse_kv
from romsim_compiler.target import MX_BLOCK, Target
from romsim_compiler.target_file import load_target

__all__ = ["HELD_OUT", "KV_CHIPS", "KV_UNITS", "kv_chip_points", "kv_sizes_of"]

KV_CHIPS = {
    "fp16": ("fp16", 1),
    "int4": ("int4", 1),
    "int2": ("int2", 1),
    "kivi-k2v2": ("kivi-2bit,residual=32", 1),
    "kivi-k4v2": ("kivi-k4v2,residual=32", 1),
    "kivi-k4v4": ("kivi-4bit,residual=32", 1),
    "window": ("window,window=32,codec=int8", 1),
    "sinks": ("streaming-llm,sinks=4,window=28,codec=int8", 1),
    "h2o": ("h2o,heavy=8,window=24,codec=int8", 1),
    "paged": ("int8,layout=paged,block=16", 1),
    "forks": ("int8,layout=paged,block=16", 2),
}
"""KV configuration and sequences of each value; ``forks`` comes with pages."""

HELD_OUT = {
    "int4 sinks paged": ("streaming-llm,sinks=4,window=28,codec=int4,layout=paged,block=16", 1),
    "fp16 paged forks": ("fp16,layout=paged,block=16", 2),
    "kivi-k2v2 plain sinks": ("kivi-2bit-sinks,residual=32", 1),
}
"""Chips of several values at once, or of a parameter that the fit leaves out: not fitted."""

KV_UNITS = ("htile", "hside", "vector", "sequencer", "top")
"""Units of which a chip with a KV value is measured; the lane group of unit V is a sixth."""

_SMALL = {"tiles": 2, "groups": 1, "blocks": 1, "heads": 2, "hops": 1}
_LARGE = {"tiles": 8, "groups": 2, "blocks": 2, "heads": 2, "hops": 2}
_PARTS = (
    ({"tiles": 4}, ("hside",)),
    ({"groups": 2}, ("hside", "vector")),
    ({"hops": 2}, ("hside", "vector")),
    ({"heads": 1}, ("htile",)),
    ({"heads": 1, "blocks": 2}, ("htile",)),
)
"""Sizes that differ from the smallest, and what is measured of such a chip."""
_LARGE_OF = ("fp16", "int4", "kivi-k2v2", "h2o")
"""Values of which a large chip is measured too; it is not fitted."""


def kv_chip_points() -> list[ChipPoint]:
    """Return the chips: of each value the smallest one whole, and others in part."""
    points = []
    for name, (text, n_sequences) in (KV_CHIPS | HELD_OUT).items():
        whole = ChipPoint(
            target=_target(text, n_sequences, **_SMALL), units=KV_UNITS, kv=name, is_whole=True
        )
        points.append(whole)
        if name in HELD_OUT:
            continue
        points += [
            replace(
                whole,
                target=_target(text, n_sequences, **{**_SMALL, **sizes}),
                units=units,
                is_whole=False,
            )
            for sizes, units in (
                *_PARTS, *((_LARGE, ("htile", "hside", "vector")),) * (name in _LARGE_OF)
            )
        ]  # fmt: skip
    return points


def kv_sizes_of(target: Target) -> dict[str, int]:
    """Return the sizes by which points with a KV value are told apart."""
    return {
        "tiles": target.array.n_tiles,
        "groups": target.vector.n_lanes // MX_BLOCK,
        "blocks": target.attention.word_elems // MX_BLOCK,
        "heads": target.attention.heads_parallel,
        "hops": target.network.collect_cycles,
    }


def _target(
    text: str, n_sequences: int, *, tiles: int, groups: int, blocks: int, heads: int, hops: int
) -> Target:
    small = load_target("small")
    return replace(
        small,
        array=replace(small.array, n_tiles=tiles),
        vector=replace(small.vector, n_lanes=MX_BLOCK * groups),
        attention=replace(small.attention, word_elems=MX_BLOCK * blocks, heads_parallel=heads),
        network=replace(small.network, broadcast_cycles=hops, collect_cycles=hops),
        schedule=replace(small.schedule, n_slots=n_sequences),
        kv=parse_kv(text),
    )
