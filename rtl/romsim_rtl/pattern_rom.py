"""A bank as logic by shared patterns of neighbouring weights: few gates, each of them a wide OR.

A bank is a set of ORs: data bit ``c`` says yes where the address of a word with that bit is
decoded. Columns are taken in groups of a few weights. Words that hold the same pattern in a group
are ORed once; that signal goes on to the patterns of the group's two halves, those to their halves,
down to single bits. The all-zero pattern costs nothing. A word thus costs one input of an OR per
group, whereas shared candidates cost two inputs of an AND-OR per data bit and eight words.
(Lupanov's representation of a function's table, with data bits in the place of address bits.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_netlist import ZERO, LogicNetlist
from romsim_rtl.or_trees import HIGH, LOW, Emitter, OrTrees

__all__ = ["pattern_netlist"]

_MAX_GROUP_BITS = 16
_MAX_PASSES = 8


@dataclass(slots=True)
class _Node:
    """An OR of words' addresses (low signals) and of other nodes."""

    words: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    polarity: int = HIGH
    n_low: int = 0
    n_high: int = 0


class _Group:
    """The nodes of one group of columns, and their polarities.

    Parameters
    ----------
    bits
        uint8 [rows, n_columns] of 0 and 1.
    field_bits
        Bits of a weight: columns are split between weights as long as there are two.
    """

    def __init__(self, bits: NDArray[np.uint8], field_bits: int) -> None:
        self.nodes: list[_Node] = []
        self.columns: dict[int, int] = {}  # column: node, where it holds a one
        self._field_bits = field_bits
        patterns, which = np.unique(bits, axis=0, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        starts = np.searchsorted(which.ravel()[order], np.arange(len(patterns) + 1))
        signals: dict[bytes, tuple[list[int], list[int]]] = {}
        for index, pattern in enumerate(patterns):
            if pattern.any():
                words = order[starts[index] : starts[index + 1]].tolist()
                signals[pattern.tobytes()] = self._or(words, [])
        self._divide(signals, 0, bits.shape[1])

    def _or(self, words: list[int], nodes: list[int]) -> tuple[list[int], list[int]]:
        """Return what stands for an OR: itself if it is one signal, else a new node."""
        if len(words) + len(nodes) == 1:
            return words, nodes
        self.nodes.append(_Node(words=words, nodes=nodes))
        for node in nodes:
            self.nodes[node].users.append(len(self.nodes) - 1)
        return [], [len(self.nodes) - 1]

    def _divide(
        self, signals: dict[bytes, tuple[list[int], list[int]]], first: int, n_columns: int
    ) -> None:
        if n_columns == 1:
            if signals:
                words, nodes = next(iter(signals.values()))
                if not nodes:
                    self.nodes.append(_Node(words=words))
                    nodes = [len(self.nodes) - 1]
                self.columns[first] = nodes[0]
            return
        size = self._field_bits if n_columns > self._field_bits else 1
        half = (n_columns // size + 1) // 2 * size
        for start, stop in ((0, half), (half, n_columns)):
            parts: dict[bytes, tuple[list[int], list[int]]] = {}
            for pattern, (words, nodes) in signals.items():
                part = pattern[start:stop]
                if any(part):
                    found = parts.setdefault(part, ([], []))
                    found[0].extend(words)
                    found[1].extend(nodes)
            made = {part: self._or(*parts[part]) for part in sorted(parts)}
            self._divide(made, first + start, stop - start)

    def merges(self) -> int:
        """Return the number of two-input ORs that the group takes."""
        return sum(len(n.words) + len(n.nodes) - 1 for n in self.nodes)

    def choose_polarities(self, trees: OrTrees) -> None:
        """Flip nodes one at a time as long as that saves area."""
        outputs = set(self.columns.values())
        for node in self.nodes:
            node.n_low, node.n_high = len(node.words), len(node.nodes)
        for _ in range(_MAX_PASSES):
            n_flipped = 0
            for index, node in enumerate(self.nodes):
                if index not in outputs:
                    n_flipped += self._flip_if_cheaper(node, trees)
            if n_flipped == 0:
                return

    def _flip_if_cheaper(self, node: _Node, trees: OrTrees) -> bool:
        step = 1 if node.polarity == HIGH else -1  # high signals that become low
        gain = trees.cost(node.n_low, node.n_high, node.polarity)
        gain -= trees.cost(node.n_low, node.n_high, 1 - node.polarity)
        for user in (self.nodes[u] for u in node.users):
            gain += trees.cost(user.n_low, user.n_high, user.polarity)
            gain -= trees.cost(user.n_low + step, user.n_high - step, user.polarity)
        if gain < 1e-6:
            return False
        node.polarity = 1 - node.polarity
        for user in (self.nodes[u] for u in node.users):
            user.n_low += step
            user.n_high -= step
        return True

    def emit(self, emitter: Emitter, minterms: Sequence[str]) -> dict[int, str]:
        """Write the gates; return the signal of each column that holds a one."""
        signals: list[str] = []
        for node in self.nodes:
            low = [minterms[word] for word in node.words]
            low += [signals[n] for n in node.nodes if self.nodes[n].polarity == LOW]
            high = [signals[n] for n in node.nodes if self.nodes[n].polarity == HIGH]
            signals.append(emitter.any_of(low, high, node.polarity))
        return {column: signals[node] for column, node in self.columns.items()}


def pattern_netlist(
    bits: NDArray[np.uint8], library: CellLibrary, *, field_bits: int = 2
) -> LogicNetlist:
    """Return the logic of a bank, with the group size that takes the fewest ORs.

    Parameters
    ----------
    bits
        uint8 [rows, width] of 0 and 1, bit 0 of each word first.
    library
        Cells.
    field_bits
        Bits of a weight, which stay together; 1 where there are none.

    Raises
    ------
    SpecError
        If the library lacks gates to OR with.
    """
    rows, width = bits.shape
    n_address_bits = max(1, (rows - 1).bit_length())
    trees = _trees(library, 1 << n_address_bits)
    emitter = Emitter(trees)
    groups = _best_groups(bits, field_bits)
    minterms = _decode(emitter, trees, [f"a{i}" for i in range(n_address_bits)], LOW)
    outputs = [ZERO] * width
    for first, group in groups:
        group.choose_polarities(trees)
        for column, signal in group.emit(emitter, minterms).items():
            outputs[first + column] = signal
    return LogicNetlist.of(n_address_bits, emitter.gates, outputs)


@lru_cache(maxsize=16)
def _trees(library: CellLibrary, max_inputs: int) -> OrTrees:
    return OrTrees(library, max_inputs)


def _best_groups(bits: NDArray[np.uint8], field_bits: int) -> list[tuple[int, _Group]]:
    """Return (first column, group) of the best even partition of the columns."""
    width = bits.shape[1]
    n_fields = -(-width // field_bits)
    best: list[tuple[int, _Group]] = []
    fewest = np.inf
    tried: set[int] = set()
    for size in range(1, max(1, _MAX_GROUP_BITS // field_bits) + 1):
        n_groups = -(-n_fields // size)
        if n_groups in tried:
            continue
        tried.add(n_groups)
        edges = [min(width, n_fields * g // n_groups * field_bits) for g in range(n_groups)]
        edges.append(width)
        groups = [(a, _Group(bits[:, a:b], field_bits)) for a, b in itertools.pairwise(edges)]
        merges = sum(group.merges() for _, group in groups)
        if merges < fewest:
            best, fewest = groups, merges
        elif merges > 1.1 * fewest:
            break  # ever more patterns, ever fewer words of each
    return best


def _decode(emitter: Emitter, trees: OrTrees, address: list[str], polarity: int) -> list[str]:
    """Return one signal per value of the address bits, of that polarity (bit 0 first)."""
    if len(address) == 1:
        inverse = emitter.invert(address[0])
        return [inverse, address[0]] if polarity == HIGH else [address[0], inverse]
    half = len(address) // 2
    # An AND of yeses is an OR of noes: the trees' tables serve for both.
    below = LOW if polarity == HIGH else HIGH
    first = _decode(emitter, trees, address[:half], below)
    second = _decode(emitter, trees, address[half:], below)
    result = []
    for b in second:
        for a in first:
            pair = [a, b]
            if polarity == HIGH:  # both low when chosen: NOR
                result.append(emitter.any_of([], pair, LOW))
            else:  # both high when chosen: NAND
                result.append(emitter.any_of(pair, [], HIGH))
    return result
