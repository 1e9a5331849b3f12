"""SRAM: what the KV cache, adapters and activations take, and the context limit that follows."""

from __future__ import annotations

from dataclasses import dataclass

from romsim_compiler.groups import layer_shapes
from romsim_compiler.kv_sram import element_bits, fitting_tokens, sequence_bits
from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.errors import CapacityError, SpecError
from romsim_models.spec import ModelSpec

__all__ = [
    "MemoryMap",
    "kv_bits_per_element",
    "kv_bytes_per_token",
    "kv_sram_bytes",
    "lora_bits",
    "map_memory",
    "max_context",
    "vector_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMap:
    """Bytes of each SRAM, per tile for the H-units."""

    context: int  # tokens
    kv_bytes: int  # all tiles
    lora_bytes: int  # all tiles
    tile_sram_bytes: int  # all tiles, available
    vector_bytes: int
    vector_sram_bytes: int


def kv_bits_per_element(target: Target, spec: ModelSpec) -> float:
    """Return stored bits of one KV element, with its share of the block's exponent.

    The plain cache's; of another codec, what an encoded element of the model's heads takes.
    """
    if not target.kv.is_default:
        return element_bits(target.kv, spec)
    return 8 + 8 / MX_BLOCK if target.formats.kv == "mxint8" else 8.0


def kv_sram_bytes(spec: ModelSpec, target: Target, context: int) -> float:
    """Return bytes that the chip sets aside for KV of ``context`` tokens in each of its slots."""
    if target.kv.is_default:
        token = kv_bytes_per_token(spec, kv_bits_per_element(target, spec))
        return context * (token * target.schedule.n_slots)
    return sequence_bits(spec, target, context) * target.schedule.n_slots / 8


def kv_bytes_per_token(spec: ModelSpec, bits: float) -> float:
    """Return bytes of KV per token: ``2 * layers * kv_heads * head_dim * bits / 8``.

    Parameters
    ----------
    bits
        Stored bits of one element, metadata included (16 for FP16, 8.25 for MXINT8).
    """
    return 2 * spec.n_layers * spec.n_kv_heads * spec.head_dim * bits / 8


def lora_bits(spec: ModelSpec, rank: int, stems: frozenset[str] | None = None) -> int:
    """Return SRAM bits of an adapter of one rank on every projection (or on ``stems`` alone).

    Codes of 8 bits and one exponent of 8 bits per block: 32 along A's input, ``min(32, rank)``
    along B's; the rank is padded to a whole number of blocks.
    """
    if rank == 0:
        return 0
    block = min(MX_BLOCK, rank)
    padded = -(-rank // block) * block
    bits = 0
    for stem, (n_rows, n_cols) in layer_shapes(spec).items():
        if stems is None or stem in stems:
            bits += padded * (8 * n_cols + 8 * -(-n_cols // MX_BLOCK))
            bits += n_rows * (8 * padded + 8 * (padded // block))
    return bits * spec.n_layers


def vector_bytes(spec: ModelSpec, target: Target) -> int:
    """Return the vector unit's activation SRAM in bytes: buffers X, Y, D, O and SC per token."""
    heads = spec.n_heads * spec.head_dim
    qkv = heads + 2 * spec.n_kv_heads * spec.head_dim
    linear = max(qkv, 2 * spec.hidden_dim, spec.dim)
    levels = max(1, (65536 // target.attention.attn_block).bit_length())
    per_token = 4 * spec.dim + 2 * 4 * linear + 8 * heads + 4 * spec.n_heads + 8 * spec.head_dim
    stack = levels * (8 * heads + 6 * spec.n_heads)
    return per_token * target.schedule.n_inflight + stack


def max_context(spec: ModelSpec, target: Target, lora_bytes: float = 0) -> int:
    """Return the tokens of each slot that fit the tiles' SRAM beside ``lora_bytes`` of adapters.

    Tokens are dealt to the tiles in turn, so the limit is the tiles' word count times their number.
    """
    tiles = target.array.n_tiles
    free = target.attention.sram_kib * 1024 - -(-lora_bytes // tiles)
    if not target.kv.is_default:
        return fitting_tokens(spec, target, int(free)) if free > 0 else 0
    token = kv_bytes_per_token(spec, kv_bits_per_element(target, spec))
    token_bytes = token * target.schedule.n_slots
    return max(0, int(free // token_bytes)) * tiles


def map_memory(
    spec: ModelSpec, target: Target, *, context: int | None = None, lora_bytes: int = 0
) -> MemoryMap:
    """Return the memory map for a context, or for the largest that fits (and the model knows).

    Raises
    ------
    CapacityError
        If the context, the adapters or the activations do not fit: needed and available bytes.
    SpecError
        If the context is no positive number.
    """
    if context is not None and context < 1:
        raise SpecError(f"Context must be at least 1 token, not {context}")
    limit = max_context(spec, target, lora_bytes)
    least = target.kv.slots or 1
    available = target.attention.sram_kib * 1024 * target.array.n_tiles
    if limit < 1 and target.kv.layout == "paged":
        least = max(least, target.kv.block)
    if limit < 1:
        raise CapacityError(
            f"Adapters and the KV cache of {'one token' if least == 1 else f'{least} tokens'} must "
            f"fit the SRAM of target {target.name!r}: they need {lora_bytes} and "
            f"{kv_sram_bytes(spec, target, least):.0f} bytes, not the {available} available; "
            f"{_remedies(target, lora_bytes)}, or raise attention.sram_kib"
        )
    known = 65536 if target.kv.retention == "stream" else min(spec.max_seq_len, 65536)
    wanted = context if context is not None else min(limit, known)
    if wanted > limit:
        raise CapacityError(
            f"Context of {wanted} tokens must fit the SRAM of target {target.name!r}: KV needs "
            f"{kv_sram_bytes(spec, target, wanted):.0f} bytes and adapters {lora_bytes}, not the "
            f"{available} "
            f"available; at most {limit} tokens fit; lower --context or the rank, or raise "
            f"attention.sram_kib"
        )
    if target.kv.held(wanted) > 65536:
        raise CapacityError(f"Context must be at most 65536 tokens, not {wanted}; lower --context")
    vector = vector_bytes(spec, target)
    if vector > target.vector.sram_kib * 1024:
        raise CapacityError(
            f"Activations must fit the vector SRAM of target {target.name!r}: they need {vector} "
            f"bytes, not the {target.vector.sram_kib * 1024} available; raise vector.sram_kib to "
            f"{-(-vector // 1024)}"
        )
    return MemoryMap(
        context=wanted,
        kv_bytes=round(kv_sram_bytes(spec, target, wanted)),
        lora_bytes=lora_bytes,
        tile_sram_bytes=available,
        vector_bytes=vector,
        vector_sram_bytes=target.vector.sram_kib * 1024,
    )


def _remedies(target: Target, lora_bytes: int) -> str:
    """Return what takes less SRAM where not even the least fits."""
    kv = target.kv
    names: tuple[str, ...] = ("sinks", "heavy", "window") if kv.slots is not None else ()
    if kv.layout == "paged" and (kv.slots is None or kv.block > kv.slots):
        names = ("block",)
    lower = " or ".join(f"kv.{name}" for name in names if getattr(kv, name) > 1)
    parts = [f"lower {lower}"] if lower else []
    if lora_bytes:
        parts += ["lower the rank", "leave out an adapter"]
    return ", ".join(parts) or "choose a codec of fewer bits with --kv"
