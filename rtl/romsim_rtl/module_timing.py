"""Longest paths of a mapped module, by logical effort, from every start to every end.

A path begins at a flip-flop, at an SRAM's or a ROM's output or at an input port, and ends at a
flip-flop, a memory or an output port. Modules inside are known by their own paths, port by port,
so that a chip is timed without being flattened. Delays are those of
:mod:`romsim_rtl.path_depth`; a second pass counts gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_netlist import ONE, ZERO
from romsim_rtl.path_depth import STAGE_LOAD, buffer_delay, gate_delay, logical_effort
from romsim_rtl.toolchain import ToolError

__all__ = ["BUFFER_PINS", "STARTS", "Netlist", "PortTiming", "time_module"]

STARTS = ("flop", "sram", "rom")
"""Where paths inside a chip begin."""

BUFFER_PINS = 16
"""Pins that one signal or one buffer drives, where buffers' area is counted."""

_NONE = -np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTiming:
    """Longest paths of one module, in FO4 or in gates; -inf where there is none.

    ``inner`` and ``outputs`` have a value for each of `STARTS`.
    """

    inner: tuple[float, ...]
    worst: tuple[tuple[str, str], ...] = ()  # where the longest path from each start runs
    outputs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    inputs: Mapping[str, float] = field(default_factory=dict)  # to a flip-flop or a memory
    arcs: Mapping[tuple[str, str], float] = field(default_factory=dict)  # input to output
    loads: Mapping[str, float] = field(default_factory=dict)  # of inputs, in unit loads


@dataclass(slots=True)
class _Node:
    """A gate, or an output port of a module inside."""

    inputs: Sequence[tuple[int, float]]  # net, delay to the output
    outputs: Sequence[int]
    own: tuple[float, ...] = ()  # from registers inside


