"""Tokens per second and time to first token, against context and prompt, and what bounds them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from romsim.bounds import RESOURCES, split_cycles
from romsim.design_point import DesignPoint, adapter_ranks
from romsim_compiler.issue import issue_times
from romsim_compiler.program import Instruction

__all__ = [
    "Profile",
    "ProfileRow",
    "Rate",
    "Roof",
    "decode_rates",
    "mean_decode_cycles",
    "profile_token",
    "roofline",
    "time_to_first_token",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Speed at one context or for one prompt."""

    context: int  # tokens in the KV cache, the new one included
    cycles: int
    seconds: float
    tokens_per_s: float  # of one sequence
    aggregate_tokens_per_s: float  # of all sequences on the chip

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values, units in the keys."""
        return asdict(self)


def mean_decode_cycles(
    point: DesignPoint, contexts: Sequence[int], *, rank: int = 0
) -> list[float]:
    """Return the cycles of a decoded token at each context (the new token included).

    Where a codec encodes a window of tokens after its last one, which takes that token many times
    as long, the mean over the window that ends there; else the token's own.
    """
    span = max(1, point.target.kv.residual)
    windows = [range(max(0, context - span), context) for context in contexts]
    return [math.fsum(point.decode_cycles(part, rank=rank)) / len(part) for part in windows]


def decode_rates(point: DesignPoint, contexts: Sequence[int], *, rank: int = 0) -> tuple[Rate, ...]:
    """Return the speed of decoding at each context.

    Parameters
    ----------
    contexts
        Tokens that attention reads, the new one included; 1 is an empty cache.
    rank
        Rank of an adapter on all projections; 0 for none.

    Notes
    -----
    Of a codec that encodes windows of tokens at once, the mean over a window.
    The sequencer runs one token's program at a time, so sequences in several slots take turns: the
    aggregate rate equals the single-stream rate. It is a column of its own because other chips'
    published rates are often aggregates.
    """
    clock = point.target.clock_mhz * 1e6
    cycles = mean_decode_cycles(point, contexts, rank=rank)
    return tuple(
        Rate(
            context=context,
            cycles=round(one),
            seconds=one / clock,
            tokens_per_s=clock / one,
            aggregate_tokens_per_s=clock / one,
        )
        for context, one in zip(contexts, cycles, strict=True)
    )


def time_to_first_token(
    point: DesignPoint, prompts: Sequence[int], *, rank: int = 0
) -> tuple[Rate, ...]:
    """Return the time from a prompt's first token to its first logits, for each prompt length.

    ``tokens_per_s`` is the rate at which prompt tokens are taken in.
    """
    clock = point.target.clock_mhz * 1e6
    rates = []
    for prompt in prompts:
        cycles = point.prefill_cycles(prompt, rank=rank)
        rate = clock * prompt / cycles
        rates.append(
            Rate(
                context=prompt,
                cycles=cycles,
                seconds=cycles / clock,
                tokens_per_s=rate,
                aggregate_tokens_per_s=rate,
            )
        )
    return tuple(rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """One instruction of a token."""

    layer: int  # -1 outside the layers
    op: str
    operand: str
    unit: str
    issue: int
    idle: int
    bound: str  # the resource that takes most of its cycles
    on_path: bool  # whether the token waits for it
    cycles: dict[str, int]  # by resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where a token's time goes. Each stack sums to ``cycles``."""

    cycles: int
    rows: tuple[ProfileRow, ...]
    by_resource: dict[str, int]
    by_unit: dict[str, int]
    by_layer: dict[int, int]
    by_op: dict[str, int]
    busy: dict[str, int]  # cycles in which a unit has an instruction, hidden ones included

    def utilisation(self) -> dict[str, float]:
        """Return the share of the token's time in which each unit has an instruction."""
        return {unit: cycles / self.cycles for unit, cycles in self.busy.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON-ready values; all figures are cycles."""
        return {**asdict(self), "by_layer": {str(k): v for k, v in self.by_layer.items()}}


def profile_token(point: DesignPoint, context: int, *, rank: int = 0) -> Profile:
    """Return every instruction of a decoded token, and the time it takes by unit, layer, resource.

    The path is walked back from the end: an instruction was issued when the last of those it waited
    for was done, or a cycle after the one before it, or when its matrix's banks were awake. So each
    cycle of the token belongs to exactly one instruction.
    """
    position = context - 1
    ranks = adapter_ranks(rank)
    instructions, layers = _expand(point)
    splits = _splits(point, instructions, position, ranks)
    durations = [sum(split.values()) for split in splits]
    wake = point.target.power.wake_cycles
    times = issue_times(instructions, durations, wake_cycles=wake)
    path, issues = _critical_path(instructions, times)
    rows = []
    gated = ("wake",) if wake else ()
    resource = dict.fromkeys((*RESOURCES, "issue", *gated, "host"), 0)
    unit = {"V": 0, "L": 0, "H": 0, "host": 0}
    busy = {"V": 0, "L": 0, "H": 0}
    layer: dict[int, int] = {}
    by_op: dict[str, int] = {}
    for number, (one, split, at) in enumerate(zip(instructions, splits, layers, strict=True)):
        busy[one.unit] += durations[number]
        gained = durations[number] * (number in path) + issues.get(number, 0)
        if number in path:
            for key, cycles in split.items():
                resource[key] += cycles
        asleep = max(0, issues.get(number, 0) - (number > 0))  # longer than issue takes: banks
        if asleep:
            resource["wake"] += asleep
        resource["issue"] += issues.get(number, 0) - asleep
        unit[one.unit] += gained
        layer[at] = layer.get(at, 0) + gained
        by_op[one.op] = by_op.get(one.op, 0) + gained
        rows.append(
            ProfileRow(
                layer=at,
                op=one.op,
                operand=_LAYER_NUMBER.sub(rf"\g<1>{at}.", one.operand),
                unit=one.unit,
                issue=times[number][0],
                idle=times[number][1],
                bound=max(split, key=lambda k: split[k]),
                on_path=number in path,
                cycles=dict(split),
            )
        )
    handover = point.target.latency.token
    resource["host"] = unit["host"] = by_op["host"] = handover
    layer[-1] = layer.get(-1, 0) + handover
    return Profile(
        cycles=max(idle for _, idle in times) + handover,
        rows=tuple(rows),
        by_resource=resource,
        by_unit=unit,
        by_layer=layer,
        by_op=by_op,
        busy=busy,
    )


_LAYER_NUMBER = re.compile(r"^(L|blk\.)\d+\.")


def _expand(point: DesignPoint) -> tuple[list[Instruction], list[int]]:
    """Return the whole decode program, equal layers as the same objects, and the layer numbers."""
    program: list[Instruction] = []
    layers: list[int] = []
    for block in point.blocks():
        for repetition in range(block.repetitions):
            program += block.instructions
            layer = block.first_layer + repetition
            layers += [layer] * len(block.instructions)
    return program, layers


def _splits(
    point: DesignPoint,
    instructions: list[Instruction],
    position: int,
    ranks: dict[str, tuple[int, ...]],
) -> list[dict[str, int]]:
    known: dict[tuple[str, str], dict[str, int]] = {}
    result = []
    for one in instructions:
        key = (one.op, one.operand)
        if key not in known:
            known[key] = split_cycles(point, one, position=position, ranks=ranks)
        result.append(known[key])
    return result


def _critical_path(
    instructions: list[Instruction], times: list[tuple[int, int]]
) -> tuple[set[int], dict[int, int]]:
    """Return the instructions on the path, and the issue cycles that each adds to it."""
    last_on: list[dict[str, int]] = []  # for each instruction, the last one before it on each unit
    current: dict[str, int] = {}
    for number, one in enumerate(instructions):
        last_on.append(dict(current))
        current[one.unit] = number
    number = max(range(len(times)), key=lambda n: times[n][1])
    path = {number}
    issues: dict[int, int] = {}
    while number > 0:
        at = times[number][0]
        before = last_on[number]
        waited = [
            before[unit]
            for unit in (instructions[number].unit, *instructions[number].wait)
            if unit in before and times[before[unit]][1] == at
        ]
        if waited:
            number = max(waited)
            path.add(number)
        else:
            issues[number] = at - times[number - 1][0]
            number -= 1
    issues[0] = times[0][0]
    return path, issues


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """One limit of the chip and how near a token comes to it."""

    resource: str
    peak_per_s: float
    unit: str
    used_per_token: float
    limit_tokens_per_s: float
    utilisation: float


def roofline(point: DesignPoint, context: int, *, rank: int = 0) -> tuple[Roof, ...]:
    """Return the limits that lanes and ports set, were nothing else in the way.

    A ROM chip comes near none of them: dependent latency is what it waits for.
    """
    spec, target = point.spec, point.target
    clock = target.clock_mhz * 1e6
    (rate,) = decode_rates(point, [context], rank=rank)
    repetitions = point.repetitions
    swept = [
        (g, point.mappings[g.name], repetitions[g.name]) for g in point.groups if g.name != "embd"
    ]
    n_cells = target.array.n_tiles * target.array.n_cells
    macs = sum(g.n_rows * g.n_cols * m.planes * n for g, m, n in swept)
    bits = sum(m.n_words * n for _, m, n in swept) * n_cells * target.array.word_bits
    word = target.attention.word_elems
    passes = -(-(spec.n_heads // spec.n_kv_heads) // target.attention.heads_parallel)
    words = -(-spec.head_dim // word)
    held = target.kv.held(context)
    kv = 2 * spec.n_layers * spec.n_kv_heads * passes * words * held
    attention = 2 * spec.n_layers * spec.n_heads * spec.head_dim * held
    h_lanes = target.array.n_tiles * target.attention.heads_parallel * word
    limits = (
        ("weight lanes", target.array.n_lanes * clock, "MAC/s", macs),
        ("ROM ports", n_cells * target.array.word_bits * clock, "bit/s", bits),
        ("KV ports", target.array.n_tiles * clock, "word/s", kv),
        ("attention lanes", h_lanes * clock, "MAC/s", attention),
    )
    return tuple(
        Roof(
            resource=name,
            peak_per_s=peak,
            unit=unit,
            used_per_token=float(used),
            limit_tokens_per_s=peak / used,
            utilisation=used * rate.tokens_per_s / peak,
        )
        for name, peak, unit, used in limits
        if used
    )
