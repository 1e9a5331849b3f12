"""The program of a design point, equal layers folded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from romsim_compiler.groups import Group
from romsim_compiler.program import Instruction, Program
from romsim_compiler.schedule import build_decode, build_prefill
from romsim_models.spec import ModelSpec

__all__ = ["Block", "folded_blocks"]


@dataclass(frozen=True, slots=True)
class Block:
    """Equal layers in a row, or the instructions before and after the layers."""

    first_layer: int  # -1 outside the layers
    repetitions: int
    instructions: tuple[Instruction, ...]


@lru_cache(maxsize=1024)
def folded_blocks(
    spec: ModelSpec,
    groups: tuple[Group, ...],
    layer_runs: tuple[tuple[int, int], ...],
    n_tokens: int,
    with_head: bool,
    lora_unit: str,
) -> tuple[Block, ...]:
    """Return the program of ``n_tokens`` in-flight tokens, equal layers folded.

    Parameters
    ----------
    spec
        The model.
    groups
        Matrix groups, at least those of the first layer of each run.
    layer_runs
        (first layer, number of layers) of each run of equal layers.
    n_tokens, with_head
        1 with a head is the decode program.
    lora_unit
        Unit that executes adapters.
    """

    def program_of(n_layers: int, layers: list[Group]) -> Program:
        some = replace(spec, n_layers=n_layers)
        mine = [*layers, *(g for g in groups if g.layer < 0)]
        if n_tokens == 1 and with_head:
            return build_decode(some, mine, lora_unit=lora_unit)
        return build_prefill(some, mine, n_tokens, with_head=with_head, lora_unit=lora_unit)

    if n_tokens > 1:
        return _interleaved_blocks(groups, layer_runs, program_of)
    blocks: list[Block] = []
    for first, count in layer_runs:
        # One layer between the outer instructions: its waits are those of every equal layer.
        program = program_of(1, [replace(g, layer=0) for g in groups if g.layer == first])
        parts = [list(run) for _, run in groupby(program.instructions, key=lambda i: i.layer)]
        if not blocks:
            blocks.append(Block(-1, 1, tuple(parts[0])))
        layer = tuple(replace(i, layer=first) for i in parts[1])
        blocks.append(Block(first, count, layer))
        tail = parts[2:]
    blocks += [Block(-1, 1, tuple(part)) for part in tail]
    return tuple(blocks)


def _interleaved_blocks(
    groups: tuple[Group, ...],
    layer_runs: tuple[tuple[int, int], ...],
    program_of: Callable[[int, list[Group]], Program],
) -> tuple[Block, ...]:
    """Fold a program whose tokens are a stage apart: a layer begins where the first token's does.

    Of a run of equal layers the first stands beside the end of the run before it, the second
    beside the end of one like itself, as do all others; the last is followed by the ends of all.
    """
    kept = [
        (first + index, first, count)
        for run, (first, count) in enumerate(layer_runs)
        for index in range(min(count, 3 if run == len(layer_runs) - 1 else 2))
    ]
    layers = [
        replace(g, layer=at)
        for at, (_, first, _) in enumerate(kept)
        for g in groups
        if g.layer == first
    ]
    program = program_of(len(kept), layers)
    parts: list[list[Instruction]] = [[]]
    for instruction in program.instructions:
        if instruction.token == 0 and instruction.layer == len(parts) - 1:
            parts.append([])
        parts[-1].append(instruction)
    blocks = [Block(-1, 1, tuple(parts[0]))]
    for (layer, first, count), part in zip(kept, parts[1:], strict=True):
        is_last_run = first == layer_runs[-1][0]
        repeated = count - (2 if is_last_run else 1) if layer == first + 1 and count > 2 else 1
        blocks.append(Block(layer, repeated, tuple(part)))
    return tuple(blocks)
