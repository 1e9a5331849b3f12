"""Synthesis of one ROM bank as standard-cell logic, and the proof that it holds its contents.

Every result is evaluated gate by gate over all addresses by this project's own netlist, whatever
made it; a bank that differs in one bit is refused.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_models.errors import SpecError
from romsim_rtl import case_rom
from romsim_rtl.candidate_rom import candidate_blif
from romsim_rtl.case_rom import case_verilog
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_netlist import LogicNetlist, read_mapped_blif
from romsim_rtl.pattern_rom import pattern_netlist
from romsim_rtl.toolchain import ToolError

__all__ = [
    "STYLES",
    "LogicBank",
    "check_contents",
    "check_style",
    "run_tool",
    "synthesise",
    "yosys_abc",
]

STYLES = {
    "plain": "a case statement, optimised by yosys and ABC",
    "shared2": "functions of the 2 low address bits shared before selection, mapped by ABC",
    "shared3": "functions of the 3 low address bits shared before selection, mapped by ABC",
    "patterns": "patterns of neighbouring weights shared by all words that hold them",
}
"""How a bank can be built."""

_CASE_SCRIPT = "strash; ifraig; scorr; dc2; dch -f; map -a"
_CANDIDATE_SCRIPT = "strash; balance; map -a"  # dch would unmake the sharing
_MEBIBYTE = 8 * 2**20
_REMEDY = "install the PyPI package 'pyosys' (pip install 'romsim[rtl]')"


@dataclass(frozen=True)
class LogicBank:
    """A bank as logic.

    Parameters
    ----------
    style
        One of `STYLES`.
    rows, width
        Words, and bits of a word.
    n_zero_bits
        Bits that are 0.
    area_um2
        Cell area in um2, at a utilisation of 1.
    netlist
        The gates.
    """

    style: str
    rows: int
    width: int
    n_zero_bits: int
    area_um2: float
    netlist: LogicNetlist

    @property
    def n_bits(self) -> int:
        """Bits stored."""
        return self.rows * self.width

    @property
    def zero_bits(self) -> float:
        """Share of bits that are 0."""
        return self.n_zero_bits / self.n_bits

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.netlist.gates)

    @property
    def um2_per_bit(self) -> float:
        """Cell area of a stored bit in um2."""
        return self.area_um2 / self.n_bits

    @property
    def mib_per_mm2(self) -> float:
        """Density in MiB per mm2 of cell area; infinite for a bank of zeros, which needs none."""
        if self.area_um2 == 0:
            return float("inf")
        return self.n_bits / _MEBIBYTE / (self.area_um2 * 1e-6)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values; an infinite density is ``None``."""
        return {
            "style": self.style,
            "rows": self.rows,
            "width": self.width,
            "zero_bits": self.zero_bits,
            "n_cells": self.n_cells,
            "cells": self.netlist.cell_counts(),
            "cell_area_um2": self.area_um2,
            "um2_per_bit": self.um2_per_bit,
            "mib_per_mm2": self.mib_per_mm2 if self.area_um2 else None,
            "levels": self.netlist.levels(),
            "max_fanout": self.netlist.max_fanout(),
        }


def check_style(style: str) -> None:
    """Refuse a style that there is not.

    Raises
    ------
    SpecError
        If ``style`` is none of `STYLES`.
    """
    if style not in STYLES:
        raise SpecError(f"Logic ROM style must be one of {', '.join(STYLES)}, not {style!r}")


