"""A flat design with mutants in it, as a graph of bits, and what its users keep to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CONTROL", "REGISTERS", "Design", "Look", "Rule"]

CONTROL = "mutant"
"""Input that selects a mutant."""

REGISTERS = ("$dff", "$dffe", "$sdff", "$sdffe", "$sdffce")
"""Cells of yosys that are registers."""

# of memories, macros, and unit L's tile
_MACRO_OUTPUTS = ("r_data", "value", "gated", "rows", "clipped", "em_word")
# an input of a memory or macro that is read only where another is 1
_ENABLES = {"r_addr": "r_en", "w_addr": "w_en", "w_mask": "w_en", "w_data": "w_en"} | {
    **{"rom_addr": "rom_en", "em_mine": "em_en", "em_cell": "em_en"},  # the tile's
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a user of the design keeps to: a field is in its range where a port is 1.

    Parameters
    ----------
    when
        Port of one bit.
    port, at, bits
        The field: bits ``at`` to ``at + bits - 1`` of a port.
    most, least
        Its largest and its least value, unsigned.
    """

    when: str
    port: str
    at: int = 0
    bits: int = 1
    most: int = 0
    least: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Where users of the design look at an output: where another, which always counts, is not 0.

    Parameters
    ----------
    port
        The output.
    when
        The other.
    at
        Bit of the other that counts; any of them by default.
    """

    port: str
    when: str
    at: int | None = None


class Design:
    """A flat module as yosys writes it in JSON, with all mutants that are to be looked at."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        self.ports: dict[str, Any] = dict(module["ports"])
        self.cells: dict[str, Any] = dict(module["cells"])
        self.driver: dict[Any, tuple[str, str, int]] = {}
        self.readers: dict[Any, list[tuple[str, str, int]]] = {}
        self.selects: dict[int, list[Any]] = {}  # a bit for each copy of the mutant's module
        top = 1
        for net in module["netnames"].values():
            top = max(top, *(bit for bit in net["bits"] if isinstance(bit, int)), 1)
        control = self.ports.pop(CONTROL)["bits"]
        for name, cell in list(self.cells.items()):
            links = cell["connections"]
            if cell["type"] == "$eq" and links["A"] == control:
                number = int("".join(reversed(links["B"])), 2)
                self.selects.setdefault(number, []).append(links["Y"][0])
                del self.cells[name]
                continue
            ways = {p: p.partition("__")[0] in _MACRO_OUTPUTS for p in links}
            cell.setdefault(
                "port_directions", {p: "output" if out else "input" for p, out in ways.items()}
            )
            for port, bits in links.items():
                top = max(top, *(bit for bit in bits if isinstance(bit, int)), 1)
                for index, bit in enumerate(bits):
                    if cell["port_directions"][port] == "output":
                        self.driver[bit] = (name, port, index)
                    else:
                        self.readers.setdefault(bit, []).append((name, port, index))
        self.first_free = top + 1

    def is_opaque(self, name: str) -> bool:
        """Whether a cell is a memory, a macro, or another thing with a state of its own."""
        kind = self.cells[name]["type"]
        if kind in REGISTERS:
            return False
        return not kind.startswith("$") or kind.startswith("$mem") or kind.endswith("ff")

    def parameter(self, name: str, key: str) -> int:
        """Value of a parameter."""
        return int(self.cells[name]["parameters"][key], 2)

    def enable(self, name: str, port: str, index: int) -> Any:
        """Give the bit without which an input of a memory or macro is not read; None if none."""
        cell = self.cells[name]
        links = cell["connections"]
        if cell["type"] != "$mem_v2":
            return links[_ENABLES[port]][0] if _ENABLES.get(port) in links else None
        if port == "WR_DATA":
            return links["WR_EN"][index]
        if port == "RD_ADDR":
            number = index // self.parameter(name, "ABITS")
            is_clocked = self.parameter(name, "RD_CLK_ENABLE") >> number & 1
            return links["RD_EN"][number] if is_clocked else None
        return None
