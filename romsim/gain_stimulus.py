"""Stimuli for faults in gains: an epsilon at which a norm of a prompt's token shows the bit.

A bit of a gain shows only where the norm's output lies within that bit of a rounding of its 8-bit
code, which for the low bits is seldom the case. But a norm's epsilon is a field of its instruction,
a number of 62 bits that scales the norm's output almost continuously, and no other norm's. So for
each faulty gain an epsilon is searched at which the code of one of the prompt's tokens turns at
another place with the fault than without.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle import CycleModel
from romsim.cycle.kernels_vector import quantise_vector, rms_norm
from romsim.cycle.weights import BLOCK
from romsim_compiler.reduced import with_gain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim_compiler.description import Description
    from romsim_compiler.gains import GainVector

__all__ = ["GainStimuli"]

_LARGEST = (1 << 62) - 1  # of an epsilon's field
_STEPS = 8  # of an epsilon between a sum of squares and its double
_DOUBLINGS = 14  # beyond them a code of 127 is below 1


class GainStimuli:
    """Inputs of every norm for a prompt, and chips whose epsilon makes a fault show.

    Parameters
    ----------
    description
        The chip.
    tokens
        The prompt.
    """

    def __init__(self, description: Description, tokens: Sequence[int]) -> None:
        self._description = description
        self._table = np.ascontiguousarray(description.tables["RSQ"], dtype=np.int64)
        self._values: dict[str, list[NDArray[np.int32]]] = {}
        model = CycleModel(description, record=self._record)
        model.prefill(tokens)

    def chip_for(self, name: str, index: int, mask: int) -> Description | None:
        """Give the chip with another epsilon in one norm, at which inverted bits of a gain show.

        Parameters
        ----------
        name
            Of the norm.
        index, mask
            Element and bits that are inverted.

        Returns
        -------
        Description or None
            None where no epsilon was found, or the cycle model does not record the norm's input.
        """
        gain = self._description.gains[name]
        faulty = gain.values.copy()
        faulty[index] ^= mask
        inputs = self._values.get(_source(self._description, name), [])
        # of a prompt's tokens only the last has logits
        for x in inputs[-1:] if name == "output_norm" else inputs:
            norm = _Norm(x, gain, self._table)
            for eps_term in norm.turns(index):
                if norm.codes(gain.values, eps_term) != norm.codes(faulty, eps_term):
                    return with_gain(self._description, replace(gain, eps_term=eps_term))
        return None

    def _record(self, name: str, position: int, values: NDArray[Any]) -> None:
        self._values.setdefault(name, []).append(values)


def _source(description: Description, name: str) -> str:
    """Name the record of the cycle model that is a norm's input."""
    if name == "output_norm":
        return f"L{description.spec.n_layers - 1}.x_ffn"
    _, layer, kind = name.split(".")
    before = "embed" if layer == "0" else f"L{int(layer) - 1}.x_ffn"
    sources: Mapping[str, str] = {
        "attn_norm": before,
        "ffn_norm": f"L{layer}.x_attn",
        "attn_sub_norm": f"L{layer}.attn",
    }
    return sources.get(kind, "")


class _Norm:
    """One norm of one vector, as a function of epsilon."""

    def __init__(self, x: NDArray[np.int32], gain: GainVector, table: NDArray[np.int64]) -> None:
        self._x, self._gain, self._table = x, gain, table
        n = len(x)
        self._out = np.zeros(n, np.int32)
        self._codes = np.zeros(n, np.int16)
        self._shifts = np.zeros(-(-n // BLOCK), np.int64)
        self._sums = np.zeros_like(self._shifts)

    def codes(self, gains: NDArray[np.int32], eps_term: int) -> tuple[bytes, bytes]:
        """Give codes and shifts."""
        gain = self._gain
        rms_norm(
            self._x,
            gains,
            gain.shift,
            eps_term,
            gain.root,
            gain.out_frac,
            self._table,
            self._out,
        )
        quantise_vector(self._out, BLOCK, self._codes, self._shifts, self._sums)
        return self._codes.tobytes(), self._shifts.tobytes()

    def _code(self, index: int, eps_term: int) -> tuple[int, int]:
        self.codes(self._gain.values, eps_term)
        return int(self._codes[index]), int(self._shifts[index // BLOCK])

    def turns(self, index: int) -> Iterator[int]:
        """Give the epsilons on both sides of each turn of an element's code."""
        square = sum((int(x) << 10) ** 2 for x in self._x)
        grid = [
            min(_LARGEST, int(square * (2 ** (step / _STEPS) - 1)))
            for step in range(_STEPS * _DOUBLINGS)
        ]
        for low, high in itertools.pairwise(grid):
            first = self._code(index, low)
            if first == self._code(index, high):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                if self._code(index, middle) == first:
                    low = middle
                else:
                    high = middle
            yield low
            yield high
