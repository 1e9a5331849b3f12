"""The block table of a paged KV cache: logical pages to rows, for writes and for attention."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.primitives import wire

__all__ = ["AttentionPages", "PageTable", "divided", "first_row", "page_members"]


def divided(m: Module, slot: Value, block: int) -> Value:
    """Return ``slot div block`` of a number of at most 16 bits: a product and a shift."""
    if block & (block - 1) == 0:
        return slot >> log2(block)
    shift = len(slot) + block.bit_length()
    product = wire(m, slot * -(-(1 << shift) // block), "page_product")
    return product[shift:]


def page_members(sizes: AttentionSizes) -> dict[str, Any]:
    """List the members of the block table's write port.

    Members
    -------
    page_en, page_index, page_number
        Write; logical page, behind its sequence where there are several; physical page.
    """
    index, page = address_bits(sizes.table_entries), address_bits(sizes.n_pages)
    return {"page_en": In(1), "page_index": In(index), "page_number": In(page)}


class PageTable(wiring.Component):
    """One SRAM with the number of each logical page's physical page.

    A program's first cycles look up where its tokens are written; attention reads later, so that
    one read port does for both.

    Parameters
    ----------
    sizes
        Loop sizes, with a block.

    Members
    -------
    w_en, w_index, w_number : In
        The host writes an entry, between programs.
    begins, slot : In
        In the first cycle of a program: slot of its first token.
    sequence : In
        Of the running program; if there are several.
    r_en, r_page, r_row
        Read for attention; the page's first row in its tiles, one cycle later.
    rows : Out, for each token in flight
        Row of the token in its tile, of a KV head.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        page, number = address_bits(sizes.sequence_pages), address_bits(sizes.n_pages)
        several = {"sequence": In(address_bits(sizes.n_sequences))}
        super().__init__(
            (several if sizes.n_sequences > 1 else {})
            | {
                "w_en": In(1),
                "w_index": In(address_bits(sizes.table_entries)),
                "w_number": In(number),
                "begins": In(1),
                "slot": In(address_bits(sizes.context)),
                "r_en": In(1),
                "r_page": In(page),
                "r_row": Out(address_bits(sizes.tile_tokens)),
                "rows": Out(address_bits(sizes.tile_tokens)).array(sizes.n_inflight),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the table and the look-up of a program's tokens."""
        m = Module()
        sizes = self.sizes
        m.submodules.table = table = Sram(
            depth=sizes.table_entries,
            n_lanes=1,
            lane_bits=max(1, len(self.w_number) - log2(sizes.colours)),
        )
        slot = Signal(len(self.slot) + 1, reset_less=True)
        asks, read = Signal(sizes.n_inflight), Signal(sizes.n_inflight)
        page = divided(m, slot, sizes.block)
        inside = Signal(address_bits(sizes.page_rows), reset_less=True)
        m.d.sync += [asks.eq(Cat(self.begins, asks)), read.eq(asks)]
        asked = Signal.like(self.r_page, name="asked")
        m.d.comb += asked.eq(Mux(self.r_en, self.r_page, page))
        with m.If(self.begins):
            m.d.sync += slot.eq(self.slot)
        with m.Elif(asks.any()):
            m.d.sync += slot.eq(slot + 1)
            within = slot - page * sizes.block
            m.d.sync += inside.eq(within >> log2(sizes.n_tiles))
        m.d.comb += [
            table.w_en.eq(self.w_en),
            table.w_addr.eq(self.w_index),
            table.w_mask.eq(1),
            table.w_data.eq(self.w_number >> log2(sizes.colours)),  # the page's place in its colour
            table.r_en.eq(self.r_en | asks.any()),
            table.r_addr.eq(Cat(asked, self.sequence) if sizes.n_sequences > 1 else asked),
            self.r_row.eq(table.r_data * sizes.page_rows),
        ]
        for token in range(sizes.n_inflight):
            row = Signal(len(self.rows[token]), name=f"row{token}", reset_less=True)
            with m.If(read[token]):
                m.d.sync += row.eq(self.r_row + inside)
            m.d.comb += self.rows[token].eq(row)
        return m


def first_row(sizes: AttentionSizes, number: Value) -> Value:
    """Return the first row of a page in its tiles."""
    if sizes.colours > 1:
        return number >> log2(sizes.colours)
    return number * sizes.page_rows


class AttentionPages(wiring.Component):
    """The pages of an attention block, one read a cycle before the block is swept.

    Parameters
    ----------
    sizes
        Loop sizes, with a block.

    Members
    -------
    setup, advance : In(1)
        The next cycle is the first of reading for the first block, or for the block that follows.
    reads : In(1)
        A page arrives in this cycle.
    rest : In
        Slots of the block that hold a token, less one.
    is_last : Out(1)
        The page that arrives is the block's last.
    r_en, r_page, r_row
        To the table.
    next_slot, rewinds : In(1)
        The sweep goes on to a tile's next slot, or to its first.
    words : Out, for each colour
        Words from a head's first row to the slot's, in tiles of this colour.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        page = address_bits(sizes.sequence_pages)
        super().__init__(
            {
                "setup": In(1),
                "advance": In(1),
                "reads": In(1),
                "rest": In(range(sizes.attn_block)),
                "is_last": Out(1),
                "r_en": Out(1),
                "r_page": Out(page),
                "r_row": In(address_bits(sizes.tile_tokens)),
                "next_slot": In(1),
                "rewinds": In(1),
                "words": Out(address_bits(sizes.kv_row)).array(sizes.colours),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the counters and the registers of a block's pages."""
        m = Module()
        sizes = self.sizes
        page = Signal(len(self.r_page) + 1, reset_less=True)  # that arrives
        # slots from the block's first to the end of the page that arrives
        covered = Signal(range(sizes.attn_block + sizes.block + 1), reset_less=True)
        left = Signal.like(covered)
        following = Signal.like(page)
        begins = Signal()
        m.d.comb += [
            self.is_last.eq(covered > self.rest),
            begins.eq(self.setup | self.advance),
            # a whole block: what its last page has beyond it
            left.eq(covered - sizes.attn_block),
            self.r_en.eq(begins | (self.reads & ~self.is_last)),
            self.r_page.eq(following),
        ]
        with m.If(self.setup):
            m.d.comb += following.eq(0)
        with m.Elif(self.advance & (left != 0)):
            m.d.comb += following.eq(page)
        with m.Else():
            m.d.comb += following.eq(page + 1)
        with m.If(self.r_en):
            m.d.sync += page.eq(following)
        whole = self.setup | (left == 0)
        with m.If(begins):
            m.d.sync += covered.eq(Mux(whole, sizes.block, left))
        with m.Elif(self.reads & ~self.is_last):
            m.d.sync += covered.eq(covered + sizes.block)
        self._registers(m, begins, whole, left)
        return m

    def _registers(self, m: Module, begins: Value, whole: Value, left: Value) -> None:
        """Keep each page's first word; choose the one of the slot that is swept."""
        sizes = self.sizes
        width = len(self.words[0])
        row_words, page_words = sizes.row_words, sizes.page_rows * sizes.row_words
        arrived = (self.r_row * row_words)[:width]
        colour = Signal(address_bits(sizes.colours))
        entry = Signal(address_bits(sizes.block_pages))
        chosen = Signal(address_bits(sizes.block_pages))
        with m.If(begins):
            m.d.sync += [colour.eq(0), entry.eq(0)]
        with m.Elif(self.reads):
            m.d.sync += colour.eq(colour + 1 if sizes.colours > 1 else 0)
            with m.If(colour == sizes.colours - 1):
                m.d.sync += entry.eq(entry + 1)
        inside: Value = Const(0, 1)  # words from the page's first row
        if sizes.page_rows > 1:
            inside = Signal(range(page_words), name="inside", reset_less=True)
            first = Signal(range(page_words), name="first_inside", reset_less=True)
            within = (sizes.block - left) >> log2(sizes.n_tiles)
            start = Mux(whole, 0, within[: len(first)] * row_words)
            with m.If(begins):
                m.d.sync += [first.eq(start), inside.eq(start), chosen.eq(0)]
            with m.Elif(self.rewinds):
                m.d.sync += [inside.eq(first), chosen.eq(0)]
            with m.Elif(self.next_slot):
                ends = inside == page_words - row_words
                m.d.sync += inside.eq(Mux(ends, 0, inside + row_words))
                with m.If(ends):
                    m.d.sync += chosen.eq(chosen + 1)
        else:
            with m.If(begins | self.rewinds):
                m.d.sync += chosen.eq(0)
            with m.Elif(self.next_slot):
                m.d.sync += chosen.eq(chosen + 1)
        for number in range(sizes.colours):
            value: Value = Const(0, width)
            for index in reversed(range(sizes.block_pages)):
                register = Signal(width, name=f"page{number}_{index}", reset_less=True)
                with m.If(self.reads & (colour == number) & (entry == index)):
                    m.d.sync += register.eq(arrived)
                value = (
                    register
                    if index == sizes.block_pages - 1
                    else Mux(chosen == index, register, value)
                )
            m.d.comb += self.words[number].eq(value + inside)
