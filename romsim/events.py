"""What happens on the chip while one instruction runs, counted: the first factor of energy."""

from __future__ import annotations

from romsim.area_parts import sum_bits
from romsim.bounds import norm_length
from romsim.design_point import DesignPoint
from romsim_compiler.kv_cycles import rope_extra
from romsim_compiler.kv_sram import MASS_BITS, element_bits, model_bits, stored_bits
from romsim_compiler.lora_adders import TRIT_BITS, adder_runs, lora_parts
from romsim_compiler.program import Instruction
from romsim_compiler.target import MX_BLOCK

__all__ = ["EVENT_UNITS", "Events", "count_events"]


Events = dict[str, float]
"""Counts by event: ``weight_macs`` (lanes of ROM words read, idle ones of padded words included),
``scale_products``, ``rom_bits``, ``kv_macs``, ``lora_macs``, ``exponentials``, ``vector_ops``,
``sram_read_bits``, ``sram_write_bits``, ``buffer_read_bits``, ``buffer_write_bits`` (x buffers and
the like, beside the lanes), ``broadcast_bits`` (each reaches every tile) and ``collect_bits`` (each
comes from one tile)."""

EVENT_UNITS = {
    "weight_macs": "L",
    "scale_products": "L",
    "rom_bits": "L",
    "kv_macs": "H",
    "lora_macs": "H",
    "exponentials": "H",
    "vector_ops": "V",
    "sram_read_bits": "",
    "sram_write_bits": "",
    "buffer_read_bits": "",
    "buffer_write_bits": "",
    "broadcast_bits": "network",
    "collect_bits": "network",
}
"""Unit in which an event happens; where none stands, the instruction's own."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _coded(n: int, number_format: str) -> float:
    """Return the bits of ``n`` codes of 8 bits, in MXINT8 with a shift of 8 bits per block."""
    return 8.0 * n + (8.0 * _ceil(n, MX_BLOCK) if number_format == "mxint8" else 0.0)


def count_events(
    point: DesignPoint,
    instruction: Instruction,
    *,
    position: int,
    ranks: dict[str, tuple[int, ...]],
) -> Events:
    """Return the events of one instruction.

    Parameters
    ----------
    position
        Position of the token: attention reads ``position + 1`` tokens.
    ranks
        Padded ranks of the adapter by stem, as in :func:`romsim.design_point.adapter_ranks`.
    """
    spec, array, formats = point.spec, point.target.array, point.target.formats
    heads = spec.n_heads * spec.head_dim
    match instruction.op:
        case "matvec":
            return _matvec(point, instruction.operand)
        case "lora":
            return _lora(point, instruction.operand.partition(".")[2], ranks)
        case "attn":
            return _attention(point, position)
        case "embed":
            planes = point.mappings[instruction.operand].planes if instruction.operand else 0
            bits = _ceil(spec.dim, array.word_codes) * planes * array.word_bits
            return {
                "rom_bits": float(bits),
                "collect_bits": 32.0 * spec.dim,
                "vector_ops": 2.0 * spec.dim,
                "sram_write_bits": 32.0 * spec.dim,
            }
        case "sincos":
            pairs = spec.head_dim // 2
            return {"vector_ops": 4.0 * pairs, "sram_write_bits": 64.0 * pairs}
        case "norm":
            length = norm_length(spec, instruction.operand)
            # Squares and sum; then times root, times gain, quantised.
            return _sent(
                point, length, {"vector_ops": 6.0 * length, "sram_read_bits": 64.0 * length}
            )
        case "rope":
            rows = heads + 2 * spec.n_kv_heads * spec.head_dim
            if rope_extra(spec, point.target):  # the query is rotated twice
                rows += heads
            written = _written_bits(point)
            return {
                "vector_ops": 6.0 * rows,
                "sram_read_bits": 64.0 * rows,
                "broadcast_bits": _coded(heads, formats.kv),
                "collect_bits": written,  # to the one tile that keeps the token
                "sram_write_bits": written,
                "buffer_write_bits": _coded(heads, formats.kv) * array.n_tiles,
            }
        case "attn_out":
            return _sent(point, heads, {"vector_ops": 4.0 * heads, "sram_read_bits": 64.0 * heads})
        case "resid":
            return {
                "vector_ops": 2.0 * spec.dim,
                "sram_read_bits": 96.0 * spec.dim,
                "sram_write_bits": 32.0 * spec.dim,
            }
        case "glu":
            length = spec.hidden_dim
            return _sent(
                point, length, {"vector_ops": 6.0 * length, "sram_read_bits": 128.0 * length}
            )
        case op:
            raise KeyError(op)


def _sent(point: DesignPoint, length: int, events: Events) -> Events:
    """Add the way of a vector of codes into every tile's x buffer."""
    bits = _coded(length, point.target.formats.activation)
    events["broadcast_bits"] = bits
    events["buffer_write_bits"] = bits * point.target.array.n_tiles
    return events


