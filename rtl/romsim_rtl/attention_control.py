"""The controller of ``attn``: phases of each block, addresses, and the steps of the merge tree."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import command_signature, merge_signature
from romsim_rtl.attention_sizes import ATTN_CYCLES, BLOCK_CYCLES, AttentionSizes, log2
from romsim_rtl.htile_scores import SCORE_CYCLES
from romsim_rtl.htile_softmax import NUMERATOR_CYCLES
from romsim_rtl.htile_values import VALUE_CYCLES
from romsim_rtl.kivi_control import build_halves, build_kivi_addresses, group_bits
from romsim_rtl.kv_pages import AttentionPages
from romsim_rtl.memory import address_bits
from romsim_rtl.tile_trees import maximum_stages

__all__ = ["MAXIMUM_CYCLES", "AttentionControl", "Phase"]

START_CYCLES = 2
"""Cycles from ``start`` to the first command: the instruction, its base address."""

MAXIMUM_CYCLES = 5
"""Cycles, wires apart, from a head's command ``mx`` to the first use of its maximum, where two
registers stand behind the tiles' scores."""

# Waits after the phases, from the pipelines' depths; their sum is λ_block.
_SCORE_WAIT = SCORE_CYCLES - 1
_MAXIMUM_WAIT = MAXIMUM_CYCLES - 1
_NUMERATOR_WAIT = NUMERATOR_CYCLES - 1
_VALUE_WAIT = VALUE_CYCLES - 1
assert _SCORE_WAIT + _MAXIMUM_WAIT + _NUMERATOR_WAIT + _VALUE_WAIT == BLOCK_CYCLES


class Phase(IntEnum):
    """State of the controller; ``WAIT_x`` lets x's pipeline run dry, ``PAGES`` reads the table."""

    IDLE = 0
    SETUP = 1
    QK = 2
    WAIT_QK = 3
    MX = 4
    WAIT_MX = 5
    EX = 6
    WAIT_EX = 7
    PV = 8
    WAIT_PV = 9
    MERGE = 10
    FINISH = 11
    PAGES = 12


