"""Table of the KV cache: tokens that the chip's SRAM would hold with each codec."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from romsim.report.model import Cell, Column, Table
from romsim_compiler.kv import KvConfig
from romsim_compiler.kv_sram import element_bits
from romsim_compiler.memory_map import kv_bits_per_element, kv_bytes_per_token, max_context
from romsim_compiler.target import Target
from romsim_models.spec import ModelSpec

__all__ = ["Codec", "codec_table", "codecs", "kv_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A form in which KV elements can be stored."""

    name: str
    bits: float  # of one element, metadata included
    formula: str
    source: str
    grade: str
    kv_format: str  # the target's name for it; empty where no target has it


def kv_name(kv: KvConfig) -> str:
    """Return a short name of a KV cache; nothing for the plain one."""
    if kv.is_default:
        return ""
    codec = kv.codec
    if codec in ("kivi", "tiered"):
        codec += " {}/{} bits".format(*kv.code_bits())
    others = [kv.retention] * (kv.retention != "all") + [kv.layout] * (kv.layout == "paged")
    return " ".join(["KV", codec, *others])


@cache
def codecs() -> tuple[Codec, ...]:
    """Return the codecs of ``tables/kv_codecs.toml``."""
    file = resources.files("romsim") / "tables" / "kv_codecs.toml"
    values: dict[str, list[dict[str, Any]]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(
        Codec(
            name=one["name"],
            bits=sum(p["code_bits"] + p["metadata_bits"] / p["per"] for p in one["parts"])
            / len(one["parts"]),
            formula=one["formula"],
            source=one["source"],
            grade=one["grade"],
            kv_format=one.get("kv_format", ""),
        )
        for one in values["codecs"]
    )


def codec_table(spec: ModelSpec, target: Target, lora_bytes: int) -> Table:
    """Return bytes per token and tokens that fit with each codec, on the target's SRAM.

    Parameters
    ----------
    lora_bytes
        SRAM that resident adapters take.
    """
    tiles = target.array.n_tiles
    free = target.attention.sram_kib * 1024 - -(-lora_bytes // tiles)
    rows = [] if target.kv.is_default else [_own(spec, target, lora_bytes)]
    for codec in codecs():
        token = kv_bytes_per_token(spec, codec.bits)
        n_tokens = max(0, int(free // (token * target.schedule.n_slots))) * tiles
        built = target.kv.is_default and codec.kv_format == target.formats.kv
        rows.append(
            (
                codec.name,
                "this chip's" if built else "capacity alone",
                codec.bits,
                token,
                n_tokens,
                16 / codec.bits,
                f"{codec.formula} bits; 2 × layers × KV heads × head size × bits ÷ 8; tokens dealt "
                f"to {tiles} tiles",
                codec.source,
                codec.grade,
            )
        )
    return Table(
        key="kv_codecs",
        title="KV capacity by codec",
        note=(
            f"{spec.n_kv_heads} KV heads of {spec.n_heads} query heads, {spec.n_layers} layers, "
            f"{target.attention.sram_kib * tiles / 1024:.4g} MiB of tile SRAM for "
            f"{target.schedule.n_slots} sequence(s). The chip stores "
            f"{kv_bits_per_element(target, spec):g} bits an element; the other rows say what the "
            "same SRAM would hold, not what a codec costs in lanes or in quality."
        ),
        columns=(
            Column(key="codec", label="codec"),
            Column(key="status", label="status"),
            Column(key="bits", label="bits of an element", unit="bit"),
            Column(key="token_bytes", label="a token", unit="B"),
            Column(key="tokens", label="tokens that fit", unit="tokens"),
            Column(key="ratio", label="smaller than FP16", unit="×"),
            Column(key="formula", label="formula"),
            Column(key="source", label="source"),
            Column(key="grade", label="grade"),
        ),
        rows=tuple(rows),
    )


def _own(spec: ModelSpec, target: Target, lora_bytes: int) -> tuple[Cell, ...]:
    """Return the row of a chip whose cache is not the plain one."""
    kv = target.kv
    bits = element_bits(kv, spec)
    held = "" if kv.slots is None else f"; {kv.retention} keeps {kv.slots} tokens of any sequence"
    return (
        f"{kv.codec}, {kv.retention}, {kv.layout}",
        "this chip's",
        bits,
        kv_bytes_per_token(spec, bits),
        kv.slots or max_context(spec, target, lora_bytes),
        16 / bits,
        f"closed form of docs/kv.md, section 8, with windows, pages and tables{held}",
        f"kv of the target: {kv.text()}",
        "derived",
    )
