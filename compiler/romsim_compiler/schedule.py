"""Building the programs (docs/machine.md, section 4) and the issue rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from romsim_compiler.groups import Group
from romsim_compiler.program import Instruction, Program
from romsim_models.spec import ModelSpec

__all__ = ["build_decode", "build_prefill", "issue_times", "layer_stages"]

_Stage = Callable[[int], Instruction]


def _stage(op: str, unit: str, wait: str, layer: int, **names: str) -> _Stage:
    def make(token: int) -> Instruction:
        return Instruction(
            op=op, unit=unit, wait=tuple(wait), layer=layer, token=token, slot=0, **names
        )

    return make


def layer_stages(spec: ModelSpec, layer: int, groups: Sequence[Group]) -> list[_Stage]:
    """Return one layer's instructions as functions of the in-flight index."""

    def linear(operators: set[str]) -> list[_Stage]:
        mine = [g for g in groups if {m.operator for m in g.members} <= operators]
        stages = [_stage("matvec", "L", "V", layer, operand=g.name) for g in mine]
        name = {"q": "qkv", "o": "o", "gate": "gu", "down": "down"}[mine[0].members[0].operator]
        return [*stages, _stage("lora", "H", "V", layer, operand=f"L{layer}.{name}")]

    def sub_norm(name: str) -> list[_Stage]:
        if not spec.has_sub_norms:
            return []
        return [_stage("norm", "V", "", layer, operand=f"blk.{layer}.{name}", source="Y")]

    held = "Y" if spec.has_sub_norms else "XB"
    return [
        _stage("norm", "V", "", layer, operand=f"blk.{layer}.attn_norm", source="X"),
        *linear({"q", "k", "v"}),
        _stage("rope", "V", "LH", layer),
        _stage("attn", "H", "V", layer),
        _stage("attn_out", "V", "H", layer, target=held),
        *sub_norm("attn_sub_norm"),
        *linear({"o"}),
        _stage("resid", "V", "LH", layer, operand=f"L{layer}.o"),
        _stage("norm", "V", "", layer, operand=f"blk.{layer}.ffn_norm", source="X"),
        *linear({"gate", "up"}),
        _stage("glu", "V", "LH", layer, target=held),
        *sub_norm("ffn_sub_norm"),
        *linear({"down"}),
        _stage("resid", "V", "LH", layer, operand=f"L{layer}.down"),
    ]


def _outer(spec: ModelSpec, groups: Iterable[Group]) -> tuple[list[_Stage], list[_Stage]]:
    names = {g.name for g in groups}
    source = (
        "embd" if "embd" in names else "head" if spec.tie_embeddings and "head" in names else ""
    )
    first = [
        _stage("embed", "V", "L", -1, operand=source),
        _stage("sincos", "V", "", -1),
    ]
    last = [_stage("norm", "V", "", -1, operand="output_norm", source="X")]
    if "head" in names:
        last.append(_stage("matvec", "L", "V", -1, operand="head"))
    return first, last


def build_decode(spec: ModelSpec, groups: Sequence[Group]) -> Program:
    """Return the program of one decoded token."""
    return _build(spec, groups, 1, "decode", with_head=True)


def build_prefill(
    spec: ModelSpec, groups: Sequence[Group], n_tokens: int, *, with_head: bool
) -> Program:
    """Return the program of ``n_tokens`` interleaved prompt tokens.

    Parameters
    ----------
    with_head
        Whether the last token's logits are computed: only for the prompt's last tokens.
    """
    return _build(spec, groups, n_tokens, "prefill", with_head=with_head)


def _build(
    spec: ModelSpec, groups: Sequence[Group], n_tokens: int, kind: str, *, with_head: bool
) -> Program:
    by_layer: dict[int, list[Group]] = {}
    for group in groups:
        by_layer.setdefault(group.layer, []).append(group)
    first, last = _outer(spec, groups)
    tokens = range(n_tokens)
    made = [stage(token) for token in tokens for stage in first]
    for layer in range(spec.n_layers):
        for stage in layer_stages(spec, layer, by_layer[layer]):
            made += [stage(token) for token in tokens]
    if with_head:
        made += [stage(n_tokens - 1) for stage in last]
    return Program(kind=kind, n_tokens=n_tokens, instructions=tuple(_minimal_waits(made)))


def _minimal_waits(instructions: list[Instruction]) -> list[Instruction]:
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


def issue_times(
    instructions: Sequence[Instruction], durations: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the (issue, idle) cycle of each instruction, the first issuing in cycle 0."""
    idle = {"V": 0, "L": 0, "H": 0}
    at = -1
    times = []
    for instruction, duration in zip(instructions, durations, strict=True):
        at = max(at + 1, idle[instruction.unit], *(idle[u] for u in instruction.wait), 0)
        idle[instruction.unit] = at + duration
        times.append((at, at + duration))
    return times
