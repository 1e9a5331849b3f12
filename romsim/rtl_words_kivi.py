"""Words of KIVI's codes as elements, on both sides; see `romsim.rtl_words`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from romsim_compiler.kv_cycles import step_extra
from romsim_compiler.target import MX_BLOCK
from romsim_rtl.affine_encoder import ENCODER_CYCLES
from romsim_rtl.kivi_late import READ_CYCLES

if TYPE_CHECKING:
    from romsim.cycle.trace import SramWrite
    from romsim_compiler.description import Description
    from romsim_rtl.attention_sizes import AttentionSizes
    from romsim_rtl.driver_trace import Writes

__all__ = ["KIVI_MEMORY", "late_cycles", "model_late", "rtl_late"]

KIVI_MEMORY = r"hside0\.(?:tile(\d+)\.coded_([kv])\.(codes|shifts)\d+|k_affine)"
"""Names of the RTL's memories of codes, zeros and scales."""

_ALL_TILES = -1


def late_cycles(description: Description, n_tokens: int) -> int:
    """Return the cycles at the end of ``attn`` in which codes are made, or masses counted."""
    return sum(step_extra(n_tokens, spec=description.spec, target=description.target))


def model_late(
    word: SramWrite, description: Description, sizes: AttentionSizes, n_tokens: int
) -> list[tuple[Any, ...]]:
    """Return a word of ``VC``, ``KC`` or ``KG`` as elements, with their cycles."""
    kv = description.target.kv
    bc = sizes.broadcast_cycles
    arrives = READ_CYCLES + bc + sizes.collect_cycles
    size = sizes.word_elems + sizes.word_blocks
    n_codes = min(len(word.data), sizes.word_elems)
    if word.memory == "VC":
        n_codes = len(word.data) * MX_BLOCK // (MX_BLOCK + 1)
    offset = np.arange(len(word.data))
    index = np.where(offset < n_codes, offset, sizes.word_elems + offset - n_codes)
    in_word = np.where(offset < n_codes, offset // MX_BLOCK, offset - n_codes)
    # words come token by token, or group by group, and of each head by head
    number, place = divmod(word.beat, sizes.n_kv_heads * sizes.row_words)
    head, inside = divmod(place, sizes.row_words)
    block = head * sizes.head_blocks + inside * sizes.word_blocks + in_word
    # keys come last: blocks of the heads, and of each the groups of the window
    n_groups = kv.residual // MX_BLOCK
    item = 4 * MX_BLOCK + READ_CYCLES + 1 + ENCODER_CYCLES + bc + sizes.collect_cycles
    ends_window = n_tokens > kv.plain_sinks and (n_tokens - kv.plain_sinks) % kv.residual == 0
    keys = word.idle - (sizes.n_kv_blocks * n_groups * item + bc if ends_window else 0)
    begins: Any
    cycles: Any
    if word.memory == "VC":
        begins = keys - (2 * sizes.n_kv_blocks + arrives + 1 + ENCODER_CYCLES + bc)
        cycles = begins + 2 * block + 1 + arrives + 1 + ENCODER_CYCLES + bc
    elif word.memory == "KG":
        begins = keys + (block * n_groups + number) * item
        channel = offset % MX_BLOCK
        cycles = begins + 2 * MX_BLOCK + arrives + channel + 1 + ENCODER_CYCLES
    else:
        group, token = divmod(number, MX_BLOCK)
        begins = keys + (block * n_groups + group) * item
        cycles = begins + 3 * MX_BLOCK + arrives + 1 + ENCODER_CYCLES + token + bc
    return [(word.memory, word.address * size + index, word.data, cycles)]


def rtl_late(one: Writes, found: Any, sizes: AttentionSizes) -> list[tuple[Any, ...]]:
    """Return what the RTL wrote into a memory of `KIVI_MEMORY`, whose name's match is given."""
    size = sizes.word_elems + sizes.word_blocks
    token = np.full(len(one.addresses), -1)
    results = []
    for lane in range(one.memory.n_lanes):
        if found[1] is None:
            place, inside = ("KG", _ALL_TILES), np.array([lane])
            value = one.field(0, 32)[:, lane, None]
        else:
            place = ("KC" if found[2] == "k" else "VC", int(found[1]))
            if found[3] == "codes":
                bits = one.memory.lane_bits // MX_BLOCK
                codes = one.bits[:, lane].reshape(-1, MX_BLOCK, bits).astype(np.int64)
                value = codes @ (1 << np.arange(bits))
                inside = lane * MX_BLOCK + np.arange(MX_BLOCK)
            else:
                value = one.field(0, 32)[:, lane, None]
                inside = np.array([sizes.word_elems + lane])
        index = one.addresses[:, None] * size + inside
        mask = np.broadcast_to(one.masks[:, lane, None], index.shape)
        results.append((place, token, index, value, mask))
    return results
