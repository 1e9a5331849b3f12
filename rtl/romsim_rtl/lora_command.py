"""What unit H's adapter controller tells its tiles."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import signed
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from romsim_rtl.attention_sizes import CODES_BITS, SHIFT_BITS, AttentionSizes, log2
from romsim_rtl.lora_sizes import CHUNK_BITS, ENTRY_FIELDS, N_PROJECTIONS, LoraSizes
from romsim_rtl.memory import address_bits

__all__ = [
    "PARAMETERS",
    "configuration_signature",
    "input_signature",
    "lora_command_signature",
    "parameter_signature",
    "x_address_bits",
    "z_signature",
]

PARAMETERS = (
    *("slot_log2", "parts_log2", "offset1", "offset2", "first1", "first2"),
    *(f"{n}{p}" for n in ("grid_a", "grid_b", "out_b") for p in range(N_PROJECTIONS)),
)
"""Fields of the adapter table that the tiles need; they hold still while the tiles work."""


def parameter_signature(lora: LoraSizes) -> wiring.Signature:
    """Describe the fields of `PARAMETERS`, and the exponents of z by projection and block."""
    members: dict[str, Any] = {}
    for name in PARAMETERS:
        bits, is_signed = ENTRY_FIELDS[name]
        members[name] = Out(signed(bits) if is_signed else bits)
    members["z_shift"] = Out(SHIFT_BITS).array(N_PROJECTIONS, lora.rank_blocks)
    return wiring.Signature(members)


def lora_command_signature(sizes: AttentionSizes, lora: LoraSizes) -> wiring.Signature:
    """Describe the command bus.

    Members
    -------
    a, b
        A word of A, or of B, is to be read and multiplied; or neither.
    first
        The first word of a row of A in a tile.
    address
        In the A bank or the B bank.
    x_address
        In the x buffer, in words of W: of the first of the tiles that share a row of A.
    row
        a: row of A in the tile; b: the group's row with which the step begins.
    beat
        b: the beat of D that is filled.
    """
    return wiring.Signature(
        {
            "a": Out(1),
            "b": Out(1),
            "first": Out(1),
            "address": Out(address_bits(max(lora.a_words, lora.b_words))),
            "x_address": Out(x_address_bits(sizes, lora)),
            "row": Out(20),
            "beat": Out(20),
        }
    )


def x_address_bits(sizes: AttentionSizes, lora: LoraSizes) -> int:
    """Bits of a token's word of W codes in the x buffer, the in-flight index on top."""
    parts = log2(max(1, sizes.n_lanes // sizes.word_elems))
    tokens = address_bits(sizes.n_inflight) if sizes.n_inflight > 1 else 0
    return lora.x_bits(sizes) + parts + tokens


def input_signature(sizes: AttentionSizes, lora: LoraSizes) -> wiring.Signature:
    """Describe the write port of the x buffers, in words of max(W, VL) codes."""
    blocks = max(sizes.word_blocks, sizes.n_groups)
    parts = log2(max(1, sizes.n_lanes // sizes.word_elems))
    return wiring.Signature(
        {
            "en": Out(1),
            "addr": Out(x_address_bits(sizes, lora) - parts),
            "mask": Out(blocks),
            "codes": Out(CODES_BITS * blocks),
            "shifts": Out(SHIFT_BITS * blocks),
        }
    )


def z_signature(sizes: AttentionSizes, lora: LoraSizes) -> wiring.Signature:
    """Describe the bus of the codes of z: beats of VL codes."""
    return wiring.Signature(
        {
            "valid": Out(1),
            "last": Out(1),
            "beat": Out(address_bits(-(-lora.n_z // sizes.n_lanes))),
            "codes": Out(8 * sizes.n_lanes),
        }
    )


def configuration_signature(sizes: AttentionSizes, lora: LoraSizes) -> wiring.Signature:
    """Describe the configuration port, after its register.

    Members
    -------
    a, b
        A chunk of a word of A, or of B, is written; or neither.
    tile, address, chunk, data
        Where, and what.
    """
    members: dict[str, Any] = {
        "a": Out(1),
        "b": Out(1),
        "address": Out(address_bits(max(lora.a_words, lora.b_words))),
        "chunk": Out(5),
        "data": Out(CHUNK_BITS),
    }
    if sizes.n_tiles > 1:
        members["tile"] = Out(log2(sizes.n_tiles))
    return wiring.Signature(members)
