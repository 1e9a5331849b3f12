"""One tile of unit H: K and V banks, query buffer, scores, numerators, value sums, adapters."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import command_signature, delay, maximum_signature
from romsim_rtl.attention_sizes import CODES_BITS, AttentionSizes, log2
from romsim_rtl.attention_write import query_bits, write_signature
from romsim_rtl.htile_banks import BlockBank
from romsim_rtl.htile_kivi import build_kivi_banks
from romsim_rtl.htile_mass import TileMass
from romsim_rtl.htile_scores import TileScores
from romsim_rtl.htile_softmax import TileSoftmax
from romsim_rtl.htile_values import SUM_BITS, TileValues
from romsim_rtl.kivi_late import late_signature
from romsim_rtl.kv_copy import copy_present, copy_signature
from romsim_rtl.lora_command import (
    configuration_signature,
    input_signature,
    lora_command_signature,
    parameter_signature,
    z_signature,
)
from romsim_rtl.lora_sizes import LoraSizes
from romsim_rtl.lora_tile import TileLora
from romsim_rtl.mass_command import best_signature, mass_signature

__all__ = ["HTile"]


class HTile(wiring.Component):
    """A tile of unit H; all tiles obey one controller.

    Parameters
    ----------
    sizes
        Loop sizes.
    lora
        Memories of the adapter path, or None for a chip without.

    Members
    -------
    tile : In
        Number of the tile, constant; if there are several.
    command : In(command_signature)
        What to do in this cycle.
    write : In(write_signature)
        Query, key and value words.
    copy : In(copy_signature)
        Copies of words, where sequences share pages.
    maximum_in : In(maximum_signature)
        Maxima over all tiles.
    maximum : Out(signed(32))
        A head's largest score, 2 cycles after the command ``mx``.
    o, l
        Sums and weights of a beat, 2 cycles after the command ``mg``.
    saturations : Out(32)
        Scores that were clipped.
    late, late_word, k_affine : with codec ``kivi``
        Reads and writes after attention, and half a block, 2 cycles after its read; zeros and
        scales of the keys' channels, one cycle after the command ``qk``.
    mass, best : where attention mass is counted
        The members ``command`` and ``best`` of `TileMass`.
    lora_* : with adapters
        The members of `TileLora`.
    """

    def __init__(self, *, sizes: AttentionSizes, lora: LoraSizes | None = None) -> None:
        self.sizes, self.lora = sizes, lora
        members: dict[str, Any] = {
            "command": In(command_signature(sizes)),
            "write": In(write_signature(sizes)),
            "maximum_in": In(maximum_signature(sizes)),
            "maximum": Out(32),
            "o": Out(SUM_BITS).array(sizes.n_groups),
            "l": Out(32).array(sizes.n_groups),
            "saturations": Out(32),
        }
        if sizes.n_sequences > 1:
            members["copy"] = In(copy_signature(sizes))
        if sizes.n_tiles > 1:
            members["tile"] = In(log2(sizes.n_tiles))
        if sizes.kivi is not None:
            members |= {"late": In(late_signature(sizes)), "late_word": Out(CODES_BITS)}
            members["k_affine"] = In(32 * sizes.word_elems)
        if sizes.is_ranked:
            members |= {"mass": In(mass_signature(sizes)), "best": Out(best_signature(sizes))}
        if lora is not None:
            members |= {
                "lora_parameters": In(parameter_signature(lora)),
                "lora_command": In(lora_command_signature(sizes, lora)),
                "lora_x": In(input_signature(sizes, lora)),
                "lora_z": In(z_signature(sizes, lora)),
                "lora_configuration": In(configuration_signature(sizes, lora)),
                "lora_row": Out(signed(64)),
                "lora_rows": Out(32 * sizes.n_lanes),
                "lora_saturations": Out(32),
            }
        super().__init__(members)

    @staticmethod
    def unread_bits() -> dict[str, str]:
        """Ports of which some bits are not read, for the emission of Verilog."""
        one = "there is one lane alone"
        return {"command__lane": one, "maximum_in__lane": one}

    def elaborate(self, platform: Any) -> Module:
        """Connect the parts."""
        m = Module()
        sizes, command = self.sizes, self.command
        present = Signal()
        is_mine: Any = Signal(sizes.n_banks if sizes.is_ranked else 1, name="is_mine")
        if sizes.n_tiles > 1:
            m.d.comb += present.eq(~command.last_tok | (self.tile <= command.last_valid))
            targets = self.write.tile if sizes.is_ranked else [self.write.tile]
            m.d.comb += is_mine.eq(Cat(*(target == self.tile for target in targets)))
        else:
            m.d.comb += [present.eq(1), is_mine.eq((1 << len(is_mine)) - 1)]
        is_code = Signal()
        if sizes.kivi is not None:
            m.d.comb += is_code.eq((self.tile if sizes.n_tiles > 1 else 0) < command.coded)
        banks = self._banks(m, is_mine, is_code)
        if self.lora is not None:
            self._adapters(m, self.lora)

        m.submodules.scores = scores = TileScores(sizes=sizes)
        m.submodules.softmax = softmax = TileSoftmax(sizes=sizes)
        m.submodules.values = values = TileValues(sizes=sizes)
        p_en, p_slot, numerator = command.pv, command.slot, command.slot
        if sizes.is_ranked:
            m.submodules.mass = mass = TileMass(sizes=sizes)
            numerator = Cat(command.slot, command.block)
            p_en, p_slot = p_en | mass.p_en, Mux(mass.p_en, mass.p_slot, numerator)
            wiring.connect(m, wiring.flipped(self.mass), mass.command)
            wiring.connect(m, mass.best, wiring.flipped(self.best))
            m.d.comb += mass.p.eq(softmax.p)
            if sizes.n_tiles > 1:
                m.d.comb += mass.tile.eq(self.tile)
        fields = ["first_tok", "last_tok", "first_word", "last_word", "entry", "slot"]
        if sizes.last_lanes < sizes.heads_parallel:
            fields.append("full")
        if sizes.words.has_halves:
            fields += ["first_half", "last_half"]
            m.d.comb += [
                values.first_half.eq(command.first_half),
                values.last_half.eq(command.last_half),
            ]
        words: dict[str, Any] = {}  # that scores are made of, besides the queries
        v_shifts: list[Any] = []
        if sizes.words.block_bits:
            words["k_shifts"] = banks["k"].shifts
            v_shifts = [values.v_shifts.eq(banks["v"].shifts)]
        flags = {name: getattr(command, name) for name in fields} | {"present": present}
        if sizes.kivi is not None:
            codes = {kind: banks[kind] for kind in "kv"}
            words |= {"k_coded": banks["k_coded"].codes, "k_affine": self.k_affine}
            flags["is_code"] = is_code
            m.d.comb += [
                values.is_code.eq(is_code),
                values.v_coded.eq(banks["v_coded"].codes),
                values.v_affine.eq(banks["v_coded"].shifts),
            ]
        elif not sizes.words.has_halves:
            codes = {kind: banks[kind].codes for kind in "kv"}
        else:
            second = Signal(reset_less=True)
            with m.If(command.qk | command.pv):
                m.d.sync += second.eq(~command.first_half)
            codes = {
                kind: Mux(second, banks[f"{kind}_second"].codes, banks[kind].codes) for kind in "kv"
            }
        m.d.comb += [
            scores.score_en.eq(command.ex),
            scores.score_slot.eq(command.slot),
            scores.max_en.eq(command.mx),
            scores.max_entry.eq(command.entry),
            scores.max_lane.eq(command.lane),
            self.maximum.eq(scores.maximum),
            self.saturations.eq(scores.saturations),
            softmax.en.eq(command.ex),
            softmax.present.eq(present),
            softmax.scores.eq(scores.scores),
            softmax.p_en.eq(p_en),
            softmax.p_slot.eq(p_slot),
            softmax.l_en.eq(command.mg),
            values.en.eq(command.pv),
            values.word.eq(command.word),
            values.v_codes.eq(codes["v"]),
            *v_shifts,
            values.p.eq(softmax.p),
            values.o_en.eq(command.mg),
        ]
        wiring.connect(m, wiring.flipped(self.maximum_in), softmax.maximum)
        for name in ("first_tok", "last_tok"):
            m.d.comb += [
                getattr(part, name).eq(getattr(command, name)) for part in (softmax, values)
            ]
        m.d.comb += [softmax.entry.eq(command.entry), softmax.slot.eq(numerator)]
        self._hold_words(m, scores, flags, words | {"k_codes": codes["k"]}, banks)
        for group in range(sizes.n_groups):
            m.d.comb += [
                values.o_word[group].eq(command.o_word[group]),
                values.o_select[group].eq(command.o_select[group]),
                softmax.l_entry[group].eq(command.o_entry[group]),
                softmax.l_lane[group].eq(command.o_select[group] >> log2(sizes.word_blocks)),
                self.o[group].eq(values.o[group]),
                self.l[group].eq(softmax.l[group]),
            ]
        return m

    def _hold_words(
        self,
        m: Module,
        scores: Any,
        flags: dict[str, Any],
        words: dict[str, Any],
        banks: dict[str, Any],
    ) -> None:
        """Put a register behind the SRAMs of keys and queries, before words are multiplied."""
        reads, flags = delay(m, self.command.qk, flags, 1, "qk")
        for lane in range(self.sizes.heads_parallel):
            bank = banks[f"q{lane}"]
            words |= {f"q{lane}_codes": bank.codes, f"q{lane}_shifts": bank.shifts}
        _, words = delay(m, reads, words, 1, "qk_read")
        m.d.comb += scores.en.eq(reads)
        m.d.comb += [getattr(scores, name).eq(value) for name, value in flags.items()]
        for name, value in words.items():
            unit, _, kind = name.rpartition("_")
            if unit[0] == "q":
                m.d.comb += getattr(scores, f"q_{kind}")[int(unit[1:])].eq(value)
            else:
                m.d.comb += getattr(scores, name).eq(value)

    def _adapters(self, m: Module, lora: LoraSizes) -> None:
        m.submodules.lora = part = TileLora(sizes=self.sizes, lora=lora)
        for name in ("parameters", "command", "x", "z", "configuration"):
            wiring.connect(m, wiring.flipped(getattr(self, f"lora_{name}")), getattr(part, name))
        for name in ("row", "rows", "saturations"):
            m.d.comb += getattr(self, f"lora_{name}").eq(getattr(part, name))
        if self.sizes.n_tiles > 1:
            m.d.comb += part.tile.eq(self.tile)

    def _banks(self, m: Module, is_mine: Any, is_code: Any) -> dict[str, Any]:
        """Make the K and V banks and a query buffer for each lane."""
        sizes, command = self.sizes, self.command
        banks: dict[str, Any] = {}
        q_addr = command.word
        if sizes.n_inflight > 1:
            q_addr = Cat(command.word, command.token)
        if sizes.sinks:
            is_sink = Signal()
            m.d.comb += is_sink.eq(command.sink)
            if sizes.n_tiles > 1:
                is_end = command.sink_end & (self.tile < sizes.sinks % sizes.n_tiles)
                m.d.comb += is_sink.eq(command.sink | is_end)
            q_addr = Cat(command.word, is_sink)
        if sizes.n_sequences > 1:
            copied, copied_to = Signal(), Signal.like(self.copy.target, reset_less=True)
            tile = self.tile if sizes.n_tiles > 1 else None
            m.d.sync += copied.eq(copy_present(sizes, self.copy, tile))
            with m.If(self.copy.en):
                m.d.sync += copied_to.eq(self.copy.target)
        kivi: dict[str, Any] = {}
        reads = {"k": command.qk, "v": command.pv}
        if sizes.kivi is not None:
            kivi, reads = build_kivi_banks(m, self, is_code=is_code, is_mine=is_mine), {}
        elif sizes.words.has_halves:
            seconds = {f"{kind}_second": en & ~command.first_half for kind, en in reads.items()}
            reads = {kind: en & command.first_half for kind, en in reads.items()} | seconds
        for kind, enable in reads.items():
            bank = BlockBank(
                depth=sizes.bank_words,
                n_blocks=sizes.word_blocks,
                n_banks=sizes.n_banks,
                code_bits=sizes.words.read_bits,
                block_bits=sizes.words.block_bits,
                copies=sizes.n_sequences > 1,
            )
            banks[kind] = m.submodules[kind] = bank
            if sizes.n_sequences > 1:
                copy = self.copy
                m.d.comb += [
                    bank.r_en.eq(enable | copy.en),
                    bank.r_addr.eq(Mux(copy.en, copy.source, command.bank)),
                    bank.c_en.eq(copied),
                    bank.c_addr.eq(copied_to),
                ]
            else:
                m.d.comb += [bank.r_en.eq(enable), bank.r_addr.eq(command.bank)]
            if sizes.n_banks > 1:
                m.d.comb += bank.r_group.eq(command.bank_group)
            for index in range(sizes.n_banks):
                written = getattr(self.write, f"{kind[0]}_en")[index]
                mine = is_mine[index] if sizes.is_ranked else is_mine
                m.d.comb += bank.w_en[index].eq(written & mine)
                m.d.comb += bank.w_addr[index].eq(self.write.kv_addr[index])
        for lane in range(sizes.heads_parallel):
            bank = BlockBank(
                depth=1 << query_bits(sizes), n_blocks=sizes.word_blocks, n_banks=sizes.n_banks
            )
            banks[f"q{lane}"] = m.submodules[f"q{lane}"] = bank
            m.d.comb += [bank.r_en.eq(command.qk), bank.r_addr.eq(q_addr)]
            if sizes.n_banks > 1:
                m.d.comb += bank.r_group.eq(command.q_group + lane * sizes.head_blocks)
            for index in range(sizes.n_banks):
                m.d.comb += bank.w_en[index].eq(self.write.q_en[index][lane])
                m.d.comb += bank.w_addr[index].eq(self.write.q_addr[index])
        for name, bank in banks.items():
            for index in range(sizes.n_banks):
                codes, shifts = self.write.codes[index], self.write.shifts[index]
                if name.endswith("_second"):
                    codes = self.write.second[index]
                if name in ("k", "v") and sizes.words.is_affine:
                    bits = sizes.words.code_bits
                    starts = range(0, CODES_BITS * sizes.word_blocks, CODES_BITS)
                    codes = Cat(codes[at : at + bits] for at in starts)
                    shifts = self.write.affine[index]
                m.d.comb += [
                    bank.w_mask[index].eq(self.write.mask[index]),
                    bank.w_codes[index].eq(codes),
                ]
                if hasattr(bank, "w_shifts"):
                    m.d.comb += bank.w_shifts[index].eq(shifts)
        return banks | kivi
