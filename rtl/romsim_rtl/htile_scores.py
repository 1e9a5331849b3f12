"""A tile's scores: query times key, block by block, and the largest score of each head."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.attention_command import delay, held, valid_chain
from romsim_rtl.attention_sizes import CODES_BITS, SHIFT_BITS, AttentionSizes
from romsim_rtl.htile_affine import affine_term
from romsim_rtl.htile_kivi import decode_kivi
from romsim_rtl.htile_words import decode_half, words_term
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.primitives import add_tree, popcount, saturate32, shift_to_grid

__all__ = ["SCORE_CYCLES", "TileScores"]

SCORE_CYCLES = 8
"""Cycles from the last key's address to the first read of the maxima: the tile's register behind
its banks (1), and the pipeline here."""

_PRODUCT_BITS = 21  # 32 · 127 · 127 and a sign
_FLAGS = ("first_word", "last_word", "first_tok", "last_tok", "present")


class TileScores(wiring.Component):
    """Score buffer and maxima of one tile (docs/numerics.md, scores).

    Parameters
    ----------
    sizes
        Loop sizes.

    Members
    -------
    en, first_word, last_word, first_tok, last_tok, entry, slot
        A KV word is being read, and where in the sweep it stands.
    present : In(1)
        The slot holds a token.
    first_half, last_half : In(1)
        The read begins and ends a word; only of words that are read by halves.
    full : In(1)
        All lanes hold a head; only if a pass may have fewer.
    k_codes, k_shifts, q_codes, q_shifts
        The words, one cycle after ``en``.
    score_en, score_slot, scores
        Read port of the score buffer: the scores of all lanes, one cycle later.
    max_en, max_entry, max_lane, maximum
        A head's largest score, two cycles later.
    saturations : Out(32)
        Scores that were clipped.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        lanes, blocks = sizes.heads_parallel, sizes.word_blocks
        members: dict[str, Any] = {name: In(1) for name in ("en", *_FLAGS)}
        if sizes.last_lanes < lanes:
            members["full"] = In(1)
        slot_bits = address_bits(sizes.n_entries * sizes.block_slots)
        if sizes.words.has_halves:
            members |= {"first_half": In(1), "last_half": In(1)}
        if sizes.kivi is not None:
            members |= {"is_code": In(1), "k_affine": In(32 * sizes.word_elems)}
            members["k_coded"] = In(sizes.kivi.key_bits * sizes.word_elems)
        members |= {
            "entry": In(address_bits(sizes.n_entries)),
            "slot": In(slot_bits),
            "k_codes": In(sizes.words.read_bits * blocks),
        }
        if sizes.words.block_bits:
            members["k_shifts"] = In(sizes.words.block_bits * blocks)
        members |= {
            "q_codes": In(CODES_BITS * blocks).array(lanes),
            "q_shifts": In(SHIFT_BITS * blocks).array(lanes),
            "score_en": In(1),
            "score_slot": In(slot_bits),
            "scores": Out(32 * lanes),
            "max_en": In(1),
            "max_entry": In(address_bits(sizes.n_entries)),
            "max_lane": In(address_bits(lanes)),
            "maximum": Out(signed(32)),
            "saturations": Out(32),
        }
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline: products, shift, sum, saturation, maximum."""
        m = Module()
        optional = ("full", "first_half", "last_half", "is_code")
        names = [*_FLAGS, "entry", "slot", *(name for name in optional if hasattr(self, name))]
        flags = {name: getattr(self, name) for name in names}
        more = self.sizes.words.score_cycles
        valid = valid_chain(m, self.en, 3 + more, "word")
        _, flags1 = delay(m, valid[0], flags, 1, "read")
        _, flags2 = delay(m, valid[1], flags1, 1, "product")
        waiting = [flags2]
        for index in range(more):
            waiting.append(delay(m, valid[2 + index], waiting[-1], 1, f"scaled{index}")[1])
        _, flags3 = delay(m, valid[2 + more], waiting[-1], 1, "shift")
        done = Signal()  # the last word of a key has been added
        is_whole = valid[-1]
        if "last_half" in flags3:
            is_whole = is_whole & flags3["last_half"]
        m.d.sync += done.eq(is_whole & flags3["last_word"])
        unwanted = ("first_word", "last_word", "first_half", "last_half", "is_code")
        wanted = [n for n in names if n not in unwanted]
        _, flags4 = delay(m, valid[-1], {n: flags3[n] for n in wanted}, 1, "sum")
        _, flags5 = delay(m, done, flags4, 1, "score")
        scored, stored = valid_chain(m, done, 2, "score_done")[1:]

        totals = self._multiply(m, valid, is_whole, (flags1, waiting[max(0, more - 1)], flags3))
        scores = Signal(32 * len(totals), reset_less=True)
        clipped = Signal(len(totals), reset_less=True)
        results = [saturate32(total) for total in totals]
        with m.If(done):
            m.d.sync += scores.eq(Cat(value[:32] for value, _ in results))
            m.d.sync += clipped.eq(Cat(clip for _, clip in results))
        self._count(m, scored, clipped, flags5)
        self._keep(m, scored, stored, scores, flags5)
        return m

    def _multiply(self, m: Module, valid: list[Any], is_whole: Any, flags: tuple[Any, ...]) -> Any:
        """Add up a key's blocks for each lane; flags of its reading, products and sum."""
        sizes = self.sizes
        read, product, shift = flags
        term_of: Any = self._affine_term if sizes.words.is_affine else self._term
        if sizes.words.has_halves:
            term_of = self._word_terms(m, valid, product["first_half"])
        totals = []
        for lane in range(sizes.heads_parallel):
            terms = [term_of(m, valid, read, lane, block) for block in range(sizes.word_blocks)]
            total = Signal(signed(64), name=f"total{lane}", reset_less=True)
            so_far = Mux(shift["first_word"], Const(0, signed(64)), total)
            with m.If(is_whole):
                m.d.sync += total.eq(add_tree([so_far, *terms]))
            totals.append(total)
        return totals

    def _term(self, m: Module, valid: list[Any], read: Any, lane: int, block: int) -> Signal:
        """One block of MXINT8: ``SHR(Σ q · k, 2·F_A - 16 - s(q) - s(k))``."""
        sizes = self.sizes
        score_shift = 2 * sizes.linear_frac - 16
        name = f"{lane}_{block}"
        p = Signal(signed(_PRODUCT_BITS), name=f"product{name}", reset_less=True)
        exponent = Signal(unsigned(SHIFT_BITS + 1), name=f"exp{name}", reset_less=True)
        term = Signal(signed(64), name=f"term{name}", reset_less=True)
        dot = self._dot(lane, block)
        if block >= sizes.last_blocks:  # the last word of a head is not full
            dot = Mux(read["last_word"], 0, dot)
        part = slice(block * SHIFT_BITS, (block + 1) * SHIFT_BITS)
        with m.If(valid[1]):
            m.d.sync += [
                p.eq(dot),
                exponent.eq(self.k_shifts[part] + self.q_shifts[lane][part]),
            ]
        with m.If(valid[2]):
            m.d.sync += term.eq(shift_to_grid(p, exponent, score_shift, 64))
        return term

    def _affine_term(self, m: Module, valid: list[Any], read: Any, lane: int, block: int) -> Any:
        words = self.sizes.words
        at, bits = CODES_BITS * block, SHIFT_BITS * block
        return affine_term(
            m,
            valid[1:],
            f"{lane}_{block}",
            codes=self.k_codes[words.code_bits * block : words.code_bits * (block + 1)],
            block=self.k_shifts[words.block_bits * block : words.block_bits * (block + 1)],
            query=self.q_codes[lane][at : at + CODES_BITS],
            query_shift=self.q_shifts[lane][bits : bits + SHIFT_BITS],
            is_absent=read["last_word"] if block >= self.sizes.last_blocks else None,
        )

    def _word_terms(self, m: Module, valid: list[Any], first_half: Any) -> Any:
        """Return what makes a term of 16-bit words, which all lanes share."""
        sizes = self.sizes
        blocks: dict[int, list[Signal]] = {}

        def term(m: Module, valid: list[Any], read: Any, lane: int, block: int) -> Any:
            at = slice(CODES_BITS * block, CODES_BITS * (block + 1))
            query: Any = self.q_codes[lane][at]
            shift: Any = self.q_shifts[lane][SHIFT_BITS * block : SHIFT_BITS * (block + 1)]
            if block not in blocks:
                choices = {
                    "words": self.k_codes[at],
                    "is_second": ~read["first_half"],
                    "is_absent": read["last_word"] if block >= sizes.last_blocks else None,
                }
                if sizes.kivi is None:
                    blocks[block] = decode_half(m, valid[1], f"_k{block}", **choices)
                else:
                    bits = sizes.kivi.key_bits * MX_BLOCK
                    channels = range(MX_BLOCK * block, MX_BLOCK * (block + 1))
                    blocks[block] = decode_kivi(
                        m,
                        valid[1:],
                        f"_k{block}",
                        codes=self.k_coded[bits * block : bits * (block + 1)],
                        affine=[self.k_affine.word_select(d, 32) for d in channels],
                        is_code=read["is_code"],
                        **choices,
                    )
            depth = 1
            if sizes.kivi is not None:  # decoding takes a stage more, for which the query waits
                waiting = (Signal.like(query), Signal.like(shift))
                with m.If(valid[1]):
                    m.d.sync += [waiting[0].eq(query), waiting[1].eq(shift)]
                (query, shift), depth = waiting, 2
            return words_term(
                m,
                valid[depth:],
                f"{lane}_{block}",
                seen=blocks[block],
                query=query,
                query_shift=shift,
                first_half=first_half,
            )

        return term

    def _dot(self, lane: int, block: int) -> Any:
        at = block * CODES_BITS
        return add_tree(
            [
                self.k_codes[bit : bit + 8].as_signed()
                * self.q_codes[lane][bit : bit + 8].as_signed()
                for bit in range(at, at + 8 * MX_BLOCK, 8)
            ]
        )

    def _count(self, m: Module, scored: Any, clipped: Any, flags: dict[str, Any]) -> None:
        last = self.sizes.last_lanes
        mask: Any = Const((1 << len(clipped)) - 1, len(clipped))
        if "full" in flags:
            mask = Mux(flags["full"], mask, (1 << last) - 1)
        counted = Signal()
        m.d.comb += counted.eq(scored & flags["present"])
        with m.If(counted):
            m.d.sync += self.saturations.eq(self.saturations + popcount(clipped & mask))

    def _keep(
        self, m: Module, scored: Any, stored: Any, scores: Any, flags: dict[str, Any]
    ) -> None:
        """Write scores, and a head's maximum after its last key; read both."""
        sizes = self.sizes
        lanes = sizes.heads_parallel
        m.submodules.score_sram = score_sram = Sram(
            depth=sizes.n_entries * sizes.block_slots, n_lanes=1, lane_bits=32 * lanes
        )
        m.d.comb += [
            score_sram.w_en.eq(scored),
            score_sram.w_addr.eq(flags["slot"]),
            score_sram.w_mask.eq(1),
            score_sram.w_data.eq(scores),
            score_sram.r_en.eq(self.score_en),
            score_sram.r_addr.eq(self.score_slot),
            self.scores.eq(score_sram.r_data),
        ]
        largest = Signal(32 * lanes, reset_less=True)
        lowest = Const(-(1 << 31), signed(32))
        updated = []
        for lane in range(lanes):
            part = slice(32 * lane, 32 * lane + 32)
            score = Mux(flags["present"], scores[part].as_signed(), lowest)
            before = Mux(flags["first_tok"], lowest, largest[part].as_signed())
            updated.append(Mux(score > before, score, before)[:32])
        entry = Signal(address_bits(sizes.n_entries), reset_less=True)
        is_last = Signal(reset_less=True)
        with m.If(scored):
            m.d.sync += [largest.eq(Cat(*updated)), is_last.eq(flags["last_tok"])]
            m.d.sync += entry.eq(flags["entry"])

        m.submodules.max_sram = max_sram = Sram(
            depth=sizes.n_entries, n_lanes=1, lane_bits=32 * lanes
        )
        m.d.comb += [
            max_sram.w_en.eq(stored & is_last),
            max_sram.w_addr.eq(entry),
            max_sram.w_mask.eq(1),
            max_sram.w_data.eq(largest),
            max_sram.r_en.eq(self.max_en),
            max_sram.r_addr.eq(self.max_entry),
        ]
        (read,) = valid_chain(m, self.max_en, 1, "max_read")[1:]
        lane_of = Signal(address_bits(lanes), reset_less=True)
        with m.If(self.max_en):
            m.d.sync += lane_of.eq(self.max_lane)
        value = max_sram.r_data[:32]
        for lane in range(1, lanes):
            value = Mux(lane_of == lane, max_sram.r_data[32 * lane : 32 * lane + 32], value)
        with m.If(read):
            m.d.sync += held(m, self.maximum).eq(value)
