"""Durations of instructions in cycles: the closed forms of docs/machine.md, section 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from romsim_compiler.kv_cycles import block_extra, encode_extra, rope_extra, step_extra
from romsim_compiler.lora_adders import adder_lora_cycles, lora_parts
from romsim_compiler.mapping import Mapping
from romsim_compiler.program import Instruction
from romsim_compiler.row_parts import part_sum_cycles, row_parts
from romsim_compiler.target import Target
from romsim_models.spec import ModelSpec

__all__ = [
    "adapter_cycles",
    "attention_cycles",
    "block_cycles",
    "fixed_cycles",
    "lora_cycles",
    "matvec_cycles",
    "maximum_cycles",
]


_FOREVER = 1 << 40  # tokens after which no window holds a block's


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _trailing_ones(value: int) -> int:
    return ((value ^ (value + 1)).bit_length()) - 1


def matvec_cycles(mapping: Mapping, target: Target) -> int:
    """Return the duration of a matrix instruction."""
    return (
        mapping.cycles(target.vector.n_lanes)
        + target.latency.matvec
        + target.network.collect_cycles
    )


def fixed_cycles(
    instruction: Instruction,
    *,
    spec: ModelSpec,
    target: Target,
    mapping_of: Callable[[str], Mapping],
) -> int:
    """Return the duration of an instruction that depends on neither position nor adapter.

    Parameters
    ----------
    mapping_of
        Mapping of a group by name.

    Raises
    ------
    KeyError
        For ``attn`` and ``lora``, whose durations depend on the slot's state.
    """
    lanes = target.vector.n_lanes
    lam = target.latency
    bc, co = target.network.broadcast_cycles, target.network.collect_cycles
    heads = spec.n_heads * spec.head_dim
    match instruction.op:
        case "matvec":
            return matvec_cycles(mapping_of(instruction.operand), target)
        case "embed":
            if instruction.operand:  # a row of a matrix in ROM
                mapping = mapping_of(instruction.operand)
                words = _ceil(spec.dim, target.array.word_codes) * mapping.planes
            else:  # the row comes from off chip, a beat a cycle
                words = 0
            return max(words, _ceil(spec.dim, lanes)) + lam.embed + co
        case "sincos":
            angles = _ceil(spec.head_dim // 2, max(1, lanes // 32))
            return angles * (2 if rope_extra(spec, target) else 1) + lam.sincos
        case "norm":
            length = {"attn_sub_norm": heads, "ffn_sub_norm": spec.hidden_dim}.get(
                instruction.operand.rpartition(".")[2], spec.dim
            )
            return 2 * _ceil(length, lanes) + lam.norm + bc
        case "rope":
            rows = (spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim
            extra = rope_extra(spec, target) + encode_extra(target)
            return _ceil(rows, lanes) + extra + lam.rope + bc
        case "attn_out":
            return spec.n_heads + _ceil(heads, lanes) + lam.attn_out + bc
        case "resid":
            return _ceil(spec.dim, lanes) + lam.resid
        case "glu":
            return 2 * _ceil(spec.hidden_dim, lanes) + lam.glu + bc
        case op:
            raise KeyError(op)


def block_cycles(index: int, n_tokens: int, *, spec: ModelSpec, target: Target) -> int:
    """Return the cycles of one attention block with ``n_tokens`` tokens."""
    att = target.attention
    group = spec.n_heads // spec.n_kv_heads
    passes = _ceil(group, att.heads_parallel)
    words = _ceil(spec.head_dim, att.word_elems)
    local = _ceil(n_tokens, target.array.n_tiles)
    sweep = spec.n_kv_heads * passes * local
    merge = _ceil(spec.n_heads * spec.head_dim, target.vector.n_lanes)
    return (
        2 * sweep * words
        + sweep
        + spec.n_heads
        + target.network.broadcast_cycles
        + target.network.collect_cycles
        + merge * max(1, _trailing_ones(index))
        + maximum_cycles(target.array.n_tiles)
        + target.latency.block
    )


def maximum_cycles(n_tiles: int) -> int:
    """Return what the maximum over the tiles takes beyond λ_block.

    Scores are compared in pairs, then the largest is rounded. Two registers, which λ_block has, are
    enough for three levels and two more with the rounding; each further one is for three.
    """
    levels = (n_tiles - 1).bit_length()
    return max(0, _ceil(levels - 2, 3) - 1)


def attention_cycles(positions: Any, *, spec: ModelSpec, target: Target) -> list[int]:
    """Return the duration of ``attn`` at each position (0 = first token).

    Whole blocks are summed once, so that a sweep over a long context costs one evaluation per
    token count inside a block.
    """
    if not target.kv.is_default:
        return _kv_attention(positions, spec=spec, target=target)
    size = target.attention.attn_block
    merge = _ceil(spec.n_heads * spec.head_dim, target.vector.n_lanes)
    fixed = target.latency.attn + target.network.broadcast_cycles + target.network.collect_cycles
    last = max(positions, default=-1) // size
    partial = [0]  # cycles of blocks 0 … j-1, all of them whole
    for index in range(last):
        partial.append(partial[-1] + block_cycles(index, size, spec=spec, target=target))
    tail: dict[tuple[int, int], int] = {}
    result = []
    for position in positions:
        index, inside = divmod(position, size)
        local = _ceil(inside + 1, target.array.n_tiles)
        key = (index, local)
        if key not in tail:
            cycles = block_cycles(index, inside + 1, spec=spec, target=target)
            tail[key] = partial[index] + cycles + merge * ((index + 1).bit_count() - 1) + fixed
        result.append(tail[key])
    return result


def _kv_attention(positions: Any, *, spec: ModelSpec, target: Target) -> list[int]:
    """Return the duration of ``attn`` at each position under any KV configuration.

    What a whole block takes does not change once its tokens are older than KIVI's windows, so only
    the newest blocks are evaluated for each position.
    """
    kv, size = target.kv, target.attention.attn_block
    merge = _ceil(spec.n_heads * spec.head_dim, target.vector.n_lanes)
    fixed = target.latency.attn + target.network.broadcast_cycles + target.network.collect_cycles

    def block(index: int, last: int, n_tokens: int) -> int:
        plain = block_cycles(index, last - index * size, spec=spec, target=target)
        return plain + sum(block_extra(index, last, n_tokens, spec=spec, target=target))

    settled = [0]  # cycles of blocks 0 … j-1, all of them whole and old
    result = []
    for position in positions:
        n_tokens = position + 1
        held = kv.held(n_tokens)
        n_blocks = _ceil(held, size)
        newest = min(n_blocks - 1, max(0, held - 2 * kv.residual) // size)
        while len(settled) <= newest:
            index = len(settled) - 1
            settled.append(settled[-1] + block(index, (index + 1) * size, _FOREVER))
        total = fixed + settled[newest] + merge * (n_blocks.bit_count() - 1)
        total += sum(step_extra(n_tokens, spec=spec, target=target))
        for index in range(newest, n_blocks):
            total += block(index, min(held, (index + 1) * size), n_tokens)
        result.append(total)
    return result


def adapter_cycles(stem: str, ranks: tuple[int, ...], *, spec: ModelSpec, target: Target) -> int:
    """Return the duration of ``lora`` for a layer's ``qkv``, ``o`` …, on the target's path.

    Parameters
    ----------
    ranks
        Padded rank of each projection of the group; all 0 without an adapter.
    """
    if target.lora.path == "adders":
        return adder_lora_cycles(spec, stem, ranks, target)
    parts, n_cols = lora_parts(spec, stem)
    return lora_cycles(sum(parts), n_cols, ranks, target=target)


def lora_cycles(n_rows: int, n_cols: int, ranks: tuple[int, ...], *, target: Target) -> int:
    """Return the duration of ``lora`` in the H-units for a group of [n_rows, n_cols].

    Parameters
    ----------
    ranks
        Padded rank of each projection of the group; all 0 without an adapter.
    """
    if not any(ranks):
        return target.latency.lora_off
    elems, tiles, lanes = target.attention.word_elems, target.array.n_tiles, target.vector.n_lanes
    hop = target.network.broadcast_cycles + target.network.collect_cycles
    total, widest = sum(ranks), max(ranks)
    rows_per_word = max(1, elems // widest)
    _, part_words = row_parts(total, _ceil(n_cols, elems), tiles)
    down = _ceil(total, tiles) * part_words + part_sum_cycles(tiles)
    down += _ceil(total, lanes)
    steps = _ceil(n_rows, tiles * rows_per_word)
    step = max(_ceil(widest, elems), _ceil(tiles * rows_per_word, lanes))
    return down + steps * step + target.latency.lora + 2 * hop
