"""Bits of a KV configuration in closed form, and the context that fits (docs/kv.md, 8)."""

from __future__ import annotations

from math import prod
from typing import Any

from romsim_compiler.kv import CODEBOOK_ENTRIES, WIDE_BITS, KvConfig
from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec

__all__ = [
    "MASS_BITS",
    "STREAM_CONTEXT",
    "check_kv",
    "codebook_bits",
    "codebook_shapes",
    "element_bits",
    "fitting_tokens",
    "kv_summary",
    "model_bits",
    "page_meets_tiles",
    "sequence_bits",
    "stored_bits",
    "table_bits",
]

MASS_BITS = 40
"""Width of an accumulator of attention mass (docs/kv.md, section 4)."""
STREAM_CONTEXT = 1 << 24
"""Tokens of a sequence at most under a retention policy that reuses slots: what the position
register counts. Without ``--context`` a window's sequences are compiled for 65,536."""

_WORD = 16  # bits of a word of the fp16 codec, of a scale and of a zero


def page_meets_tiles(kv: KvConfig, n_tiles: int) -> bool:
    """Whether every page's tokens meet all tiles alike (docs/kv.md, rule 6)."""
    return kv.layout != "paged" or kv.block % n_tiles == 0 or n_tiles % kv.block == 0


def check_kv(spec: ModelSpec, target: Target) -> None:
    """Refuse a KV configuration that the model or the chip cannot have.

    Raises
    ------
    SpecError
        With the rule of docs/kv.md, section 6.
    """
    kv = target.kv
    if kv.is_default:
        return
    if target.formats.kv != "mxint8":
        raise SpecError(
            f"formats.kv of target {target.name!r} must be 'mxint8' with a [kv] section, not "
            f"{target.formats.kv!r}: the section chooses the codec (rule 5)"
        )
    if kv.group and spec.head_dim % kv.group:
        raise SpecError(
            f"kv.group must divide head_dim of model {spec.name!r}, {spec.head_dim}, not "
            f"{kv.group}: values share a scale per {kv.group} channels (rule 5)"
        )
    outside = [(n, h) for n, h in kv.head_table if n >= spec.n_layers or h >= spec.n_kv_heads]
    if outside or kv.wide_heads > spec.n_layers * spec.n_kv_heads:
        what = (
            ("head_table", "{}.{}".format(*outside[0]))
            if outside
            else ("wide_heads", kv.wide_heads)
        )
        raise SpecError(
            f"kv.{what[0]} of model {spec.name!r} must be among its {spec.n_layers} layers of "
            f"{spec.n_kv_heads} KV heads, not {what[1]}"
        )
    tiles = target.array.n_tiles
    if not page_meets_tiles(kv, tiles):
        raise SpecError(
            f"kv.block must divide array.n_tiles of target {target.name!r}, {tiles}, or be a "
            f"multiple of it, not {kv.block}: a page's tokens must meet all tiles alike (rule 6)"
        )


