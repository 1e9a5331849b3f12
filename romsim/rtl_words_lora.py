"""Words of adapters, on either path, as elements; see `romsim.rtl_words`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from romsim_compiler.lora_adders import adder_runs, lora_parts
from romsim_rtl.lside_run import MATVEC_CYCLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.trace import SramWrite
    from romsim_compiler.description import Description
    from romsim_compiler.lora_adders import AdderRun
    from romsim_compiler.lora_image import LoraImage

__all__ = ["Z_MEMORY", "delta_cycles", "z_cycle"]

Z_MEMORY = r"lside0\.tile(\d+)\.z(\d+)\.bank(\d+)"
"""Name of a bank of a tile's buffer of z."""

_WRITE_CYCLES = 1  # from a block's arrival at a tile to its bank


def delta_cycles(
    word: SramWrite, image: LoraImage, description: Description, rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the cycle in which each of a group's rows is written into D."""
    target = description.target
    lanes = target.vector.n_lanes
    if target.lora.path == "int8":  # steps of B, ``n_lanes`` rows a cycle in a step
        packed = max(1, target.attention.word_elems // max(image.ranks))
        step_rows = target.array.n_tiles * packed
        parts, steps = -(-step_rows // lanes), -(-image.n_rows // step_rows)
        step, inside = np.divmod(rows, step_rows)
        return np.asarray(word.idle - (steps - step) * parts + inside // lanes)
    cycles = np.zeros(len(rows), dtype=np.int64)
    first_rows = np.cumsum([0, *_parts(image, description)[0]])
    for run, start in _starts(image, description):
        mapping = run.mapping
        row = rows - first_rows[run.projection]
        step, inside = np.divmod(row, mapping.rows_per_step)
        fixed = word.issue + start + mapping.wpc + mapping.ks.bit_length() - 1
        fixed += MATVEC_CYCLES - 1 + target.network.collect_cycles
        mine = (row >= 0) & (row < mapping.n_rows) & run.is_up
        cycles[mine] = (step * mapping.step_cycles(lanes) + inside // lanes + fixed)[mine]
    return cycles


def z_cycle(word: SramWrite, image: LoraImage, description: Description) -> int:
    """Return the cycle in which a block of z is written into the tiles."""
    downs = [(run, start) for run, start in _starts(image, description) if not run.is_up]
    run, start = downs[word.lane]
    arrives = start + run.cycles(description.target) - run.n_blocks + word.address
    return word.issue + arrives + _WRITE_CYCLES


def _parts(image: LoraImage, description: Description) -> tuple[tuple[int, ...], int]:
    return lora_parts(description.spec, image.name.partition(".")[2])


def _starts(image: LoraImage, description: Description) -> list[tuple[AdderRun, int]]:
    """Return each run with the cycle in which it begins, counted from the issue."""
    parts, n_cols = _parts(image, description)
    at, starts = 1, []
    for run in adder_runs(parts, n_cols, image.ranks, description.target):
        starts.append((run, at))
        at += run.cycles(description.target)
    return starts
