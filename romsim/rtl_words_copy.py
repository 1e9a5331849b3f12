"""What a copy of a page wrote: of the words of all banks that it moves, the blocks with data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim_rtl.attention_sizes import AttentionSizes
    from romsim_rtl.driver_trace import Writes

__all__ = ["copied_words"]

_MEMORY = re.compile(r"hside0\.tile\d+\.([kv])(?:_second)?\.(?:codes|shifts)(\d+)")


def copied_words(writes: Iterable[Writes], sizes: AttentionSizes) -> Iterator[Writes]:
    """Yield the writes of a copy without the blocks that nobody reads.

    A copy moves whole words of every bank, of all layers that the chip has room for. A block of a
    head lies in the bank of the lane group that brought it, and the last word of a head may be
    wider than what is left of it: other blocks hold what they held at power-up, which the cycle
    model does not know.
    """
    for one in writes:
        match = _MEMORY.fullmatch(one.memory.name)
        if match is None:
            yield one
            continue
        holds = _holds(one.addresses, match[1], int(match[2]), one.memory.n_lanes, sizes)
        yield replace(one, masks=one.masks & holds)


def _holds(
    addresses: NDArray[np.int64], memory: str, bank: int, n_lanes: int, sizes: AttentionSizes
) -> NDArray[np.bool_]:
    """Return for each address and lane of a bank whether it is a head's block, bool [N, lanes]."""
    row, word = np.divmod(addresses, sizes.row_words)
    layer, head = np.divmod(row // sizes.tile_tokens, sizes.n_kv_heads)
    block = (word * sizes.word_blocks)[:, None] + np.arange(n_lanes)
    first = sizes.sink_blocks + sizes.n_q_blocks + (sizes.n_kv_blocks if memory == "v" else 0)
    number = first + (head * sizes.head_blocks)[:, None] + block
    is_head = (block < sizes.head_blocks) & (layer < sizes.n_layers)[:, None]
    return np.asarray(is_head & (number % sizes.n_banks == bank))