def _token_bits(kv: KvConfig, head_dim: int, side: int) -> int:
    """Return the bits of one encoded key (side 0) or value (side 1) of a head.

    KIVI's keys share scale and zero of a channel among ``group`` tokens: a token's share of them.
    """
    if kv.codec == "commvq":  # two indices of 6 bits a stage, or a bit a row; and the length
        return _WORD + (kv.value_bits * head_dim if side else 12 * kv.stages)
    bits = kv.code_bits()[side]
    if kv.codec == "fp16":
        return bits * head_dim
    if kv.codec == "int8":
        return bits * head_dim + 8 * -(-head_dim // MX_BLOCK)
    return bits * head_dim + 2 * _WORD * head_dim // kv.group


def _pair_bits(kv: KvConfig, head_dim: int) -> int:
    """Return the bits of an encoded key and value of a head: of two widths, the narrow one."""
    return _token_bits(kv, head_dim, 0) + _token_bits(kv, head_dim, 1)


def _wide_bits(head_dim: int) -> int:
    """Return the bits of a key and value of a head in MXINT8."""
    return 2 * (8 * head_dim + 8 * -(-head_dim // MX_BLOCK))


def element_bits(kv: KvConfig, spec: ModelSpec) -> float:
    """Return stored bits of one element, the mean over all; windows of words are left out."""
    mean = _pair_bits(kv, spec.head_dim) / (2 * spec.head_dim)
    if not kv.wide_heads:
        return mean
    return mean + kv.wide_heads * _wider_by(kv) / (2 * spec.n_layers * spec.n_kv_heads)


def _wider_by(kv: KvConfig) -> int:
    """Return the bits that a channel's key and value take more in a head of wider codes."""
    return 2 * WIDE_BITS - sum(kv.code_bits())


def model_bits(kv: KvConfig, spec: ModelSpec, n_tokens: int) -> int:
    """Return the bits that all heads and layers hold after ``n_tokens``; as `stored_bits`."""
    bits = stored_bits(kv, spec.head_dim, n_tokens) * spec.n_layers * spec.n_kv_heads
    if kv.wide_heads:
        narrow = max(0, n_tokens - kv.heavy - kv.window)
        bits += kv.wide_heads * narrow * _wider_by(kv) * spec.head_dim
    return bits


def stored_bits(kv: KvConfig, head_dim: int, n_tokens: int) -> int:
    """Return the bits that one KV head of one layer holds after ``n_tokens`` tokens.

    Words of keys and values alone: no accumulators, no tables. Not one of tiered's wider heads.
    """
    held = n_tokens if kv.budget is None else min(n_tokens, kv.budget)
    if kv.codec == "tiered":
        wide = min(held, kv.heavy + kv.window)
        return wide * _wide_bits(head_dim) + (held - wide) * _pair_bits(kv, head_dim)
    if kv.codec == "commvq":
        coded = held // kv.residual * kv.residual
        return coded * _pair_bits(kv, head_dim) + (held - coded) * 2 * _WORD * head_dim
    if kv.codec != "kivi":
        return held * _pair_bits(kv, head_dim)
    plain = min(held, kv.plain_sinks)
    n = held - plain
    keys = n // kv.residual * kv.residual
    values = max(0, n - kv.residual)
    word = _WORD * head_dim
    return (
        2 * plain * word
        + keys * _token_bits(kv, head_dim, 0)
        + (n - keys) * word
        + values * _token_bits(kv, head_dim, 1)
        + (n - values) * word
    )


def codebook_shapes(spec: ModelSpec, kv: KvConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of CommVQ's codebooks of keys and of values."""
    heads, dim = (spec.n_layers, spec.n_kv_heads), spec.head_dim
    return (*heads, kv.stages, CODEBOOK_ENTRIES, dim), (*heads, kv.value_bits * dim + 1, dim)


def codebook_bits(spec: ModelSpec, kv: KvConfig) -> int:
    """Return the ROM bits of CommVQ's codebooks; 0 under another codec.

    The constant ``|u_i + J u_j|^2`` of each pair of entries is a ROM word of 32 bits, too.
    """
    if kv.codec != "commvq":
        return 0
    keys, values = (prod(shape) for shape in codebook_shapes(spec, kv))
    pairs = spec.n_layers * spec.n_kv_heads * kv.stages * CODEBOOK_ENTRIES**2
    return 16 * (keys + values) + 32 * pairs


def table_bits(spec: ModelSpec, kv: KvConfig, n_slots: int) -> int:
    """Return the bits of a sequence's tables for ``n_slots`` slots, all layers together.

    A block table is shared by layers and heads; in other layouts a slot's row is its number.
    """
    if kv.layout == "paged":
        n_blocks = -(-n_slots // kv.block)
        return n_blocks * max(1, (n_blocks - 1).bit_length())
    return 0


def sequence_bits(spec: ModelSpec, target: Target, n_tokens: int) -> int:
    """Return the SRAM bits that the chip sets aside for one sequence of up to ``n_tokens``.

    Everything counts: rows that a token takes while attention reads, room for the tokens in
    flight, whole pages, tables, accumulators.
    """
    kv = target.kv
    slots = kv.held(n_tokens)
    rows = -(-slots // kv.block) * kv.block if kv.layout == "paged" else slots
    dim, spare = spec.head_dim, target.schedule.n_inflight - 1
    if kv.codec == "kivi":
        word = _WORD * dim
        n = max(0, rows - kv.plain_sinks)
        window = min(n, kv.residual + spare), min(n, kv.residual + 1 + spare)
        head = 2 * (rows - n) * word + sum(window) * word
        head += n // kv.residual * kv.residual * _token_bits(kv, dim, 0)
        head += max(0, n - kv.residual) * _token_bits(kv, dim, 1)
    elif kv.codec == "commvq":
        head = min(rows, kv.residual + spare) * 2 * _WORD * dim
        head += rows // kv.residual * kv.residual * _pair_bits(kv, dim)
    elif kv.codec == "tiered":
        wide = min(rows, kv.heavy + kv.window + 1 + spare)
        head = wide * (_wide_bits(dim) + MASS_BITS + 1) + max(0, rows - wide) * _pair_bits(kv, dim)
        head += (rows + kv.window) * max(1, (rows - 1).bit_length())  # rows and widths; the newest
    else:
        head = rows * _pair_bits(kv, dim)
    if kv.retention == "h2o":  # mass and whether a token is one of the newest; their slots
        head += rows * (MASS_BITS + 1) + (kv.window + 1) * max(1, (slots - 1).bit_length())
    total = head * spec.n_layers * spec.n_kv_heads + table_bits(spec, kv, rows)
    if kv.wide_heads:
        narrow = max(0, rows - kv.heavy - kv.window - 1 - spare)
        total += kv.wide_heads * narrow * _wider_by(kv) * dim
    if kv.is_ranked:  # numerators of all slots, which are divided by their sum when it is known
        total += rows * spec.n_heads * _WORD
    return total


def fitting_tokens(spec: ModelSpec, target: Target, free_bytes: int) -> int:
    """Return the tokens of one sequence that fit ``free_bytes`` of each tile; 0 for none.

    Under a retention policy whose slots fit, a sequence may be as long as the position register
    counts.
    """
    kv, tiles = target.kv, target.array.n_tiles

    def fits(n_tokens: int) -> bool:
        bits = sequence_bits(spec, target, n_tokens) * target.schedule.n_slots
        return -(-bits // (8 * tiles)) <= free_bytes

    if kv.slots is not None:
        return STREAM_CONTEXT if fits(kv.slots) else 0
    step = tiles if kv.layout != "paged" else max(tiles, kv.block)
    low, high = 0, 1
    while fits(high * step):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step


def kv_summary(spec: ModelSpec, target: Target, n_tokens: int) -> dict[str, Any]:
    """Return a configuration's figures for a manifest, for sequences of up to ``n_tokens``."""
    kv = target.kv
    slots = kv.held(n_tokens)
    rows = -(-slots // kv.block) * kv.block if kv.layout == "paged" else slots
    return {
        "config": kv.to_json(),
        "slots": slots,
        "bits_per_element": element_bits(kv, spec),
        "table_bits": table_bits(spec, kv, rows) * target.schedule.n_slots,
        "codebook_bits": codebook_bits(spec, kv),
    }