def _matvec(point: DesignPoint, name: str) -> Events:
    mapping, array = point.mappings[name], point.target.array
    words = float(mapping.n_words * array.n_tiles * array.n_cells)
    # Cells that work on other rows of the same columns share what they read of x, and so do planes.
    reads = mapping.steps * mapping.wpc * array.n_tiles * min(mapping.ks, array.n_cells)
    return {
        "weight_macs": words * array.word_codes,
        "scale_products": words * array.n_scales if array.scale_bits else 0.0,
        "rom_bits": words * array.word_bits,
        "buffer_read_bits": reads * _coded(array.word_codes, point.target.formats.activation),
        "collect_bits": 64.0 * mapping.n_rows,
        "vector_ops": 1.0 * mapping.n_rows,
        "sram_write_bits": 32.0 * mapping.n_rows,
    }


def _written_bits(point: DesignPoint) -> float:
    """Return the bits of a new token's keys and values."""
    target, head_dim, n_heads = point.target, point.spec.head_dim, point.spec.n_kv_heads
    if target.kv.is_default:
        return _coded(2 * n_heads * head_dim, target.formats.kv)
    bits = 1.0 * stored_bits(target.kv, head_dim, 1)
    if target.kv.codec in ("kivi", "tiered", "commvq"):  # written again, narrower
        bits += 2 * head_dim * element_bits(target.kv, point.spec)
    return n_heads * bits


def _lora(point: DesignPoint, stem: str, ranks: dict[str, tuple[int, ...]]) -> Events:
    mine = ranks.get(stem, (0,))
    if not any(mine):
        return {}
    if point.target.lora.path == "adders":
        return _adder_lora(point, stem, mine)
    n_rows, n_cols = point.lora_shape(stem)
    total, widest = sum(mine), max(mine)
    macs = float(total * n_cols + n_rows * widest)
    return {
        "lora_macs": macs,
        "sram_read_bits": macs * (8.25 if point.target.formats.lora == "mxint8" else 8.0),
        "collect_bits": 64.0 * (total + n_rows),
        "broadcast_bits": _coded(total, point.target.formats.activation),
        "vector_ops": 4.0 * total + n_rows,
        "sram_write_bits": 32.0 * n_rows,
    }


def _adder_lora(point: DesignPoint, stem: str, ranks: tuple[int, ...]) -> Events:
    """Count the runs of the array as those of a matrix are, with words of SRAM for those of ROM."""
    array, formats = point.target.array, point.target.formats
    parts, n_cols = lora_parts(point.spec, stem)
    runs = adder_runs(parts, n_cols, ranks, point.target)
    words = float(sum(r.mapping.n_words for r in runs) * array.n_tiles * array.n_cells)
    reads = sum(r.mapping.steps * r.mapping.wpc * r.mapping.ks for r in runs) * array.n_tiles
    total, n_rows = sum(ranks), sum(parts)
    coded = _coded(total, formats.activation)
    return {
        "weight_macs": words * array.word_codes,
        "scale_products": words * array.n_scales if array.scale_bits else 0.0,
        "sram_read_bits": words * array.word_codes * TRIT_BITS,
        "buffer_read_bits": reads * _coded(array.word_codes, formats.activation),
        "buffer_write_bits": coded * array.n_tiles,
        "collect_bits": 64.0 * (total + n_rows),
        "broadcast_bits": coded,
        "vector_ops": 4.0 * total + n_rows,
        "sram_write_bits": 32.0 * n_rows,
    }


def _attention(point: DesignPoint, position: int) -> Events:
    spec, target = point.spec, point.target
    att = target.attention
    tokens = target.kv.held(position + 1)
    heads = spec.n_heads * spec.head_dim
    passes = _ceil(spec.n_heads // spec.n_kv_heads, att.heads_parallel)
    words = spec.n_kv_heads * passes * tokens * _ceil(spec.head_dim, att.word_elems)
    blocks = _ceil(tokens, att.attn_block)
    tiles = target.array.n_tiles
    active = min(tiles, tokens, att.attn_block)
    sums = 1.0 * sum_bits(target.formats.kv) * heads
    read = 2.0 * words * _coded(att.word_elems, target.formats.kv)
    if not target.kv.is_default:
        read = 1.0 * passes * model_bits(target.kv, spec, tokens) / spec.n_layers
    ranked = min(tokens, target.kv.heavy + target.kv.window) if target.kv.is_ranked else 0
    mass = 1.0 * MASS_BITS * ranked * spec.n_kv_heads
    return {
        "kv_macs": 2.0 * tokens * heads,
        "exponentials": 1.0 * tokens * spec.n_heads,
        "sram_read_bits": read,
        "buffer_read_bits": 32.0 * tokens * spec.n_heads + mass,  # scores
        "buffer_write_bits": 32.0 * tokens * spec.n_heads + mass,
        # Partial sums of the tiles that hold tokens: along the links between them, and from the
        # last of them to the vector unit. Maxima go to all tiles and back.
        "broadcast_bits": blocks * (64.0 * spec.n_heads + sums * active / tiles),
        "collect_bits": blocks * sums,
        "vector_ops": blocks * (heads + spec.n_heads) * float(active),
    }
