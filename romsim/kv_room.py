"""What each KV configuration holds and costs on a chip, without weights: room, bandwidth, tokens/s.

Everything is a closed form of docs/kv.md and docs/machine.md; nothing is executed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from romsim.area import estimate_area
from romsim.area_kv import why_no_kv_area
from romsim.area_synthesised import has_rtl
from romsim.design_point import DesignPoint
from romsim.throughput import mean_decode_cycles
from romsim_compiler.choices import shape_formats
from romsim_compiler.formats import parse_format
from romsim_compiler.groups import tensor_shapes
from romsim_compiler.kv import DEFAULT_KV, KV_PRESETS, KvConfig, parse_kv
from romsim_compiler.kv_sram import check_kv, element_bits, model_bits, table_bits
from romsim_compiler.lora_words import lora_bits as word_bits
from romsim_compiler.memory_map import kv_bytes_per_token, lora_bits, max_context
from romsim_compiler.pipeline import check_model, serial_prefill
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_models.errors import SpecError
from romsim_models.registry import open_model
from romsim_models.spec import ModelSpec

__all__ = [
    "CONTEXTS",
    "CapacityRate",
    "CapacityRow",
    "KvCapacity",
    "attention_macs",
    "closed_form_tokens",
    "kv_capacity",
    "recompute_ratio",
]

CONTEXTS = (256, 1024, 4096, 16384)
"""Tokens at which rates are given where none are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRate:
    """One configuration at one context: the new token included."""

    context: int
    tokens_per_s: float  # of one sequence; of KIVI and CommVQ the mean over a window
    kv_bytes_read: int  # by the token's attention, all layers, as often as heads read them
    kv_tb_per_s: float  # at that rate
    recompute_ratio: float  # of attention's multiplications without a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """One configuration."""

    config: str
    bits_per_element: float  # of an encoded element, scales counted
    bytes_per_token: float  # of all layers and heads, encoded
    slots: int | None  # tokens held at most; None: all
    tokens_in_sram: int | None  # whose words fit the SRAM's bits; None: no end
    tokens_fit: int | None  # that the chip gives one sequence, everything counted; None: no end
    table_bits: int  # of block table or slot map, for what fits
    logic_mm2: float | None  # beyond the plain cache's, of the RTL; None where it has none
    rates: tuple[CapacityRate, ...]  # at the contexts that fit

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        return {**asdict(self), "rates": [asdict(rate) for rate in self.rates]}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCapacity:
    """All configurations of one model on one chip."""

    model: str
    target: str
    sram_bytes: int  # of all tiles
    adapter_bytes: int  # taken from it
    contexts: tuple[int, ...]
    rows: tuple[CapacityRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {**asdict(self), "rows": [row.to_json() for row in self.rows]}

    def lines(self) -> list[str]:
        """Return what a person reads: one line a configuration under a header."""
        head = f"{'KV cache':<24} {'bit/elem':>8} {'B/token':>8} {'in SRAM':>8} {'fit':>8}"
        head += f" {'+mm2':>7}"
        for context in self.contexts:
            head += f" | {f'tok/s @{context}':>14} {'TB/s':>6}"
        result = [
            f"{self.model} on {self.target}: {self.sram_bytes / 2**20:g} MiB of SRAM, "
            f"{self.adapter_bytes / 2**20:.3g} MiB of it adapters; tokens/s of one sequence, KV "
            f"read in TB/s; - where the context does not fit; +mm2 of logic beyond the plain "
            f"cache's, - where the RTL has none",
            head,
        ]
        for row in self.rows:
            room = ["no end" if n is None else str(n) for n in (row.tokens_in_sram, row.tokens_fit)]
            line = f"{row.config:<24} {row.bits_per_element:>8.2f} {row.bytes_per_token:>8.0f} "
            logic = "-" if row.logic_mm2 is None else f"{round(row.logic_mm2, 3) + 0.0:+.3f}"
            line += f"{room[0]:>8} {room[1]:>8} {logic:>7}"
            rates = {rate.context: rate for rate in row.rates}
            for context in self.contexts:
                rate = rates.get(context)
                shown = ("-", "-")
                if rate is not None:
                    shown = f"{rate.tokens_per_s:.0f}", f"{rate.kv_tb_per_s:.2f}"
                line += f" | {shown[0]:>14} {shown[1]:>6}"
            result.append(line)
        saved = ", ".join(f"{recompute_ratio(n):,g} times @{n}" for n in self.contexts)
        result.append(f"attention without a cache would take, in multiplications, {saved}")
        return result

    def to_csv(self) -> str:
        """Return a line for every configuration and context that fits, a header first."""
        text = io.StringIO()
        names = [n for n in CapacityRow.__dataclass_fields__ if n != "rates"]
        names += CapacityRate.__dataclass_fields__
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            own = {k: v for k, v in asdict(row).items() if k != "rates"}
            writer.writerows({**own, **asdict(rate)} for rate in row.rates)
        return text.getvalue()


def closed_form_tokens(spec: ModelSpec, kv: KvConfig, n_bytes: int) -> int | None:
    """Return the tokens whose words ``n_bytes`` of SRAM hold, every layer and head.

    No tables, no accumulators, no room for tokens in flight, any bit in any tile: what a
    calculation on paper gives. ``None`` if there is no end; 0 if a policy's slots do not fit.
    """
    bits = 8 * n_bytes
    if kv.budget is not None:
        return None if model_bits(kv, spec, kv.budget) <= bits else 0
    low, high = 0, 1
    while _most_bits(kv, spec, high) <= bits:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = _most_bits(kv, spec, middle) <= bits
        low, high = (middle, high) if fits else (low, middle)
    return low


def _most_bits(kv: KvConfig, spec: ModelSpec, n_tokens: int) -> int:
    """Return the most that was held on the way: KIVI's windows shrink when complete."""
    bits = model_bits(kv, spec, n_tokens)
    if kv.codec in ("kivi", "commvq") and n_tokens >= kv.plain_sinks + kv.residual:
        whole = (n_tokens - kv.plain_sinks) // kv.residual * kv.residual
        bits = max(bits, model_bits(kv, spec, kv.plain_sinks + whole - 1))
    return bits


def attention_macs(spec: ModelSpec, n_tokens: int, *, cached: bool = True) -> int:
    """Return the multiplications of one layer's attention for the newest of ``n_tokens``.

    Scores and sums: ``n · 2 · n_heads · head_dim``. Without a cache every token before attends
    again.
    """
    attended = n_tokens if cached else n_tokens * (n_tokens + 1) // 2
    return attended * 2 * spec.n_heads * spec.head_dim


def recompute_ratio(n_tokens: int) -> float:
    """Return how many times more attention takes without a cache: ``(n + 1) / 2``."""
    return (n_tokens + 1) / 2


def kv_capacity(
    model: str = "llama-3.2-3b",
    *,
    target: str | Path | Target = "roma-7nm-int8",
    configs: Sequence[str] = tuple(KV_PRESETS),
    contexts: Sequence[int] = CONTEXTS,
    rank: int = 0,
    weights: str | None = None,
) -> KvCapacity:
    """Return room, KV bandwidth and tokens/s of KV configurations of a model on a chip.

    Parameters
    ----------
    model
        Name, file or folder; its shape alone is read.
    target
        Built-in target, TOML file, or target; its own KV configuration does not matter.
    configs
        As for ``romsim compile --kv``.
    contexts
        Tokens that attention reads, the new one included.
    rank
        Of one resident adapter on all projections, which takes SRAM and time.
    weights
        Format of all matrices; ``None`` for the target's own.

    Raises
    ------
    SpecError
        If a name, a configuration, a context or the rank is impossible.
    """
    spec = open_model(model).spec
    chip = target if isinstance(target, Target) else load_target(target)
    for context in contexts:
        if context < 1:
            raise SpecError(f"Context must be at least 1 token, not {context}")
    if rank < 0:
        raise SpecError(f"Adapter rank must be 0 or more, not {rank}")
    check_model(spec, chip)
    formats = shape_formats(spec, chip, parse_format(weights) if weights is not None else None)
    point = DesignPoint.of_formats(spec, chip, lambda name: formats[name].fmt)
    adapter_bytes = _adapter_bytes(spec, chip, rank)
    sram_bytes = chip.attention.sram_kib * 1024 * chip.array.n_tiles
    rows = []
    for name in configs:
        kv = parse_kv(name)
        changed, _ = serial_prefill(replace(chip, kv=kv))
        check_kv(spec, changed)
        own = replace(point, target=changed)
        rows.append(_row(name, own, contexts, rank, sram_bytes, adapter_bytes))
    return KvCapacity(
        model=spec.name,
        target=chip.name,
        sram_bytes=sram_bytes,
        adapter_bytes=adapter_bytes,
        contexts=tuple(contexts),
        rows=tuple(rows),
    )


def _adapter_bytes(spec: ModelSpec, target: Target, rank: int) -> int:
    """Return the bytes of an adapter on all matrices: its codes, or its words of trits."""
    if target.lora.path == "adders":
        ranks = {name: rank for name in tensor_shapes(spec) if name.startswith("blk.")}
        return -(-word_bits(spec, ranks, target) // 8)
    return lora_bits(spec, rank) // 8


def _row(
    name: str,
    point: DesignPoint,
    contexts: Sequence[int],
    rank: int,
    sram_bytes: int,
    adapter_bytes: int,
) -> CapacityRow:
    spec, target, kv = point.spec, point.target, point.target.kv
    limit = max_context(spec, target, adapter_bytes)
    bits = element_bits(kv, spec)
    held = kv.held(limit)
    endless = kv.slots is not None and limit > 0
    reached = [n for n in contexts if n <= limit]
    cycles = mean_decode_cycles(point, reached, rank=rank)
    clock = target.clock_mhz * 1e6
    group = spec.n_heads // spec.n_kv_heads
    passes = -(-group // target.attention.heads_parallel)
    rates = []
    for context, one in zip(reached, cycles, strict=True):
        words = model_bits(kv, spec, context)
        read = words * passes // 8
        rate = clock / one
        rates.append(
            CapacityRate(
                context=context,
                tokens_per_s=rate,
                kv_bytes_read=read,
                kv_tb_per_s=read * rate / 1e12,
                recompute_ratio=recompute_ratio(context),
            )
        )
    return CapacityRow(
        config=name,
        bits_per_element=bits,
        bytes_per_token=kv_bytes_per_token(spec, bits),
        slots=kv.slots,
        tokens_in_sram=closed_form_tokens(spec, kv, max(0, sram_bytes - adapter_bytes)),
        tokens_fit=None if endless else limit,
        table_bits=table_bits(spec, kv, held) if limit else 0,
        logic_mm2=_logic_mm2(spec, target),
        rates=tuple(rates),
    )


def _logic_mm2(spec: ModelSpec, target: Target) -> float | None:
    """Return what a target's cache takes in logic beyond the plain one, where the RTL has it."""
    if not has_rtl(target) or why_no_kv_area(target) is not None:
        return None
    with_it, plain = (
        sum(
            part.area.mid * count
            for unit, _, count, part in estimate_area(one, spec=spec).items
            if unit != "periphery" and part.kind == "logic"
        )
        for one in (target, replace(target, kv=DEFAULT_KV))
    )
    return (with_it - plain) * 1e-6
