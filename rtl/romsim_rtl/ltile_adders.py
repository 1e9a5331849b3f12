"""What a tile's L-unit has for adapters: words of trits beside the cells, and buffers of z."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Value, signed
from amaranth.lib.wiring import In

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.primitives import wire
from romsim_rtl.xbuffer import XBuffer

__all__ = ["add_trits", "adder_members", "build_z", "choose_z"]


def adder_members(config: Any) -> dict[str, Any]:
    """Describe what every tile is told of adapters; nothing where they run elsewhere.

    Members
    -------
    of_trits, of_z
        Words are of an adapter; they are multiplied by z.
    trit_en, trit_addr
        Read a word of trits of each cell.
    bank_en, bank_addr, bank_chunk, bank_data
        Write 64 bits of a word of trits, its cell above it in the address.
    z_en, z_block, z_codes, z_shift, z_sum
        A block of z.
    """
    if not config.trit_words:
        return {}
    return {
        "of_trits": In(1),
        "of_z": In(1),
        "trit_en": In(1),
        "trit_addr": In(address_bits(config.trit_words)),
        "bank_en": In(1),
        "bank_addr": In(address_bits(config.trit_words) + address_bits(config.n_cells)),
        "bank_chunk": In(address_bits(config.cell.code_bits // 64)),
        "bank_data": In(64),
        "z_en": In(1),
        "z_block": In(config.z.row_bits + (config.z.n_groups - 1).bit_length()),
        "z_codes": In(8 * MX_BLOCK),
        "z_shift": In(5),
        "z_sum": In(signed(13)),
    }


def add_trits(m: Module, tile: Any, index: int, word: Value) -> Value:
    """Put a bank of trits beside a cell's ROM; return the word of the one that is read."""
    config = tile.config
    if not config.trit_words:
        return word
    chunks = config.cell.code_bits // 64
    bits = address_bits(config.trit_words)
    sram = Sram(depth=config.trit_words, n_lanes=chunks, lane_bits=64)
    m.submodules[f"trits{index}"] = sram
    m.d.comb += [
        sram.w_en.eq(tile.bank_en & tile.bank_mine & (tile.bank_addr[bits:] == index)),
        sram.w_addr.eq(tile.bank_addr[:bits]),
        sram.w_mask.eq(Const(1, chunks) << tile.bank_chunk),
        sram.w_data.eq(tile.bank_data.replicate(chunks)),
        sram.r_en.eq(tile.trit_en),
        sram.r_addr.eq(tile.trit_addr),
    ]
    fields = Const(0, config.cell.word_bits - config.cell.code_bits)
    return Mux(tile.of_trits, Cat(sram.r_data, fields), word)


def build_z(m: Module, tile: Any, port: int) -> XBuffer:
    """Make a port's buffer of z, written a block at a time."""
    sizes = tile.config.z
    buffer = XBuffer(sizes=sizes, config=tile.config.cell)
    m.submodules[f"z{port}"] = buffer
    group_bits = (sizes.n_groups - 1).bit_length()
    group: Value = tile.z_block[:group_bits] if group_bits else Const(0, 1)
    m.d.comb += [
        buffer.bc_en.eq(tile.z_en),
        buffer.bc_row.eq(tile.z_block[group_bits:]),
        buffer.bc_mask.eq(Const(1, sizes.n_groups) << group),
        buffer.r_en.eq(tile.x_en & tile.of_z),
        buffer.r_word.eq(tile.x_word[port]),
        buffer.v_unpack.eq(tile.v_unpack & tile.of_z),
    ]
    for number in range(sizes.n_groups):
        m.d.comb += [
            buffer.bc_codes[number].eq(tile.z_codes),
            buffer.bc_shift[number].eq(tile.z_shift),
            buffer.bc_sum[number].eq(tile.z_sum),
        ]
    return buffer


def choose_z(
    m: Module, tile: Any, name: str, of_z: Sequence[Value], of_x: Sequence[Value]
) -> list[Value]:
    """Take what a run multiplies by: outputs of the buffer of z, or of the x buffer."""
    return [
        wire(m, Mux(tile.of_z, z, x), f"{name}{index}")
        for index, (z, x) in enumerate(zip(of_z, of_x, strict=True))
    ]
