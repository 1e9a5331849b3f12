"""Synthesis of a chip's modules on a cell table: cells, flip-flops, memories apart, longest paths.

Every shared module is mapped once, flattened, with memories and other shared modules as black
boxes; what stands in the chip is counted through the instances. A component of many lanes
with a method ``with_lanes`` is mapped with few (:mod:`romsim_rtl.synthesis_lanes`). Multipliers are
yosys' own (``alumacc``: carry-save trees, parallel-prefix adders; no Booth coding). Flip-flops of
one enable get a clock gate from eight on, one gate for 32; the rest of the clock tree is not there.
Signals that more than 16 pins hang on have buffers in trees of 16.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Fragment
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring

from romsim_compiler.technology import Technology
from romsim_models.errors import SpecError
from romsim_rtl import yosys_synthesis
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_rom import run_tool, yosys_abc
from romsim_rtl.memory import VerilogPlatform
from romsim_rtl.module_timing import STARTS, Netlist, PortTiming, time_module
from romsim_rtl.path_depth import timed_genlib

__all__ = [
    "BLACK_BOX",
    "CLOCK_GATE",
    "FLOP",
    "MAPPINGS",
    "MAX_LANES",
    "MEASURED_LANES",
    "Memory",
    "ModuleSynthesis",
    "RtlilModule",
    "check_technology",
    "map_module",
    "module_waves",
    "rtlil_modules",
]

FLOP, CLOCK_GATE, BUFFER = "DFFHQNx1", "ICGx1", "BUFx2"
MAPPINGS = {
    "area": "strash;balance;map,-a",
    "speed": "strash;balance;map",
}
"""How ABC maps: for least area, or for least delay and then area."""

MAX_LANES = 8
"""Lanes up to which a module of equal lanes is mapped as it is."""

MEASURED_LANES = (2, 4)
"""Lanes with which one of more is mapped."""

_MACROS = {"romsim_sram": "sram", "romsim_rom": "rom"}
_GATED_FLOPS = 8
_FLOPS_OF_A_GATE = 32


@dataclass(frozen=True, kw_only=True)
class RtlilModule:
    """A module before synthesis.

    Parameters
    ----------
    name
        Its Verilog name.
    text
        RTLIL; that of the last of `fewer`, where there are such.
    children
        How often each shared module stands in it, by name.
    fewer
        The same module with fewer lanes, which are mapped in its place.
    lanes
        Lanes of those, and its own.
    ports
        Its ports but the clock, where it has `fewer`.
    """

    name: str
    text: str
    children: Mapping[str, int]
    fewer: tuple[RtlilModule, ...] = ()
    lanes: tuple[int, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Black boxes of one size."""

    kind: str  # "sram" or "rom"
    words: int
    bits: int
    count: int


@dataclass(frozen=True, kw_only=True)
class ModuleSynthesis:
    """A module as cells, without what the modules inside it hold.

    ``delays`` are in FO4, ``gates`` count gates on a path.
    """

    name: str
    cells: Mapping[str, int]  # buffers, flip-flops and clock gates included
    memories: tuple[Memory, ...]
    children: Mapping[str, int]
    delays: PortTiming
    gates: PortTiming

    @property
    def n_flops(self) -> int:
        """Flip-flops."""
        return self.cells.get(FLOP, 0)

    def area_um2(self, cell_um2: Mapping[str, float]) -> float:
        """Return the area of the cells in um2, at a utilisation of 1."""
        return sum(n * cell_um2[cell] for cell, n in sorted(self.cells.items()))


_NO_PATHS = PortTiming(inner=(-math.inf,) * len(STARTS))
BLACK_BOX = ModuleSynthesis(
    name="", cells={}, memories=(), children={}, delays=_NO_PATHS, gates=_NO_PATHS
)
"""A module inside that is not known: it has no area, and no path runs through it."""


