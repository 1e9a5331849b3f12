"""SAT proof that a mutant changes nothing: a miter of what the mutant reaches, built and solved.

Run as a program, ``yosys_equivalence.py plan.json``, by :mod:`romsim_rtl.equivalence`. Only the
cells that the mutant reaches stand twice; all others, and memories, macros and multipliers, are
shared by both copies, and the inputs of shared cells that a mutant reaches are compared like
outputs. First registers are shared, too; then they stand twice. Both
copies begin in the same state, any state, with a cycle of reset; but bits of registers that only
ever load a constant hold it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

__all__ = ["prove"]

_CONTROL = "mutant"
_SMALL_MEMORY = 1 << 14  # bits; larger ones are shared by the copies
_MACRO_OUTPUTS = ("r_data", "value", "gated")
_REGISTERS = ("$dff", "$dffe", "$sdff", "$sdffe", "$sdffce")


class _Miter:
    """The netlist of one module, with copies of what the control input reaches."""

    def __init__(self, module: dict[str, Any], *, cross: bool) -> None:
        self.cross = cross
        self.ports: dict[str, Any] = module["ports"]
        self.cells: dict[str, Any] = module["cells"]
        for cell in self.cells.values():  # of a macro yosys knows the ports' names alone
            cell.setdefault(
                "port_directions",
                {p: "output" if p in _MACRO_OUTPUTS else "input" for p in cell["connections"]},
            )
        self.next_bit = 2 + max(
            (bit for bits in self._all_bits(module) for bit in bits if isinstance(bit, int)),
            default=1,
        )
        self.new_cells: dict[str, Any] = {}

    @staticmethod
    def _all_bits(module: dict[str, Any]) -> Any:
        yield from (net["bits"] for net in module["netnames"].values())
        yield from (port["bits"] for port in module["ports"].values())
        for cell in module["cells"].values():
            yield from cell["connections"].values()

    def fresh(self, count: int = 1) -> list[Any]:
        """Make new bits."""
        self.next_bit += count
        return list(range(self.next_bit - count, self.next_bit))

    def is_shared(self, name: str) -> bool:
        """Whether a cell never stands twice: memories, macros, and what is not to be crossed."""
        kind = self.cells[name]["type"]
        if kind in _REGISTERS:
            return not self.cross
        # two multipliers are beyond a SAT solver: there is one, and its operands are compared
        return (
            kind == "$mul"
            or not kind.startswith("$")
            or kind.startswith("$mem")
            or kind.endswith("ff")
        )

    def reached(self) -> set[str]:
        """Cells that the control input reaches and that stand twice."""
        readers: dict[Any, set[str]] = defaultdict(set)
        for name, cell in self.cells.items():
            for port, bits in cell["connections"].items():
                if cell["port_directions"][port] == "input":
                    for bit in bits:
                        readers[bit].add(name)
        found: set[str] = set()
        pending: list[Any] = list(self.ports[_CONTROL]["bits"])
        while pending:
            for name in readers.get(pending.pop(), ()):
                if name in found or self.is_shared(name):
                    continue
                found.add(name)
                cell = self.cells[name]
                for port, bits in cell["connections"].items():
                    if cell["port_directions"][port] == "output":
                        pending += bits
        return found

    def build(self, when: dict[str, str]) -> tuple[dict[str, Any], bool]:
        """Give the module whose output ``differ`` tells the copies apart, and if it has state."""
        reached = self.reached()
        second: dict[Any, Any] = {self.ports[_CONTROL]["bits"][0]: "1"}
        for name in reached:
            cell = self.cells[name]
            for port, bits in cell["connections"].items():
                if cell["port_directions"][port] == "output":
                    for bit in bits:
                        if isinstance(bit, int):
                            second[bit] = self.fresh()[0]
        first = {self.ports[_CONTROL]["bits"][0]: "0"}
        begun, has_state = self.fresh()[0], False
        for name, cell in self.cells.items():
            self.new_cells[f"a{name}"] = self._rewired(cell, first, {})
            if name not in reached:
                continue
            if cell["type"] not in _REGISTERS:
                self.new_cells[f"b{name}"] = self._rewired(cell, second, second)
                continue
            has_state = True
            # in the first cycle the copy stands where the other does
            held = self.fresh(len(cell["connections"]["Q"]))
            copy = self._rewired(cell, second, {})
            copy["connections"]["Q"] = held
            self.new_cells[f"b{name}"] = copy
            wanted = [second.get(bit, bit) for bit in cell["connections"]["Q"]]
            self._cell("$mux", A=held, B=cell["connections"]["Q"], S=[begun], Y=wanted)
        pairs = self._compared(reached, second, when)
        differ = self._any(pairs)
        self.new_cells["begun_register"] = {
            "hide_name": 0,
            "type": "$ff",
            "parameters": {"WIDTH": format(1, "032b")},
            "attributes": {},
            "port_directions": {"D": "input", "Q": "output"},
            "connections": {"D": ["0"], "Q": [begun]},
        }
        return self._module(differ, begun), has_state

    def _rewired(self, cell: dict[str, Any], inputs: Any, outputs: Any) -> dict[str, Any]:
        connections = {}
        for port, bits in cell["connections"].items():
            table = inputs if cell["port_directions"][port] == "input" else outputs
            connections[port] = [table.get(bit, bit) for bit in bits]
        return {**cell, "connections": connections}

    def _cell(self, kind: str, **connections: list[Any]) -> None:
        parameters = {"WIDTH": format(len(connections["Y"]), "032b")}
        if kind != "$mux":
            parameters = {
                f"{port}_WIDTH": format(len(bits), "032b") for port, bits in connections.items()
            }
            for port in connections.keys() - {"Y"}:
                parameters[f"{port}_SIGNED"] = format(0, "032b")
        self.new_cells[f"miter{len(self.new_cells)}"] = {
            "hide_name": 0,
            "type": kind,
            "parameters": parameters,
            "attributes": {},
            "port_directions": {p: "output" if p == "Y" else "input" for p in connections},
            "connections": connections,
        }

    def _compared(
        self, reached: set[str], second: dict[Any, Any], when: dict[str, str]
    ) -> list[tuple[list[Any], list[Any], list[Any]]]:
        """Give pairs of bits, each with the bits that must be 1 for the pair to count."""
        pairs = []
        for name, port in self.ports.items():
            if port["direction"] == "output" and any(bit in second for bit in port["bits"]):
                condition: list[Any] = []
                if name in when:
                    condition = self.ports[when[name]]["bits"]
                pairs.append((port["bits"], [second.get(b, b) for b in port["bits"]], condition))
        for name, cell in self.cells.items():
            if name in reached or not self.is_shared(name):
                continue
            for port, bits in cell["connections"].items():
                if cell["port_directions"][port] == "input" and any(b in second for b in bits):
                    pairs.append((bits, [second.get(b, b) for b in bits], []))
        first = {self.ports[_CONTROL]["bits"][0]: "0"}
        return [([first.get(x, x) for x in a], b, c) for a, b, c in pairs]

    def _any(self, pairs: list[tuple[list[Any], list[Any], list[Any]]]) -> Any:
        flags: list[Any] = []
        for a, b, condition in pairs:
            (flag,) = self.fresh()
            self._cell("$ne", A=a, B=b, Y=[flag])
            if condition:
                (both,) = self.fresh()
                self._cell("$logic_and", A=condition, B=[flag], Y=[both])
                flag = both
            flags.append(flag)
        (result,) = self.fresh()
        self._cell("$reduce_or", A=flags or ["0"], Y=[result])
        return result

    def _module(self, differ: Any, begun: Any) -> dict[str, Any]:
        ports: dict[str, Any] = {"differ": {"direction": "output", "bits": [differ]}}
        names: dict[str, Any] = {
            "differ": {"hide_name": 0, "bits": [differ], "attributes": {}},
            "begun": {"hide_name": 0, "bits": [begun], "attributes": {"init": "1"}},
        }
        for name, port in self.ports.items():
            if port["direction"] != "input" or name == _CONTROL:
                continue
            bits = port["bits"]
            if name == "rst" and self.cross:
                bits = self.fresh()
                self._cell("$or", A=bits, B=[begun], Y=port["bits"])
            ports[name] = {"direction": "input", "bits": bits}
            names[name] = {"hide_name": 0, "bits": bits, "attributes": {}}
        return {"attributes": {}, "ports": ports, "cells": self.new_cells, "netnames": names}


def prove(plan_file: str) -> None:
    """Try to prove a mutant equivalent, and write how it was done, or nothing.

    Parameters
    ----------
    plan_file
        JSON: ``netlist``, ``top``, ``command`` (the mutant in yosys' words), ``when`` (output ->
        the output that says when it counts), ``steps`` and ``seconds`` (of induction), ``result``.
    """
    plan: dict[str, Any] = json.loads(Path(plan_file).read_text())
    Path(plan["result"]).write_text(_prove(plan))


def _prove(plan: dict[str, Any]) -> str:
    import pyosys.libyosys as ys  # a native library of 100 MB that only this needs

    design = ys.Design()
    log = Path(plan["result"]).with_suffix(".log")
    netlist = Path(plan["result"]).with_suffix(".miter.json")

    def run(command: str) -> str:
        ys.Pass.call(design, f"tee -q -o {log} {command}")
        return log.read_text()

    run(f"read_rtlil {plan['netlist']}")
    run(f"mutate -ctrl {_CONTROL} 1 1 {plan['command']}")
    run("setattr -mod -unset keep_hierarchy *")
    run(f"hierarchy -top {plan['top']}")
    run("flatten")
    run("memory_collect")
    run("opt_clean")
    for memory in _small_memories(run):
        run(f"memory_map {memory}")
    for cleaning in ("opt_expr -fine", "opt_dff -nodffe -nosdff", "opt_clean -purge"):
        run(cleaning)
    run(f"write_json {netlist}")
    module = json.loads(netlist.read_text())["modules"][plan["top"]]
    for cross in (False, True):
        built, has_state = _Miter(module, cross=cross).build(plan["when"])
        netlist.write_text(json.dumps({"creator": "romsim", "modules": {"miter": built}}))
        run("design -reset")
        run(f"read_json {netlist}")
        run("hierarchy -top miter")
        for cleaning in ("opt_expr", "opt_merge", "opt_clean"):
            run(cleaning)
        goal = f"sat -ignore-unknown-cells -prove differ 0 -timeout {plan['seconds']}"
        if not has_state:
            text = run(f"{goal} miter")
            if "SUCCESS!" in text:
                return "combinational"
            continue
        text = run(f"{goal} -tempinduct -maxsteps {plan['steps']} miter")
        if "SUCCESS!" in text:
            return "induction"
    return ""


def _small_memories(run: Any) -> list[str]:
    listed = run("select -list t:$mem_v2").split()
    small = []
    for name in listed:
        text = run(f"dump {name}")
        sizes = {
            word: int(line.split()[-1])
            for line in text.splitlines()
            for word in ("SIZE", "WIDTH")
            if line.strip().startswith(f"parameter \\{word} ")
        }
        if sizes and sizes["SIZE"] * sizes["WIDTH"] <= _SMALL_MEMORY:
            small.append(name)
    return small


if __name__ == "__main__":
    prove(*sys.argv[1:])
