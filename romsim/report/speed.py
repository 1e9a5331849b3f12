"""Tables of a chip's speed: against context and prompt, by layer, unit, resource, and limits."""

from __future__ import annotations

from collections.abc import Sequence

from romsim.bounds import RESOURCES
from romsim.design_point import DesignPoint
from romsim.report.model import Cell, Column, Table
from romsim.throughput import (
    Profile,
    decode_rates,
    profile_token,
    roofline,
    time_to_first_token,
)

__all__ = [
    "UNIT_NAMES",
    "ladder",
    "layer_table",
    "limit_table",
    "operation_table",
    "rate_table",
    "resource_table",
    "roofline_table",
    "ttft_table",
    "utilisation_table",
]

_SCHEDULE = {
    "source": "docs/machine.md, sections 4 and 5; equal to the RTL's cycles by the project's tests",
    "grade": "derived",
}
_CLOCK = {
    "source": "cycles as above; the clock is the target's own, no timing analysis stands behind it",
    "grade": "assumed",
}
UNIT_NAMES = {"L": "ROM lanes (L)", "H": "attention (H)", "V": "vector (V)"}
_OPS = {
    "embed": "embedding row",
    "sincos": "rotary angles",
    "norm": "norm",
    "matvec": "matrix × vector",
    "lora": "adapter",
    "rope": "rotary, KV write",
    "attn": "attention",
    "attn_out": "attention output",
    "resid": "residual",
    "glu": "activation",
}