def check_technology(technology: Technology) -> None:
    """Refuse a technology without the cells that registers need.

    Raises
    ------
    SpecError
        If there is no function of a gate, or no flip-flop, clock gate or buffer.
    """
    missing = [c for c in (FLOP, CLOCK_GATE, BUFFER) if c not in technology.cell_um2]
    if missing or not technology.cell_function:
        what = f"no {', '.join(missing)}" if missing else "no functions of gates"
        raise SpecError(
            f"Technology {technology.name!r} must have a cell table with {FLOP}, {CLOCK_GATE}, "
            f"{BUFFER} and gates for synthesis, but has {what}; use a target in a technology that "
            f"has them, such as asap7"
        )


def rtlil_modules(name: str, top: Any, *, only: Collection[str] | None = None) -> list[RtlilModule]:
    """Return a component and all shared modules below it as RTLIL, children first.

    Parameters
    ----------
    name
        Of the component's own module.
    only
        Modules that are wanted, each with those that hold it.
    """
    platform = VerilogPlatform()
    pending: dict[str, Any] = {name: top}
    made: dict[str, str] = {}
    fewer: dict[str, dict[str, Any]] = {}
    while pending:
        for module, component in sorted(pending.items()):
            if hasattr(component, "with_lanes") and component.n_lanes > MAX_LANES:
                fewer[module] = _with_fewer_lanes(module, component)
                made[module] = fewer[module]["fewer"][-1].text
                component._MustUse__used = True  # or Amaranth warns that it is never elaborated
            else:
                made[module] = _convert(module, component, platform)
        pending = {
            n: c
            for n, c in platform.shared.items()
            if n not in made and (only is None or n in only)
        }
    inside = {
        module: {n: text.count(f"  cell \\{n} ") for n in sorted(platform.shared)}
        for module, text in made.items()
    }
    order: list[str] = []

    def visit(module: str) -> None:
        for child, count in inside[module].items():
            if count and child in made:
                visit(child)
        if module not in order:
            order.append(module)

    visit(name)
    return [
        RtlilModule(
            name=n,
            text=made[n],
            children={child: count for child, count in inside[n].items() if count},
            **fewer.get(n, {}),
        )
        for n in order
    ]


def _ports(component: Any) -> dict[str, Any]:
    ports: dict[str, Any] = {}
    for path, member, value in component.signature.flatten(component):
        is_input = member.flow == wiring.In
        direction = PortDirection.Input if is_input else PortDirection.Output
        ports["__".join(map(str, path))] = (value, direction)
    return ports


def _convert(name: str, component: Any, platform: VerilogPlatform) -> str:
    fragment = Fragment.get(component, platform)
    ports = _ports(component)
    text: str
    text, _ = rtlil.convert_fragment(fragment, ports=ports, name=name, emit_src=False)
    return text


def _with_fewer_lanes(name: str, component: Any) -> dict[str, Any]:
    """Return the fields of `RtlilModule` that stand for a module of many lanes."""
    modules = []
    for n in MEASURED_LANES:
        here = f"{name}_{n}"
        text = _convert(here, component.with_lanes(n), VerilogPlatform())
        modules.append(RtlilModule(name=here, text=text, children={}))
    return {
        "fewer": tuple(modules),
        "lanes": (*MEASURED_LANES, component.n_lanes),
        "ports": ("rst", *_ports(component)),
    }


def map_module(
    module: RtlilModule,
    technology: Technology,
    children: Mapping[str, ModuleSynthesis],
    *,
    mapping: str = "area",
) -> ModuleSynthesis:
    """Synthesise one module.

    Parameters
    ----------
    children
        At least the shared modules inside, by name.
    mapping
        One of `MAPPINGS`.

    Raises
    ------
    SpecError
        If the technology has not the cells, or the mapping is unknown.
    ToolError
        If yosys or ABC is missing or fails.
    """
    if mapping not in MAPPINGS:
        raise SpecError(f"Mapping must be one of {', '.join(MAPPINGS)}, not {mapping!r}")
    check_technology(technology)
    library = CellLibrary.of(technology)
    netlist = _run_yosys(module, technology, library, MAPPINGS[mapping])
    timed = Netlist(
        netlist,
        library,
        flop=FLOP,
        gate=CLOCK_GATE,
        memories=_MACROS,
        children={n: (children[n].delays, children[n].gates) for n in module.children},
    )
    kinds = Counter(cell["type"] for cell in netlist["cells"].values())
    cells = {kind: n for kind, n in kinds.items() if kind in library.cells or kind == FLOP}
    cells[CLOCK_GATE] = _n_clock_gates(netlist["cells"].values())
    cells[BUFFER] = cells.get(BUFFER, 0) + timed.n_buffers()
    return ModuleSynthesis(
        name=module.name,
        cells={kind: n for kind, n in sorted(cells.items()) if n},
        memories=_memories(netlist["cells"].values()),
        children={child: kinds[child] for child in module.children},
        delays=time_module(timed),
        gates=time_module(timed, in_gates=True),
    )


