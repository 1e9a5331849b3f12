"""Area of a chip, bottom-up: every part with its formula, source and grade, summing to the total.

Counts follow docs/machine.md and the target; what a part takes comes from
:mod:`romsim.area_parts`. Buffers whose size is the model's take it from ``spec``; without one they
are sized by what the target's vector SRAM can serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from romsim.area_adapters import why_no_adapter_area
from romsim.area_memories import (
    BufferWidths,
    adapter_memories,
    codebooks,
    h_memories,
    vector_memory,
    x_buffers,
)
from romsim.area_parts import (
    WEIGHT_LOGIC,
    Item,
    Part,
    Parts,
    default_zero_bits,
    parts_of,
    sum_bits,
)
from romsim.area_synthesised import has_rtl, rtl_parts_of
from romsim_compiler.target import MX_BLOCK, Target
from romsim_compiler.technology import Range, Technology
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec

__all__ = ["AreaReport", "AreaRow", "chip_area_mm2", "estimate_area"]

_INSTRUCTION_BITS = 64
_CONTROL_GATES = 20_000  # scoreboard, host port, counters, address generators: a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaRow:
    """One component of the chip."""

    unit: str  # "L-units", "H-units", "vector unit", "network", "sequencer", "periphery"
    component: str
    count: int
    area_um2: Range  # all of them
    formula: str  # of one
    source: str
    grade: str

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON-ready values, its unit of area in the key."""
        return asdict(self)


@dataclass(frozen=True)
class AreaReport:
    """The components of one chip.

    Parameters
    ----------
    target, technology
        Names.
    items
        What the rows are made from: a sweep that only wants totals makes no rows.
    """

    target: str
    technology: str
    items: tuple[Item, ...]

    @cached_property
    def rows(self) -> tuple[AreaRow, ...]:
        """The components, in order of the units."""
        return tuple(
            AreaRow(
                unit=unit,
                component=component,
                count=count,
                area_um2=part.area * count,
                formula=part.formula,
                source=part.source,
                grade=part.grade,
            )
            for unit, component, count, part in self.items
        )

    @cached_property
    def total_um2(self) -> Range:
        """Area of the die: the sum of all rows."""
        return _total(self.items)

    @property
    def total_mm2(self) -> Range:
        """Area of the die in mm2."""
        return self.total_um2 * 1e-6

    def by_unit(self) -> dict[str, Range]:
        """Return the area of each unit in um2, in the order of the rows."""
        units: dict[str, list[Item]] = {}
        for item in self.items:
            units.setdefault(item[0], []).append(item)
        return {unit: _total(items) for unit, items in units.items()}

    def by_kind(self) -> dict[str, Range]:
        """Return the area of ROM, SRAM and logic in um2: what leaks alike."""
        kinds: dict[str, list[Item]] = {"rom": [], "sram": [], "logic": []}
        for item in self.items:
            kinds[item[3].kind].append(item)
        return {kind: _total(items) for kind, items in kinds.items()}

    def component(self, unit: str, component: str) -> AreaRow:
        """Return one row.

        Raises
        ------
        SpecError
            If there is none: the components that there are.
        """
        for row in self.rows:
            if row.unit == unit and row.component == component:
                return row
        known = ", ".join(f"{r.unit}/{r.component}" for r in self.rows)
        raise SpecError(f"Area component must be one of {known}, not '{unit}/{component}'")

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "target": self.target,
            "technology": self.technology,
            "total_um2": asdict(self.total_um2),
            "units_um2": {k: asdict(v) for k, v in self.by_unit().items()},
            "rows": [row.to_json() for row in self.rows],
        }


def _total(items: Iterable[Item]) -> Range:
    low = mid = high = 0.0
    for _, _, count, part in items:
        area = part.area
        low, mid, high = low + area.low * count, mid + area.mid * count, high + area.high * count
    return Range(low, mid, high)


class _Builder:
    """Collects items; a component that was synthesised takes its measured area instead."""

    def __init__(self, synthesised: Mapping[tuple[str, str], Part]) -> None:
        self.items: list[Item] = []
        self._synthesised = synthesised

    def check(self) -> None:
        """Refuse a measured area that replaced nothing."""
        known = {(unit, component) for unit, component, _, _ in self.items}
        for unit, component in self._synthesised:
            if (unit, component) not in known:
                listed = ", ".join(f"{u}/{c}" for u, c, _, _ in self.items)
                raise SpecError(
                    f"Synthesised component must be one of {listed}, not '{unit}/{component}'"
                )

    def add(self, unit: str, component: str, count: int, part: Part) -> None:
        if self._synthesised:
            part = self._synthesised.get((unit, component), part)
        if count:
            self.items.append((unit, component, count, part))


