"""Ternary adapters in the adder arrays: their runs, cycles and SRAM words (docs/machine.md, 3, 5).

A factor of an adapter is placed as a matrix is, with one code a lane, in SRAM words beside the ROM
bank of each cell; each factor is one run of the array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from romsim_compiler.formats import SHIPPED_FORMATS
from romsim_compiler.groups import layer_groups
from romsim_compiler.mapping import Mapping as ArrayMapping
from romsim_compiler.mapping import map_group
from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.spec import ModelSpec

if TYPE_CHECKING:
    from romsim_compiler.lora_image import LoraImage

__all__ = [
    "CODE_CYCLES",
    "TRIT_BITS",
    "AdderRun",
    "adder_lora_bits",
    "adder_lora_cycles",
    "adder_runs",
    "adder_split",
    "lora_parts",
    "placed_runs",
]

TRIT_BITS = 2
"""Bits of a trit in SRAM: 00, 01 is +1, 10 is -1."""

CODE_CYCLES = 5
"""Cycles from the last row of A to the first of B, beside blocks of z and the broadcast: the end of
a run is seen, four stages of the quantiser."""

_LOOK_CYCLES = 1  # of the adapter table, before each run of B and once in the beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class AdderRun:
    """One run of the array for an adapter.

    Parameters
    ----------
    projection
        Number of the matrix in its group.
    is_up
        Whether rows of B are multiplied, by z, or rows of A.
    is_there
        Whether the matrix has an adapter; if not, the run writes zeros.
    mapping
        Loop sizes of the factor.
    n_blocks
        Blocks of z that follow a run of A.
    """

    projection: int
    is_up: bool
    is_there: bool
    mapping: ArrayMapping
    n_blocks: int

    def cycles(self, target: Target) -> int:
        """Return the cycles until the next run may begin, or the instruction is over."""
        run = self.mapping.cycles(target.vector.n_lanes)
        run += target.latency.matvec + target.network.collect_cycles
        if self.is_up:
            return run + _LOOK_CYCLES
        return run + CODE_CYCLES + self.n_blocks + target.network.broadcast_cycles


def lora_parts(spec: ModelSpec, stem: str) -> tuple[tuple[int, ...], int]:
    """Return the rows of each matrix that an adapter of ``qkv``, ``o`` … extends, and columns."""
    return {
        "qkv": ((spec.q_dim, spec.kv_dim, spec.kv_dim), spec.dim),
        "o": ((spec.dim,), spec.q_dim),
        "gu": ((spec.hidden_dim, spec.hidden_dim), spec.dim),
        "down": ((spec.dim,), spec.hidden_dim),
    }[stem]


def adder_runs(
    parts: Sequence[int], n_cols: int, ranks: Sequence[int], target: Target
) -> list[AdderRun]:
    """Return the runs of one group's adapter in order; none without an adapter.

    Parameters
    ----------
    parts, n_cols
        Rows of each matrix of the group, and columns.
    ranks
        Padded rank of each matrix, 0 for one without an adapter.
    """
    if not any(ranks):
        return []
    array, lanes = target.array, target.vector.n_lanes
    runs = []
    for number, (n_rows, rank) in enumerate(zip(parts, ranks, strict=True)):
        if rank:
            down = map_group(rank, n_cols, 1, array, lanes)
            blocks = -(-rank // MX_BLOCK)
            runs.append(
                AdderRun(
                    projection=number, is_up=False, is_there=True, mapping=down, n_blocks=blocks
                )
            )
        up = map_group(n_rows, rank or 1, 1, array, lanes)
        runs.append(
            AdderRun(projection=number, is_up=True, is_there=bool(rank), mapping=up, n_blocks=0)
        )
    return runs


def adder_lora_cycles(spec: ModelSpec, stem: str, ranks: Sequence[int], target: Target) -> int:
    """Return the duration of ``lora`` for a group, all ranks 0 without an adapter."""
    if not any(ranks):
        return target.latency.lora_off
    parts, n_cols = lora_parts(spec, stem)
    runs = adder_runs(parts, n_cols, ranks, target)
    return _LOOK_CYCLES + sum(run.cycles(target) for run in runs)


def adder_split(spec: ModelSpec, stem: str, ranks: Sequence[int], target: Target) -> dict[str, int]:
    """Return that duration by resource: words read, rows collected, and latency."""
    split: dict[str, int] = {}
    lanes = target.vector.n_lanes
    parts, n_cols = lora_parts(spec, stem)
    for run in adder_runs(parts, n_cols, ranks, target):
        mapping = run.mapping
        key = "adapter" if mapping.wpc >= mapping.drain_beats(lanes) else "collect"
        swept = mapping.steps * mapping.step_cycles(lanes)
        split[key] = split.get(key, 0) + swept
    total = adder_lora_cycles(spec, stem, ranks, target)
    return {**split, "latency": total - sum(split.values())}


def adder_lora_bits(spec: ModelSpec, ranks: Mapping[str, int], target: Target) -> int:
    """Return the bits of SRAM words that an adapter takes beside all cells of a target.

    Parameters
    ----------
    ranks
        Padded rank of each matrix by canonical name.
    """
    n_words = 0
    for layer in range(spec.n_layers):
        for group in layer_groups(spec, layer, lambda _: SHIPPED_FORMATS["q8_0"]):
            rows = [m.n_rows for m in group.members]
            mine = [ranks.get(m.tensor, 0) for m in group.members]
            runs = adder_runs(rows, group.n_cols, mine, target)
            n_words += sum(run.mapping.n_words for run in runs if run.is_there)
    array = target.array
    return TRIT_BITS * n_words * array.word_codes * array.n_cells * array.n_tiles


def placed_runs(
    spec: ModelSpec, image: LoraImage, target: Target
) -> Iterator[tuple[AdderRun, int]]:
    """Give a group's runs, each with its first word counted from the group's."""
    parts, n_cols = lora_parts(spec, image.name.partition(".")[2])
    at = 0
    for run in adder_runs(parts, n_cols, image.ranks, target):
        yield run, at
        if run.is_there:
            at += run.mapping.n_words
