# amaranth: UnusedElaboratable=no
"""Synthesis of modules: what is mapped computes what was written; paths by hand; the cache."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_rtl import synthesis, synthesis_cache
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.memory import Sram, replicate
from romsim_rtl.module_timing import Netlist, time_module
from romsim_rtl.synthesis import MAPPINGS, Memory, map_module, module_waves, rtlil_modules
from romsim_rtl.synthesis_cache import synthesise_modules
from romsim_rtl.toolchain import ToolError

ASAP7 = load_technology("asap7")
CELLS = CellLibrary.of(ASAP7)


class Child(wiring.Component):
    """An accumulator of products with an enable, and a path through."""

    def __init__(self) -> None:
        super().__init__({"a": In(5), "b": In(5), "en": In(1), "total": Out(10), "through": Out(5)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        total = Signal(10, reset_less=True)
        with m.If(self.en):
            m.d.sync += total.eq(total + self.a * self.b)
        m.d.comb += [self.total.eq(total), self.through.eq(~self.a)]
        return m


class Parent(wiring.Component):
    """Two children and an SRAM between them."""

    def __init__(self) -> None:
        super().__init__({"a": In(5), "b": In(5), "en": In(1), "total": Out(10)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        first, second = replicate(m, platform, "child", "child", Child, 2)
        m.submodules.memory = memory = Sram(depth=16, n_lanes=2, lane_bits=5)
        m.d.comb += [
            first.a.eq(self.a),
            first.b.eq(self.b),
            first.en.eq(self.en),
            memory.w_en.eq(1),
            memory.w_addr.eq(first.through),
            memory.w_mask.eq(3),
            memory.w_data.eq(first.total),
            memory.r_en.eq(1),
            memory.r_addr.eq(self.a),
            second.a.eq(memory.r_data[:5]),
            second.b.eq(memory.r_data[5:]),
            second.en.eq(1),
            self.total.eq(second.total),
        ]
        return m


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "rtl"))
    return tmp_path


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_mapped_logic_computes_what_was_written(
    mapping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every gate is evaluated on random inputs and states: the next state is the product's sum."""
    kept: dict[str, Any] = {}
    run = synthesis._run_yosys

    def spy(*arguments: Any) -> dict[str, Any]:
        kept.update(run(*arguments))
        return kept

    monkeypatch.setattr(synthesis, "_run_yosys", spy)
    (module,) = rtlil_modules("child", Child())
    result = map_module(module, ASAP7, {}, mapping=mapping)
    assert result.n_flops == 10
    assert result.cells["ICGx1"] == 1  # ten flip-flops of one enable
    rng = random.Random(1)
    ports = {name: port["bits"] for name, port in kept["ports"].items()}
    flops = [c["connections"] for c in kept["cells"].values() if c["type"] == "DFFHQNx1"]
    gates = [c for c in kept["cells"].values() if c["type"] in CELLS.cells]
    for _ in range(50):
        a, b, held = rng.randrange(32), rng.randrange(32), [rng.randrange(2) for _ in flops]
        values = dict(zip((f["QN"][0] for f in flops), held, strict=True))
        values |= {net: a >> i & 1 for i, net in enumerate(ports["a"])}
        values |= {net: b >> i & 1 for i, net in enumerate(ports["b"])}
        settle(gates, values)
        total = sum(values[net] << i for i, net in enumerate(ports["total"]))
        assert sum(values[net] << i for i, net in enumerate(ports["through"])) == a ^ 31
        # what the flip-flops would give after the clock, inverted, settles to the next total
        values |= {f["QN"][0]: 1 - values[f["D"][0]] for f in flops}
        settle(gates, values)
        after = sum(values[net] << i for i, net in enumerate(ports["total"]))
        assert after == (total + a * b) % 1024


def settle(gates: list[Any], values: dict[int, int]) -> None:
    for gate in gates:
        values.pop(gate["connections"]["Y"][0], None)
    left = list(gates)
    while left:
        waiting = []
        for gate in left:
            cell, pins = CELLS.cells[gate["type"]], gate["connections"]
            bits = [int(n) if isinstance(n, str) else values.get(n) for (n,) in
                    (pins[name] for name in cell.inputs)]  # fmt: skip
            if None in bits:
                waiting.append(gate)
                continue
            words = [np.array([bit], dtype=np.uint64) for bit in bits]
            values[pins["Y"][0]] = int(cell.evaluate(words)[0]) & 1
        assert len(waiting) < len(left)
        left = waiting


def test_modules_inside_and_memories_stay_apart(cache: Path) -> None:
    modules = rtlil_modules("parent", Parent())
    assert [m.name for m in modules] == ["child", "parent"]
    assert [[m.name for m in wave] for wave in module_waves(modules)] == [["child"], ["parent"]]
    alone = [module for module in modules if module.name == "parent"]
    with pytest.raises(
        SpecError, match=r"^Modules must come with every module that they hold, not without child$"
    ):
        module_waves(alone)
    found = synthesise_modules(modules, ASAP7)
    parent, child = found["parent"], found["child"]
    assert parent.children == {"child": 2}
    assert parent.memories == (Memory(kind="sram", words=16, bits=10, count=1),)
    assert parent.cells == {}  # wires alone
    assert child.area_um2(ASAP7.cell_um2) == pytest.approx(
        sum(n * ASAP7.cell_um2[cell] for cell, n in child.cells.items())
    )
    # from the memory through the second child's multiplier; from its own registers only in it
    flop, sram, rom = parent.delays.inner
    assert sram == pytest.approx(max(child.delays.inputs["a"], child.delays.inputs["b"]))
    # the first child's total is the memory's input
    assert flop == pytest.approx(child.delays.outputs["total"][0])
    assert rom == -math.inf
    # the path through the first child ends at the memory; four loads there and one more here
    assert parent.delays.inputs["a"] == pytest.approx(
        max(child.delays.inputs["a"], child.delays.arcs["a", "through"]) + math.log(5 / 4, 4)
    )
    assert child.gates.arcs == {("a", "through"): 1.0}


