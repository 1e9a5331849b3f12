"""Copies of pages in the tiles' SRAM: what a fork's first write to a shared page waits for."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import held
from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.kv_pages import first_row
from romsim_rtl.memory import address_bits

__all__ = ["PageCopier", "copy_members", "copy_present", "copy_signature"]


def copy_members(sizes: AttentionSizes) -> dict[str, Any]:
    """List the members of the host's copy port.

    Members
    -------
    copy_en
        Copy, between programs.
    copy_source, copy_target
        Physical pages, of one colour.
    copy_tokens
        Slots of the page that hold a token, at least 1.
    """
    page = address_bits(sizes.n_pages)
    return {
        "copy_en": In(1),
        "copy_source": In(page),
        "copy_target": In(page),
        "copy_tokens": In(range(sizes.block + 1)),
    }


def copy_signature(sizes: AttentionSizes) -> wiring.Signature:
    """Describe the copy bus, controller to tiles.

    Members
    -------
    en
        A word of the K and of the V bank is read, and written in the next cycle.
    source, target
        Its addresses.
    limit
        Last tile of the page, counted from its first, that has a token in this row; of several.
    colour
        Of the page; with several.
    """
    members: dict[str, Any] = {
        "en": Out(1),
        "source": Out(address_bits(sizes.bank_words)),
        "target": Out(address_bits(sizes.bank_words)),
    }
    if min(sizes.n_tiles, sizes.block) > 1:
        members["limit"] = Out(log2(sizes.n_tiles))
    if sizes.colours > 1:
        members["colour"] = Out(log2(sizes.colours))
    return wiring.Signature(members)


def copy_present(sizes: AttentionSizes, copy: Any, tile: Any) -> Any:
    """Whether a tile has a token of the row that is copied."""
    if sizes.n_tiles == 1:
        return copy.en
    if sizes.colours == 1:
        return copy.en & (tile <= copy.limit)
    width = log2(sizes.block)
    is_mine = copy.en & (tile[width:] == copy.colour)
    return is_mine & (tile[:width] <= copy.limit) if width else is_mine


class PageCopier(wiring.Component):
    """Step through the words of a page, all layers and heads, a word a cycle.

    Parameters
    ----------
    sizes
        Loop sizes, with a block.

    Members
    -------
    copy_* : In
        `copy_members`.
    busy : Out(1)
        1 from the cycle after ``copy_en`` on, for as many cycles as there are words in a tile.
    copy : Out(copy_signature)
        To the tiles, before the broadcast registers.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        super().__init__(copy_members(sizes) | {"busy": Out(1), "copy": Out(copy_signature(sizes))})

    def elaborate(self, platform: Any) -> Module:
        """Build the counters."""
        m = Module()
        sizes, copy = self.sizes, self.copy
        n_parts = sizes.n_layers * sizes.n_kv_heads
        page_words = sizes.page_rows * sizes.row_words
        bits = address_bits(sizes.bank_words)
        busy = Signal()
        base = Signal(bits, reset_less=True)  # of the layer's KV head
        source, target = Signal(bits, reset_less=True), Signal(bits, reset_less=True)
        word, last_word = (Signal(range(page_words), reset_less=True) for _ in range(2))
        part = Signal(range(n_parts), reset_less=True)
        last = Signal(range(sizes.block), reset_less=True)  # token of the page
        ends = Signal()
        m.d.comb += [
            self.busy.eq(busy),
            ends.eq(word == last_word),
            copy.en.eq(busy),
            copy.source.eq(base + source + word),
            copy.target.eq(base + target + word),
        ]
        with m.If(self.copy_en):
            before = (self.copy_tokens - 1)[: len(last)]
            last_row = before >> log2(sizes.n_tiles)
            m.d.sync += [
                busy.eq(1),
                base.eq(0),
                part.eq(0),
                word.eq(0),
                last.eq(before),
                last_word.eq((last_row + 1) * sizes.row_words - 1),
                source.eq(first_row(sizes, self.copy_source) * sizes.row_words),
                target.eq(first_row(sizes, self.copy_target) * sizes.row_words),
            ]
            if sizes.colours > 1:
                m.d.sync += held(m, copy.colour).eq(self.copy_source[: len(copy.colour)])
        with m.Elif(busy):
            m.d.sync += word.eq(Mux(ends, 0, word + 1))
            with m.If(ends):
                m.d.sync += [base.eq(base + sizes.kv_row), part.eq(part + 1)]
                with m.If(part == n_parts - 1):
                    m.d.sync += busy.eq(0)
        if min(sizes.n_tiles, sizes.block) > 1:
            # a row that is not the last one is whole
            in_last = word + sizes.row_words > last_word
            m.d.comb += copy.limit.eq(Mux(in_last, last, sizes.n_tiles - 1))
        return m
