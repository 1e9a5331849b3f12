"""Cheapest trees of gates for wide ORs, inputs and output of either polarity.

A signal is *low* if it is 0 where it says yes. An OR of low signals that comes out high is a NAND,
of low signals that comes out low an AND, and so on; levels of the tree alternate as the cell areas
advise. Equal areas are decided by depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from romsim_models.errors import SpecError
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_netlist import Gate

__all__ = ["HIGH", "LOW", "Emitter", "OrTrees"]

LOW, HIGH = 0, 1
"""Polarity of a signal: what it is where it says yes."""

_DEPTH = 1e-7  # um2 that a level is worth, to choose among equals
_MAX_PARTS = 4


@dataclass(frozen=True, slots=True)
class _Or:
    """A cell that ORs ``n`` signals of one polarity to a signal of one polarity."""

    cell: str
    area: float
    n: int
    polarity_in: int
    polarity_out: int


def _or_cells(library: CellLibrary) -> list[_Or]:
    cells = []
    for n in range(2, _MAX_PARTS + 1):
        all_ones = 1 << ((1 << n) - 1)
        full = (1 << (1 << n)) - 1
        for truth, before, after in (
            (full ^ all_ones, LOW, HIGH),
            (all_ones, LOW, LOW),
            (1, HIGH, LOW),
            (full ^ 1, HIGH, HIGH),
        ):
            cell = library.smallest(n, truth)
            if cell is not None:
                cells.append(_Or(cell.name, cell.area_um2, n, before, after))
    return cells


class OrTrees:
    """Tables of the cheapest trees of one library.

    Parameters
    ----------
    library
        Cells; NAND, AND, NOR and OR of two to four inputs are used where it has them.
    max_inputs
        Widest OR.

    Raises
    ------
    SpecError
        If the library has no gate for one of the polarities.
    """

    def __init__(self, library: CellLibrary, max_inputs: int) -> None:
        self.library = library
        self._cells = _or_cells(library)
        self._inverter = library.inverter
        for polarity in (LOW, HIGH):
            if not any(c.polarity_in == polarity for c in self._cells):
                raise SpecError(
                    f"Cell table {library.name!r} must have a gate of two inputs that ORs "
                    f"{'active-low' if polarity == LOW else 'active-high'} signals "
                    f"({'NAND or AND' if polarity == LOW else 'NOR or OR'}), but has none; add it"
                )
        # best[p][q, n]: n signals of polarity p become one of polarity q.
        # parts[p][q, j, n]: n signals of polarity p become j of polarity q.
        size = max_inputs + 1
        self._best = np.full((2, 2, size), np.inf)
        self._parts = np.full((2, 2, _MAX_PARTS + 1, size), np.inf)
        self._choice: dict[tuple[int, int, int], _Or | None] = {}
        self._split = np.zeros((2, 2, _MAX_PARTS + 1, size), dtype=np.int64)
        for polarity in (LOW, HIGH):
            self._fill(polarity, size)
        self.mixed_cost = lru_cache(maxsize=None)(self._mixed_cost)

    def _fill(self, p: int, size: int) -> None:
        best, parts, split = self._best[p], self._parts[p], self._split[p]
        parts[:, 0, 0] = 0.0
        for n in range(1, size):
            for j in range(2, min(_MAX_PARTS, n) + 1):
                for q in (LOW, HIGH):
                    # the first part has s of the n signals, at most n - 1
                    costs = best[q, 1:n] + parts[q, j - 1, n - 1 : 0 : -1]
                    # of equals the evenest: the loop below adds a trifle for each level
                    s = int(np.argmin(costs)) + 1
                    parts[q, j, n], split[q, j, n] = costs[s - 1], s
            found: list[tuple[float, _Or | None]] = [(np.inf, None), (np.inf, None)]
            if n == 1:
                found[p] = (0.0, None)
            for cell in self._cells:
                if cell.n <= n:
                    cost = parts[cell.polarity_in, cell.n, n] + cell.area + _DEPTH * n
                    if cost < found[cell.polarity_out][0]:
                        found[cell.polarity_out] = (cost, cell)
            for q in (LOW, HIGH):
                inverted = found[1 - q][0] + self._inverter.area_um2
                if inverted < found[q][0]:
                    best[q, n], self._choice[p, q, n] = inverted, _INVERT
                else:
                    best[q, n], self._choice[p, q, n] = found[q]
                parts[q, 1, n], split[q, 1, n] = best[q, n], n

    def cost(self, n_low: int, n_high: int, polarity: int) -> float:
        """Return the area of an OR of low and high signals, in um2 (and a trifle for depth)."""
        if n_high == 0:
            return float(self._best[LOW][polarity, n_low]) if n_low else 0.0
        if n_low == 0:
            return float(self._best[HIGH][polarity, n_high])
        return self.mixed_cost(n_low, n_high, polarity)[0]

    def _mixed_cost(self, n_low: int, n_high: int, polarity: int) -> tuple[float, _Or, int, bool]:
        """Return (area, last cell, its inputs from low signals, whether an inverter follows)."""
        options = []
        for cell in self._cells:
            is_inverted = cell.polarity_out != polarity
            extra = cell.area + (self._inverter.area_um2 if is_inverted else 0.0)
            for n in range(1, cell.n):
                low = self._parts[LOW][cell.polarity_in, n, n_low]
                high = self._parts[HIGH][cell.polarity_in, cell.n - n, n_high]
                options.append((float(low + high) + extra, cell, n, is_inverted))
        return min(options, key=lambda option: option[0])


_INVERT = _Or("", 0.0, 1, LOW, HIGH)  # the other polarity's best, and an inverter


class Emitter:
    """Writes the gates of trees.

    Parameters
    ----------
    trees
        Tables.
    """

    def __init__(self, trees: OrTrees) -> None:
        self._trees = trees
        self.gates: list[Gate] = []
        self._inverted: dict[str, str] = {}

    def gate(self, cell: str, inputs: Sequence[str]) -> str:
        """Add a gate and return its output."""
        output = f"g{len(self.gates)}"
        self.gates.append(Gate(cell, tuple(inputs), output))
        return output

    def invert(self, signal: str) -> str:
        """Return the complement of a signal; one inverter however often it is asked for."""
        if signal not in self._inverted:
            self._inverted[signal] = self.gate(self._trees.library.inverter.name, [signal])
        return self._inverted[signal]

    def any_of(self, low: Sequence[str], high: Sequence[str], polarity: int) -> str:
        """Return a signal of that polarity which says yes where one of the given ones does."""
        if not high:
            return self._pure(list(low), LOW, polarity)
        if not low:
            return self._pure(list(high), HIGH, polarity)
        _, cell, n_low, is_inverted = self._trees.mixed_cost(len(low), len(high), polarity)
        inputs = self._several(list(low), LOW, cell.polarity_in, n_low)
        inputs += self._several(list(high), HIGH, cell.polarity_in, cell.n - n_low)
        signal = self.gate(cell.cell, inputs)
        return self.invert(signal) if is_inverted else signal

    def _pure(self, signals: list[str], given: int, polarity: int) -> str:
        choice = self._trees._choice[given, polarity, len(signals)]
        if choice is None:
            return signals[0]
        if choice is _INVERT:
            return self.invert(self._pure(signals, given, 1 - polarity))
        inputs = self._several(signals, given, choice.polarity_in, choice.n)
        return self.gate(choice.cell, inputs)

    def _several(self, signals: list[str], given: int, polarity: int, n: int) -> list[str]:
        """Return ``n`` signals of one polarity that together say what the given ones do."""
        result = []
        while n:
            size = int(self._trees._split[given][polarity, n, len(signals)])
            result.append(self._pure(signals[:size], given, polarity))
            signals, n = signals[size:], n - 1
        return result