def estimate_area(
    target: Target,
    technology: Technology | None = None,
    *,
    spec: ModelSpec | None = None,
    rom_words: int | None = None,
    rom_style: str | None = None,
    zero_bits: float | None = None,
    synthesised: Mapping[tuple[str, str], Part] | None = None,
    logic: str = "rtl",
    rank: int = 0,
) -> AreaReport:
    """Return the area of a chip, component by component.

    Parameters
    ----------
    technology
        The target's own when left out.
    spec
        The model, for buffers and the program ROM that are sized by it.
    rom_words
        Words in each cell; the target's ``rom_rows`` when left out.
    rom_style
        ``"compiler"`` (macros) or ``"logic"`` (synthesised words); the technology's when left out.
    zero_bits
        Share of zero bits in a synthesised ROM; a default by encoding when left out.
    synthesised
        Measured area of one of a component, by (unit, component): it replaces the estimate.
    logic
        ``"rtl"``: logic is that of this project's RTL where the target has RTL; ``"parts"``:
        counted from lanes, adders and registers.
    rank
        Largest rank of resident adapters, a power of two; 0 for none. Their hardware is counted
        where this project's RTL has it; lanes counted from parts are taken to be shared with
        attention.

    Raises
    ------
    SpecError
        If style or logic is neither of the two, the share of zero bits no share, the rank
        negative or without a model, or a synthesised component unknown.
    """
    tech = technology if technology is not None else load_technology(target.technology)
    style = rom_style if rom_style is not None else tech.rom_style
    if style not in ("compiler", "logic"):
        raise SpecError(f"ROM style must be 'compiler' or 'logic', not {style!r}")
    if logic not in ("rtl", "parts"):
        raise SpecError(f"Logic must be 'rtl' or 'parts', not {logic!r}")
    share = zero_bits if zero_bits is not None else default_zero_bits(target)
    if not 0 <= share < 1:
        raise SpecError(f"Share of zero bits must be from 0 to below 1, not {share!r}")
    if rank < 0 or (rank and spec is None):
        raise SpecError(
            f"Adapter rank must be 0, or more with the model that it extends, not {rank!r}"
        )
    words = rom_words if rom_words is not None else target.array.rom_rows
    parts = parts_of(tech)
    widths = BufferWidths.of(target, spec)
    build = _Builder(synthesised or {})
    rom = parts.rom(words, target.array.word_bits, style=style, zero_bits=share, logic=WEIGHT_LOGIC)
    build.add("L-units", "ROM", target.array.n_tiles * target.array.n_cells, rom)
    is_rtl = logic == "rtl" and has_rtl(target)
    if is_rtl:
        for item in rtl_parts_of(tech).l_units(target):
            build.add(*item)
    else:
        _l_units(build, parts, target)
    build.add(*x_buffers(parts, target, widths))
    for item in h_memories(parts, target, widths):
        build.add(*item)
    if target.kv.codec == "commvq":
        build.add(*codebooks(parts, target, spec, style))
    if is_rtl:
        build.add("H-units", "tile logic", target.array.n_tiles, rtl_parts_of(tech).htile(target))
    else:
        _h_units(build, parts, target)
    if rank and spec is not None and is_rtl and why_no_adapter_area(target, rank) is None:
        for item in adapter_memories(parts, target, spec, rank):
            build.add(*item)
        for item in rtl_parts_of(tech).adapters(target, rank):
            build.add(*item)
    build.add(*vector_memory(parts, target))
    if is_rtl:
        for item in rtl_parts_of(tech).units(
            target, spec.activation if spec is not None else "silu"
        ):
            build.add(*item)
    else:
        _vector_unit(build, parts, target)
        _network(build, parts, target)
        build.add("sequencer", "control", 1, parts.gates(_CONTROL_GATES))
    program = parts.rom(widths.n_instructions, _INSTRUCTION_BITS, style=style, zero_bits=0.487)
    build.add("sequencer", "program ROM", 1, program)
    build.add("sequencer", "slot state", target.schedule.n_slots, parts.flops(128))
    build.add("periphery", "host port, clock, pads", 1, _periphery(build.items, tech))
    build.check()
    return AreaReport(target=target.name, technology=tech.name, items=tuple(build.items))