def synthesise(
    bits: NDArray[np.uint8], style: str, library: CellLibrary, *, field_bits: int = 2
) -> LogicBank:
    """Build a bank as logic and prove it equal to its contents at every address.

    Parameters
    ----------
    bits
        uint8 [rows, width] of 0 and 1, bit 0 of each word first. Addresses past the last word,
        where the address has some, read as 0.
    style
        One of `STYLES`.
    library
        Cells.
    field_bits
        Bits of a weight, for the style ``patterns``.

    Raises
    ------
    SpecError
        If the bits are no bank, or the style is unknown.
    ToolError
        If yosys or ABC is missing or fails, or the logic differs from the contents.
    """
    check_style(style)
    if bits.ndim != 2 or bits.dtype != np.uint8 or 0 in bits.shape or bits.max() > 1:
        raise SpecError(
            f"Contents of a bank must be a table of bits, uint8 [rows, width] of 0 and 1, not "
            f"{bits.dtype} {list(bits.shape)}"
            + (f" with a {bits.max()}" if bits.size and bits.ndim == 2 else "")
        )
    if style == "patterns":
        netlist = pattern_netlist(bits, library, field_bits=field_bits)
    else:
        netlist = _mapped(bits, style, library)
    check_contents(netlist, library, bits)
    return LogicBank(
        style=style,
        rows=bits.shape[0],
        width=bits.shape[1],
        n_zero_bits=int(bits.size - np.count_nonzero(bits)),
        area_um2=netlist.area_um2(library),
        netlist=netlist,
    )


def check_contents(netlist: LogicNetlist, library: CellLibrary, bits: NDArray[np.uint8]) -> None:
    """Compare logic with the words it should hold, at every address that its inputs can name.

    Raises
    ------
    ToolError
        If a bit differs: the first address and bit.
    """
    wanted = np.zeros((1 << netlist.n_address_bits, bits.shape[1]), dtype=np.uint8)
    wanted[: bits.shape[0]] = bits
    found = netlist.contents(library, len(wanted))
    differ = np.argwhere(found != wanted)
    if len(differ):
        row, bit = (int(i) for i in differ[0])
        raise ToolError(
            f"Logic of a bank must hold its contents, not {found[row, bit]} in place of "
            f"{wanted[row, bit]} at address {row}, bit {bit} ({len(differ)} bits differ); this is "
            f"a fault of the synthesis, not of the model"
        )


def yosys_abc() -> Path:
    """Find ABC beside pyosys.

    Raises
    ------
    ToolError
        If it is not installed.
    """
    spec = importlib.util.find_spec("pyosys")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        path = Path(folder) / "yosys-abc"
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise ToolError(f"yosys and ABC must be installed, not missing; {_REMEDY}")


def _mapped(bits: NDArray[np.uint8], style: str, library: CellLibrary) -> LogicNetlist:
    abc = yosys_abc()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cells.genlib").write_text(library.genlib())
        if style == "plain":
            (folder / "rom.v").write_text(case_verilog(bits))
            run_tool([sys.executable, case_rom.__file__, "rom.v", "rom.blif"], folder, "rom.blif")
            blif = _scalar_names((folder / "rom.blif").read_text())
            script = _CASE_SCRIPT
        else:
            blif = candidate_blif(bits, int(style[-1]))
            script = _CANDIDATE_SCRIPT
        (folder / "rom.blif").write_text(blif)
        steps = f"read_genlib cells.genlib; read_blif rom.blif; {script}; write_blif mapped.blif"
        run_tool([str(abc), "-q", steps], folder, "mapped.blif")
        text = (folder / "mapped.blif").read_text()
    n_address_bits = max(1, (bits.shape[0] - 1).bit_length())
    return read_mapped_blif(text, library, n_address_bits, bits.shape[1])


def _scalar_names(blif: str) -> str:
    """Name ports as this project does: yosys writes ``a[3]`` (``a`` where there is but one bit)."""
    words = []
    for line in blif.splitlines():
        if line.startswith("#"):
            continue
        parts = line.split(" ")
        for index, part in enumerate(parts):
            if part in ("a", "d"):
                parts[index] = f"{part}0"
            elif part.startswith(("a[", "d[")):
                parts[index] = part.replace("[", "").replace("]", "")
        words.append(" ".join(parts))
    return "\n".join(words) + "\n"


def run_tool(command: list[str], folder: Path, result: str) -> None:
    """Run a tool in a folder; the file that it should write must be there and new."""
    (folder / result).unlink(missing_ok=True)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not (folder / result).is_file():
        lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing was printed"]
        raise ToolError(
            f"Synthesis must write {result!r}, not end with exit status "
            f"{done.returncode}: {lines[-1]!r}"
        )