class AttentionControl(wiring.Component):
    """Sequence one ``attn`` instruction.

    Parameters
    ----------
    sizes
        Loop sizes.

    Members
    -------
    start : In(1)
        Begin; ``pos``, ``layer`` and ``token`` are valid in the cycle after it.
    pos, layer, token : In
        Position of the token, layer, in-flight index.
    busy : Out(1)
        1 from the cycle after ``start`` until all results are written.
    command : Out(command_signature)
        To the tiles, before the broadcast registers.
    r_en, r_page, r_row
        Read port of the block table, if there is one.
    head : Out
        The head that ``command.mx`` is for.
    merge : Out(merge_signature)
        Steps of the merge tree, together with ``command.mg``.
    group_addr : Out
        Address of the zeros and scales of the keys that are read (qk); with codec ``kivi``.
    ends : Out(1)
        The last cycle in which it is busy; with what follows attention.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        table: dict[str, Any] = {}
        if sizes.block:
            page, row = address_bits(sizes.sequence_pages), address_bits(sizes.tile_tokens)
            table = {"r_en": Out(1), "r_page": Out(page), "r_row": In(row)}
        n_banks = sizes.colours if sizes.block else 1
        super().__init__(
            table
            | {
                "start": In(1),
                "pos": In(address_bits(sizes.context)),
                "layer": In(address_bits(sizes.n_layers)),
                "token": In(address_bits(sizes.n_inflight)),
                "busy": Out(1),
                "command": Out(command_signature(sizes, n_banks=n_banks)),
                "head": Out(address_bits(sizes.n_heads)),
                "merge": Out(merge_signature(sizes)),
            }
            | ({} if sizes.kivi is None else {"group_addr": Out(group_bits(sizes)), "ends": Out(1)})
            | ({"ends": Out(1)} if sizes.is_ranked else {})
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the counters."""
        m = Module()
        sizes, command = self.sizes, self.command
        bank_bits = address_bits(sizes.bank_words)
        hop = sizes.broadcast_cycles + sizes.collect_cycles
        self._phase = phase = Signal(Phase)
        maximum_wait = _MAXIMUM_WAIT + maximum_stages(sizes.n_tiles) - 2
        self._wait = Signal(range(max(16, 8 + maximum_wait + hop)))
        # rest = tokens of this block and all later ones, less one
        self._rest = Signal(address_bits(sizes.context), reset_less=True)
        self._index = Signal(sizes.n_levels, reset_less=True)
        self._base = Signal(bank_bits, reset_less=True)  # first slot of the block, KV head 0
        self._is_last = Signal()
        self._begin = Phase.PAGES if sizes.block else Phase.QK
        block_rest = Signal(range(sizes.attn_block))
        self._slots = Signal(range(sizes.block_slots))  # slots of the block, less one
        m.d.comb += [
            self._is_last.eq(self._rest < sizes.attn_block),
            block_rest.eq(Mux(self._is_last, self._rest, sizes.attn_block - 1)),
            self._slots.eq(block_rest >> log2(sizes.n_tiles)),
            self.busy.eq(phase != Phase.IDLE),
        ]
        if sizes.n_tiles > 1:
            m.d.comb += command.last_valid.eq(block_rest)
        if sizes.n_inflight > 1:
            m.d.comb += command.token.eq(self.token)
        if sizes.is_ranked:
            m.d.comb += command.block.eq(self._index)
        self._pages = AttentionPages(sizes=sizes) if sizes.block else None
        if self._pages is not None:
            self._read_pages(m, self._pages, block_rest)
        self._sweep(m)
        self._heads(m)
        self._merge(m)
        with m.If(self.start):
            m.d.sync += phase.eq(Phase.SETUP)
        with m.If(phase == Phase.SETUP):
            base = Signal(bank_bits)
            m.d.comb += base.eq(self.layer * sizes.layer_words)
            m.d.sync += [phase.eq(self._begin), self._rest.eq(self.pos), self._index.eq(0)]
            m.d.sync += self._base.eq(base)
            self._rewind(m, base)
        for waiting, following, cycles in (
            (Phase.WAIT_QK, Phase.MX, _SCORE_WAIT + sizes.words.score_cycles),
            (Phase.WAIT_MX, Phase.EX, maximum_wait + hop),
            (Phase.WAIT_EX, Phase.PV, _NUMERATOR_WAIT),
            (Phase.WAIT_PV, Phase.MERGE, _VALUE_WAIT + sizes.words.value_cycles),
            (Phase.FINISH, Phase.IDLE, ATTN_CYCLES - START_CYCLES + hop),
        ):
            with m.If(phase == waiting):
                m.d.sync += self._wait.eq(self._wait + 1)
                with m.If(self._wait == cycles - 1):
                    m.d.sync += [phase.eq(following), self._wait.eq(0)]
                    if following == Phase.IDLE and hasattr(self, "ends"):
                        m.d.comb += self.ends.eq(1)
        return m

    def _read_pages(self, m: Module, pages: AttentionPages, block_rest: Signal) -> None:
        """Read the block table before a block's first sweep."""
        m.submodules.pages = pages
        m.d.comb += [
            pages.setup.eq(self._phase == Phase.SETUP),
            pages.reads.eq(self._phase == Phase.PAGES),
            pages.rest.eq(block_rest),
            self.r_en.eq(pages.r_en),
            self.r_page.eq(pages.r_page),
            pages.r_row.eq(self.r_row),
        ]
        with m.If((self._phase == Phase.PAGES) & pages.is_last):
            m.d.sync += self._phase.eq(Phase.QK)

    def _rewind(self, m: Module, base: Any) -> None:
        """Prepare a sweep over all KV heads of a block that begins at an address."""
        m.d.sync += [self._row.eq(base), self._address.eq(base)]

    def _sweep(self, m: Module) -> None:
        """Sweep over entries, tokens and words (QK), tokens (EX), or words and tokens (PV)."""
        sizes, command, phase = self.sizes, self.command, self._phase
        bank_bits = address_bits(sizes.bank_words)
        self._row = row = Signal(bank_bits, reset_less=True)
        self._address = address = Signal(bank_bits, reset_less=True)
        entry = Signal(len(command.entry))
        in_pass = Signal(address_bits(sizes.n_passes))
        tok = Signal(range(sizes.block_slots))
        word = Signal(address_bits(sizes.row_words))
        words = Signal(len(command.word))  # entry · wt
        slots = Signal(len(command.slot))  # entry · slots of a block
        is_qk, is_ex, is_pv = (phase == p for p in (Phase.QK, Phase.EX, Phase.PV))
        last_tok, last_word, last_pass = Signal(), Signal(), Signal()
        last_entry, next_tok, next_word, next_entry = Signal(), Signal(), Signal(), Signal()
        steps_qk, steps_pv = is_qk, is_pv  # a word has been read
        if sizes.words.has_halves:
            is_wide: Any = Const(1, 1)
            if sizes.kivi is not None:
                kv = Signal(address_bits(sizes.n_kv_heads))
                with m.If(next_entry & last_pass):
                    m.d.sync += kv.eq(Mux(last_entry, 0, kv + 1))
                is_wide = build_kivi_addresses(
                    m, self, word=word, tok=tok, kv=kv, is_pv=is_pv, pos=self.pos
                )
            steps_qk, steps_pv = build_halves(m, command, is_qk, is_pv, is_wide)
        m.d.comb += [
            last_tok.eq(tok == self._slots),
            last_word.eq((word == sizes.row_words - 1) | is_ex),
            last_pass.eq(in_pass == sizes.n_passes - 1),
            last_entry.eq(entry == sizes.n_entries - 1),
            next_word.eq(steps_qk | (steps_pv & last_tok)),
            next_tok.eq(is_ex | steps_pv | (steps_qk & last_word)),
            next_entry.eq((steps_qk | is_ex | steps_pv) & last_tok & last_word),
            command.qk.eq(is_qk),
            command.ex.eq(is_ex),
            command.pv.eq(is_pv),
            command.first_tok.eq(tok == 0),
            command.last_tok.eq(last_tok),
            command.first_word.eq(word == 0),
            command.last_word.eq(last_word),
            command.word.eq(words + word),
            command.slot.eq(slots + tok),
        ]
        if self._pages is None and sizes.kivi is None:
            m.d.comb += command.bank.eq(address)
        if self._pages is not None:
            pages = self._pages
            m.d.comb += [
                pages.next_slot.eq(next_tok & ~last_tok),
                pages.rewinds.eq(next_tok & last_tok),
            ]
        if self._pages is not None and sizes.kivi is None:
            banks = command.bank if sizes.colours > 1 else [command.bank]
            m.d.comb += [
                bank.eq(row + words_in + word)
                for bank, words_in in zip(banks, pages.words, strict=True)
            ]
        if sizes.last_lanes < sizes.heads_parallel:
            m.d.comb += command.full.eq(~last_pass)
        if sizes.sinks:
            rows, rest = divmod(sizes.sinks, sizes.n_tiles)
            place = (self._index << log2(sizes.block_slots)) + tok
            m.d.comb += command.sink.eq((place < rows) if rows else 0)
            m.d.comb += command.sink_end.eq((place == rows) if rest else 0)
        # in a KV row the words of a token follow each other, and the tokens
        with m.If(next_tok):
            m.d.sync += tok.eq(Mux(last_tok, 0, tok + 1))
        with m.If(next_word):
            m.d.sync += word.eq(Mux(last_word, 0, word + 1))
        with m.If(steps_qk):
            m.d.sync += address.eq(address + 1)
        with m.If(steps_pv):
            m.d.sync += address.eq(Mux(last_tok, row + word + 1, address + sizes.row_words))
        with m.If(next_entry):
            next_row = Mux(last_pass & ~is_ex, row + sizes.kv_row, row)[: len(row)]
            m.d.sync += [
                row.eq(next_row),
                address.eq(next_row),
                in_pass.eq(Mux(last_pass, 0, in_pass + 1)),
                entry.eq(entry + 1),
                words.eq(words + sizes.row_words),
                slots.eq(slots + sizes.block_slots),
            ]
            with m.If(last_entry):
                m.d.sync += [entry.eq(0), words.eq(0), slots.eq(0)]
                self._rewind(m, self._base)
                # QK -> WAIT_QK and so on
                m.d.sync += phase.eq(phase + 1)
        self._entry = entry
        if sizes.n_banks > 1:
            self._groups(m, word)

    def _groups(self, m: Module, word: Any) -> None:
        """Lane groups that brought the first blocks of a KV word and of lane 0's query word."""
        sizes, command = self.sizes, self.command
        groups = sizes.n_groups
        rows = []
        for index in range(sizes.n_entries):
            kv, in_pass = divmod(index, sizes.n_passes)
            head = kv * sizes.heads_per_kv + in_pass * sizes.heads_parallel
            key = sizes.n_q_blocks + kv * sizes.head_blocks
            value = key + sizes.n_kv_blocks
            first = (head * sizes.head_blocks, key, value)
            rows.append(sum(block % groups << log2(groups) * n for n, block in enumerate(first)))
        table = Memory(shape=unsigned(3 * log2(groups)), depth=len(rows), init=rows)
        m.submodules.bank_groups = table
        port = table.read_port(domain="comb")
        m.d.comb += port.addr.eq(self._entry)
        query, key, value = (port.data.word_select(n, log2(groups)) for n in range(3))
        step = word * sizes.word_blocks
        m.d.comb += [
            command.q_group.eq(query + step),
            command.bank_group.eq(Mux(command.qk, key, value) + step),
        ]

    def _heads(self, m: Module) -> None:
        """Count heads with their entries and lanes: the maximum over the tiles."""
        sizes, command, phase = self.sizes, self.command, self._phase
        lane = Signal(len(command.lane))
        in_pass = Signal(address_bits(sizes.n_passes))
        entry = Signal(len(command.entry))
        is_mx, last_pass, last_lane = Signal(), Signal(), Signal()
        limit = Mux(last_pass, sizes.last_lanes - 1, sizes.heads_parallel - 1)
        m.d.comb += [
            is_mx.eq(phase == Phase.MX),
            last_pass.eq(in_pass == sizes.n_passes - 1),
            last_lane.eq(lane == limit),
            command.mx.eq(is_mx),
            command.lane.eq(lane),
            command.entry.eq(Mux(is_mx, entry, self._entry)),
        ]
        with m.If(is_mx):
            m.d.sync += [lane.eq(Mux(last_lane, 0, lane + 1)), self.head.eq(self.head + 1)]
            with m.If(last_lane):
                m.d.sync += [in_pass.eq(Mux(last_pass, 0, in_pass + 1)), entry.eq(entry + 1)]
            with m.If(self.head == sizes.n_heads - 1):
                m.d.sync += [phase.eq(Phase.WAIT_MX), self.head.eq(0), entry.eq(0)]

    def _merge(self, m: Module) -> None:
        """Step through beats and, for each, through the levels that the block completes."""
        sizes, merge, index = self.sizes, self.merge, self._index
        levels = sizes.n_levels
        beat = Signal(address_bits(sizes.beats))
        is_first = Signal(init=1)
        left = Signal(levels, reset_less=True)  # levels still to be joined
        wanted, level, after = Signal(levels), Signal(levels), Signal(levels)
        lowest_zero = Signal(levels)
        active, is_end = Signal(), Signal()
        m.d.comb += [
            active.eq(self._phase == Phase.MERGE),
            lowest_zero.eq(~index & (index + 1)),
            # a whole block joins the levels of its trailing ones, the last one all that are there
            wanted.eq(Mux(self._is_last, index, index & (lowest_zero - 1))),
            level.eq(Mux(is_first, 1, left & -left)),
            after.eq(Mux(is_first, wanted & ~1, left & (left - 1))),
            is_end.eq(after == 0),
            merge.valid.eq(active),
            merge.load.eq(is_first),
            merge.join.eq(~is_first | index[0]),
            merge.level.eq(level),
            merge.store.eq(is_end),
            merge.final.eq(self._is_last),
            merge.target.eq(lowest_zero),
            merge.beat.eq(beat),
            self.command.mg.eq(active & is_first),
        ]
        self._beat_places(m, beat)
        with m.If(active):
            m.d.sync += [left.eq(after), is_first.eq(is_end)]
            with m.If(is_end):
                m.d.sync += beat.eq(beat + 1)
                with m.If(beat == sizes.beats - 1):
                    base = Signal(len(self._base))
                    if self._pages is None:
                        m.d.comb += base.eq(self._base + sizes.block_slots * sizes.row_words)
                    else:  # rows are the pages'
                        m.d.comb += base.eq(self._base)
                        m.d.comb += self._pages.advance.eq(~self._is_last)
                    self._rewind(m, base)
                    m.d.sync += [
                        beat.eq(0),
                        self._phase.eq(Mux(self._is_last, Phase.FINISH, self._begin)),
                        self._rest.eq(self._rest - sizes.attn_block),
                        index.eq(index + 1),
                        self._base.eq(base),
                    ]

    def _beat_places(self, m: Module, beat: Any) -> None:
        """Look up where each lane group of a beat finds its block's sums."""
        sizes, command = self.sizes, self.command
        widths = (len(command.o_word[0]), len(command.o_select[0]), len(command.o_entry[0]))
        for group in range(sizes.n_groups):
            rows = []
            for index in range(sizes.beats):
                block = min(index * sizes.n_groups + group, sizes.n_q_blocks - 1)
                head, inside = divmod(block, sizes.head_blocks)
                word, part = divmod(inside, sizes.word_blocks)
                entry, lane = sizes.place_head(head)
                rows.append(
                    entry * sizes.row_words + word
                    | (lane * sizes.word_blocks + part) << widths[0]
                    | entry << widths[0] + widths[1]
                )
            table = Memory(shape=unsigned(sum(widths)), depth=len(rows), init=rows)
            m.submodules[f"beat_places{group}"] = table
            port = table.read_port(domain="comb")
            m.d.comb += [
                port.addr.eq(beat),
                Cat(command.o_word[group], command.o_select[group], command.o_entry[group]).eq(
                    port.data
                ),
            ]
