"""CPU seconds of reading, choosing grids, packing and reading back SmolLM2, on one thread.

``python -m benchmarks.packing [MODEL]``: MODEL is a named model or a file, smollm2 by default. Two
groups run before the clock starts, so that just-in-time compilation is not in the figures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from romsim_compiler.encoded import RowSource
from romsim_compiler.formats import SHIPPED_FORMATS
from romsim_compiler.grid import choose_grid
from romsim_compiler.groups import Group, build_groups
from romsim_compiler.mapping import map_group
from romsim_compiler.quantize import open_tensor
from romsim_compiler.rom_image import iter_packed, pack_group, unpack_group
from romsim_compiler.target import Array
from romsim_models.checkpoint import Checkpoint
from romsim_models.registry import open_model

_T = TypeVar("_T")

ARRAYS = {
    "8 tiles x 32 cells x 128 lanes of 2 bits": Array(
        n_tiles=8, n_cells=32, rom_rows=1 << 20, word_codes=128, lane_bits=2,
        encoding="unsigned", scale_group=32, scale_bits=16, min_bits=16,
    ),
    "4 tiles x 8 cells x 32 lanes of 4 bits": Array(
        n_tiles=4, n_cells=8, rom_rows=1 << 24, word_codes=32, lane_bits=4,
        encoding="unsigned", scale_group=32, scale_bits=16, min_bits=16,
    ),
}  # fmt: skip


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, call: Callable[[], _T]) -> _T:
        start = time.process_time()
        result = call()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start
        return result


def _one_group(
    checkpoint: Checkpoint, group: Group, array: Array, clock: _Clock
) -> tuple[int, int, int, int]:
    tensors: list[RowSource] = clock.run(
        "read",
        lambda: [open_tensor(checkpoint, m.tensor, group.fmt) for m in group.members],
    )
    grid = clock.run("grid", lambda: choose_grid(tensors))
    mapping = map_group(group.n_rows, group.n_cols, group.fmt.planes(array), array, 1024)
    words = clock.run("pack", lambda: pack_group(tensors, mapping, array))
    clock.run(
        "pack in pieces", lambda: sum(piece.size for piece in iter_packed(tensors, mapping, array))
    )
    codes, _, _ = clock.run(
        "read back",
        lambda: unpack_group(words, mapping, array, group.fmt, group.n_rows, group.n_cols),
    )
    if not np.array_equal(codes, np.concatenate([t.rows(0, t.n_rows).codes for t in tensors])):
        raise SystemExit(f"{group.name}: codes read back differ")
    return group.n_rows * group.n_cols, words.size, grid.max_abs_bits, grid.n_rounded_terms


def main() -> None:
    """Print one line for each array."""
    checkpoint = open_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    formats = checkpoint.formats()
    groups = build_groups(checkpoint.spec, lambda name: SHIPPED_FORMATS[formats[name]])
    for name, array in ARRAYS.items():
        for group in (groups[0], groups[-1]):
            _one_group(checkpoint, group, array, _Clock())
        clock = _Clock()
        totals = [_one_group(checkpoint, group, array, clock) for group in groups]
        n_weights, n_bytes = (sum(t[i] for t in totals) for i in (0, 1))
        bits = [t[2] for t in totals]
        print(
            f"{name}: {n_weights / 1e6:.1f} M weights, {n_bytes / 1e6:.1f} MB of ROM words, "
            f"accumulators of {min(bits)} to {max(bits)} bits, "
            f"{sum(t[3] for t in totals)} terms rounded"
        )
        print("  " + ", ".join(f"{k} {v:.2f} s" for k, v in clock.seconds.items()))


if __name__ == "__main__":
    main()
