"""A module of many equal lanes as cells, from the same module with two lanes and with four.

A lane group of unit V has two million cells. Yosys would need more memory than most machines have;
the cells of each further pair of lanes are those that the second pair has added. What joins
lanes is a tree, so that a delay grows by as much with each doubling of the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from romsim_rtl.module_timing import PortTiming
from romsim_rtl.synthesis import Memory, ModuleSynthesis

__all__ = ["widen"]


def widen(
    name: str,
    few: ModuleSynthesis,
    more: ModuleSynthesis,
    lanes: Sequence[int],
    ports: Iterable[str],
) -> ModuleSynthesis:
    """Return a module of many lanes.

    Parameters
    ----------
    name
        Of the result.
    few, more
        The module with ``lanes[0]`` and with ``lanes[1]`` lanes.
    lanes
        Lanes of the two, and of the result.
    ports
        Ports of the result: ``x__5`` is lane 5 of ``x``.
    """
    steps = (lanes[2] - lanes[1]) / (lanes[1] - lanes[0])
    doublings = math.log2(lanes[2] / lanes[1]) / math.log2(lanes[1] / lanes[0])

    def linear(a: float, b: float) -> int:
        return max(0, round(b + (b - a) * steps))

    kinds = sorted({*few.cells, *more.cells})
    cells = {kind: linear(few.cells.get(kind, 0), more.cells.get(kind, 0)) for kind in kinds}
    memories = tuple(
        Memory(kind=b.kind, words=b.words, bits=linear(a.bits, b.bits), count=b.count)
        for a, b in zip(few.memories, more.memories, strict=True)
    )
    names = {port: _measured(port, lanes[1]) for port in ports}
    return ModuleSynthesis(
        name=name,
        cells={kind: n for kind, n in cells.items() if n},
        memories=memories,
        children={},
        delays=_widen_timing(few.delays, more.delays, lanes, names, doublings, steps),
        gates=_widen_timing(few.gates, more.gates, lanes, names, doublings, steps),
    )


def _measured(port: str, n_lanes: int) -> str:
    """Return the port that stands for one, in a module of ``n_lanes``."""
    head, is_array, lane = port.rpartition("__")
    return f"{head}__{int(lane) % n_lanes}" if is_array and lane.isdigit() else port


def _widen_timing(
    few: PortTiming,
    more: PortTiming,
    lanes: Sequence[int],
    names: Mapping[str, str],
    doublings: float,
    steps: float,
) -> PortTiming:
    def deeper(a: float | None, b: float) -> float:
        if a is None or not math.isfinite(a) or not math.isfinite(b):
            return b
        return b + max(0.0, b - a) * doublings

    def few_name(name: str) -> str:
        return _measured(name, lanes[0])

    outputs = {}
    for port, name in names.items():
        if name in more.outputs:
            before = few.outputs.get(few_name(name), more.outputs[name])
            pairs = zip(before, more.outputs[name], strict=True)
            outputs[port] = tuple(deeper(a, b) for a, b in pairs)
    inputs = {
        port: deeper(few.inputs.get(few_name(name)), more.inputs[name])
        for port, name in names.items()
        if name in more.inputs
    }
    loads = {}
    for port, name in names.items():
        if name in more.loads:
            # a lane's own port stays as it is, one that all lanes read loads more
            load, grows = more.loads[name], port == name
            before_load = few.loads.get(name, load) if grows else load
            loads[port] = max(load, load + (load - before_load) * steps)
    wide: dict[str, list[str]] = {}
    for port, name in names.items():
        wide.setdefault(name, []).append(port)
    arcs = {
        (i, o): deeper(few.arcs.get((few_name(a), few_name(b))), delay)
        for (a, b), delay in more.arcs.items()
        for i in wide.get(a, ())
        for o in wide.get(b, ())
    }
    return PortTiming(
        inner=tuple(deeper(a, b) for a, b in zip(few.inner, more.inner, strict=True)),
        worst=more.worst,
        outputs=outputs,
        inputs=inputs,
        arcs=arcs,
        loads=loads,
    )
