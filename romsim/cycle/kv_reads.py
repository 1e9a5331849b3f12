"""What a token's attention reads from the K and V banks, cycle by cycle, and what it multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.machine import CycleModel

__all__ = ["KvReads", "kv_reads", "read_conflicts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvReads:
    """Of one layer and one sweep of the K bank and the V bank of every tile."""

    words: int  # read from each of the two, a word of codes each; all KV heads
    conflicts: int  # reads of either that met another in the same bank and cycle
    multiplications: int  # scores and sums, all query heads


def kv_reads(model: CycleModel, slot: int = 0) -> KvReads:
    """Count what the attention of a slot's newest token has read, where its tokens lie now."""
    description, state = model.description, model.state(slot)
    spec, target = description.spec, description.target
    n_held = target.kv.held(state.position)
    rows: NDArray[Any] = np.arange(n_held)
    if state.stores:
        rows = state.stores[0].rows[:n_held]
    n_words = -(-spec.head_dim // target.attention.word_elems)
    conflicts = read_conflicts(
        rows,
        attn_block=target.attention.attn_block,
        n_tiles=target.array.n_tiles,
        n_words=n_words,
    )
    n_read = len(rows)
    return KvReads(
        words=n_read * n_words * spec.n_kv_heads,
        conflicts=2 * conflicts * spec.n_kv_heads,
        multiplications=2 * n_read * spec.n_heads * spec.head_dim,
    )


def read_conflicts(rows: NDArray[np.int64], *, attn_block: int, n_tiles: int, n_words: int) -> int:
    """Count reads of one bank kind that meet another in the same bank and cycle.

    Attention takes a block's slots in order, ``n_tiles`` at a time, one from each tile, and the
    words of a slot one a cycle; a tile's bank gives one word a cycle.

    Parameters
    ----------
    rows
        Row of each slot, int64 [n_slots]; row ``r`` is in tile ``r mod n_tiles``.
    attn_block
        Slots of a block.
    n_words
        Words of a head's key or value.
    """
    slots = np.arange(len(rows))
    steps_of_block = -(-attn_block // n_tiles)
    steps = slots // attn_block * steps_of_block + slots % attn_block // n_tiles
    cycles = steps[:, None] * n_words + np.arange(n_words)
    places = cycles * n_tiles + (rows % n_tiles)[:, None]
    return int(places.size - np.unique(places).size)
