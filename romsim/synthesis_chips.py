"""Chips whose controllers, wires and vector unit are measured: points of ``synthesis_asap7.toml``.

A unit that stands once on a chip is synthesised on small chips that differ in one size or two, with
the modules inside as black boxes. One chip is synthesised whole, for its paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from romsim.api import compile as compile_model
from romsim_compiler.description import Description
from romsim_compiler.target import MX_BLOCK, Target
from romsim_compiler.target_file import load_target
from romsim_rtl.emit import TOP_MODULE
from romsim_rtl.synthesis import MAX_LANES, MEASURED_LANES, RtlilModule, rtlil_modules
from romsim_rtl.top import Top
from romsim_rtl.vector_group import VectorGroup

__all__ = [
    "UNITS",
    "ChipPoint",
    "chip_modules",
    "chip_points",
    "compiled",
    "group_points",
    "sizes_of",
]

UNITS = ("ltile", "lside", "hside", "vector", "sequencer", "top")
"""Modules that hold others, or stand once."""

_CONTEXT = 96
_MODEL = "tiny-int4"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipPoint:
    """A chip of which some units are measured.

    Parameters
    ----------
    target
        What it is built for.
    units
        Of `UNITS`; with a KV value of `romsim.synthesis_kv.KV_UNITS`.
    is_whole
        Whether it is synthesised with all that the units hold, and timed.
    is_timed
        Whether the units' paths are measured that do not run through modules inside.
    kv
        The KV value that it is there for, of `romsim.synthesis_kv`; none with the plain cache.
    """

    target: Target
    units: tuple[str, ...]
    is_whole: bool = False
    is_timed: bool = False
    kv: str = ""


def chip_points() -> list[ChipPoint]:
    """Return the chips; the last one, those of 16 cells in part, and that timed are not fitted."""
    small = load_target("small")

    def chip(*units: str, **sizes: int) -> ChipPoint:
        array = replace(
            small.array,
            n_tiles=sizes.get("tiles", small.array.n_tiles),
            n_cells=sizes.get("cells", small.array.n_cells),
        )
        hops = {
            "broadcast_cycles": sizes.get("broadcast", 1),
            "collect_cycles": sizes.get("collect", 1),
        }
        target = replace(
            small,
            array=array,
            vector=replace(small.vector, n_lanes=MX_BLOCK * sizes.get("groups", 1)),
            network=replace(small.network, **hops),
            schedule=replace(small.schedule, n_inflight=sizes.get("inflight", 2)),
        )
        return ChipPoint(target=target, units=units)

    return [
        replace(chip(*UNITS), is_whole=True),
        chip("ltile", cells=4),
        chip("ltile", "lside", tiles=8, cells=16),
        chip("ltile", "lside", tiles=16, cells=16),
        chip("sequencer", inflight=1),
        chip("lside", tiles=4),
        chip("lside", tiles=4, cells=8),
        chip("lside", "hside", "vector", groups=2),
        chip("lside", "hside", collect=2),
        chip("hside", tiles=4),
        replace(chip("hside", tiles=8), is_timed=True),
        chip("vector", broadcast=2),
        chip(
            "ltile", "lside", "hside", "vector", tiles=8, cells=8, groups=2, collect=2, broadcast=2
        ),
    ]


def sizes_of(target: Target) -> dict[str, int]:
    """Return the sizes by which points are told apart."""
    return {
        "tiles": target.array.n_tiles,
        "cells": target.array.n_cells,
        "groups": target.vector.n_lanes // MX_BLOCK,
        "broadcast": target.network.broadcast_cycles,
        "collect": target.network.collect_cycles,
        "inflight": target.schedule.n_inflight,
    }


def compiled(target: Target, model: str = _MODEL) -> Top:
    """Return the hardware of a chip for a tiny model."""
    with TemporaryDirectory() as name:
        description = compile_model(model, Path(name) / "chip", target=target, context=_CONTEXT)
        assert isinstance(description, Description)
        return Top(description=description, is_packed=False)


def chip_modules(point: ChipPoint) -> list[RtlilModule]:
    """Return the modules of a chip that are measured, and what is needed for them."""
    top = compiled(point.target)
    wanted = None
    if not point.is_whole:
        # what holds the tiles' units is needed to find them
        wanted = {f"romsim_{unit}" for unit in (*point.units, "lside", "hside")}
    return rtlil_modules(TOP_MODULE, top, only=wanted)


def group_points() -> Iterator[tuple[dict[str, Any], RtlilModule]]:
    """Yield lane groups: what each is built for, and its module; the widest is not fitted."""
    for model, target, lanes in (
        (_MODEL, "small", (*MEASURED_LANES, MAX_LANES)),
        ("tiny-ternary", "small-ternary", MEASURED_LANES[1:]),
    ):
        config = compiled(load_target(target), model).vector_unit().group_config
        for n_lanes in lanes:
            group = VectorGroup(config=replace(config, n_lanes=n_lanes))
            (module,) = rtlil_modules(f"romsim_vector_group_{n_lanes}", group)
            yield {"activation": config.activation, "lanes": n_lanes}, module