def test_cache_gives_the_same_without_yosys(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = rtlil_modules("parent", Parent())
    seen: list[float] = []
    first = synthesise_modules(modules, ASAP7, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    monkeypatch.setattr(synthesis, "_run_yosys", None)
    assert synthesise_modules(modules, ASAP7) == first
    with pytest.raises(TypeError):  # another mapping is another entry
        synthesise_modules(modules, ASAP7, mapping="speed")
    for path in synthesis_cache.synthesis_folder().iterdir():
        path.write_text(path.read_text()[:-9])
    with pytest.raises(TypeError):  # damaged entries are made anew
        synthesise_modules(modules, ASAP7)


def netlist(cells: dict[str, Any], ports: dict[str, Any]) -> Netlist:
    module = {
        "ports": {n: {"direction": d, "bits": bits} for n, (d, bits) in ports.items()},
        "cells": {n: {"type": t, "connections": pins} for n, (t, pins) in cells.items()},
        "netnames": {"held": {"hide_name": 0, "bits": [4]}, "next": {"hide_name": 0, "bits": [7]}},
    }
    return Netlist(
        module, CELLS, flop="DFFHQNx1", gate="ICGx1", memories={"romsim_rom": "rom"}, children={}
    )


CHAIN = {
    "flop": ("DFFHQNx1", {"D": [9], "CLK": [1], "QN": [3]}),
    "rom": ("romsim_rom", {"clk": [1], "r_en": ["1"], "r_addr": [5], "r_data": [8]}),
    "i0": ("INVx1", {"A": [3], "Y": [4]}),
    "n0": ("NAND2xp5", {"A": [4], "B": [8], "Y": [5]}),
    "x0": ("XOR2xp5", {"A": [5], "B": [2], "Y": [9]}),
}
PORTS = {"clk": ("input", [1]), "a": ("input", [2]), "z": ("output", [5])}


def test_paths_are_those_of_logical_effort() -> None:
    timing = time_module(netlist(CHAIN, PORTS))
    nand = (min(4.0 + 1.0 + 1.0, 4.0) + 2) / 5 + math.log(6 / 4, 4)  # XOR, the ROM and the port
    inverter = (4 / 3 + 1) / 5
    xor = (1 + 4) / 5
    assert timing.inner == pytest.approx((inverter + nand + xor, -math.inf, nand + xor))
    assert timing.worst[0] == ("held", "held")  # the flip-flop by what it holds, inverted
    assert timing.outputs["z"] == pytest.approx((inverter + nand, -math.inf, nand))
    assert timing.inputs == {"a": pytest.approx(xor)}
    assert timing.arcs == {}
    assert timing.loads == {"a": 4.0}
    gates = time_module(netlist(CHAIN, PORTS), in_gates=True)
    assert gates.inner == (3.0, -math.inf, 2.0)


def test_a_constant_is_a_wire_to_a_rail() -> None:
    """A product's bit that is always 0 is ABC's constant, which no path begins at."""
    with_zero = CHAIN | {"z": ("ZERO", {"Y": [6]}), "f": ("DFFHQNx1", {"D": [6], "QN": [12]})}
    before, after = (time_module(netlist(cells, PORTS)) for cells in (CHAIN, with_zero))
    assert after.inner == before.inner


def test_buffers_hang_below_signals_of_many_pins() -> None:
    def with_readers(count: int) -> int:
        flops = {
            f"f{i}": ("DFFHQNx1", {"D": [4], "CLK": [1], "QN": [100 + i]}) for i in range(count)
        }
        return netlist(flops, {"clk": ("input", [1]), "a": ("input", [4])}).n_buffers()

    assert [with_readers(n) for n in (16, 17, 256, 257)] == [0, 2, 16, 17 + 2]


def test_a_loop_and_a_strange_cell_are_refused() -> None:
    loop = {"i0": ("INVx1", {"A": [3], "Y": [4]}), "i1": ("INVx1", {"A": [4], "Y": [3]})}
    with pytest.raises(ToolError, match=r"^Gates must form no loop, but 2 of 2 do; this is a"):
        time_module(netlist(loop, {}))
    with pytest.raises(ToolError, match=r"memories and modules alone, not 'FAx1' \('odd'\)"):
        netlist({"odd": ("FAx1", {"A": [3]})}, {})


def test_what_cannot_be_synthesised_is_refused() -> None:
    modules = rtlil_modules("child", Child())
    with pytest.raises(SpecError, match=r"^Mapping must be one of area, speed, not 'power'$"):
        synthesise_modules(modules, ASAP7, mapping="power")
    with pytest.raises(SpecError, match=r"^Jobs must be 1 or more, not 0$"):
        synthesise_modules(modules, ASAP7, jobs=0)
