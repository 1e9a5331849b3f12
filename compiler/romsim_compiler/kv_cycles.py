"""Cycles that a KV configuration adds to the plain cache's attention; copies (docs/kv.md, 7)."""

from __future__ import annotations

from romsim_compiler.kv import CODEBOOK_ENTRIES as ENTRIES
from romsim_compiler.kv import KvConfig
from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.spec import ModelSpec

__all__ = [
    "CODEC_CYCLES",
    "block_extra",
    "copy_cycles",
    "encode_extra",
    "fork_cycles",
    "rope_extra",
    "step_extra",
]

CODEC_CYCLES = {
    "fp16": (0, 2),
    "int8": (0, 0),
    "int4": (3, 3),
    "int2": (3, 3),
    "kivi": (0, 4),
    "tiered": (0, 3),
    "commvq": (0, 2),
}
"""By codec, what its deeper pipelines add to ``rope`` and to each block of ``attn``."""


_ENCODE = 8  # pipeline fill of a quantiser: minimum and maximum, reciprocal, codes
_LATE = 10  # of KIVI's: 2 in a tile, 1 for decoding words, 7 of the encoder
_UPDATE = 15  # reciprocals (7), shifts (2), shares of attention, sum and argmin (5), tiles (1)

_Cycles = tuple[int, int]  # of the KV port, of latency


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _word_rows(kv: KvConfig, first: int, last: int, n_tokens: int, tiles: int) -> int:
    """Return the rows of a block's slots, one in each tile, in which keys or values are words.

    They are those that the newest of ``n_tokens`` sees, of slots ``first`` to ``last - 1``; a row
    that has both is read twice by all tiles.
    """
    if kv.codec == "fp16":
        return 2 * _ceil(last - first, tiles)
    if kv.codec != "kivi":
        return 0
    before = n_tokens - 1
    keys = kv.plain_sinks + max(0, before - kv.plain_sinks) // kv.residual * kv.residual
    values = max(kv.plain_sinks, before - kv.residual)
    n_rows = 0
    for upto in (keys, values):
        begin, end = first // tiles, _ceil(last, tiles)
        sinks = min(end, max(begin, _ceil(kv.plain_sinks, tiles)))
        window = min(end, max(sinks, upto // tiles))
        n_rows += sinks - begin + end - window
    return n_rows


def block_extra(
    index: int, last: int, n_tokens: int, *, spec: ModelSpec, target: Target
) -> _Cycles:
    """Return what one attention block takes beyond the plain cache's.

    Parameters
    ----------
    index
        Of the block, which holds slots ``index * attn_block`` to ``last - 1``.
    n_tokens
        Tokens of the sequence, the one that attends included.
    """
    kv, att, tiles = target.kv, target.attention, target.array.n_tiles
    if kv.is_default:
        return 0, 0
    first = index * att.attn_block
    words = _ceil(spec.head_dim, att.word_elems)
    passes = spec.n_kv_heads * _ceil(spec.n_heads // spec.n_kv_heads, att.heads_parallel)
    rows = _word_rows(kv, first, last, n_tokens, tiles)
    if kv.codec == "commvq":
        rows = _vector_rows(kv, first, last, n_tokens, spec.head_dim, tiles)
    port = passes * words * rows
    table = 0
    if kv.layout == "paged":
        table = _ceil(last, kv.block) - first // kv.block
    return port, table + CODEC_CYCLES[kv.codec][1]


def _vector_rows(
    kv: KvConfig, first: int, last: int, n_tokens: int, head_dim: int, tiles: int
) -> int:
    """Return what a word of a block's CommVQ keys and values takes, in rows of the tiles.

    Words of 16 bits take two reads; every key is rotated, two products an element; a coded key is a
    sum of two entries a stage, a coded value of a row a bit.
    """
    plain = max(0, last - max(first, (n_tokens - 1) // kv.residual * kv.residual))
    coded = _ceil(last - first - plain, tiles)
    each = 2 * kv.stages + kv.value_bits * head_dim
    return 2 * _ceil(plain, tiles) + 2 * _ceil(last - first, tiles) + coded * each


def step_extra(n_tokens: int, *, spec: ModelSpec, target: Target) -> _Cycles:
    """Return what follows attention when the newest of ``n_tokens`` has attended.

    Re-encoding of KIVI's windows; attention mass, and what its order drops or narrows.
    """
    kv, att, tiles = target.kv, target.attention, target.array.n_tiles
    hop = target.network.broadcast_cycles + target.network.collect_cycles
    words = _ceil(spec.head_dim, att.word_elems)
    if kv.codec == "kivi":
        n, bc = n_tokens - kv.plain_sinks, target.network.broadcast_cycles
        blocks = spec.n_kv_heads * _ceil(spec.head_dim, MX_BLOCK)
        port = latency = 0
        if n > 0 and n % kv.residual == 0:
            # of each block and group: words are read, channels encoded, codes written
            items = blocks * (kv.residual // kv.group)
            port += items * 3 * kv.group
            latency += items * (MX_BLOCK + hop + _LATE) + bc
        if n > kv.residual:
            port += 2 * blocks
            latency += bc + hop + _LATE
        return port, latency
    if kv.codec == "commvq" and n_tokens % kv.residual == 0:
        # A stage of a key: products with every entry and its turned twin, sums of all pairs.
        key = kv.stages * (2 * ENTRIES * words + _ceil(ENTRIES**2, att.word_elems) + 2 * words)
        value = 2 * kv.value_bits * spec.head_dim * 2 * words  # two sweeps: rows read and taken off
        return spec.n_kv_heads * _ceil(kv.residual, tiles) * (key + value), hop + _ENCODE
    if kv.is_ranked:
        passes = spec.n_kv_heads * _ceil(spec.n_heads // spec.n_kv_heads, att.heads_parallel)
        local = _ceil(kv.held(n_tokens), tiles)
        port, latency = passes * local, spec.n_heads + hop + _UPDATE
        if kv.retention == "h2o" and kv.layout == "paged":
            latency += 1  # the row of the slot that is freed
        if n_tokens > kv.heavy + kv.window and kv.codec == "tiered":
            port += spec.n_kv_heads * 2 * 2 * words
            latency += _ENCODE
        return port, latency
    return 0, 0


def rope_extra(spec: ModelSpec, target: Target) -> int:
    """Return the beats of the second rotation of the query, for a window's sinks."""
    if target.kv.retention != "stream" or not target.kv.sinks:
        return 0
    return _ceil(spec.n_heads * spec.head_dim, target.vector.n_lanes)


def encode_extra(target: Target) -> int:
    """Return the cycles that encoding a new key and value adds to ``rope``."""
    return CODEC_CYCLES[target.kv.codec][0]


def copy_cycles(n_tokens: int, *, spec: ModelSpec, target: Target) -> int:
    """Return the cycles in which a page's first ``n_tokens`` tokens are copied to another page.

    The copy has the same colour, so that every token stays in its tile. One cycle takes the
    command; then a tile reads a word of the K and of the V bank in each cycle and writes those of
    the cycle before. The halves of 16-bit elements stand in banks of their own, which copy at once.
    """
    words = _ceil(spec.head_dim, target.attention.word_elems)
    local = _ceil(n_tokens, target.array.n_tiles)
    return spec.n_layers * spec.n_kv_heads * words * local + 1


def fork_cycles(n_tokens: int, *, spec: ModelSpec, target: Target) -> int:
    """Return the cycles in which a sequence of ``n_tokens`` is forked.

    One for each entry of the block table; H2O's attention mass is read and written, slot by slot.
    """
    kv = target.kv
    held = n_tokens if kv.budget is None else min(n_tokens, kv.budget)
    entries = _ceil(kv.held(n_tokens), kv.block)
    if kv.retention != "h2o":
        return entries
    return entries + 2 * spec.n_layers * spec.n_kv_heads * _ceil(held, target.array.n_tiles)
