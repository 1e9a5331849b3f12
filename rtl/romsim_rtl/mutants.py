"""Mutants of a component, all in one design, of which an input selects at most one.

A mutant changes one bit of one cell's port: inverted, stuck, or inverted where another bit of the
port is 0 or 1. Input ``mutant`` is 0 for the design as it is, and n for its n-th mutant, so that
one Verilated model serves every mutant of a component.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Fragment
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring

from romsim_models.errors import SpecError
from romsim_rtl import yosys_mutants
from romsim_rtl.toolchain import ToolError

__all__ = ["CONTROL", "CONTROL_BITS", "Mutant", "Netlist", "Planted", "netlist_of", "plant_mutants"]

CONTROL = "mutant"
CONTROL_BITS = 16
_SOURCE = re.compile(r'[^"|\s]*/([^"|/\s]+/[^"|/\s]+:\d+)')
_PACKAGE = Path(__file__).parent.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault.

    Parameters
    ----------
    number
        Value of the selecting input, from 1.
    mode
        "inv", "const0", "const1", "cnot0" or "cnot1", as yosys names them.
    module, cell, port, bit
        The place in the netlist.
    wire
        Name of the signal there, if it has one.
    places
        Lines of this package that made the cell, as "file.py:line".
    command
        The mutant in yosys' words.
    """

    number: int
    mode: str
    module: str
    cell: str
    port: str
    bit: int
    wire: str
    places: tuple[str, ...]
    command: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields, the yosys command left out."""
        return {k: v for k, v in asdict(self).items() if k != "command"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Netlist:
    """A component as RTLIL, the modules that it shares included.

    Parameters
    ----------
    name
        Top module.
    texts
        RTLIL of each module by name, the top first.
    whole
        RTLIL of modules that stay as they are, without mutants.
    """

    name: str
    texts: Mapping[str, str]
    whole: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """SHA-256 of the content, in hexadecimal."""
        content = json.dumps([self.name, *self.texts.items(), *self.whole.items()])
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def has_clock(self) -> bool:
        """Whether anything in the top is clocked."""
        top = self.texts[self.name].rpartition(f"module \\{self.name}\n")[2]
        return re.search(r"^  wire .*\\clk$", top, re.MULTILINE) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A design with its mutants.

    Parameters
    ----------
    verilog
        File of all modules but the memory macros; the top has an input ``mutant``.
    netlist
        RTLIL without mutants, to which a mutant's command applies.
    mutants
        In the order of their numbers; fewer than were asked for if there are no more sites.
    """

    verilog: Path
    netlist: Path
    mutants: tuple[Mutant, ...]


def netlist_of(
    component: Any,
    name: str,
    *,
    platform: Any = None,
    ports: Mapping[str, tuple[Any, str]] | None = None,
    is_top_only: bool = False,
) -> Netlist:
    """Convert a component to RTLIL that says which line made what.

    Parameters
    ----------
    component
        A ``wiring.Component``, or anything that can be elaborated if ``ports`` are given.
    name
        Name of the top module.
    platform
        Passed to ``elaborate``. Components in its ``shared`` become modules of their own.
    ports
        Signals with "i" or "o", by name, in place of a signature.
    is_top_only
        Whether the modules that the component shares are left whole.
    """
    pending: dict[str, Any] = {name: component}
    texts: dict[str, str] = {}
    while pending:
        module = next(iter(pending))
        part = pending.pop(module)
        given = ports if module == name and ports is not None else _signature_ports(part)
        text, _ = rtlil.convert_fragment(
            Fragment.get(part, platform),
            ports={
                port: (value, PortDirection.Input if way == "i" else PortDirection.Output)
                for port, (value, way) in given.items()
            },
            name=module,
            emit_src=True,
        )
        # two parts of a path are enough to name a line, and the same on every machine
        texts[module] = _SOURCE.sub(r"\1", text)
        shared = getattr(platform, "shared", {})
        pending |= {k: v for k, v in shared.items() if k not in texts and k not in pending}
    top = {name: texts.pop(name)} if is_top_only else texts
    return Netlist(name=name, texts=top, whole=texts if is_top_only else {})


def _signature_ports(component: Any) -> dict[str, tuple[Any, str]]:
    return {
        "__".join(map(str, path)): (value, "i" if member.flow == wiring.In else "o")
        for path, member, value in component.signature.flatten(component)
    }


def plant_mutants(
    netlist: Netlist,
    folder: Path,
    *,
    count: int,
    seed: int,
    files: Sequence[str] = (),
    each: int = 0,
) -> Planted:
    """Choose mutants evenly over a design and write it with all of them.

    Parameters
    ----------
    netlist
        The design.
    folder
        Where the files go; it must exist and be without spaces.
    count
        Mutants to plant.
    seed
        Of the choice.
    files
        How the names of the files begin whose lines are mutated; all by default.
    each
        Most mutants of one file, the alphabet's first of those whose lines made the cell; 0 for
        no limit.

    Raises
    ------
    SpecError
        If the count does not fit the selecting input.
    ToolError
        If yosys fails.
    """
    largest = (1 << CONTROL_BITS) - 1
    if not 1 <= count <= largest:
        raise SpecError(f"Mutants of a design must be from 1 to {largest}, not {count!r}")
    sources = []
    for module, text in netlist.texts.items():
        sources.append(folder / f"{module}.il")
        sources[-1].write_text(text)
    plan: dict[str, Any] = {
        "sources": list(map(str, sources)),
        "top": netlist.name,
        "count": count,
        "seed": seed,
        # more than are wanted: clocks, and lines of other files, are no sites
        "listed": (12 if each else 40 if files else 4) * count + 200,
        "package": _PACKAGE,
        "files": list(files),
        "each": each,
        "control": CONTROL,
        "width": CONTROL_BITS,
        "netlist": str(folder / f"{netlist.name}.lowered.il"),
        "mutants": str(folder / f"{netlist.name}.mutants.json"),
        "verilog": str(folder / f"{netlist.name}.v"),
    }
    file = folder / f"{netlist.name}.plan.json"
    file.write_text(json.dumps(plan))
    done = subprocess.run(
        [sys.executable, yosys_mutants.__file__, str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing was printed"]
        raise ToolError(
            f"Mutants of {netlist.name!r} must come out of yosys, not exit status "
            f"{done.returncode}: {lines[-1]!r}"
        )
    found = json.loads(Path(plan["mutants"]).read_text())
    return Planted(
        verilog=Path(plan["verilog"]),
        netlist=Path(plan["netlist"]),
        mutants=tuple(
            Mutant(number=number, **{**values, "places": tuple(values["places"])})
            for number, values in enumerate(found, 1)
        ),
    )
