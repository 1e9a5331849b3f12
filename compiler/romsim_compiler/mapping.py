"""Mapping of a matrix group onto the array: how many cells share a row.

Source: docs/machine.md, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from romsim_compiler.target import Array

__all__ = ["Mapping", "map_group"]


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """Loop sizes of one group on one array."""

    n_rows: int
    n_cols: int
    planes: int
    ks: int  # cells that share a row
    wpc: int  # words of a row in one cell
    rows_per_step: int  # over the chip
    steps: int

    @property
    def n_words(self) -> int:
        """Number of addresses that the group takes in every cell."""
        return self.steps * self.wpc * self.planes

    def step_cycles(self, n_vector_lanes: int) -> int:
        """Return cycles of one step: words to read, or results to collect."""
        return max(self.wpc * self.planes, self.drain_beats(n_vector_lanes))

    def cycles(self, n_vector_lanes: int) -> int:
        """Return cycles that depend on the mapping: steps, last drain, levels of the tree."""
        steps = self.steps * self.step_cycles(n_vector_lanes)
        return steps + self.drain_beats(n_vector_lanes) - 1 + self.ks.bit_length() - 1

    def drain_beats(self, n_vector_lanes: int) -> int:
        """Return cycles that one step's results take into the vector unit."""
        return -(-min(self.rows_per_step, self.n_rows) // n_vector_lanes)


@lru_cache(maxsize=4096)
def map_group(n_rows: int, n_cols: int, planes: int, array: Array, n_vector_lanes: int) -> Mapping:
    """Choose ``ks``: fewest cycles, then fewest ROM words, then the smallest."""
    n_words = -(-n_cols // array.word_codes)
    best: tuple[tuple[int, int, int], Mapping] | None = None
    ks = 1
    while ks <= array.n_cells:
        rows_per_step = array.n_tiles * (array.n_cells // ks)
        mapping = Mapping(
            n_rows=n_rows,
            n_cols=n_cols,
            planes=planes,
            ks=ks,
            wpc=-(-n_words // ks),
            rows_per_step=rows_per_step,
            steps=-(-n_rows // rows_per_step),
        )
        key = (mapping.cycles(n_vector_lanes), mapping.n_words, ks)
        if best is None or key < best[0]:
            best = (key, mapping)
        ks *= 2
    assert best is not None
    return best[1]
