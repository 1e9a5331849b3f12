"""Where KIVI's words and codes are written, as docs/kv.md, section 7, places them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle.weights import BLOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.kv_store import KvStore
    from romsim_compiler.target import Target
    from romsim_models.spec import ModelSpec

__all__ = ["late_words", "window_row"]

_Late = tuple[str, int, int, "NDArray[Any]"]  # memory, tile or -1, address, data


def window_row(target: Target, side: int, position: int) -> tuple[int, int]:
    """Return the row of a key (side 0) or value in its window, and the rows of a head."""
    kv, tiles = target.kv, target.array.n_tiles
    spare = -(-(target.schedule.n_inflight - 1) // tiles)
    n_ring = kv.residual + tiles * (spare + side)
    n_rows = kv.plain_sinks + n_ring
    behind = position - kv.plain_sinks
    return position if behind < 0 else kv.plain_sinks + behind % n_ring, n_rows


def late_words(
    store: KvStore, spec: ModelSpec, target: Target, *, layer: int, n_rows: int
) -> Iterator[_Late]:
    """Return what the last token's attention was followed by: ``VC``, ``KC`` and ``KG``.

    Codes of values with zero and scale of a block, codes of keys, and zeros and scales of the
    keys' channels, which all tiles share. In pages a token's codes are in its row; else rows of
    sinks, which have none, are left out.

    Parameters
    ----------
    n_rows
        Rows of a KV head in all tiles.
    """
    kv, tiles, elems = target.kv, target.array.n_tiles, target.attention.word_elems
    n_words = -(-spec.head_dim // elems)
    first = 0 if kv.layout == "paged" else kv.plain_sinks
    code_rows = max(1, -(-n_rows // tiles) - first // tiles)
    n_groups = -(-code_rows // max(1, kv.group // tiles))

    def address(head: int, row: int, word: int, n_rows: int) -> int:
        return ((layer * spec.n_kv_heads + head) * n_rows + row) * n_words + word

    places = [(head, word) for head in range(spec.n_kv_heads) for word in range(n_words)]
    for side, tokens, codes, affine in store.late:
        for number, token in enumerate(tokens):
            row = (int(store.rows[token]) - first) // tiles
            for head, word in places:
                inside = slice(word * elems, (word + 1) * elems)
                data = codes[head, number, inside]
                if side:
                    blocks = slice(word * elems // BLOCK, (word + 1) * elems // BLOCK)
                    data = np.concatenate((data, affine[head, number, blocks]))
                memory = "VC" if side else "KC"
                yield memory, token % tiles, address(head, row, word, code_rows), data
        if side == 0:
            for number in range(affine.shape[1]):
                group = (int(store.rows[tokens[number * kv.group]]) - first) // kv.group
                for head, word in places:
                    data = affine[head, number, word * elems : (word + 1) * elems]
                    yield "KG", -1, address(head, group, word, n_groups), data
