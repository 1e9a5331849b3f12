"""Miter of a design and a mutant of it: what the mutant reaches stands twice, the rest is cut off.

The cut only adds behaviour, so that a miter that never differs is a proof: registers, memories,
macros and multipliers that both copies share may hold anything, unless they are asked for; what
feeds them is compared like an output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from romsim_rtl.mutant_design import REGISTERS, Design, Look, Rule
from romsim_rtl.mutant_gates import Gates

__all__ = ["Cut", "build_miter"]

_BITWISE = ("$and", "$or", "$xor", "$xnor", "$not", "$mux")
_NARROW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a miter is cut off.

    Parameters
    ----------
    depth
        Registers that are crossed: those within so many of the mutant stand twice.
    behind
        Shared registers that are part of it: those within so many of the mutated cell's inputs.
    keeps_control
        Whether those are as well that have a reset, or are of 16 bits or fewer, at any distance.
    multiplies
        Whether multipliers are; else a product is anything, the same for the same factors.
    """

    depth: int
    behind: int
    keeps_control: bool
    multiplies: bool


class _Miter(Gates):
    def __init__(self, design: Design, number: int, cut: Cut) -> None:
        super().__init__(design.first_free)
        self.design, self.cut = design, cut
        self.select = set(design.selects[number])
        self.unselected = {bit for n, bits in design.selects.items() if n != number for bit in bits}
        self.twice: set[Any] = set(self.select)
        self.states: set[Any] = set()  # register bits that stand twice
        self.compared: set[tuple[str, str, int]] = set()
        self.made: dict[tuple[Any, bool], Any] = {}
        self.held: dict[tuple[Any, bool], Any] = {}  # outputs of register bits
        self.done: set[tuple[str, int, bool]] = set()
        self.pending: deque[tuple[str, int, bool]] = deque()  # cell, bit of a register, copy
        self.near: set[Any] = set()  # shared register bits that are part of it

    # --- what the mutant reaches ---------------------------------------------------------------

    def reach(self) -> None:
        """Follow the fault through logic, and through as many registers as the cut says."""
        wave = list(self.select)
        for level in range(self.cut.depth + 1):
            loaded: list[Any] = []
            while wave:
                for name, port, index in self.design.readers.get(wave.pop(), ()):
                    cell = self.design.cells[name]
                    links = cell["connections"]
                    if self.design.is_opaque(name):
                        self.compared.add((name, port, index))
                    elif cell["type"] in REGISTERS:
                        loaded += [links["Q"][index]] if port == "D" else links["Q"]
                    else:
                        for bit in self._outputs(cell, port, index):
                            if bit not in self.twice:
                                self.twice.add(bit)
                                wave.append(bit)
            fresh = [bit for bit in dict.fromkeys(loaded) if bit not in self.states]
            if level == self.cut.depth:
                self.compared |= {self.design.driver[bit] for bit in fresh}
            else:
                self.states |= set(fresh)
                self.twice |= set(fresh)
                wave = fresh

    def look_behind(self) -> None:
        """Find the registers behind the mutated cell, and those behind these."""
        wave = set(self.select)
        for _ in range(2):  # from the cell that makes the fault to the mutated one, or its readers
            reading = {name for bit in wave for name, *_ in self.design.readers.get(bit, ())}
            names = {name for name in reading if not self.design.is_opaque(name)}
            links = [self.design.cells[name] for name in sorted(names)]
            wave = {bit for cell in links for bit in cell["connections"].get("Y", ())}
        bits = {bit for cell in links for bit in self._inputs(cell)}
        for _ in range(self.cut.behind):
            found = self._registers_behind(bits) - self.near
            self.near |= found
            bits = set()
            for bit in found:
                name, _, index = self.design.driver[bit]
                cell = self.design.cells[name]
                others = [one for one in self._inputs(cell) if one not in cell["connections"]["D"]]
                bits |= {cell["connections"]["D"][index], *others}

    @staticmethod
    def _inputs(cell: Any) -> list[Any]:
        ways = cell["port_directions"]
        return [
            b for port, bits in cell["connections"].items() if ways[port] == "input" for b in bits
        ]

    def _registers_behind(self, bits: set[Any]) -> set[Any]:
        """Follow logic back to the register bits that feed it."""
        found, seen, pending = set(), set(bits), list(bits)
        while pending:
            bit = pending.pop()
            name, *_ = self.design.driver.get(bit, ("",))
            if not name or self.design.is_opaque(name):
                continue
            if self.design.cells[name]["type"] in REGISTERS:
                found.add(bit)
                continue
            fresh = set(self._inputs(self.design.cells[name])) - seen
            seen |= fresh
            pending += fresh
        return found

    @staticmethod
    def _outputs(cell: Any, port: str, index: int) -> Sequence[Any]:
        outs: Any = cell["connections"].get("Y")
        if outs is None:
            return [
                bit
                for name, bits in cell["connections"].items()
                if cell["port_directions"][name] == "output"
                for bit in bits
            ]
        is_bit = cell["type"] in _BITWISE and port != "S" and index < len(outs)
        if is_bit and len(cell["connections"][port]) == len(outs):
            return [outs[index]]
        return list(outs)

    # --- the netlist ---------------------------------------------------------------------------

    def bit(self, bit: Any, second: bool) -> Any:
        """Give a bit of the design in one of the copies."""
        if not isinstance(bit, int):
            return "0" if bit in ("x", "z") else bit
        if bit in self.unselected:
            return "0"
        if bit in self.select:
            return "1" if second else "0"
        second = second and bit in self.twice
        key = (bit, second)
        if key not in self.made:
            self.made[key] = self._make(bit, second)
        return self.made[key]

    def _make(self, bit: Any, second: bool) -> Any:
        name, _, index = self.design.driver.get(bit, ("", "", 0))
        if not name or self.design.is_opaque(name):
            return self.free()
        cell = self.design.cells[name]
        if cell["type"] in REGISTERS:
            return self._state(name, index, bit, second)
        if cell["type"] == "$mul" and not self.cut.multiplies:
            return self._product(name, bit, second)
        self.pending.append((name, -1, second))
        return self.fresh()

    def _state(self, name: str, index: int, bit: Any, second: bool) -> Any:
        kept = bit in self.states or bit in self.near
        if not kept and self.cut.keeps_control:
            cell = self.design.cells[name]
            kept = len(cell["connections"]["Q"]) <= _NARROW or "SRST" in cell["connections"]
        if not kept:
            return self.free()
        held = self.fresh()
        self.held[bit, second] = held
        self.pending.append((name, index, second))
        if not second:
            return held
        # in the first cycle the copy stands where the other does
        return self.gate("$_MUX_", A=held, B=self.bit(bit, False), S=self.begun)

    def _product(self, name: str, bit: Any, second: bool) -> Any:
        if not second:
            return self.free()
        links = self.design.cells[name]["connections"]
        key = (name, True)
        if key not in self.made:
            self.made[key] = self.any(
                [
                    self.gate("$_XOR_", A=self.bit(one, False), B=self.bit(one, True))
                    for port in "AB"
                    for one in links[port]
                    if one in self.twice
                ]
            )
        return self.gate("$_MUX_", A=self.bit(bit, False), B=self.free(), S=self.made[key])

    def following(self, name: str, index: int, second: bool) -> Any:
        """Give what a register bit holds after the cycle."""
        cell = self.design.cells[name]
        links = cell["connections"]
        value = self.bit(links["D"][index], second)
        parts = [("EN", "EN_POLARITY", None), ("SRST", "SRST_POLARITY", "SRST_VALUE")]
        if cell["type"] == "$sdffce":  # its enable stands above its reset
            parts.reverse()
        for port, polarity, wanted in parts:
            if port not in links:
                continue
            if wanted is None:
                other = self.bit(links["Q"][index], second)
                ways = (other, value)
            else:
                word = cell["parameters"][wanted]
                digit = word[len(word) - 1 - index]
                ways = (value, "1" if digit == "1" else "0")
            if not self.design.parameter(name, polarity):
                ways = ways[::-1]
            value = self.gate("$_MUX_", A=ways[0], B=ways[1], S=self.bit(links[port][0], second))
        return value

    def emit(self) -> None:
        """Add the logic that has been asked for, until all of it stands there."""
        while self.pending:
            name, index, second = self.pending.popleft()
            if (name, index, second) in self.done:
                continue
            self.done.add((name, index, second))
            if index >= 0:
                bit = self.design.cells[name]["connections"]["Q"][index]
                self.register(self.following(name, index, second), self.held[bit, second])
                continue
            cell = self.design.cells[name]
            links = {}
            for port, bits in cell["connections"].items():
                if cell["port_directions"][port] == "input":
                    links[port] = [self.bit(bit, second) for bit in bits]
                else:
                    links[port] = [self._output(bit, second) for bit in bits]
            self.cells[f"{'b' if second else 'a'}{len(self.cells)}"] = {
                **cell,
                "connections": links,
            }

    def _output(self, bit: Any, second: bool) -> Any:
        if second and bit not in self.twice:
            return self.fresh()  # this bit of the copy is the other's
        return self.made.setdefault((bit, second), self.fresh())

    # --- what must be equal --------------------------------------------------------------------

    def differences(self, looks: Sequence[Look]) -> list[Callable[[], Any]]:
        """Give for everything that is compared what makes a bit: whether it differs."""
        flags: list[Callable[[], Any]] = []
        for name, port in self.design.ports.items():
            if port["direction"] == "output":
                whens = [look for look in looks if look.port == name]
                bits = [bit for bit in port["bits"] if bit in self.twice]
                flags += [partial(self._output_differs, bit, whens) for bit in bits]
        return flags + [partial(self._input_differs, *one) for one in sorted(self.compared)]

    def _output_differs(self, bit: Any, whens: Sequence[Look]) -> Any:
        flag = self._differ(bit)
        for look in whens:
            bits = self.design.ports[look.when]["bits"]
            bits = bits if look.at is None else [bits[look.at]]
            here = self.any([self.bit(one, False) for one in bits])
            flag = self.gate("$_AND_", A=flag, B=here)
        return flag

    def _input_differs(self, name: str, port: str, index: int) -> Any:
        cell = self.design.cells[name]
        if cell["type"] in REGISTERS:
            ways = [self.following(name, index, second) for second in (False, True)]
            return self.gate("$_XOR_", A=ways[0], B=ways[1])
        flag = self._differ(cell["connections"][port][index])
        enable = self.design.enable(name, port, index)
        if enable is not None:  # which is compared itself
            flag = self.gate("$_AND_", A=flag, B=self.bit(enable, False))
        return flag

    def _differ(self, bit: Any) -> Any:
        return self.gate("$_XOR_", A=self.bit(bit, False), B=self.bit(bit, True))

    def breaches(self, rules: Sequence[Rule]) -> list[Any]:
        """Give a bit for every rule: whether it is broken."""
        flags = []
        for rule in rules:
            (when,) = self.design.ports[rule.when]["bits"]
            word = self.design.ports[rule.port]["bits"][rule.at : rule.at + rule.bits]
            bits = [self.bit(one, False) for one in word]
            outside = self.exceeds(bits, rule.most)
            if rule.least:
                inverted = [self.gate("$_NOT_", A=bit) for bit in bits]
                is_less = self.exceeds(inverted, (1 << len(bits)) - 1 - rule.least)
                outside = self.any([outside, is_less])
            flags.append(self.gate("$_AND_", A=self.bit(when, False), B=outside))
        return flags

    def build(
        self, rules: Sequence[Rule], looks: Sequence[Look], part: int, n_parts: int
    ) -> dict[str, Any]:
        """Build the module."""
        self.begun, ever = self.fresh(), self.fresh()
        if "rst" in self.design.ports:
            (rst,) = self.design.ports["rst"]["bits"]
            self.made[rst, False] = self.gate("$_OR_", A=self.free(), B=self.begun)
        self.reach()
        self.look_behind()
        flags = self.differences(looks)
        size = -(-len(flags) // n_parts)
        differ = self.any([make() for make in flags[part * size : (part + 1) * size]])
        broken = self.any([ever, *self.breaches(rules)])
        self.emit()
        begun = self.gate("$_NOT_", A=self.begun)
        self.register("0", self.begun)
        self.register(self.gate("$_AND_", A=broken, B=begun), ever)
        counts = self.gate("$_AND_", A=begun, B=self.gate("$_NOT_", A=broken))
        result = self.gate("$_AND_", A=differ, B=counts)
        ports: dict[str, Any] = {"differ": {"direction": "output", "bits": [result]}}
        ports |= {name: {"direction": "input", "bits": b} for name, b in self.inputs.items()}
        names = {
            name: {"hide_name": 0, "bits": port["bits"], "attributes": {}}
            for name, port in ports.items()
        }
        for name, bit, first in (("begun", self.begun, "1"), ("ever", ever, "0")):
            names[name] = {"hide_name": 0, "bits": [bit], "attributes": {"init": first}}
        return {"attributes": {}, "ports": ports, "cells": self.cells, "netnames": names}


def build_miter(
    design: Design,
    number: int,
    cut: Cut,
    rules: Sequence[Rule],
    looks: Sequence[Look],
    *,
    part: int = 0,
    n_parts: int = 1,
) -> tuple[dict[str, Any], int]:
    """Build the miter of a mutant.

    Parameters
    ----------
    design
        The flat design.
    number
        Of the mutant.
    cut
        Where the miter ends.
    rules
        What every user of the design keeps to; after a breach nothing counts.
    looks
        Where they look at outputs.
    part, n_parts
        Which of so many parts of what is compared; nothing differs if nothing does in any part.

    Returns
    -------
    tuple
        A module in yosys' JSON, whose output ``differ`` is 1 in a cycle after the reset in which
        something differs; and how many bits of state stand twice.
    """
    miter = _Miter(design, number, cut)
    return miter.build(rules, looks, part, n_parts), len(miter.states)