def chip_area_mm2(target: Target, spec: ModelSpec | None = None) -> float:
    """Return the mid area of a chip in mm2, in the target's own technology."""
    return estimate_area(target, spec=spec).total_mm2.mid


def _l_units(build: _Builder, parts: Parts, target: Target) -> None:
    array, batch = target.array, target.schedule.n_batch
    n_cells = array.n_tiles * array.n_cells
    is_mx = target.formats.activation == "mxint8"
    lane = parts.lane(array.encoding, target.formats.activation, lane_bits=array.lane_bits)
    build.add("L-units", "multiply lanes", array.n_lanes * batch, lane)
    build.add("L-units", "word registers", n_cells, parts.flops(array.word_bits))
    build.add("L-units", "input registers", n_cells * batch, parts.flops(array.word_codes * 8))
    blocks = array.word_codes // MX_BLOCK
    if is_mx and (array.scale_bits == 0 or array.scale_group > MX_BLOCK):
        shifter = parts.shifter(array.lane_bits + 13 + 25, 25)
        build.add("L-units", "block shifters", n_cells * batch * blocks, shifter)
    if array.scale_bits:
        scale = parts.scale(array, target.formats.activation)
        build.add("L-units", "scale multipliers", n_cells * batch * array.n_scales, scale)
    total = parts.accumulator(sum_bits(target.formats.activation))
    build.add("L-units", "accumulators", n_cells * batch, total)
    build.add(
        "L-units",
        "row-sum tree",
        array.n_tiles * batch * (array.n_cells - 1),
        parts.accumulator(64),
    )


def _h_units(build: _Builder, parts: Parts, target: Target) -> None:
    att, tiles = target.attention, target.array.n_tiles
    is_mx = target.formats.kv == "mxint8"
    word_bits = att.word_elems * 8 + (att.word_elems // MX_BLOCK * 8 if is_mx else 0)
    n_lanes = tiles * att.heads_parallel * att.word_elems
    lane = parts.lane(target.formats.kv, target.formats.kv, lane_bits=8)
    build.add("H-units", "multiply lanes", n_lanes, lane)
    if is_mx:
        shifters = n_lanes // MX_BLOCK
        build.add("H-units", "block shifters", shifters, parts.shifter(48, 50))
    build.add("H-units", "word registers", tiles, parts.flops(2 * word_bits))
    build.add("H-units", "exponentials", tiles * att.heads_parallel, parts.exponential())
    build.add("H-units", "value sums", n_lanes, parts.accumulator(sum_bits(target.formats.kv)))


def _vector_unit(build: _Builder, parts: Parts, target: Target) -> None:
    vector = target.vector
    build.add("vector unit", "lanes", vector.n_lanes, parts.vector_lane())
    build.add("vector unit", "MXINT8 quantisers", vector.n_lanes, parts.shifter(32, 25))
    build.add("vector unit", "activation functions", vector.n_lanes, parts.activation())
    build.add("vector unit", "sum tree", vector.n_lanes - 1, parts.full_adders(64))
    build.add("vector unit", "reciprocal and root", 1, parts.newton())
    build.add("vector unit", "rotary phases", max(1, vector.n_lanes // 32), parts.rotary())


def _network(build: _Builder, parts: Parts, target: Target) -> None:
    tiles, lanes = target.array.n_tiles, target.vector.n_lanes
    stages = max(1, target.network.broadcast_cycles)
    beat = lanes * 8 + lanes // MX_BLOCK * 8
    # A beat of codes reaches every tile: a register in each, and one per stage of the trunk.
    build.add("network", "broadcast registers", tiles + stages, parts.flops(beat))
    row_bits = min(target.array.n_cells, lanes) * 64
    build.add("network", "collect registers", tiles, parts.flops(row_bits))
    build.add("network", "collect multiplexers", tiles, parts.multiplexers(row_bits))
    trunk = parts.flops(lanes * 64)
    build.add("network", "collect trunk", max(1, target.network.collect_cycles), trunk)


def _periphery(items: list[Item], tech: Technology) -> Part:
    total = _total(items)
    fact = tech["logic.periphery_fraction"]
    return Part(
        total.times(fact.range),
        f"{fact.mid:g} of all other components",
        fact.source,
        fact.grade,
    )
