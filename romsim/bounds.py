"""What an instruction's cycles are spent on: docs/machine.md, section 5, by resource."""

from __future__ import annotations

from romsim.design_point import DesignPoint
from romsim_compiler.durations import maximum_cycles
from romsim_compiler.kv_cycles import block_extra, rope_extra, step_extra
from romsim_compiler.lora_adders import adder_split
from romsim_compiler.program import Instruction
from romsim_compiler.row_parts import part_sum_cycles, row_parts
from romsim_models.spec import ModelSpec

__all__ = ["RESOURCES", "norm_length", "split_cycles"]

RESOURCES = ("weights", "collect", "kv port", "exponentials", "adapter", "vector", "latency")
"""What cycles can be spent on: ROM words, results on their way to the vector unit, KV words in
SRAM, softmax numerators, adapter words in SRAM, passes of the vector unit, and dependent latency:
pipeline fills, broadcast, collect and trees."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def split_cycles(
    point: DesignPoint,
    instruction: Instruction,
    *,
    position: int = 0,
    ranks: dict[str, tuple[int, ...]] | None = None,
) -> dict[str, int]:
    """Return the duration of an instruction by resource; the values sum to the duration.

    Parameters
    ----------
    position
        Position of the token, for ``attn``.
    ranks
        Padded ranks of the adapter, for ``lora``.
    """
    if instruction.op == "attn":
        return _attention(point, position)
    if instruction.op == "lora":
        return _lora(point, instruction.operand.partition(".")[2], ranks or {})
    total = point.duration(instruction, {})
    if instruction.op == "matvec":
        mapping = point.mappings[instruction.operand]
        lanes = point.target.vector.n_lanes
        swept = mapping.steps * mapping.step_cycles(lanes)
        reads_bound = mapping.wpc * mapping.planes >= mapping.drain_beats(lanes)
        return {"weights" if reads_bound else "collect": swept, "latency": total - swept}
    used = _vector_beats(point, instruction)
    split = {"vector": used}
    if instruction.op == "embed" and instruction.operand:
        words = _ceil(point.spec.dim, point.target.array.word_codes)
        words *= point.mappings[instruction.operand].planes
        if words > used:
            split = {"weights": words}
    split["latency"] = total - sum(split.values())
    return split


def _vector_beats(point: DesignPoint, instruction: Instruction) -> int:
    """Return the cycles in which the vector unit's lanes are at work."""
    spec, lanes = point.spec, point.target.vector.n_lanes
    heads = spec.n_heads * spec.head_dim
    match instruction.op:
        case "embed" | "resid":
            return _ceil(spec.dim, lanes)
        case "sincos":
            angles = _ceil(spec.head_dim // 2, max(1, lanes // 32))
            return angles * (2 if rope_extra(spec, point.target) else 1)
        case "norm":
            return 2 * _ceil(norm_length(spec, instruction.operand), lanes)
        case "rope":
            rows = heads + 2 * spec.n_kv_heads * spec.head_dim
            return _ceil(rows, lanes) + rope_extra(spec, point.target)
        case "attn_out":
            return spec.n_heads + _ceil(heads, lanes)
        case "glu":
            return 2 * _ceil(spec.hidden_dim, lanes)
        case op:
            raise KeyError(op)


def norm_length(spec: ModelSpec, operand: str) -> int:
    """Return the length of the vector that a norm works on, by the name of its gains."""
    name = operand.rpartition(".")[2]
    if name == "attn_sub_norm":
        return spec.n_heads * spec.head_dim
    return spec.hidden_dim if name == "ffn_sub_norm" else spec.dim


def _attention(point: DesignPoint, position: int) -> dict[str, int]:
    spec, target = point.spec, point.target
    att, size = target.attention, target.attention.attn_block
    hop = target.network.broadcast_cycles + target.network.collect_cycles
    passes = spec.n_kv_heads * _ceil(spec.n_heads // spec.n_kv_heads, att.heads_parallel)
    words = _ceil(spec.head_dim, att.word_elems)
    merge = _ceil(spec.n_heads * spec.head_dim, target.vector.n_lanes)
    held = target.kv.held(position + 1)
    n_blocks = _ceil(held, size)
    maximum = spec.n_heads + hop + maximum_cycles(target.array.n_tiles)
    last = held - (n_blocks - 1) * size
    kv = [step_extra(position + 1, spec=spec, target=target)]
    kv += [
        block_extra(j, min(held, (j + 1) * size), position + 1, spec=spec, target=target)
        for j in range(n_blocks)
    ]
    local = (n_blocks - 1) * _ceil(size, target.array.n_tiles) + _ceil(last, target.array.n_tiles)
    # Blocks are merged max(1, trailing ones of the index) times: n - popcount(n) carries and one
    # pass for each even index; the fold at the end makes up for popcount(n) - 1 of them.
    merges = n_blocks - 1 + (n_blocks + 1) // 2
    return {
        "kv port": 2 * passes * local * words + sum(port for port, _ in kv),
        "exponentials": passes * local,
        "vector": merge * merges,
        "latency": n_blocks * (maximum + target.latency.block)
        + target.latency.attn
        + hop
        + sum(latency for _, latency in kv),
    }


def _lora(point: DesignPoint, stem: str, ranks: dict[str, tuple[int, ...]]) -> dict[str, int]:
    target, mine = point.target, ranks.get(stem, (0,))
    if not any(mine):
        return {"latency": target.latency.lora_off}
    if target.lora.path == "adders":
        return adder_split(point.spec, stem, mine, target)
    n_rows, n_cols = point.lora_shape(stem)
    elems, tiles, lanes = target.attention.word_elems, target.array.n_tiles, target.vector.n_lanes
    hop = target.network.broadcast_cycles + target.network.collect_cycles
    total, widest = sum(mine), max(mine)
    rows = tiles * max(1, elems // widest)
    words, drain = _ceil(widest, elems), _ceil(rows, lanes)
    _, part_words = row_parts(total, _ceil(n_cols, elems), tiles)
    split = {"adapter": _ceil(total, tiles) * part_words}
    key = "adapter" if words >= drain else "collect"
    split[key] = split.get(key, 0) + _ceil(n_rows, rows) * max(words, drain)
    split["vector"] = _ceil(total, lanes)
    split["latency"] = target.latency.lora + part_sum_cycles(tiles) + 2 * hop
    return split
