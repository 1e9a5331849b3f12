"""Mapped logic: gates of a cell library, read from BLIF, evaluated at all addresses, as Verilog."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from romsim_rtl.cell_library import CellLibrary, Words
from romsim_rtl.toolchain import ToolError

__all__ = ["ONE", "ZERO", "Gate", "LogicNetlist", "read_mapped_blif"]

ZERO, ONE = "ZERO", "ONE"
"""Signals that are constant."""

_MAX_EXPRESSION = 120  # characters of a gate's function that may stand within another


@dataclass(frozen=True, slots=True)
class Gate:
    """One cell: its name, its input signals in alphabetical order of the pins, its output."""

    cell: str
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class LogicNetlist:
    """Gates between address bits ``a0 …`` and data bits.

    Parameters
    ----------
    n_address_bits
        Inputs are ``a0`` to ``a<n-1>``.
    gates
        In topological order.
    outputs
        The signal of each data bit, bit 0 first; ``ZERO`` and ``ONE`` are constants.
    """

    n_address_bits: int
    gates: tuple[Gate, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, n_address_bits: int, gates: Sequence[Gate], outputs: Sequence[str]) -> LogicNetlist:
        """Return the netlist without gates that no output needs."""
        needed = set(outputs)
        kept: list[Gate] = []
        for gate in reversed(gates):
            if gate.output in needed:
                kept.append(gate)
                needed.update(gate.inputs)
        return cls(n_address_bits, tuple(reversed(kept)), tuple(outputs))

    def area_um2(self, library: CellLibrary) -> float:
        """Return the area of all cells in um2."""
        counts = Counter(gate.cell for gate in self.gates)
        return sum(n * library.cells[cell].area_um2 for cell, n in sorted(counts.items()))

    def cell_counts(self) -> dict[str, int]:
        """Return how many there are of each cell, by name."""
        return dict(sorted(Counter(gate.cell for gate in self.gates).items()))

    def levels(self) -> int:
        """Return the number of gates on the longest path."""
        level: dict[str, int] = {}
        for gate in self.gates:
            level[gate.output] = 1 + max((level.get(s, 0) for s in gate.inputs), default=0)
        return max((level.get(s, 0) for s in self.outputs), default=0)

    def max_fanout(self) -> int:
        """Return the largest number of pins that one signal drives."""
        counts = Counter(s for gate in self.gates for s in gate.inputs)
        return max(counts.values(), default=0)

    def contents(self, library: CellLibrary, rows: int) -> NDArray[np.uint8]:
        """Return the words at addresses 0 to ``rows - 1``, by evaluating every gate.

        Returns
        -------
        uint8 [rows, n_outputs]
            Bits, 0 or 1.
        """
        size = -(-max(rows, 1) // 64) * 64
        address = np.arange(size, dtype=np.int64)
        values: dict[str, Words] = {
            f"a{bit}": _pack((address >> bit) & 1) for bit in range(self.n_address_bits)
        }
        values[ZERO] = np.zeros(size // 64, dtype=np.uint64)
        values[ONE] = ~values[ZERO]
        for gate in self.gates:
            inputs = [values[signal] for signal in gate.inputs]
            values[gate.output] = library.cells[gate.cell].evaluate(inputs)
        if not self.outputs:
            return np.zeros((rows, 0), dtype=np.uint8)
        words = np.stack([values[signal] for signal in self.outputs])
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        return np.ascontiguousarray(bits[:, :rows].T)

    def to_verilog(self, module: str, library: CellLibrary) -> str:
        """Return the logic as one Verilog module that any simulator reads without the cells.

        Its word ``d`` is that of address ``a`` while ``on`` is high, else 0. The gates stand in
        order in one function, so that a simulator evaluates those of the banks that are read; a
        gate that drives one pin stands where it is used.
        """
        names = {f"a{bit}": f"i[{bit}]" for bit in range(self.n_address_bits)}
        names |= {ZERO: "1'b0", ONE: "1'b1"}
        pins = Counter(s for gate in self.gates for s in gate.inputs) + Counter(self.outputs)
        statements, held = [], []
        for index, gate in enumerate(self.gates):
            value = library.cells[gate.cell].verilog([names[s] for s in gate.inputs])
            if pins[gate.output] == 1 and len(value) <= _MAX_EXPRESSION:
                names[gate.output] = f"({value})"
                continue
            names[gate.output] = f"n{index}"
            held.append(f"    reg n{index};")
            statements.append(f"      n{index} = {value};")
        statements += [f"      word[{i}] = {names[s]};" for i, s in enumerate(self.outputs)]
        width = len(self.outputs)
        lines = [
            f"module {module} (",
            f"  input wire [{self.n_address_bits - 1}:0] a,",
            "  input wire on,",
            f"  output reg [{width - 1}:0] d",
            ");",
            f"  function automatic [{width - 1}:0] word(input [{self.n_address_bits - 1}:0] i);",
            "    /*verilator no_inline_task*/",  # else Verilator writes it once for each use
            *held,
            "    begin",
            *statements,
            "    end",
            "  endfunction",
            "  always @* begin",
            f"    d = {width}'d0;",
            "    if (on) d = word(a);",
            "  end",
            "endmodule",
            "",
        ]
        return "\n".join(lines)


def _pack(bits: NDArray[np.int64]) -> Words:
    return np.packbits(bits.astype(np.uint8), bitorder="little").view(np.uint64)


def read_mapped_blif(
    text: str, library: CellLibrary, n_address_bits: int, n_outputs: int
) -> LogicNetlist:
    """Read what ABC wrote: ``.gate`` lines, and ``.names`` of one input for what is the same.

    Raises
    ------
    ToolError
        If the text is no mapped network of these cells with outputs ``d0 …``.
    """
    gates: list[Gate] = []
    same: dict[str, str] = {}
    lines = [*text.replace("\\\n", "").splitlines(), ""]
    for line, following in itertools.pairwise(lines):
        words = line.split()
        if not words or words[0] not in (".gate", ".names"):
            continue
        if words[0] == ".names":
            cover = following.split() if not following.startswith(".") else []
            if len(words) == 3 and cover == ["1", "1"]:
                same[words[2]] = words[1]
            elif len(words) == 2 and cover in ([], ["1"]):
                same[words[1]] = ONE if cover else ZERO
            else:
                raise ToolError(f"ABC must write mapped gates, not {line!r}; the run failed")
            continue
        pins = dict(word.split("=", 1) for word in words[2:])
        if words[1] in (ZERO, ONE):
            same[pins["Y"]] = words[1]
            continue
        cell = library.cells.get(words[1])
        if cell is None or set(pins) != {*cell.inputs, "Y"}:
            raise ToolError(f"ABC must use cells of {library.name!r}, not {line!r}")
        gates.append(Gate(cell.name, tuple(pins[p] for p in cell.inputs), pins["Y"]))

    def origin(signal: str) -> str:
        while signal in same:
            signal = same[signal]
        return signal

    known = {f"a{bit}" for bit in range(n_address_bits)} | {ZERO, ONE}
    driven = known | {gate.output for gate in gates}
    outputs = [origin(f"d{bit}") for bit in range(n_outputs)]
    gates = [Gate(g.cell, tuple(map(origin, g.inputs)), g.output) for g in gates]
    for signal in [*outputs, *(s for g in gates for s in g.inputs)]:
        if signal not in driven:
            raise ToolError(f"ABC must drive every signal, but {signal!r} has no driver")
    return LogicNetlist.of(n_address_bits, _sorted(gates, known), outputs)


def _sorted(gates: Sequence[Gate], known: set[str]) -> list[Gate]:
    """Return gates in topological order."""
    driver = {gate.output: gate for gate in gates}
    done = set(known)
    result: list[Gate] = []
    for gate in gates:
        stack = [gate]
        while stack:
            top = stack[-1]
            if top.output in done:
                stack.pop()
                continue
            missing = [driver[s] for s in top.inputs if s not in done]
            if missing:
                stack += missing
                continue
            done.add(top.output)
            result.append(top)
            stack.pop()
    return result
