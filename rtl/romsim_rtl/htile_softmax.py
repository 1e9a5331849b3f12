"""A tile's softmax numerators: powers of two of the scores, and their sum for each head."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from romsim_compiler.tables import tables
from romsim_rtl.attention_command import delay, held, maximum_signature, valid_chain
from romsim_rtl.attention_sizes import MAX_BITS, AttentionSizes
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.primitives import round_shift, round_shift_by

__all__ = ["NUMERATOR_CYCLES", "P_BITS", "TileSoftmax"]

NUMERATOR_CYCLES = 6
"""Cycles from a score's address to the first read of its numerator."""

P_BITS = 16
_DROP_BITS = 12  # EXP[i] - EXP[i+1] is at most 2,836
_EXP_BITS = 21


class TileSoftmax(wiring.Component):
    """Numerators ``p`` and their sums ``l`` (docs/numerics.md, softmax and values).

    Parameters
    ----------
    sizes
        Loop sizes.

    Members
    -------
    maximum : In(maximum_signature)
        Maxima of heads over all tiles, written as they come.
    en, first_tok, last_tok, present, entry, slot
        Scores are being read, and where in the sweep they stand.
    scores
        The scores of all lanes, one cycle after ``en``.
    p_en, p_slot, p
        Read port of the numerators: those of all lanes, one cycle later.
    l_en, l_entry, l_lane, l
        For each lane group of a beat, the sum of a head's numerators, two cycles later.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        lanes, groups = sizes.heads_parallel, sizes.n_groups
        entry_bits = address_bits(sizes.n_entries)
        slot_bits = address_bits(sizes.numerator_words)
        super().__init__(
            {
                "maximum": In(maximum_signature(sizes)),
                "en": In(1),
                "first_tok": In(1),
                "last_tok": In(1),
                "present": In(1),
                "entry": In(entry_bits),
                "slot": In(slot_bits),
                "scores": In(32 * lanes),
                "p_en": In(1),
                "p_slot": In(slot_bits),
                "p": Out(P_BITS * lanes),
                "l_en": In(1),
                "l_entry": In(entry_bits).array(groups),
                "l_lane": In(address_bits(lanes)).array(groups),
                "l": Out(32).array(groups),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline: difference, table, interpolation, shift, sum."""
        m = Module()
        lanes = self.sizes.heads_parallel
        names = ("first_tok", "last_tok", "present", "entry", "slot")
        valid = valid_chain(m, self.en, 6, "score")
        stages = [{name: getattr(self, name) for name in names}]
        for index in range(5):
            stages.append(delay(m, valid[index], stages[-1], 1, f"stage{index}")[1])
        maxima = self._maxima(m)
        tops = [self._exponential(m, valid, maxima, lane) for lane in range(lanes)]
        numerators = Signal(P_BITS * lanes, reset_less=True)
        with m.If(valid[4]):
            m.d.sync += numerators.eq(Cat(Mux(stages[4]["present"], top, 0) for top in tops))

        m.submodules.p_sram = p_sram = Sram(
            depth=self.sizes.numerator_words,
            n_lanes=1,
            lane_bits=P_BITS * lanes,
        )
        m.d.comb += [
            p_sram.w_en.eq(valid[5]),
            p_sram.w_addr.eq(stages[5]["slot"]),
            p_sram.w_mask.eq(1),
            p_sram.w_data.eq(numerators),
            p_sram.r_en.eq(self.p_en),
            p_sram.r_addr.eq(self.p_slot),
            self.p.eq(p_sram.r_data),
        ]
        self._sum(m, valid, stages[5], numerators)
        return m

    def _maxima(self, m: Module) -> Any:
        """Keep the maxima by entry and lane; return those of the scores that are being read."""
        lanes = self.sizes.heads_parallel
        m.submodules.max_sram = sram = Sram(
            depth=self.sizes.n_entries, n_lanes=lanes, lane_bits=MAX_BITS
        )
        m.d.comb += [
            sram.w_en.eq(self.maximum.valid),
            sram.w_addr.eq(self.maximum.entry),
            sram.w_mask.eq(Const(1, lanes) << self.maximum.lane),
            sram.w_data.eq(self.maximum.value.replicate(lanes)),
            sram.r_en.eq(self.en),
            sram.r_addr.eq(self.entry),
        ]
        return sram.lanes()

    def _exponential(self, m: Module, valid: list[Any], maxima: Any, lane: int) -> Any:
        """EXP2N and the final shift, which is combinational."""
        values = [int(value) for value in tables()["EXP"]]
        words = [value | (value - after) << _EXP_BITS for value, after in pairwise(values)]
        table = Memory(shape=unsigned(_EXP_BITS + _DROP_BITS), depth=256, init=words)
        m.submodules[f"table{lane}"] = table
        port = table.read_port()
        # m · 2^16 - z; present scores make it 0 … 2^32
        difference = Signal(33, name=f"difference{lane}", reset_less=True)
        score = self.scores[32 * lane : 32 * lane + 32].as_signed()
        with m.If(valid[1]):
            m.d.sync += difference.eq(Cat(Const(0, 16), maxima[lane]).as_signed() - score)
        m.d.comb += [port.addr.eq(difference[8:16]), port.en.eq(valid[2])]
        rest = Signal(8, name=f"rest{lane}", reset_less=True)
        halvings = Signal(4, name=f"halvings{lane}", reset_less=True)
        is_zero = Signal(name=f"is_zero{lane}", reset_less=True)
        with m.If(valid[2]):
            m.d.sync += [
                rest.eq(difference[:8]),
                halvings.eq(difference[16:20]),
                is_zero.eq(difference[20:].any()),
            ]
        value = Signal(_EXP_BITS, name=f"value{lane}", reset_less=True)
        shift = Signal(5, name=f"shift{lane}", reset_less=True)
        vanishes = Signal(name=f"vanishes{lane}", reset_less=True)
        product = Cat(port.data[_EXP_BITS:] * rest, Const(0, 1)).as_signed()
        with m.If(valid[3]):
            m.d.sync += [
                value.eq(port.data[:_EXP_BITS] - round_shift(product, 8)),
                shift.eq(halvings + 5),
                vanishes.eq(is_zero),
            ]
        # a sign, and room for the half that is added
        rounded = round_shift_by(Cat(value, Const(0, 2)).as_signed(), shift)
        return Mux(vanishes, 0, rounded[:P_BITS])

    def _sum(self, m: Module, valid: list[Any], flags: dict[str, Any], numerators: Any) -> None:
        sizes = self.sizes
        lanes = sizes.heads_parallel
        sums = Signal(32 * lanes, reset_less=True)
        is_last = Signal(reset_less=True)
        entry = Signal(address_bits(sizes.n_entries), reset_less=True)
        updated = []
        for lane in range(lanes):
            before = Mux(flags["first_tok"], 0, sums[32 * lane : 32 * lane + 32])
            updated.append((before + numerators[P_BITS * lane : P_BITS * (lane + 1)])[:32])
        with m.If(valid[5]):
            m.d.sync += [
                sums.eq(Cat(*updated)),
                is_last.eq(flags["last_tok"]),
                entry.eq(flags["entry"]),
            ]
        (read,) = valid_chain(m, self.l_en, 1, "l_read")[1:]
        for group in range(sizes.n_groups):
            sram = Sram(depth=sizes.n_entries, n_lanes=1, lane_bits=32 * lanes)
            m.submodules[f"l_sram{group}"] = sram
            m.d.comb += [
                sram.w_en.eq(valid[6] & is_last),
                sram.w_addr.eq(entry),
                sram.w_mask.eq(1),
                sram.w_data.eq(sums),
                sram.r_en.eq(self.l_en),
                sram.r_addr.eq(self.l_entry[group]),
            ]
            lane_of = Signal(address_bits(lanes), name=f"l_lane_of{group}", reset_less=True)
            with m.If(self.l_en):
                m.d.sync += lane_of.eq(self.l_lane[group])
            value = sram.r_data[:32]
            for lane in range(1, lanes):
                value = Mux(lane_of == lane, sram.r_data[32 * lane : 32 * lane + 32], value)
            with m.If(read):
                m.d.sync += held(m, self.l[group]).eq(value)
