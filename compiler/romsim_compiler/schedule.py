"""Building the programs (docs/machine.md, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from romsim_compiler.graph import Operator, build_graph, check_graph, stages_in_order
from romsim_compiler.groups import Group
from romsim_compiler.program import UNITS, Instruction, Program
from romsim_models.spec import ModelSpec

__all__ = ["build_decode", "build_prefill", "minimal_waits"]


def build_decode(spec: ModelSpec, groups: Sequence[Group], *, lora_unit: str = "H") -> Program:
    """Return the program of one decoded token, adapters executed by ``lora_unit``."""
    return _build(spec, groups, 1, "decode", with_head=True, lora_unit=lora_unit)


def build_prefill(
    spec: ModelSpec,
    groups: Sequence[Group],
    n_tokens: int,
    *,
    with_head: bool,
    lora_unit: str = "H",
) -> Program:
    """Return the program of ``n_tokens`` interleaved prompt tokens, each a stage behind the last.

    While one token is in unit L or H the next is in unit V, layer after layer.

    Parameters
    ----------
    with_head
        Whether the last token's logits are computed: only for the prompt's last tokens.
    lora_unit
        Unit that executes adapters.
    """
    return _build(spec, groups, n_tokens, "prefill", with_head=with_head, lora_unit=lora_unit)


def _build(
    spec: ModelSpec,
    groups: Sequence[Group],
    n_tokens: int,
    kind: str,
    *,
    with_head: bool,
    lora_unit: str,
) -> Program:
    graph = build_graph(spec, groups, lora_unit=lora_unit)
    check_graph(graph)
    made: list[Instruction] = []
    stages = stages_in_order(graph)
    tokens = range(n_tokens)
    inner = [stage for stage in stages if stage[0][0].layer >= 0]
    first = stages[: stages.index(inner[0])]
    # The embedding reads ROM, so all tokens' rows are read before the first matrix instruction.
    made += [_instruction(one, token) for token in tokens for stage in first for one in stage]
    for turn in range(len(inner) + n_tokens - 1):
        for token in tokens:
            if 0 <= turn - token < len(inner):
                made += [_instruction(one, token) for one in inner[turn - token]]
    if with_head:
        last = stages[len(first) + len(inner) :]
        made += [_instruction(one, n_tokens - 1) for stage in last for one in stage]
    return Program(kind=kind, n_tokens=n_tokens, instructions=tuple(minimal_waits(made)))


def _instruction(one: tuple[Operator, frozenset[str]], token: int) -> Instruction:
    operator, units = one
    return Instruction(
        op=operator.op,
        unit=operator.unit,
        wait=tuple(u for u in UNITS if u in units and u != operator.unit),
        layer=operator.layer,
        token=token,
        slot=0,
        operand=operator.operand,
        source=operator.source,
        target=operator.target,
    )


def minimal_waits(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Keep a wait only where the unit's last instruction is one that is depended on.

    A unit holds one instruction at a time, so once a later one was issued to it, an earlier one is
    complete. An instruction depends on those of its own token and on nothing else, since buffers
    are per token; the KV words of earlier tokens were written by ``rope`` instructions that
    precede its own token's in unit V.
    """
    last: dict[str, Instruction] = {}
    result = []
    for instruction in instructions:
        waits = tuple(
            unit
            for unit in instruction.wait
            if unit in last and last[unit].token == instruction.token
        )
        result.append(replace(instruction, wait=waits))
        last[instruction.unit] = instruction
    return result