def ladder(limit: int) -> tuple[int, ...]:
    """Return numbers of tokens from 1 to ``limit``, two for each doubling."""
    steps = {1, limit}
    power = 1
    while power <= limit:
        steps |= {n for n in (power, power * 3 // 2) if n <= limit}
        power *= 2
    return tuple(sorted(steps))


def _tokens(label: str) -> Column:
    return Column(
        key="tokens",
        label=label,
        unit="tokens",
        formula="chosen, up to what the chip holds",
        source="the description's memory map",
        grade="derived",
    )


def _cycles(key: str, label: str, formula: str) -> Column:
    return Column(key=key, label=label, unit="cycles", formula=formula, **_SCHEDULE)


def rate_table(point: DesignPoint, limit: int) -> Table:
    """Return tokens/s of decoding against context."""
    return Table(
        key="rates",
        title="Decoding speed against context",
        note=(
            "Context counts the tokens that attention reads, the new one included. The sequencer "
            "runs one token's program at a time, so sequences in several slots take turns and the "
            "aggregate rate equals that of one stream."
        ),
        columns=(
            _tokens("context"),
            _cycles("cycles", "cycles a token", "issue rule over closed-form durations"),
            Column(
                key="single",
                label="one stream",
                unit="tokens/s",
                formula="clock ÷ cycles a token",
                **_CLOCK,
            ),
            Column(
                key="aggregate",
                label="all streams",
                unit="tokens/s",
                formula="clock ÷ cycles a token, summed over the streams that take turns",
                **_CLOCK,
            ),
        ),
        rows=tuple(
            (r.context, r.cycles, r.tokens_per_s, r.aggregate_tokens_per_s)
            for r in decode_rates(point, ladder(limit))
        ),
    )


def ttft_table(point: DesignPoint, limit: int) -> Table:
    """Return the time to the first token against the prompt's length."""
    n = point.target.schedule.n_inflight
    return Table(
        key="ttft",
        title="Time to first token against prompt",
        note=f"{n} prompt tokens in flight; from the first prompt token to the first logits.",
        columns=(
            _tokens("prompt"),
            _cycles("cycles", "cycles", "sum over the prefill programs' runs"),
            Column(key="seconds", label="time", unit="s", formula="cycles ÷ clock", **_CLOCK),
            Column(
                key="intake",
                label="prompt rate",
                unit="tokens/s",
                formula="prompt ÷ time",
                **_CLOCK,
            ),
        ),
        rows=tuple(
            (r.context, r.cycles, r.seconds, r.tokens_per_s)
            for r in time_to_first_token(point, ladder(limit))
        ),
    )


def layer_table(profile: Profile) -> Table:
    """Return where a token's time goes, by layer and unit: each cycle counted once."""
    units = {layer: dict.fromkeys(UNIT_NAMES, 0) for layer in profile.by_layer}
    for row in profile.rows:
        if row.on_path:
            units[row.layer][row.unit] += sum(row.cycles.values())
    rows: list[tuple[Cell, ...]] = []
    for layer, total in sorted(profile.by_layer.items()):
        mine = units[layer]
        name = "outside" if layer < 0 else f"{layer}"
        rows.append((name, *mine.values(), total - sum(mine.values()), total))
    return Table(
        key="layers",
        title="A token's time by layer and unit",
        note=(
            "Cycles on the critical path; work hidden behind other work is not in it. Outside the "
            "layers: embedding, LM head, final norm, and the hand-over to the host."
        ),
        columns=(
            Column(key="layer", label="layer"),
            *(_cycles(key, name, "durations on the path") for key, name in UNIT_NAMES.items()),
            _cycles("other", "issue and host", "cycles between instructions, hand-over"),
            _cycles("total", "total", "sum"),
        ),
        rows=tuple(rows),
    )


def resource_table(point: DesignPoint, contexts: Sequence[int]) -> Table:
    """Return what a token's cycles are spent on, at several contexts."""
    gated = ("wake",) if point.target.power.wake_cycles else ()
    names = (*RESOURCES, "issue", *gated, "host")
    rows = []
    for context in contexts:
        profile = profile_token(point, context)
        rows.append((context, *(profile.by_resource[n] for n in names), profile.cycles))
    return Table(
        key="resources",
        title="What a token's time is spent on",
        note=(
            "Latency is dependent latency: pipeline fills, broadcast, collect, trees. It is what a "
            "ROM chip mostly waits for."
        ),
        columns=(
            _tokens("context"),
            *(_cycles(n.replace(" ", "_"), n, "cycles on the critical path") for n in names),
            _cycles("total", "total", "sum"),
        ),
        rows=tuple(rows),
    )


def operation_table(profile: Profile) -> Table:
    """Return instructions by operation, with the resource that bounds them."""
    counts: dict[str, int] = {}
    units: dict[str, str] = {}
    split: dict[str, dict[str, int]] = {}
    for row in profile.rows:
        counts[row.op] = counts.get(row.op, 0) + 1
        units[row.op] = row.unit
        mine = split.setdefault(row.op, {})
        for resource, cycles in row.cycles.items():
            mine[resource] = mine.get(resource, 0) + cycles
    rows = []
    for op, cycles in profile.by_op.items():
        if op in counts:
            bound = max(split[op], key=lambda name: split[op][name])
            name, unit = _OPS[op], UNIT_NAMES[units[op]]
            rows.append((name, unit, counts[op], cycles, 100 * cycles / profile.cycles, bound))
        else:
            rows.append((op, op, 1, cycles, 100 * cycles / profile.cycles, "hand-over"))
    return Table(
        key="operations",
        title="A token's time by operation, and what bounds it",
        note="The bound is the resource that takes most of the operation's cycles.",
        columns=(
            Column(key="operation", label="operation"),
            Column(key="unit", label="unit"),
            Column(
                key="count",
                label="instructions",
                unit="1",
                formula="of one token's program",
                **_SCHEDULE,
            ),
            _cycles("cycles", "cycles of a token", "durations and issue cycles on the path"),
            Column(key="share", label="share", unit="%", formula="cycles ÷ total", **_SCHEDULE),
            Column(key="bound", label="bound by"),
        ),
        rows=tuple(rows),
    )


def roofline_table(point: DesignPoint, context: int) -> Table:
    """Return the limits of lanes and ports at one context."""
    return Table(
        key="roofline",
        title=f"Limits at {context:,} tokens",
        note="What each resource would allow, were nothing else in the way.",
        columns=(
            Column(key="resource", label="resource"),
            Column(key="what", label="counts"),
            Column(
                key="peak",
                label="peak",
                unit="1/s",
                formula="lanes or ports × clock",
                **_CLOCK,
            ),
            Column(
                key="used",
                label="one token's",
                unit="1",
                formula="counted from program and placement",
                **_SCHEDULE,
            ),
            Column(
                key="limit", label="limit", unit="tokens/s", formula="peak ÷ one token's", **_CLOCK
            ),
            Column(
                key="utilisation",
                label="used",
                unit="%",
                formula="achieved rate ÷ limit",
                **_SCHEDULE,
            ),
        ),
        rows=tuple(
            (
                roof.resource,
                roof.unit.removesuffix("/s"),
                roof.peak_per_s,
                roof.used_per_token,
                roof.limit_tokens_per_s,
                100 * roof.utilisation,
            )
            for roof in roofline(point, context)
        ),
    )


def limit_table(point: DesignPoint, limit: int) -> Table:
    """Return each resource's limit and the achieved rate, against context."""
    contexts = ladder(limit)
    names = [roof.resource for roof in roofline(point, contexts[0])]
    rows = []
    for context, rate in zip(contexts, decode_rates(point, contexts), strict=True):
        roofs = {r.resource: r.limit_tokens_per_s for r in roofline(point, context)}
        rows.append((context, rate.tokens_per_s, *(roofs[name] for name in names)))
    return Table(
        key="limits",
        title="Roofline: limits and what is achieved, against context",
        note="The gap to the lowest limit is dependent latency and vector work.",
        columns=(
            _tokens("context"),
            Column(
                key="achieved",
                label="achieved",
                unit="tokens/s",
                formula="clock ÷ cycles",
                **_CLOCK,
            ),
            *(
                Column(
                    key=name.replace(" ", "_"),
                    label=name,
                    unit="tokens/s",
                    formula="peak ÷ what one token uses",
                    **_CLOCK,
                )
                for name in names
            ),
        ),
        rows=tuple(rows),
    )


def utilisation_table(profile: Profile) -> Table:
    """Return how much of a token's time each unit has an instruction, hidden work included."""
    return Table(
        key="utilisation",
        title="How busy the units are",
        note=(
            "An instruction holds its unit from issue until it falls idle, latency included; lanes "
            "that wait inside an instruction are in the limits' table."
        ),
        columns=(
            Column(key="unit", label="unit"),
            _cycles("busy", "with an instruction", "sum of the unit's durations"),
            Column(
                key="share",
                label="of the token",
                unit="%",
                formula="busy cycles ÷ cycles of the token",
                **_SCHEDULE,
            ),
        ),
        rows=tuple(
            (UNIT_NAMES[unit], profile.busy[unit], 100 * share)
            for unit, share in profile.utilisation().items()
        ),
    )
