"""What follows ``attn`` with KIVI: keys and values that leave their windows become codes.

One encoder stands beside the controller. A value's blocks stream through it, two reads each. Of the
keys of a finished window, 32 tokens of a block are read, then their channels are encoded one a
cycle, then the tokens' codes are written (docs/kv.md, sections 2 and 7).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.tables import tables
from romsim_compiler.target import MX_BLOCK
from romsim_rtl.affine_encoder import ENCODER_CYCLES, AffineEncoder
from romsim_rtl.attention_command import delay, valid_chain
from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.half_words import to_integer
from romsim_rtl.htile_words import SEEN_BITS
from romsim_rtl.kivi_control import group_bits, kivi_of, place_tables, window_bits
from romsim_rtl.kv_pages import divided
from romsim_rtl.memory import address_bits
from romsim_rtl.primitives import lane_signals

__all__ = ["READ_CYCLES", "KiviLate", "late_signature"]

READ_CYCLES = 2
"""Cycles in a tile from the address of half a block to its words at the collecting wires."""

_WORD_BITS = 16 * MX_BLOCK


class _State(IntEnum):
    IDLE = 0
    READ_V = 1
    DRAIN_V = 2
    READ_K = 3
    ARRIVE_K = 4
    ENCODE_K = 5
    DRAIN_K = 6
    WRITE_K = 7
    END = 8


def late_signature(sizes: AttentionSizes) -> wiring.Signature:
    """Describe the bus to the tiles.

    Members
    -------
    read_k, read_v, second, addr, block
        Half of a block is read from a window; with several banks, ``group`` is the lane group that
        brought its word's first block.
    write_k, write_v, w_addr, w_mask, codes, affine
        A block's codes are written, with zero and scale of a value; an index is a bank.
    tile
        Which tile reads or writes; if there are several.
    """
    kivi, blocks = kivi_of(sizes), sizes.word_blocks
    members: dict[str, Any] = {name: Out(1) for name in ("read_k", "read_v", "second")}
    members |= {
        "addr": Out(window_bits(sizes)),
        "block": Out(address_bits(blocks)),
        "write_k": Out(sizes.n_banks),
        "write_v": Out(sizes.n_banks),
        "w_addr": Out(address_bits(sizes.bank_words)),
        "w_mask": Out(blocks),
        "codes": Out(MX_BLOCK * max(kivi.key_bits, kivi.value_bits)),
        "affine": Out(32),
        "tile": Out(max(1, log2(sizes.n_tiles))),
    }
    if sizes.n_banks > 1:
        members["group"] = Out(log2(sizes.n_groups))
    return wiring.Signature(members)


class KiviLate(wiring.Component):
    """Encode what leaves the windows after a token's attention.

    Parameters
    ----------
    sizes
        Loop sizes.

    Members
    -------
    start : In(1)
        Attention is over; ``pos`` and ``layer`` hold from here on.
    busy : Out(1)
        From the cycle after ``start`` until all is written; 0 if nothing leaves.
    command : Out(late_signature)
        To the tiles, before the broadcast registers.
    word : In(256)
        Of the tile that reads, ``READ_CYCLES`` and all wires' cycles after its command.
    g_en, g_addr, g_channel, g_data
        Zero and scale of a channel of keys are written.
    r_en, r_page, r_row
        Read port of the block table, if there is one; a page's first row, one cycle later.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        table: dict[str, Any] = {}
        if sizes.block:
            page, row = address_bits(sizes.sequence_pages), address_bits(sizes.tile_tokens)
            table = {"r_en": Out(1), "r_page": Out(page), "r_row": In(row)}
        super().__init__(
            table
            | {
                "start": In(1),
                "pos": In(address_bits(sizes.context)),
                "layer": In(address_bits(sizes.n_layers)),
                "busy": Out(1),
                "command": Out(late_signature(sizes)),
                "word": In(_WORD_BITS // 2),
                "g_en": Out(1),
                "g_addr": Out(group_bits(sizes)),
                "g_channel": Out(address_bits(sizes.word_elems)),
                "g_data": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the states, the addresses, the window's words and the encoder."""
        m = Module()
        sizes = self.sizes
        self._state = Signal(_State)
        # block of the layer's heads, and the same of what is written
        blocks = address_bits(sizes.n_kv_blocks)
        self._block, self._written = Signal(blocks), Signal(blocks)
        self._group = Signal(address_bits(max(1, kivi_of(sizes).residual // MX_BLOCK)))
        self._count = Signal(7)
        self._states(m)
        self._reads(m)
        self._encode(m)
        return m

    def _wires(self) -> int:
        """Cycles from the command of a read to its words here."""
        return READ_CYCLES + self.sizes.broadcast_cycles + self.sizes.collect_cycles

    def _states(self, m: Module) -> None:
        sizes, kivi, state, count = self.sizes, kivi_of(self.sizes), self._state, self._count
        bc, tiles = sizes.broadcast_cycles, sizes.n_tiles
        newest = Signal(len(self.pos))
        self._window = place_tables(m, sizes, newest, "newest_places")["coded"]  # its first row
        ends_window = Signal()
        m.d.comb += [
            newest.eq(self.pos >> log2(tiles)),
            self.busy.eq(state != _State.IDLE),
            ends_window.eq(
                (newest - self._window == kivi.window_rows - 1)
                & ((self.pos & (tiles - 1)) == tiles - 1)
                & (self.pos >= kivi.plain_sinks)
            ),
        ]
        last_block = self._block == sizes.n_kv_blocks - 1
        last_group = self._group == kivi.residual // MX_BLOCK - 1
        after_v = Mux(ends_window, _State.READ_K, _State.IDLE)
        with m.If(self.start):
            m.d.sync += count.eq(0)
            with m.If(self.pos >= kivi.plain_sinks + kivi.residual):
                m.d.sync += state.eq(_State.READ_V)
            with m.Elif(ends_window):
                m.d.sync += state.eq(_State.READ_K)
        with m.Elif(self.busy):
            m.d.sync += count.eq(count + 1)

        def after(one: _State, cycles: int, following: Any) -> Any:
            """Leave a state after so many cycles; return the last one."""
            ends = Signal(name=f"ends_{one.name.lower()}")
            m.d.comb += ends.eq((state == one) & (count == cycles - 1))
            with m.If(ends):
                m.d.sync += [state.eq(following), count.eq(0)]
            return ends

        with m.If((state == _State.READ_V) & count[0]):
            m.d.sync += self._block.eq(Mux(last_block, 0, self._block + 1))
            m.d.sync += count.eq(0)
            with m.If(last_block):
                m.d.sync += state.eq(_State.DRAIN_V)
        after(_State.DRAIN_V, self._wires() + 1 + ENCODER_CYCLES + bc, after_v)
        after(_State.READ_K, 2 * MX_BLOCK, _State.ARRIVE_K)
        after(_State.ARRIVE_K, self._wires(), _State.ENCODE_K)
        after(_State.ENCODE_K, MX_BLOCK, _State.DRAIN_K)
        after(_State.DRAIN_K, 1 + ENCODER_CYCLES, _State.WRITE_K)
        ended = _State.END if bc else _State.IDLE
        more = Mux(last_block & last_group, ended, _State.READ_K)
        with m.If(after(_State.WRITE_K, MX_BLOCK, more)):
            m.d.sync += self._group.eq(Mux(last_group, 0, self._group + 1))
            with m.If(last_group):
                m.d.sync += self._block.eq(Mux(last_block, 0, self._block + 1))
        if bc:
            after(_State.END, bc, _State.IDLE)

    def _at(self, block: Any, rows: int) -> tuple[Any, Any]:
        """Return the address of a block's word in row 0, and the block's number in the word."""
        sizes = self.sizes
        head, inside = block // sizes.head_blocks, block % sizes.head_blocks
        of_layer = self.layer * sizes.n_kv_heads + head
        word = inside // sizes.word_blocks
        return of_layer * (rows * sizes.row_words) + word, inside % sizes.word_blocks

    def _reads(self, m: Module) -> None:
        """Address halves of blocks in the windows."""
        sizes, kivi, command = self.sizes, kivi_of(self.sizes), self.command
        tiles, wt = sizes.n_tiles, sizes.row_words
        is_v, is_k = self._state == _State.READ_V, self._state == _State.READ_K
        # the value that leaves is of the newest one's tile
        self._row_v = (self.pos >> log2(tiles)) - kivi.window_rows
        place_v = place_tables(m, sizes, self._row_v[: len(self.pos)], "leaving_places")["v"]
        token = self._count >> 1
        row_k = Signal(len(self.pos), name="read_row")
        m.d.comb += row_k.eq(self._window + self._group * kivi.group_rows + (token >> log2(tiles)))
        place_k = place_tables(m, sizes, row_k, "read_places")["k"]
        base_k, inside = self._at(self._block, kivi.places["k"])
        base_v, _ = self._at(self._block, kivi.places["v"])
        m.d.comb += [
            command.read_k.eq(is_k),
            command.read_v.eq(is_v),
            command.second.eq(self._count[0]),
            command.addr.eq(Mux(is_v, base_v + place_v * wt, base_k + place_k * wt)),
            command.block.eq(inside),
        ]
        if sizes.n_banks > 1:
            first = self._block - inside + sizes.n_q_blocks
            m.d.comb += command.group.eq(first + Mux(is_v, sizes.n_kv_blocks, 0))

    def _encode(self, m: Module) -> None:
        """Gather words, encode values' blocks or keys' channels, and write."""
        sizes, kivi, command = self.sizes, kivi_of(self.sizes), self.command
        tiles, state = sizes.n_tiles, self._state
        reads = self.command.read_k | self.command.read_v
        where = {
            "second": self.command.second,
            "is_v": self.command.read_v,
            "token": (self._count >> 1)[:5],
        }
        arrives, where = delay(m, reads, where, self._wires(), "read")
        first = Signal(_WORD_BITS // 2, reset_less=True)
        with m.If(arrives & ~where["second"]):
            m.d.sync += first.eq(self.word)
        whole = Cat(first, self.word)
        is_v = Signal()
        m.d.comb += is_v.eq(arrives & where["is_v"] & where["second"])
        # tokens' words, of which a channel's leave from the lowest place
        tokens = lane_signals("token", MX_BLOCK, _WORD_BITS, is_signed=False)
        encodes = state == _State.ENCODE_K
        for index, token in enumerate(tokens):
            is_here = arrives & ~where["is_v"] & where["second"] & (where["token"] == index)
            with m.If(is_here):
                m.d.sync += token.eq(whole)
            with m.Elif(encodes):
                m.d.sync += token.eq(token >> 16)
        values = lane_signals("value", MX_BLOCK, SEEN_BITS)
        with m.If(is_v | encodes):
            for lane, value in enumerate(values):
                word = Mux(encodes, tokens[lane][:16], whole[16 * lane : 16 * lane + 16])
                m.d.sync += value.eq(to_integer(word, SEEN_BITS))
        starts = valid_chain(m, is_v | encodes, 1, "starts")[1]
        of_keys = valid_chain(m, encodes, 1 + ENCODER_CYCLES, "of_keys")
        channel = Signal(range(MX_BLOCK))
        encoders = {}
        table = [int(value) for value in tables()["RCP"]]
        for bits in {kivi.key_bits, kivi.value_bits}:
            encoder = AffineEncoder(code_bits=bits, table=table, value_bits=SEEN_BITS)
            m.submodules[f"encoder{bits}"] = encoders[bits] = encoder
            m.d.comb += encoder.start.eq(starts)
            m.d.comb += [a.eq(b) for a, b in zip(encoder.values, values, strict=True)]
        k, v = encoders[kivi.key_bits], encoders[kivi.value_bits]
        codes = lane_signals("codes", MX_BLOCK, k.code_bits * MX_BLOCK, is_signed=False)
        writes_k, writes_v = state == _State.WRITE_K, v.done & ~of_keys[-1]
        with m.If(of_keys[-1]):
            m.d.sync += channel.eq(channel + 1)
            for lane, one in enumerate(codes):
                code = k.codes.word_select(lane, k.code_bits)
                m.d.sync += one.eq(Cat(one[k.code_bits :], code))
        with m.Elif(writes_k):
            m.d.sync += [a.eq(b) for a, b in zip(codes, [*codes[1:], codes[0]], strict=True)]
        with m.If(writes_v):
            last = self._written == sizes.n_kv_blocks - 1
            m.d.sync += self._written.eq(Mux(last, 0, self._written + 1))

        # first row of codes of a group, or row of the value that leaves
        bits = address_bits(kivi.code_rows)
        first_row, row_v = Signal(bits, name="first_row"), Signal(bits, name="left_row")
        first = self._window + self._group * kivi.group_rows
        if sizes.block:
            m.d.comb += [first_row.eq(self._in_page(m, first)), row_v.eq(first_row)]
        else:
            m.d.comb += first_row.eq(first - kivi.first_code_row)
            m.d.comb += row_v.eq(self._row_v - kivi.first_code_row)
        row_k = first_row + (self._count >> log2(tiles))
        block = Signal(len(self._block), name="written_block")
        m.d.comb += block.eq(Mux(writes_k, self._block, self._written))
        base, inside = self._at(block, kivi.code_rows)
        row = Mux(writes_k, row_k, row_v)[: address_bits(sizes.bank_words)]
        banks: Any = Const(1, 1)
        if sizes.n_banks > 1:
            group = block + sizes.n_q_blocks + Mux(writes_k, 0, sizes.n_kv_blocks)
            banks = (Const(1, sizes.n_banks) << group[: log2(sizes.n_groups)])[: sizes.n_banks]
        g_base, g_inside = self._at(self._block, kivi.n_groups)
        m.d.comb += [
            command.write_k.eq(Mux(writes_k, banks, 0)),
            command.write_v.eq(Mux(writes_v, banks, 0)),
            command.w_addr.eq(base + row * sizes.row_words),
            command.w_mask.eq(Const(1, sizes.word_blocks) << inside),
            command.codes.eq(Mux(writes_k, codes[0], v.codes)),
            command.affine.eq(Cat(v.zero, v.scale)),
            command.tile.eq(
                Mux(
                    command.read_k,
                    self._count >> 1,
                    Mux(writes_k, self._count, self.pos),
                )
                & (tiles - 1)
            ),
            self.g_en.eq(of_keys[-1]),
            self.g_addr.eq(g_base + (first_row >> log2(kivi.group_rows)) * sizes.row_words),
            self.g_channel.eq(g_inside * MX_BLOCK + channel),
            self.g_data.eq(Cat(k.zero, k.scale)),
        ]

    def _in_page(self, m: Module, first: Any) -> Any:
        """Look up a value's row when its block is read, a group's with its first key."""
        sizes = self.sizes
        row = Signal(len(self.pos), name="asked_row")
        page = Signal(len(self.r_page), name="asked_page")
        inside = Signal(address_bits(sizes.page_rows), name="row_in_page", reset_less=True)
        m.d.comb += [
            row.eq(Mux(self.start, self._row_v, first)),
            page.eq(divided(m, row, sizes.page_rows)),
            self.r_page.eq(page),
            self.r_en.eq(self.start | ((self._state == _State.READ_K) & (self._count == 0))),
        ]
        with m.If(self.r_en):
            m.d.sync += inside.eq(row - page * sizes.page_rows)
        return self.r_row + inside
