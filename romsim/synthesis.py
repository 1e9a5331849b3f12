# amaranth: UnusedElaboratable=no
"""Synthesis of a chip's own RTL: cells and area of every module, and the clock that it can reach.

The longest path of each module is set against the target's clock: logic in FO4 times the wire
factor, and the overhead of registers (docs/area.md, "Clock"). A path that begins at a memory
has the memory's access time before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from romsim.area import estimate_area
from romsim.rtl_clock import path_period_ps
from romsim.synthesis_report import ModuleRow, SynthesisReport, UnitRow
from romsim_compiler.description import Description
from romsim_compiler.technology import Range, Technology
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_rtl.emit import TOP_MODULE
from romsim_rtl.module_timing import STARTS
from romsim_rtl.synthesis import ModuleSynthesis, RtlilModule, check_technology, rtlil_modules
from romsim_rtl.synthesis_cache import check_options, synthesise_modules
from romsim_rtl.top import Top

__all__ = ["UNITS", "synth"]

UNITS = {
    "romsim_cell": "L-units",
    "romsim_row": "L-units",
    "romsim_ltile": "L-units",
    "romsim_lside": "network",
    "romsim_htile": "H-units",
    "romsim_hside": "network",
    "romsim_vector_group": "vector unit",
    "romsim_vector": "vector unit",
    "romsim_sequencer": "sequencer",
    "romsim_top": "sequencer",
}
"""Unit of `romsim.area` that each module belongs to; controllers of all tiles count as network."""


def synth(
    description: str | Path | Description,
    *,
    mapping: str = "area",
    modules: Sequence[str] = (),
    jobs: int = 1,
    progress: Callable[[float], None] | None = None,
) -> SynthesisReport:
    """Synthesise a chip's modules, memories apart, and time their paths.

    Parameters
    ----------
    description
        A compiled chip, or its folder; its weights are not needed.
    mapping
        ``"area"`` or ``"speed"``: what ABC maps for.
    modules
        Names of modules, which are synthesised with what they hold; all when left out.
    jobs
        Modules synthesised at once.
    progress
        Called with the finished fraction.

    Raises
    ------
    SpecError
        If an option is impossible, the RTL has no hardware for the chip, or its technology has no
        cell table.
    DescriptionError
        If the folder holds no description.
    ToolError
        If yosys or ABC is missing or fails, or the cache cannot be written.
    """
    check_options(mapping, jobs)
    if not isinstance(description, Description):
        description = Description.load(description)
    technology = load_technology(description.target.technology)
    check_technology(technology)
    every = rtlil_modules(TOP_MODULE, Top(description=description, is_packed=False))
    chosen = _chosen(every, modules)
    found = synthesise_modules(chosen, technology, mapping=mapping, jobs=jobs, progress=progress)
    counts = _counts(every)
    rows = tuple(_row(found[m.name], counts[m.name], technology) for m in reversed(chosen))
    left_out = {m.name for m in every} - set(found)
    return SynthesisReport(
        description=description.name,
        target=description.target.name,
        technology=technology.name,
        mapping=mapping,
        clock_mhz=description.target.clock_mhz,
        utilisation=technology["logic.utilisation"].range,
        modules=rows,
        units=_units(rows, left_out, description, technology),
        left_out=tuple(m.name for m in reversed(every) if m.name in left_out),
    )


def _chosen(every: Sequence[RtlilModule], names: Sequence[str]) -> list[RtlilModule]:
    """Return the named modules and those inside them, children first."""
    known = {module.name: module for module in every}
    wanted: set[str] = set()
    pending = list(names) or list(known)
    while pending:
        name = pending.pop()
        if name not in known:
            raise SpecError(f"Module must be one of {', '.join(sorted(known))}, not {name!r}")
        if name not in wanted:
            wanted.add(name)
            pending += known[name].children
    return [module for module in every if module.name in wanted]


def _counts(every: Sequence[RtlilModule]) -> dict[str, int]:
    """Return how often each module stands in the chip."""
    counts = {module.name: 0 for module in every}
    counts[TOP_MODULE] = 1
    for module in reversed(every):  # parents come after their children
        for child, n in module.children.items():
            counts[child] += n * counts[module.name]
    return counts


def _row(module: ModuleSynthesis, count: int, technology: Technology) -> ModuleRow:
    periods = {
        start: path_period_ps(technology, start, depth)
        for start, depth in zip(STARTS, module.delays.inner, strict=True)
        if depth >= 0
    }
    start = max(periods, key=lambda s: periods[s].mid, default=None)
    place = 0 if start is None else STARTS.index(start)
    first, last = module.delays.worst[place] if start is not None else ("", "")
    return ModuleRow(
        module=module.name,
        unit=UNITS[module.name],
        count=count,
        n_cells=sum(module.cells.values()),
        n_flops=module.n_flops,
        cell_um2=module.area_um2(technology.cell_um2),
        memory_bits=sum(m.words * m.bits * m.count for m in module.memories),
        gates=0 if start is None else max(0, int(module.gates.inner[place])),
        depth_fo4=0.0 if start is None else module.delays.inner[place],
        start=start,
        first=first,
        last=last,
        period_ps=None if start is None else periods[start],
    )


def _units(
    rows: tuple[ModuleRow, ...],
    left_out: set[str],
    description: Description,
    technology: Technology,
) -> tuple[UnitRow, ...]:
    """Set the synthesised logic of each whole unit beside the estimate from parts."""
    estimate = estimate_area(description.target, technology, spec=description.spec, logic="parts")
    over = technology["logic.utilisation"].range
    found = []
    partial = {UNITS[name] for name in left_out}
    for unit in dict.fromkeys(UNITS.values()):
        if unit in partial:
            continue
        cells = sum(row.cell_um2 * row.count for row in rows if row.unit == unit)
        parts = sum(
            part.area.mid * count
            for name, _, count, part in estimate.items
            if name == unit and part.kind == "logic"
        )
        found.append(
            UnitRow(unit=unit, placed_um2=Range.exact(cells).over(over), estimated_um2=parts)
        )
    return tuple(found)
