"""Buffers and SRAM of a chip: how many words of how many bits, and what they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from romsim.area_parts import WEIGHT_LOGIC, Item, Parts, sum_bits
from romsim_compiler.kv_sram import codebook_bits
from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec

__all__ = [
    "ADDER_ENTRY_BITS",
    "LORA_ENTRY_BITS",
    "BufferWidths",
    "adapter_memories",
    "codebooks",
    "h_memories",
    "vector_memory",
    "x_buffers",
]

_MAX_INNER = 16384  # docs/numerics.md, section 5: the longest vector that a norm takes
_SHIFT_BITS = 5  # of an MXINT8 block
_SUM_BITS = 13  # of its codes
_LORA_GROUPS = 4  # q with k and v, o, gate with up, down
_PROJECTIONS = 3  # q, k and v: matrices of a group, at most
LORA_ENTRY_BITS = 320
"""Bits of an entry of the adapter table: one group of matrices of one layer."""
ADDER_ENTRY_BITS = 126
"""Bits of an entry where adapters run in the adder arrays: one run, of eight that a group has."""
_RUNS = 8


@dataclass(frozen=True, slots=True)
class BufferWidths:
    """Vector lengths that buffers must hold, in elements."""

    inner: int  # longest input of a matrix
    heads: int  # all query heads together
    n_heads: int
    n_instructions: int

    @classmethod
    def of(cls, target: Target, spec: ModelSpec | None) -> BufferWidths:
        """Return those of a model, or without one the longest that the target can serve."""
        flight = target.schedule.n_inflight
        if spec is not None:
            heads = spec.n_heads * spec.head_dim
            program = spec.n_layers * (18 if spec.has_sub_norms else 16) + 4
            inner = max(spec.dim, spec.hidden_dim, heads)
            return cls(inner, heads, spec.n_heads, program * (1 + flight))
        # A hidden layer of h elements takes 16 h bytes per token in the vector SRAM (gate and up,
        # twice, in 32 bits), so no longer vector can be served.
        inner = max(MX_BLOCK, min(_MAX_INNER, target.vector.sram_kib * 1024 // (16 * flight)))
        return cls(inner, min(inner, 4096), max(1, min(inner, 4096) // 128), 512 * (1 + flight))


def x_buffers(parts: Parts, target: Target, widths: BufferWidths) -> Item:
    """Return the L-tiles' x buffers.

    Codes, a shift and a sum per block of 32, a word for each ROM word of the longest row.
    """
    array, blocks = target.array, target.array.word_codes // MX_BLOCK
    bits = array.word_codes * 8 + blocks * (8 + 13)
    depth = -(-widths.inner // array.word_codes) * target.schedule.n_inflight
    n_buffers = array.n_tiles * target.schedule.n_batch
    return ("L-units", "x buffers", n_buffers, parts.sram(depth, bits))


def h_memories(parts: Parts, target: Target, widths: BufferWidths) -> Iterator[Item]:
    """Yield the H-tiles' banks and buffers."""
    att, tiles = target.attention, target.array.n_tiles
    is_mx = target.formats.kv == "mxint8"
    word_bits = att.word_elems * 8 + (att.word_elems // MX_BLOCK * 8 if is_mx else 0)
    depth = max(1, att.sram_kib * 8192 // (2 * word_bits))
    yield ("H-units", "K bank", tiles, parts.sram(depth, word_bits))
    yield ("H-units", "V bank", tiles, parts.sram(depth, word_bits))
    query = parts.sram(-(-widths.heads // 32), 32 * 8 + 8 * is_mx)
    yield ("H-units", "query buffer", tiles, query)
    local = -(-att.attn_block // tiles)
    yield ("H-units", "score buffer", tiles, parts.sram(widths.n_heads * local, 32))
    sums = parts.sram(-(-widths.heads // 16), 16 * sum_bits(target.formats.kv))
    yield ("H-units", "sum buffer", tiles, sums)


def codebooks(parts: Parts, target: Target, spec: ModelSpec | None, style: str) -> Item:
    """Return CommVQ's codebooks: each tile decodes its own tokens, so that each has all of them.

    Raises
    ------
    SpecError
        If no model is given, whose codebooks they are.
    """
    if spec is None:
        raise SpecError(
            f"Area of target {target.name!r} with KV codec 'commvq' must be that of a model, whose "
            f"codebooks are ROM in every tile; give the model"
        )
    bits = 16 * min(spec.head_dim, target.attention.word_elems)
    words = -(-codebook_bits(spec, target.kv) // bits)
    rom = parts.rom(words, bits, style=style, zero_bits=0.5, logic=WEIGHT_LOGIC)
    return ("H-units", "CommVQ codebooks", target.array.n_tiles, rom)


def adapter_memories(parts: Parts, target: Target, spec: ModelSpec, rank: int) -> Iterator[Item]:
    """Yield the buffers of adapters, and the table of one adapter.

    Their factors lie in the tiles' SRAM with the KV cache. On int8 lanes each tile has the input of
    the matrix that is extended, of every token in flight, and unit H's side has z and the adapter's
    outputs; in the adder arrays each tile has z beside the x buffer, and unit L's side the outputs.

    Parameters
    ----------
    rank
        Largest padded rank.
    """
    lanes, flight = target.vector.n_lanes, target.schedule.n_inflight
    wide = max(target.attention.word_elems, lanes)
    inner = max(spec.dim, spec.hidden_dim, spec.q_dim)
    tallest = max(spec.q_dim + 2 * spec.kv_dim, 2 * spec.hidden_dim, spec.dim)
    if target.lora.path == "adders":
        codes, blocks = target.array.word_codes, target.array.word_codes // MX_BLOCK
        z = parts.sram(-(-rank // codes), codes * 8 + blocks * (_SHIFT_BITS + _SUM_BITS))
        yield ("L-units", "adapter z buffer", target.array.n_tiles, z)
        d = parts.sram(-(-tallest // lanes) * flight, 32 * lanes)
        yield ("L-units", "adapter outputs", 1, d)
        table = parts.sram(spec.n_layers * _LORA_GROUPS * _RUNS, ADDER_ENTRY_BITS)
        yield ("L-units", "adapter table", 1, table)
        return
    x = parts.sram(-(-inner // wide) * flight, wide * 8 + wide // MX_BLOCK * _SHIFT_BITS)
    yield ("H-units", "adapter x buffer", target.array.n_tiles, x)
    z = parts.sram(-(-_PROJECTIONS * rank // lanes), 32 * lanes)
    yield ("H-units", "adapter z buffer", 1, z)
    yield ("H-units", "adapter outputs", 1, parts.sram(-(-tallest // lanes) * flight, 32 * lanes))
    table = parts.sram(spec.n_layers * _LORA_GROUPS, LORA_ENTRY_BITS)
    yield ("H-units", "adapter table", 1, table)


def vector_memory(parts: Parts, target: Target) -> Item:
    """Return unit V's SRAM."""
    bits = 32 * target.vector.n_lanes
    depth = max(1, target.vector.sram_kib * 8192 // bits)
    return ("vector unit", "activation SRAM", 1, parts.sram(depth, bits))
