"""The longest path of mapped logic in FO4, by logical effort, with buffers for large fan-outs.

A gate with the drive of a unit inverter that loads ``h`` input pins of unit inverters takes
``(h + p) / 5`` FO4, where ``p`` is its parasitic delay; each of its own pins loads as much as its
logical effort. A signal on which more than four unit loads hang is taken to have a tree of buffers,
a factor of four for each FO4. All cells are taken to have unit drive: sizing is not modelled.

Source
------
Sutherland, Sproull and Harris, *Logical Effort* (1999): NAND (n + 2) / 3, NOR (2 n + 1) / 3, XOR of
two inputs 4, parasitic delays n. For compound gates 1 + n / 4 lies between the efforts of their
inputs. A gate that does not invert is its inverse and an inverter.
"""

from __future__ import annotations

import math
from functools import lru_cache

from romsim_rtl.cell_library import Cell, CellLibrary
from romsim_rtl.logic_netlist import LogicNetlist

__all__ = [
    "STAGE_LOAD",
    "buffer_delay",
    "gate_delay",
    "logical_effort",
    "path_depth_fo4",
    "timed_genlib",
]

_FO4 = 5.0  # an inverter that drives four: h = 4, p = 1
STAGE_LOAD = 4.0
"""Unit loads that a gate drives itself."""

_MAPPED_LOAD = 2.0  # unit loads of a gate, as ABC is told while it maps


@lru_cache(maxsize=1024)
def _effort(cell: Cell) -> tuple[float, float, bool]:
    """Return logical effort, parasitic delay, and whether an inverter follows."""
    n = len(cell.inputs)
    last = (1 << n) - 1
    at_zeros, at_ones = cell.truth & 1, cell.truth >> last & 1
    if at_zeros == at_ones:  # neither rises nor falls with all of its inputs: XOR and the like
        return float(n * n), float(n * n), False
    is_inverting = at_zeros == 1
    truth = cell.truth if is_inverting else cell.truth ^ ((1 << (last + 1)) - 1)
    n_ones = truth.bit_count()
    if n == 1:
        effort = 1.0
    elif n_ones == last:  # NAND
        effort = (n + 2) / 3
    elif n_ones == 1:  # NOR
        effort = (2 * n + 1) / 3
    else:
        effort = 1 + n / 4
    return effort, float(n), not is_inverting


def logical_effort(cell: Cell) -> float:
    """Return the unit loads of one of a cell's pins."""
    return _effort(cell)[0]


def gate_delay(cell: Cell, load: float) -> float:
    """Return the delay of a cell that drives ``load`` unit loads, buffers apart, in FO4."""
    _, parasitic, has_inverter = _effort(cell)
    delay = (min(load, STAGE_LOAD) + parasitic) / _FO4
    if has_inverter:  # the gate proper drives one unit inverter, which has p = 1
        delay += 2.0 / _FO4
    return delay


def timed_genlib(library: CellLibrary) -> str:
    """Return a library in ABC's genlib with the delay of every cell at two unit loads, in FO4."""
    lines = []
    for line in library.genlib().splitlines():
        head, has_pins, _ = line.partition("PIN *")
        if has_pins:
            cell = library.cells[line.split()[1]]
            delay = gate_delay(cell, _MAPPED_LOAD)
            line = f"{head}PIN * UNKNOWN {logical_effort(cell):.4f} 999 {delay:.4f} 0 {delay:.4f} 0"
        lines.append(line)
    return "\n".join(lines) + "\n"


def path_depth_fo4(netlist: LogicNetlist, library: CellLibrary) -> float:
    """Return the delay from the address to the slowest data bit, in FO4; 0 without gates.

    Data bits and the address's drivers are taken to see one unit load for each pin.
    """
    load: dict[str, float] = dict.fromkeys(netlist.outputs, 1.0)
    for gate in netlist.gates:
        effort = logical_effort(library.cells[gate.cell])
        for signal in gate.inputs:
            load[signal] = load.get(signal, 0.0) + effort
    ready = {
        f"a{bit}": buffer_delay(load.get(f"a{bit}", 0.0)) for bit in range(netlist.n_address_bits)
    }
    for gate in netlist.gates:
        drives = load.get(gate.output, 0.0)
        start = max((ready.get(signal, 0.0) for signal in gate.inputs), default=0.0)
        delay = gate_delay(library.cells[gate.cell], drives)
        ready[gate.output] = start + delay + buffer_delay(drives)
    return max((ready.get(signal, 0.0) for signal in netlist.outputs), default=0.0)


def buffer_delay(load: float) -> float:
    """Return the delay of the buffers between a gate and more than it drives itself, in FO4."""
    return math.log(load / STAGE_LOAD, 4) if load > STAGE_LOAD else 0.0
