"""A tile's value sums: numerators times values, for all lanes of a word at once."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.attention_command import delay, held, valid_chain
from romsim_rtl.attention_sizes import CODES_BITS, SHIFT_BITS, AttentionSizes
from romsim_rtl.htile_affine import affine_value
from romsim_rtl.htile_kivi import decode_kivi
from romsim_rtl.htile_softmax import P_BITS
from romsim_rtl.htile_words import decode_half, words_value
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.primitives import left_shift

__all__ = ["SUM_BITS", "VALUE_CYCLES", "TileValues"]

VALUE_CYCLES = 4
"""Cycles from the last value's address to the first read of the sums."""

SUM_BITS = 64 * MX_BLOCK
"""Bits of the sums of a block of 32."""


class TileValues(wiring.Component):
    """Sums ``o`` of one tile (docs/numerics.md, softmax and values).

    Parameters
    ----------
    sizes
        Loop sizes.

    Members
    -------
    en, first_tok, last_tok, word
        A V word is being read, and where in the sweep it stands; ``word`` is where its sums go.
    v_codes, v_shifts, p
        The word and the numerators of all lanes, one cycle after ``en``.
    first_half, last_half
        The read begins and ends a word; only of words that are read by halves.
    o_en, o_word, o_select, o
        For each lane group of a beat, the sums of a block, two cycles later; ``o_select`` is
        ``lane · (W/32) + block`` of the word.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        lanes, blocks, groups = sizes.heads_parallel, sizes.word_blocks, sizes.n_groups
        word_bits = address_bits(sizes.n_entries * sizes.row_words)
        extra: dict[str, Any] = {}
        if sizes.words.has_halves:
            extra |= {"first_half": In(1), "last_half": In(1)}
        if sizes.kivi is not None:
            extra |= {"is_code": In(1), "v_affine": In(32 * blocks)}
            extra["v_coded"] = In(sizes.kivi.value_bits * sizes.word_elems)
        if sizes.words.block_bits:
            extra["v_shifts"] = In(sizes.words.block_bits * blocks)
        super().__init__(
            {
                "en": In(1),
                "first_tok": In(1),
                "last_tok": In(1),
                "word": In(word_bits),
                "v_codes": In(sizes.words.read_bits * blocks),
                "p": In(P_BITS * lanes),
                "o_en": In(1),
                "o_word": In(word_bits).array(groups),
                "o_select": In(address_bits(lanes * blocks)).array(groups),
                "o": Out(SUM_BITS).array(groups),
            }
            | extra
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline: product, shift and sum, write; and the read."""
        m = Module()
        sizes = self.sizes
        halves = ("first_half", "last_half") if sizes.words.has_halves else ()
        if sizes.kivi is not None:
            halves = (*halves, "is_code")
        names = ("first_tok", "last_tok", "word", *halves)
        more = sizes.words.value_cycles
        valid = valid_chain(m, self.en, 2 + more, "value")
        _, read = delay(m, valid[0], {name: getattr(self, name) for name in names}, 1, "read")
        _, product = delay(m, valid[1], read, 1, "product")
        for index in range(more):
            _, product = delay(m, valid[2 + index], product, 1, f"scaled{index}")
        write = Signal()
        word = Signal(len(self.word), reset_less=True)
        first, last = product["first_tok"], product["last_tok"]
        if halves:
            first, last = first & product["first_half"], last & product["last_half"]
        m.d.sync += write.eq(valid[-1] & last)
        with m.If(valid[-1]):
            m.d.sync += word.eq(product["word"])

        is_read = valid_chain(m, self.o_en, 1, "o_read")[1]
        selected = []
        for group in range(sizes.n_groups):
            select = Signal(len(self.o_select[group]), name=f"o_select_of{group}", reset_less=True)
            with m.If(self.o_en):
                m.d.sync += select.eq(self.o_select[group])
            selected.append(select)
        values: list[Any] = [None] * sizes.n_groups
        accumulate: Any = self._accumulate
        if halves:
            accumulate = self._word_sums(read)
        for lane in range(sizes.heads_parallel):
            for block in range(sizes.word_blocks):
                sums = accumulate(m, valid, first, lane, block)
                index = lane * sizes.word_blocks + block
                for group in range(sizes.n_groups):
                    sram = Sram(
                        depth=sizes.n_entries * sizes.row_words, n_lanes=1, lane_bits=SUM_BITS
                    )
                    m.submodules[f"o_sram{lane}_{block}_{group}"] = sram
                    m.d.comb += [
                        sram.w_en.eq(write),
                        sram.w_addr.eq(word),
                        sram.w_mask.eq(1),
                        sram.w_data.eq(sums),
                        sram.r_en.eq(self.o_en & (self.o_select[group] == index)),
                        sram.r_addr.eq(self.o_word[group]),
                    ]
                    before = values[group]
                    values[group] = (
                        sram.r_data
                        if before is None
                        else Mux(selected[group] == index, sram.r_data, before)
                    )
        with m.If(is_read):
            m.d.sync += [held(m, o).eq(value) for o, value in zip(self.o, values, strict=True)]
        return m

    def _word_sums(self, read: dict[str, Any]) -> Any:
        """Return what adds up 16-bit words, which all lanes share."""
        bits, kivi = self.sizes.words.read_bits, self.sizes.kivi
        is_second = ~read["first_half"]
        blocks: dict[int, list[Signal]] = {}

        def accumulate(m: Module, valid: list[Any], first: Any, lane: int, block: int) -> Any:
            if block not in blocks:
                words = self.v_codes[bits * block : bits * (block + 1)]
                if kivi is None:
                    blocks[block] = decode_half(
                        m, valid[1], f"_v{block}", words=words, is_second=is_second
                    )
                else:
                    size = kivi.value_bits * MX_BLOCK
                    blocks[block] = decode_kivi(
                        m,
                        valid[1:],
                        f"_v{block}",
                        words=words,
                        codes=self.v_coded[size * block : size * (block + 1)],
                        affine=[self.v_affine[32 * block : 32 * (block + 1)]],
                        is_code=read["is_code"],
                        is_second=is_second,
                    )
            p: Any = self.p[P_BITS * lane : P_BITS * (lane + 1)]
            depth = 1
            if kivi is not None:  # decoding takes a stage more, for which the numerator waits
                waiting = Signal.like(p, name=f"waiting{lane}_{block}")
                with m.If(valid[1]):
                    m.d.sync += waiting.eq(p)
                p, depth = waiting, 2
            name = f"{lane}_{block}"
            return words_value(m, valid[depth:], first, name, seen=blocks[block], p=p)

        return accumulate

    def _accumulate(self, m: Module, valid: list[Any], first: Any, lane: int, block: int) -> Any:
        name = f"{lane}_{block}"
        p = self.p[P_BITS * lane : P_BITS * (lane + 1)]
        words = self.sizes.words
        if words.is_affine:
            return affine_value(
                m,
                valid[1:],
                first,
                name,
                codes=self.v_codes[words.code_bits * block : words.code_bits * (block + 1)],
                block=self.v_shifts[words.block_bits * block : words.block_bits * (block + 1)],
                p=p,
            )
        products = []
        for element in range(MX_BLOCK):
            at = block * CODES_BITS + 8 * element
            product = Signal(signed(P_BITS + 8), name=f"product{name}_{element}", reset_less=True)
            with m.If(valid[1]):
                m.d.sync += product.eq(self.v_codes[at : at + 8].as_signed() * p)
            products.append(product)
        exponent = Signal(SHIFT_BITS, name=f"exponent{name}", reset_less=True)
        with m.If(valid[1]):
            m.d.sync += exponent.eq(self.v_shifts[block * SHIFT_BITS : (block + 1) * SHIFT_BITS])
        sums = Signal(SUM_BITS, name=f"sums{name}", reset_less=True)
        added = [
            (
                Mux(first, 0, sums[64 * element : 64 * element + 64])
                + left_shift(product, exponent, 64).as_unsigned()
            )[:64]
            for element, product in enumerate(products)
        ]
        with m.If(valid[2]):
            m.d.sync += sums.eq(Cat(*added))
        return sums
