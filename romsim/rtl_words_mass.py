"""Words of H2O's masses and slots as elements, on both sides; see `romsim.rtl_words`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from romsim_compiler.kv_sram import MASS_BITS
from romsim_rtl.mass_side import LEAST_CYCLES
from romsim_rtl.memory import address_bits

if TYPE_CHECKING:
    from romsim.cycle.trace import SramWrite
    from romsim_rtl.attention_sizes import AttentionSizes
    from romsim_rtl.driver_trace import Writes

__all__ = ["MASS_MEMORIES", "MASS_MEMORY", "model_mass", "rtl_mass"]

MASS_MEMORIES = ("MASS", "NEWEST", "FREE")
"""The cycle model's names."""

MASS_MEMORY = r"hside0\.(?:tile(\d+)\.mass\.mass_sram|mass\.(newest|free_slots))"
"""Names of the RTL's memories."""

_NO_TILE = -1
_FROM_COMMAND = 3  # cycles from a slot's mass to its KV head's freed slot, wires apart


def model_mass(word: SramWrite, sizes: AttentionSizes, n_tokens: int) -> list[tuple[Any, ...]]:
    """Return a word of the cycle model as elements, with their cycles."""
    n_slots = -(-min(n_tokens, sizes.context) // sizes.n_tiles)  # of a KV head in a tile
    steps = sizes.n_passes * n_slots
    looks_up = sizes.block > 0  # a cycle for the freed slot's row
    if word.memory == "NEWEST":
        hop = sizes.broadcast_cycles + sizes.collect_cycles
        cycles = word.idle - (
            LEAST_CYCLES + looks_up + hop + sizes.n_heads + sizes.n_kv_heads * steps
        )
    elif word.memory == "FREE":
        head = word.address % sizes.n_kv_heads
        cycles = word.idle - 1 - (sizes.n_kv_heads - 1 - head) * steps
    else:
        row = word.address % sizes.slot_rows
        head = word.address // sizes.slot_rows % sizes.n_kv_heads
        step = head * steps + (row + 1) * sizes.n_passes
        behind = sizes.n_kv_heads * steps - step
        cycles = word.idle - 1 - behind - (_FROM_COMMAND - 1) - sizes.collect_cycles - looks_up
    index = word.address * len(word.data) + np.arange(len(word.data))
    return [(word.memory, index, word.data, cycles)]


def rtl_mass(one: Writes, found: Any, sizes: AttentionSizes) -> list[tuple[Any, ...]]:
    """Return what the RTL wrote into a memory of `MASS_MEMORY`, whose name's match is given."""
    token = np.full(len(one.addresses), -1)
    bits = address_bits(sizes.context)
    mask = one.masks
    if found[1] is not None:
        place = "MASS", int(found[1])
        value = np.hstack((one.field(0, MASS_BITS), one.field(MASS_BITS, 1)))
    elif found[2] == "newest":
        place = "NEWEST", _NO_TILE
        value = np.hstack([one.field(head * bits, bits) for head in range(sizes.n_kv_heads)])
    else:
        place = "FREE", _NO_TILE
        value = one.field(0, bits)
        if sizes.block:
            row = one.field(bits, one.memory.lane_bits - bits)
            value = np.stack((value, row), axis=2).reshape(len(token), -1)
            mask = np.repeat(mask, 2, axis=1)
    index = one.addresses[:, None] * value.shape[1] + np.arange(value.shape[1])
    return [(place, token, index, value, np.broadcast_to(mask, index.shape))]
