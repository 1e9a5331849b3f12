"""Standard cells as data: functions parsed, evaluated in parallel, written for ABC and Verilog."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.technology import Technology
from romsim_models.errors import SpecError

__all__ = ["Cell", "CellLibrary", "Words", "parse_function"]

Words = NDArray[np.uint64]
"""Values of one signal, 64 cases a word."""

_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|[!&|^()])")
_OPERATORS = ("|", "^", "&")  # weakest first
_MAX_INPUTS = 6

Tree = Any
"""A function: a name, ``("!", tree)`` or ``(operator, tree, tree)``."""


def parse_function(text: str, what: str) -> Tree:
    """Return the tree of a function in Liberty's notation (``!``, ``&``, ``^``, ``|``).

    Parameters
    ----------
    what
        Whose function it is, for messages.

    Raises
    ------
    SpecError
        If the text is none.
    """
    tokens: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _no_function(text, what)
        tokens.append(match[1])
        position = match.end()

    def level(strength: int) -> Tree:
        if strength == len(_OPERATORS):
            return factor()
        tree = level(strength + 1)
        while tokens and tokens[0] == _OPERATORS[strength]:
            operator = tokens.pop(0)
            tree = (operator, tree, level(strength + 1))
        return tree

    def factor() -> Tree:
        if not tokens:
            raise _no_function(text, what)
        token = tokens.pop(0)
        if token == "!":
            return ("!", factor())
        if token == "(":
            tree = level(0)
            if not tokens or tokens.pop(0) != ")":
                raise _no_function(text, what)
            return tree
        if not token[0].isidentifier():
            raise _no_function(text, what)
        return token

    tree = level(0)
    if tokens:
        raise _no_function(text, what)
    return tree


def _no_function(text: str, what: str) -> SpecError:
    return SpecError(
        f"Function of cell {what!r} must be an expression of names, '!', '&', '^', '|' and "
        f"parentheses, not {text!r}; correct the cell table"
    )


def _names(tree: Tree) -> list[str]:
    if isinstance(tree, str):
        return [tree]
    return list(dict.fromkeys(itertools.chain(*(_names(part) for part in tree[1:]))))


def _render(tree: Tree, names: Mapping[str, str], signs: Mapping[str, str]) -> str:
    if isinstance(tree, str):
        return names[tree]
    if tree[0] == "!":
        return f"{signs['!']}({_render(tree[1], names, signs)})"
    left, right = (_render(part, names, signs) for part in tree[1:])
    if tree[0] == "^" and "^" not in signs:  # ABC's genlib has none
        return f"((({left})*!({right}))+(!({left})*({right})))"
    return f"({left}{signs[tree[0]]}{right})"


def _evaluate(tree: Tree, values: Mapping[str, Words]) -> Words:
    if isinstance(tree, str):
        return values[tree]
    if tree[0] == "!":
        return ~_evaluate(tree[1], values)
    left, right = (_evaluate(part, values) for part in tree[1:])
    if tree[0] == "&":
        return left & right
    return left | right if tree[0] == "|" else left ^ right


@dataclass(frozen=True)
class Cell:
    """A combinational cell with one output, ``Y``.

    Parameters
    ----------
    name
        In the technology's table.
    area_um2
        Area in um2.
    function
        In Liberty's notation.
    """

    name: str
    area_um2: float
    function: str

    @cached_property
    def tree(self) -> Tree:
        """The parsed function."""
        return parse_function(self.function, self.name)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in alphabetical order."""
        return tuple(sorted(_names(self.tree)))

    @cached_property
    def truth(self) -> int:
        """Truth table: bit ``i`` is the output where input ``j`` is bit ``j`` of ``i``."""
        n_cases = 1 << len(self.inputs)
        cases = np.arange(n_cases, dtype=np.uint64)
        values = {n: (cases >> np.uint64(j)) & np.uint64(1) for j, n in enumerate(self.inputs)}
        result = _evaluate(self.tree, values) & np.uint64(1)
        return sum(int(bit) << i for i, bit in enumerate(result))

    def evaluate(self, values: Sequence[Words]) -> Words:
        """Return the output for values of the inputs, in their order."""
        return _evaluate(self.tree, dict(zip(self.inputs, values, strict=True)))

    def verilog(self, signals: Sequence[str]) -> str:
        """Return the function of signals as a Verilog expression."""
        signs = {"!": "~", "&": " & ", "|": " | ", "^": " ^ "}
        return _render(self.tree, dict(zip(self.inputs, signals, strict=True)), signs)

    def genlib(self) -> str:
        """Return the cell as a line of ABC's genlib: every pin loads and delays the same."""
        signs = {"!": "!", "&": "*", "|": "+"}
        function = _render(self.tree, {name: name for name in self.inputs}, signs)
        return f"GATE {self.name} {self.area_um2:.5f} Y={function}; PIN * UNKNOWN 1 999 1 0 1 0"


class CellLibrary:
    """The combinational cells of a technology.

    Parameters
    ----------
    name
        The technology's name.
    area
        um2 by cell.
    function
        Functions in Liberty's notation, by cell; a cell without one is not for logic.

    Raises
    ------
    SpecError
        If there is no inverter or no buffer, a function is none or has more than 6 inputs, or a
        cell with a function has no area.
    """

    def __init__(self, name: str, area: Mapping[str, float], function: Mapping[str, str]) -> None:
        self.name = name
        self.cells: dict[str, Cell] = {}
        for cell_name, text in function.items():
            if cell_name not in area:
                raise SpecError(
                    f"Cell {cell_name!r} of the cell table {name!r} must have an area, not a "
                    f"function alone; add its um2"
                )
            cell = Cell(cell_name, area[cell_name], text)
            if len(cell.inputs) > _MAX_INPUTS:
                raise SpecError(
                    f"Cell {cell_name!r} of the cell table {name!r} must have at most "
                    f"{_MAX_INPUTS} inputs, not {len(cell.inputs)}; remove its function"
                )
            self.cells[cell_name] = cell
        for truth, what in ((0b01, "inverter"), (0b10, "buffer")):
            if self.smallest(1, truth) is None:
                raise SpecError(
                    f"Cell table {name!r} must have {'an' if what == 'inverter' else 'a'} {what} "
                    f"for synthesis, but none of its {len(self.cells)} cells with a function is "
                    f"one; add it with its area"
                )

    @classmethod
    def of(cls, technology: Technology) -> CellLibrary:
        """Return the cells of a technology.

        Raises
        ------
        SpecError
            As the class.
        """
        return cls(technology.name, technology.cell_um2, technology.cell_function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CellLibrary) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @cached_property
    def _identity(self) -> tuple[str, str]:
        return self.name, self.genlib()

    def smallest(self, n_inputs: int, truth: int) -> Cell | None:
        """Return the smallest cell with that truth table, the first by name among equals."""
        found = [c for c in self.cells.values() if len(c.inputs) == n_inputs and c.truth == truth]
        return min(found, key=lambda c: (c.area_um2, c.name), default=None)

    @cached_property
    def inverter(self) -> Cell:
        """The smallest inverter."""
        cell = self.smallest(1, 0b01)
        assert cell is not None, "checked when the library was made"
        return cell

    def genlib(self) -> str:
        """Return the library in ABC's genlib; constants cost nothing (a wire to a rail)."""
        lines = ["GATE ZERO 0 Y=CONST0;", "GATE ONE 0 Y=CONST1;"]
        lines += [cell.genlib() for _, cell in sorted(self.cells.items())]
        return "\n".join(lines) + "\n"
