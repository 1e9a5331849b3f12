"""What H2O writes after a token's attention: masses, slots (docs/kv.md, sections 3 and 7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.kv_store import KvStore
    from romsim_compiler.target import Target
    from romsim_models.spec import ModelSpec

__all__ = ["mass_words"]


def mass_words(
    store: KvStore, spec: ModelSpec, target: Target, *, layer: int, position: int
) -> Iterator[tuple[str, int, int, NDArray[Any]]]:
    """Return memory, tile (-1: none), address and data of every word.

    ``MASS``: of each slot of a KV head, its mass and whether its token is one of the newest, which
    are not dropped. ``NEWEST``: of a position modulo the window, its token's slots in all KV heads.
    ``FREE``: a KV head's slot that the next token takes, and in pages its row in the tile.
    """
    kv, tiles = target.kv, target.array.n_tiles
    n_held, n_rows = kv.held(position + 1), -(-len(store.rows) // tiles)
    for head in range(spec.n_kv_heads):
        is_newest = store.positions[head, :n_held] > position - kv.window
        for slot in range(n_held):
            address = (layer * spec.n_kv_heads + head) * n_rows + slot // tiles
            data = np.array((store.mass[head, slot], is_newest[slot]), np.int64)
            yield "MASS", slot % tiles, address, data
    yield "NEWEST", -1, layer * kv.window + position % kv.window, store.last_slots.copy()
    if position >= kv.heavy + kv.window:
        for head, slot in enumerate(store.free_slots):
            data = np.array(
                (slot, store.rows[slot] // tiles)[: 1 + (kv.layout == "paged")], np.int64
            )
            yield "FREE", -1, layer * spec.n_kv_heads + head, data
