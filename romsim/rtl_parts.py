"""Chips too large to simulate whole: what that would cost, and smaller chips in their place."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from romsim.cycle.timekeeper import Timekeeper
from romsim_compiler.mapping import map_group

if TYPE_CHECKING:
    from romsim_compiler.description import Description
    from romsim_compiler.target import Target

__all__ = [
    "Sizes",
    "WholeCost",
    "build_seconds",
    "full_width_tile",
    "scaled_chip",
    "sizes",
    "whole_cost",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Multiply lanes of a chip: what a simulation's build and run grow with.

    Parameters
    ----------
    array, attention, vector
        Lanes of all ROM cells, of all H-units, and of unit V.
    text
        Tiles, cells and words in a phrase.
    """

    array: int
    attention: int
    vector: int
    text: str

    @property
    def lanes(self) -> int:
        """All of them."""
        return self.array + self.attention + self.vector


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeCost:
    """What simulating a whole chip costs, extrapolated in its lanes of each kind from smaller ones.

    Parameters
    ----------
    lanes, max_lanes
        Lanes of the chip, and the most of a chip that is simulated whole.
    build_s, build_mib
        Processor time and memory of the build, in s and MiB.
    image_bytes
        ROM that the simulation holds in memory, in bytes.
    cycles
        Of a decoded token at position 0.
    tokens_per_s
        Decoded tokens in a second of simulation.
    """

    lanes: int
    max_lanes: int
    build_s: float
    build_mib: float
    image_bytes: int
    cycles: int
    tokens_per_s: float

    @property
    def fits(self) -> bool:
        """Whether the chip is simulated whole."""
        return self.lanes <= self.max_lanes

    def sentence(self) -> str:
        """Return the cost as a sentence; every figure is an estimate."""
        return (
            f"estimated for the whole chip of {self.lanes:,} lanes: build "
            f"{self.build_s / 3600:,.1f} h of one processor and {self.build_mib / 1024:,.1f} GiB, "
            f"{self.image_bytes / 1e6:,.0f} MB of ROM images, {self.cycles:,} cycles and "
            f"{1 / self.tokens_per_s:,.1f} s a token"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values, to three digits where they are estimates."""
        values = asdict(self)
        for name in ("build_s", "build_mib", "tokens_per_s"):
            values[name] = float(f"{values[name]:.3g}")
        return {**values, "grade": "derived", "sentence": self.sentence()}


def sizes(target: Target) -> Sizes:
    """Count a chip's lanes."""
    array, attention = target.array, target.attention
    return Sizes(
        array=array.n_lanes,
        attention=array.n_tiles * attention.heads_parallel * attention.word_elems,
        vector=target.vector.n_lanes,
        text=(
            f"{array.n_tiles} tiles of {array.n_cells} cells of {array.word_codes} lanes, "
            f"{target.vector.n_lanes} vector lanes"
        ),
    )


@cache
def _constants() -> dict[str, float]:
    """Return the values of ``tables/rtl_cost.toml`` by name."""
    file = resources.files("romsim") / "tables" / "rtl_cost.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: float(entry["value"]) for name, entry in table.items()}


def whole_cost(description: Description, *, max_lanes: int | None = None) -> WholeCost:
    """Estimate what the simulation of a whole chip costs.

    Parameters
    ----------
    max_lanes
        Lanes above which a chip is too large; ``None`` takes the table's.
    """
    constants, target = _constants(), description.target
    lanes = sizes(target).lanes
    cycles = Timekeeper(description).time(description.decode, 0, {}).cycles
    array = target.array
    return WholeCost(
        lanes=lanes,
        max_lanes=int(constants["max_lanes"]) if max_lanes is None else max_lanes,
        build_s=build_seconds(target),
        build_mib=_per_lane("build_mib", target),
        image_bytes=array.n_tiles * array.n_cells * array.rom_rows * array.word_bytes,
        cycles=cycles,
        tokens_per_s=constants["lane_cycles_per_s"] / (lanes * cycles),
    )


def build_seconds(target: Target) -> float:
    """Estimate the processor time of building a chip's simulation, in s."""
    return _per_lane("build_s", target)


def _per_lane(name: str, target: Target) -> float:
    """Sum what lanes of each kind cost, and what any chip does."""
    constants, lanes = _constants(), sizes(target)
    kinds = {"array": lanes.array, "attention": lanes.attention, "vector": lanes.vector}
    total = constants[f"{name}_fixed"]
    for kind, count in kinds.items():
        total += constants[f"{name}_per_{kind}_lane"] * count
    return total


def full_width_tile(description: Description, max_lanes: int) -> Target:
    """Return a chip of one tile of the target: all its cells, or as many as may be simulated.

    A word keeps its lanes, scales and planes, and unit H its lanes; the vector unit has as many
    lanes as a ROM word, and the ROM as many rows as the model needs.
    """
    target = description.target
    lanes = min(target.vector.n_lanes, max(32, target.array.word_codes))
    n_cells = target.array.n_cells
    while n_cells > 1:
        tile = _with(description, n_tiles=1, n_cells=n_cells, n_lanes=lanes, name="one-tile")
        if sizes(tile).lanes <= max_lanes:
            return tile
        n_cells //= 2
    return _with(description, n_tiles=1, n_cells=1, n_lanes=lanes, name="one-tile")


def scaled_chip(description: Description, max_lanes: int) -> Target:
    """Return a chip of the same template and word with two tiles of up to two cells.

    The vector unit keeps its lanes, or has as many as a ROM word where they are too many to be
    simulated.
    """
    target = description.target
    narrow = min(target.vector.n_lanes, max(32, target.array.word_codes))
    one, other = (
        _with(
            description,
            n_tiles=min(2, target.array.n_tiles),
            n_cells=min(2, target.array.n_cells),
            n_lanes=n_lanes,
            name="scaled",
        )
        for n_lanes in (target.vector.n_lanes, narrow)
    )
    return one if sizes(one).lanes <= max_lanes else other


def _with(
    description: Description, *, n_tiles: int, n_cells: int, n_lanes: int, name: str
) -> Target:
    target = description.target
    array = replace(target.array, n_tiles=n_tiles, n_cells=n_cells)
    rows = sum(
        map_group(
            group.mapping.n_rows, group.mapping.n_cols, group.mapping.planes, array, n_lanes
        ).n_words
        for group in description.groups.values()
    )
    growth = target.array.n_tiles // n_tiles  # the tokens of all tiles in those that are left
    return replace(
        target,
        name=f"{target.name}-{name}",
        array=replace(array, rom_rows=rows),
        vector=replace(target.vector, n_lanes=n_lanes),
        attention=replace(target.attention, sram_kib=target.attention.sram_kib * growth),
    )