def _run_yosys(
    module: RtlilModule, technology: Technology, library: CellLibrary, script: str
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "abc").symlink_to(yosys_abc())
        (folder / "in.il").write_text(module.text)
        constant = files("romsim_rtl").joinpath("verilog", "romsim_constant.v")
        (folder / "constant.v").write_text(constant.read_text(encoding="utf-8"))
        (folder / "cells.genlib").write_text(
            library.genlib() if script.endswith("-a") else timed_genlib(library)
        )
        (folder / "flops.lib").write_text(_flop_liberty(technology.cell_um2[FLOP]))
        plan = {"gate": CLOCK_GATE, "gated": _GATED_FLOPS, "script": f"+{script}"}
        (folder / "plan.json").write_text(json.dumps(plan))
        run_tool([sys.executable, yosys_synthesis.__file__, "plan.json"], folder, "mapped.json")
        modules = json.loads((folder / "mapped.json").read_text())["modules"]
    found: dict[str, Any] = modules[module.name]
    return found


def _flop_liberty(um2: float) -> str:
    """Return the flip-flop, whose output is inverted, as a Liberty file."""
    return (
        f"library(flops) {{ cell({FLOP}) {{ area: {um2:.5f};"
        ' ff(IQN, IQ) { next_state: "!D"; clocked_on: "CLK"; }'
        " pin(D) { direction: input; } pin(CLK) { direction: input; clock: true; }"
        ' pin(QN) { direction: output; function: "IQN"; } } }\n'
    )


def _n_clock_gates(cells: Any) -> int:
    """Count clock gates, one for 32 flip-flops, and those of whole units."""
    flops = Counter(c["connections"]["CLK"][0] for c in cells if c["type"] == FLOP)
    gated = [c["connections"]["GCLK"][0] for c in cells if c["type"] == CLOCK_GATE]
    units = len([c for c in cells if c["type"] == "romsim_clock_gate"])
    gates = sum(-(-flops[net] // _FLOPS_OF_A_GATE) for net in gated)
    return units + gates


def _memories(cells: Any) -> tuple[Memory, ...]:
    sizes: Counter[tuple[str, int, int]] = Counter()
    for cell in cells:
        kind = _MACROS.get(cell["type"])
        if kind is None:
            continue
        values = {k: _number(v) for k, v in cell["parameters"].items() if k not in _NO_NUMBERS}
        bits = values["WIDTH"] if kind == "rom" else values["LANES"] * values["LANE_BITS"]
        sizes[kind, values["DEPTH"], bits] += 1
    return tuple(
        Memory(kind=kind, words=words, bits=bits, count=n)
        for (kind, words, bits), n in sorted(sizes.items())
    )


_NO_NUMBERS = ("FILE", "TILE")


def _number(value: int | str) -> int:
    """Read a parameter: yosys writes it in binary digits."""
    return int(str(value), 2)


def module_waves(modules: Sequence[RtlilModule]) -> list[list[RtlilModule]]:
    """Return modules in waves, each of which needs only those before.

    Raises
    ------
    SpecError
        If a module that one of them holds is not among them.
    """
    waves: list[list[RtlilModule]] = []
    done: set[str] = set()
    left = list(modules)
    while left:
        wave = [m for m in left if set(m.children) <= done]
        if not wave:
            absent = {child for m in left for child in m.children} - {m.name for m in modules}
            raise SpecError(
                f"Modules must come with every module that they hold, not without "
                f"{', '.join(sorted(absent))}"
            )
        waves.append(wave)
        done |= {m.name for m in wave}
        left = [m for m in left if m.name not in done]
    return waves