class Netlist:
    """A mapped module as yosys writes it in JSON.

    Parameters
    ----------
    module
        Value of ``modules`` in that file.
    library
        Cells.
    flop, gate
        Names of the flip-flop and of the clock gate.
    memories
        Kind (``sram`` or ``rom``) by name of the black box.
    children
        Port timing of the modules inside, by name.

    Raises
    ------
    ToolError
        If it holds a cell that is none of these.
    """

    def __init__(
        self,
        module: Mapping[str, Any],
        library: CellLibrary,
        *,
        flop: str,
        gate: str,
        memories: Mapping[str, str],
        children: Mapping[str, Sequence[PortTiming]],
    ) -> None:
        self.library, self.children = library, children
        self.ports: dict[str, tuple[str, list[int]]] = {
            name: (port["direction"], _nets(port["bits"])) for name, port in module["ports"].items()
        }
        self.names = _names(module, flop)
        self.gates: list[tuple[str, list[int], int]] = []
        self.instances: list[tuple[str, dict[str, list[int]]]] = []
        self.starts: dict[int, int] = {}  # net: place in STARTS
        self.ends: list[int] = []
        self.load: dict[int, float] = {}
        self.n_pins: dict[int, int] = {}
        for name, cell in module["cells"].items():
            pins = {pin: _nets(bits) for pin, bits in cell["connections"].items()}
            kind = cell["type"]
            if kind in library.cells:
                self._gate(kind, pins)
            elif kind == flop:
                self._registered(pins["D"], pins["QN"], 0)
            elif kind in (gate, "romsim_clock_gate"):
                self._registered(pins["ENA"] if kind == gate else pins["en"], [], 0)
            elif kind in memories:
                ends = [net for pin, nets in pins.items() if pin not in ("clk", "r_data")
                        for net in nets]  # fmt: skip
                self._registered(ends, pins["r_data"], STARTS.index(memories[kind]))
            elif kind in (ZERO, ONE):  # a wire to a rail: no path begins there
                continue
            elif kind in children:
                self.instances.append((kind, pins))
            else:
                raise ToolError(
                    f"Synthesis must leave cells of {library.name!r}, memories and modules alone, "
                    f"not {kind!r} ({name!r}); this is a fault of the synthesis, not of the model"
                )
        for direction, nets in self.ports.values():
            if direction == "output":
                for net in nets:
                    self._add_load(net, 1.0)
        for kind, pins in self.instances:
            for pin, nets in pins.items():
                for net in nets:
                    self._add_load(net, min(children[kind][0].loads.get(pin, 0.0), STAGE_LOAD))

    def _add_load(self, net: int, load: float) -> None:
        self.load[net] = self.load.get(net, 0.0) + load
        self.n_pins[net] = self.n_pins.get(net, 0) + 1

    def _gate(self, kind: str, pins: Mapping[str, list[int]]) -> None:
        cell = self.library.cells[kind]
        inputs = [net for name in cell.inputs for net in pins[name]]
        for net in inputs:
            self._add_load(net, logical_effort(cell))
        if pins["Y"]:
            self.gates.append((kind, inputs, pins["Y"][0]))

    def _registered(self, ends: list[int], outputs: list[int], start: int) -> None:
        for net in ends:
            self._add_load(net, 1.0)
        self.ends += ends
        for net in outputs:
            self.starts[net] = start

    def n_buffers(self) -> int:
        """Return the buffers in trees of 16 below signals that more than 16 pins hang on."""
        total = 0
        for count in self.n_pins.values():
            while count > BUFFER_PINS:
                count = -(-count // BUFFER_PINS)
                total += count
        return total


def _nets(bits: Sequence[int | str]) -> list[int]:
    return [bit for bit in bits if isinstance(bit, int)]


def _names(module: Mapping[str, Any], flop: str) -> dict[int, str]:
    """Name nets as the design does, where it does; a flip-flop's pins as what it holds."""
    names: dict[int, str] = {}
    for name, net in module["netnames"].items():
        for index, bit in enumerate(net["bits"]):
            if isinstance(bit, int) and not net["hide_name"]:
                names.setdefault(bit, f"{name}[{index}]" if len(net["bits"]) > 1 else name)
    inverted = {
        cell["connections"]["A"][0]: cell["connections"]["Y"][0]
        for cell in module["cells"].values()
        if set(cell["connections"]) == {"A", "Y"}
    }
    for cell in module["cells"].values():
        if cell["type"] == flop:
            held = cell["connections"]["QN"][0]
            name = names.get(held) or names.get(inverted.get(held, -1), "")
            names.setdefault(held, name)
            names.setdefault(cell["connections"]["D"][0], name)
    return names


def time_module(netlist: Netlist, *, in_gates: bool = False) -> PortTiming:
    """Return the longest paths of a module.

    Parameters
    ----------
    in_gates
        Count gates instead of adding up delays.

    Raises
    ------
    ToolError
        If gates form a loop.
    """
    inputs = [n for n, (d, _) in netlist.ports.items() if d == "input" and n != "clk"]
    column = {name: len(STARTS) + index for index, name in enumerate(inputs)}
    width = len(STARTS) + len(inputs)
    nets = {n for _, ns in netlist.ports.values() for n in ns}
    nets |= {n for _, pins in netlist.instances for ns in pins.values() for n in ns}
    nets |= {out for _, _, out in netlist.gates} | set(netlist.load) | set(netlist.starts)
    place = {net: index for index, net in enumerate(nets)}
    ready: NDArray[np.float64] = np.full((len(nets), width), _NONE)

    def buffers(net: int) -> float:
        return 0.0 if in_gates else buffer_delay(netlist.load.get(net, 0.0))

    for net, start in netlist.starts.items():
        ready[place[net], start] = buffers(net)
    for name in inputs:
        for net in netlist.ports[name][1]:
            ready[place[net], column[name]] = buffers(net)
    nodes = _nodes(netlist, in_gates)
    origin: dict[int, list[int]] = {}  # for each start, the input through which it is longest
    for node in _sorted(nodes):
        row = np.full(width, _NONE)
        through: list[int] = []
        if node.inputs:
            rows = ready[[place[net] for net, _ in node.inputs]]
            rows += np.array([[delay] for _, delay in node.inputs])
            row = rows.max(axis=0)
            through = [node.inputs[i][0] for i in rows[:, : len(STARTS)].argmax(axis=0)]
        for start, own in enumerate(node.own):
            if own > row[start]:
                row[start], through = own, []
        for net in node.outputs:
            ready[place[net]] = row + buffers(net)
            origin[net] = through
    return _summary(netlist, inputs, in_gates, ready, place, origin)


def _summary(
    netlist: Netlist,
    inputs: list[str],
    in_gates: bool,
    ready: NDArray[np.float64],
    place: Mapping[int, int],
    origin: Mapping[int, Sequence[int]],
) -> PortTiming:
    n = len(STARTS)
    final = np.full(ready.shape[1], _NONE)
    last = [-1] * n
    which = int(in_gates)
    ends = [(net, 0.0) for net in netlist.ends]
    for kind, pins in netlist.instances:
        timing = netlist.children[kind][which]
        ends += [(net, d) for pin, d in timing.inputs.items() for net in pins.get(pin, ())]
    for net, delay in ends:
        row = ready[place[net]] + delay
        for start in range(n):
            if row[start] > final[start]:
                last[start] = net
        np.maximum(final, row, out=final)
    outputs: dict[str, tuple[float, ...]] = {}
    arcs: dict[tuple[str, str], float] = {}
    for name, (direction, nets) in netlist.ports.items():
        if direction != "output" or not nets:
            continue
        row = ready[[place[net] for net in nets]].max(axis=0)
        outputs[name] = tuple(float(v) for v in row[:n])
        arcs |= {(i, name): float(v) for i, v in zip(inputs, row[n:], strict=True) if v > _NONE}
    worst = []
    for start, end in enumerate(last):
        first = end
        while origin.get(first):
            first = origin[first][start]
        worst.append((netlist.names.get(first, ""), netlist.names.get(end, "")))
    return PortTiming(
        inner=tuple(float(v) for v in final[:n]),
        worst=tuple(worst),
        outputs=outputs,
        inputs={i: float(v) for i, v in zip(inputs, final[n:], strict=True) if v > _NONE},
        arcs=arcs,
        loads={
            i: max((netlist.load.get(net, 0.0) for net in netlist.ports[i][1]), default=0.0)
            for i in inputs
        },
    )


def _nodes(netlist: Netlist, in_gates: bool) -> list[_Node]:
    nodes = []
    for kind, inputs, output in netlist.gates:
        load = netlist.load.get(output, 0.0)
        delay = 1.0 if in_gates else gate_delay(netlist.library.cells[kind], load)
        nodes.append(_Node([(net, delay) for net in inputs], [output]))
    for kind, pins in netlist.instances:
        timing = netlist.children[kind][int(in_gates)]
        for name, own in timing.outputs.items():
            through = [(net, delay) for (i, o), delay in timing.arcs.items() if o == name
                       for net in pins.get(i, ())]  # fmt: skip
            if pins.get(name):
                nodes.append(_Node(through, pins[name], own))
    return nodes


def _sorted(nodes: list[_Node]) -> list[_Node]:
    """Return nodes so that what drives another comes before it."""
    driver = {net: index for index, node in enumerate(nodes) for net in node.outputs}
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for index, node in enumerate(nodes):
        for before in {driver[net] for net, _ in node.inputs if net in driver}:
            readers[before].append(index)
            missing[index] += 1
    order = [index for index, count in enumerate(missing) if count == 0]
    for index in order:  # grows while it is read
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                order.append(reader)
    if len(order) < len(nodes):
        raise ToolError(
            f"Gates must form no loop, but {len(nodes) - len(order)} of {len(nodes)} do; this is a "
            f"fault of the synthesis, not of the model"
        )
    return [nodes[index] for index in order]
