"""The codes of z in a tile, laid out for the words of B."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import held, valid_chain
from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.lora_command import z_signature
from romsim_rtl.lora_sizes import N_PROJECTIONS, LoraSizes

__all__ = ["ProjectionCodes"]


class ProjectionCodes(wiring.Component):
    """Keep the beats of z, and repeat each projection's codes in every slot of a word of B.

    Parameters
    ----------
    sizes, lora
        Loop sizes and memories.

    Members
    -------
    z : In(z_signature)
        Beats of codes.
    slot_log2, offset1, offset2 : In
        Codes between two rows of a word of B; first codes of projections 1 and 2.
    codes : Out(8 * W).array(3)
        For each projection, element k is its code k mod slot; 3 cycles after the last beat.
    """

    def __init__(self, *, sizes: AttentionSizes, lora: LoraSizes) -> None:
        self.sizes, self.lora = sizes, lora
        super().__init__(
            {
                "z": In(z_signature(sizes, lora)),
                "slot_log2": In(3),
                "offset1": In(10),
                "offset2": In(10),
                "codes": Out(8 * sizes.word_elems).array(N_PROJECTIONS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the registers: beats, projections, slots."""
        m = Module()
        sizes, lora, z = self.sizes, self.lora, self.z
        beats = []
        for index in range(-(-lora.n_z // sizes.n_lanes)):
            beat = Signal(8 * sizes.n_lanes, name=f"beat{index}", reset_less=True)
            is_this = Signal(name=f"is_beat{index}")
            m.d.comb += is_this.eq(z.valid & (z.beat == index))
            with m.If(is_this):
                m.d.sync += beat.eq(z.codes)
            beats.append(beat)
        ends = Signal()
        m.d.comb += ends.eq(z.valid & z.last)
        cut, laid = valid_chain(m, ends, 2, "z_end")[1:]
        flat = Cat(*beats)
        offsets = (Const(0, 10), self.offset1, self.offset2)
        for projection, offset in enumerate(offsets):
            own = Signal(8 * lora.max_rank, name=f"own{projection}", reset_less=True)
            with m.If(cut):
                m.d.sync += own.eq(flat >> Cat(Const(0, 3), offset))
            elements = []
            for element in range(sizes.word_elems):
                value: Any = own[:8]
                for level in range(1, log2(lora.max_rank) + 1):
                    at = 8 * (element & ((1 << level) - 1))
                    value = Mux(self.slot_log2 == level, own[at : at + 8], value)
                elements.append(value)
            with m.If(laid):
                m.d.sync += held(m, self.codes[projection]).eq(Cat(*elements))
        return m
