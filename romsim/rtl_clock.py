"""The clock that a target's own RTL reaches, from paths of synthesised modules.

Depths are those of ``tables/synthesis_asap7.toml``, mapped for speed; docs/area.md, "Clock", says
what is in a period and what is not. ``romsim synth`` times all units of one chip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from romsim.area_kv import kv_values
from romsim.area_synthesised import has_rtl
from romsim.synthesis_table import table
from romsim_compiler.target import Target
from romsim_compiler.technology import Range, Technology
from romsim_compiler.technology_file import load_technology

__all__ = ["ModulePath", "RtlClock", "path_period_ps", "rtl_clock"]


def path_period_ps(technology: Technology, start: str, depth_fo4: float) -> Range:
    """Return the shortest period of a path of ``depth_fo4`` that begins at a start.

    Parameters
    ----------
    start
        ``flop``, ``sram`` or ``rom``. A macro's data come its access time after the clock's edge;
        logic ROM has its register behind the bank, so that what follows begins at a flip-flop.
    """
    period = technology.clock_period_ps(depth_fo4)
    if start == "flop" or (start == "rom" and technology.rom_style == "logic"):
        return period
    return period + technology[f"clock.{start}_access"].range


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePath:
    """The longest path that ends in one module."""

    module: str
    built_for: str
    start: str
    depth_fo4: float
    period_ps: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class RtlClock:
    """Paths of a target's modules, slowest first."""

    target: str
    clock_mhz: float
    paths: tuple[ModulePath, ...]

    @property
    def max_mhz(self) -> Range:
        """The highest clock: low where gates and wires are slow."""
        periods = [path.period_ps for path in self.paths]
        return Range(
            1e6 / max(period.high for period in periods),
            1e6 / max(period.mid for period in periods),
            1e6 / max(period.low for period in periods),
        )

    @property
    def is_met(self) -> bool:
        """Whether the middle period is within the target's clock."""
        return self.max_mhz.mid >= self.clock_mhz

    def verdict(self) -> str:
        """Say whether the target's clock is reached, and which module bounds it."""
        slowest, reached = self.paths[0], self.max_mhz
        found = (
            f"{reached.mid:.0f} MHz ({reached.low:.0f} to {reached.high:.0f}), bound by "
            f"{slowest.module} ({slowest.built_for}, {slowest.depth_fo4:.4g} FO4"
            f"{_READ[slowest.start]})"
        )
        reached_or_not = "reached" if self.is_met else "NOT reached"
        return (
            f"The {self.clock_mhz:g} MHz of {self.target} are {reached_or_not} by its own RTL: "
            f"{found}."
        )


def rtl_clock(target: Target, *, has_adapters: bool = False) -> RtlClock | None:
    """Return the clock that a target's RTL reaches, or None where it has none.

    Cells are those of the target's lanes. Depth hardly grows with a module's width (cells of one
    and of four blocks have the same), so that the measured point stands for wider ones; units
    around the tiles are those of a chip of two tiles (docs/area.md, "Clock"). The maximum and the
    sum over the tiles are those of the next larger number of tiles that was measured; a sum of more
    than all of these is deeper by its levels, and a maximum has registers between them.

    Units that a KV codec, policy or layout changes are those of chips with it; of several choices
    at once, of each choice's chip.

    Parameters
    ----------
    has_adapters
        Whether the chip has hardware for adapters, where `Target.lora` says.
    """
    if not has_rtl(target):
        return None
    technology = load_technology(target.technology)
    array = target.array
    encoding = "ternary" if array.encoding == "ternary" else f"int{array.lane_bits}"
    paths = []
    points = table()["points"]
    trees = [_tree(module, points, array.n_tiles) for module in _TREES]
    values = set(kv_values(target))
    of_kv = {point["module"].removesuffix("_kv") for point in points if point.get("kv") in values}
    for point in [*trees, *(point for point in points if point["module"] not in _TREES)]:
        if "depth_fo4" not in point or point.get("encoding", encoding) != encoding:
            continue
        if point["module"] in _ADAPTERS and not (
            has_adapters and point["module"] in _ADAPTERS_OF[target.lora.path]
        ):
            continue
        if point.get("kv", "") not in values | {""}:
            continue
        if point["module"] in of_kv and point.get("tiles", _SMALLEST) == _SMALLEST:
            continue  # there is one with the KV cache's choices
        what = ", ".join(f"{k} {v}" for k, v in point.items() if k not in _MEASURED)
        if point["module"] in _TREES:
            what = f"of {array.n_tiles} tiles"
        elif "tiles" in point:
            what = f"on a chip of {point['tiles']} tiles"
            if "kv" in point:
                what = f"KV {point['kv']}, {what}"
            if point["tiles"] > array.n_tiles:
                continue
        depths = {"flop": point["depth_fo4"][1]}
        for start in ("sram", "rom"):
            if f"{start}_fo4" in point:
                depths[start] = point[f"{start}_fo4"][1]
        paths += [
            ModulePath(
                module=point["module"],
                built_for=what,
                start=start,
                depth_fo4=depth,
                period_ps=path_period_ps(technology, start, depth),
            )
            for start, depth in depths.items()
        ]
    paths.sort(key=lambda path: (-path.period_ps.mid, path.module, path.built_for))
    return RtlClock(target=target.name, clock_mhz=target.clock_mhz, paths=tuple(paths))


def _tree(module: str, points: list[dict[str, Any]], n_tiles: int) -> dict[str, Any]:
    """Return the point of a tree of pairs over the tiles."""
    measured = [point for point in points if point["module"] == module]
    measured.sort(key=lambda point: int(point["tiles"]))
    for point in measured:
        if point["tiles"] >= n_tiles:
            return point
    last = measured[-1]
    if module == "maxima":
        return last
    deeper = (n_tiles - 1).bit_length() / (last["tiles"] - 1).bit_length()
    return {**last, "depth_fo4": [depth * deeper for depth in last["depth_fo4"]]}


_READ = {"flop": "", "rom": " behind a read of ROM", "sram": " behind a read of SRAM"}
_TREES = ("maxima", "sums")  # over the tiles
_ADAPTERS_OF = {"int8": ("lora_tile", "lora_side"), "adders": ("adder_tile", "adder_side")}
_ADAPTERS = tuple(module for path in _ADAPTERS_OF.values() for module in path)
_SMALLEST = 2  # tiles of the chip that each choice of the KV cache is measured on
_MEASURED = ("module", "um2", "n_flops", "depth_fo4", "sram_fo4", "rom_fo4")
