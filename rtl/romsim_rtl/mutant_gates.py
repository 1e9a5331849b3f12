"""Gates and registers of a module that is written down bit by bit, as yosys reads it in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Gates"]


class Gates:
    """A module under construction.

    Parameters
    ----------
    first_free
        Number of the first bit that is not taken.
    """

    def __init__(self, first_free: int) -> None:
        self.next_bit = first_free
        self.cells: dict[str, Any] = {}
        self.inputs: dict[str, Any] = {}

    def fresh(self) -> int:
        """Make a new bit."""
        self.next_bit += 1
        return self.next_bit - 1

    def free(self) -> int:
        """Make a bit that may be anything in every cycle."""
        bit = self.fresh()
        self.inputs[f"free{bit}"] = [bit]
        return bit

    def gate(self, kind: str, **links: Any) -> Any:
        """Add a gate; return its output."""
        out = self.fresh()
        self.cells[f"g{len(self.cells)}"] = {
            "hide_name": 0,
            "type": kind,
            "parameters": {},
            "attributes": {},
            "port_directions": dict.fromkeys(links, "input") | {"Y": "output"},
            "connections": {port: [bit] for port, bit in links.items()} | {"Y": [out]},
        }
        return out

    def register(self, following: Any, held: Any) -> None:
        """Add a register bit."""
        self.cells[f"r{len(self.cells)}"] = {
            "hide_name": 0,
            "type": "$_FF_",
            "parameters": {},
            "attributes": {},
            "port_directions": {"D": "input", "Q": "output"},
            "connections": {"D": [following], "Q": [held]},
        }

    def any(self, bits: Sequence[Any]) -> Any:
        """OR of bits."""
        rest = list(bits) or ["0"]
        while len(rest) > 1:
            pairs = zip(rest[::2], rest[1::2], strict=False)
            rest = [self.gate("$_OR_", A=a, B=b) for a, b in pairs] + rest[len(rest) & ~1 :]
        return rest[0]

    def exceeds(self, bits: Sequence[Any], most: int) -> Any:
        """Whether a word, the lowest bit first, is more than a constant."""
        is_more: Any = "0"
        for index, bit in enumerate(bits):  # from the lowest on
            kind = "$_AND_" if most >> index & 1 else "$_OR_"
            is_more = self.gate(kind, A=bit, B=is_more)
        return is_more
