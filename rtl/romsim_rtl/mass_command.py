"""What unit H tells its tiles after attention where attention mass is counted, and its sizes."""

from __future__ import annotations

from typing import Any

from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from romsim_compiler.kv_sram import MASS_BITS
from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.memory import address_bits

__all__ = ["SHARE_SHIFT", "best_signature", "mass_signature", "mass_words", "row_bits"]

SHARE_SHIFT = 49
"""Shift by which every product of a numerator and a reciprocal, below 2^48, is rounded to 0."""


def mass_words(sizes: AttentionSizes) -> int:
    """Accumulators of a tile: one for each of its slots, KV head and layer."""
    return sizes.n_layers * sizes.n_kv_heads * sizes.slot_rows


def row_bits(sizes: AttentionSizes) -> int:
    """Bits of a slot's row in its tile."""
    return address_bits(sizes.slot_rows)


def mass_signature(sizes: AttentionSizes) -> wiring.Signature:
    """Describe the bus to the tiles: a slot of each tile and a pass over its KV head's queries.

    Members
    -------
    en
        The other fields count.
    p_slot, addr, row
        Address of the numerators and of the mass; row of the slot.
    first_pass, last_pass
        Of the passes over the slot.
    first_row, last_row, last_valid
        Of the rows of a KV head, and in the last one the last tile that has a slot, of several.
    is_new, new_tile
        In this row, and of several tiles in this one, is the slot of the newest token.
    leaves, left_tile
        Likewise of the token that is not among the newest any more.
    y, shift
        For each lane, the reciprocal of its head's sum, 0 for none, and the shift of its product.
    """
    lanes = sizes.heads_parallel
    members: dict[str, Any] = {
        "en": Out(1),
        "p_slot": Out(address_bits(sizes.numerator_words)),
        "addr": Out(address_bits(mass_words(sizes))),
        "row": Out(row_bits(sizes)),
        "y": Out(32 * lanes),
        "shift": Out(SHARE_SHIFT.bit_length() * lanes),
    }
    flags = ("first_pass", "last_pass", "first_row", "last_row", "is_new", "leaves")
    members |= {name: Out(1) for name in flags}
    if sizes.n_tiles > 1:
        tile = Out(log2(sizes.n_tiles))
        members |= {"last_valid": tile, "new_tile": tile, "left_tile": tile}
    return wiring.Signature(members)


def best_signature(sizes: AttentionSizes) -> wiring.Signature:
    """Describe a tile's slot of least mass among those that may be dropped; ``valid``: it has one.

    Members
    -------
    valid, mass, row
        Of all rows of the KV head so far.
    """
    return wiring.Signature({"valid": Out(1), "mass": Out(MASS_BITS), "row": Out(row_bits(sizes))})
