"""A tile's attention mass: an accumulator a slot, and the least of them (docs/kv.md, section 3)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.kv_sram import MASS_BITS
from romsim_rtl.attention_command import delay, held, valid_chain
from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.htile_softmax import P_BITS
from romsim_rtl.mass_command import SHARE_SHIFT, best_signature, mass_signature, mass_words
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.primitives import add_tree, round_shift_by

__all__ = ["MASS_CYCLES", "TileMass"]

MASS_CYCLES = 5
"""Cycles from a command to the least mass with its slot: numerators, products, shares, sum, least.

The accumulator is written in the last of them."""

_SHARE_BITS = 34  # a numerator and a reciprocal, 48 bits, shifted by at least 15, and rounded


class TileMass(wiring.Component):
    """Accumulate a tile's share of each token's attention, and find the token of least mass.

    A word is the mass and, above it, whether the token is one of the newest, which are not dropped.

    Parameters
    ----------
    sizes
        Loop sizes, with a window.

    Members
    -------
    tile : In
        Number of the tile; if there are several.
    command : In(mass_signature)
        A slot and a pass over its KV head's queries.
    p_en, p_slot, p
        Read port of the numerators: those of all lanes, one cycle later.
    best : Out(best_signature)
        `MASS_CYCLES` after a KV head's last command: the least mass; ties: the lowest row.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        several = {"tile": In(log2(sizes.n_tiles))} if sizes.n_tiles > 1 else {}
        super().__init__(
            several
            | {
                "command": In(mass_signature(sizes)),
                "p_en": Out(1),
                "p_slot": Out(address_bits(sizes.numerator_words)),
                "p": In(P_BITS * sizes.heads_parallel),
                "best": Out(best_signature(sizes)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline."""
        m = Module()
        sizes, command = self.sizes, self.command
        valid = valid_chain(m, command.en, MASS_CYCLES - 1, "slot")
        m.d.comb += [self.p_en.eq(command.en), self.p_slot.eq(command.p_slot)]
        present, is_new, leaves = Signal(), Signal(), Signal()
        if sizes.n_tiles > 1:
            m.d.comb += [
                present.eq(~command.last_row | (self.tile <= command.last_valid)),
                is_new.eq(command.is_new & (self.tile == command.new_tile)),
                leaves.eq(command.leaves & (self.tile == command.left_tile)),
            ]
        else:
            m.d.comb += [present.eq(1), is_new.eq(command.is_new), leaves.eq(command.leaves)]
        names = ("first_pass", "last_pass", "first_row", "addr", "row")
        stages = [{name: getattr(command, name) for name in names}]
        stages[0] |= {"present": present, "is_new": is_new, "leaves": leaves}
        for index in range(MASS_CYCLES - 1):
            stages.append(delay(m, valid[index], stages[-1], 1, f"stage{index}")[1])

        shares = [self._share(m, valid, lane) for lane in range(sizes.heads_parallel)]
        m.submodules.mass_sram = sram = Sram(
            depth=mass_words(sizes), n_lanes=1, lane_bits=MASS_BITS + 1
        )
        mass = Signal(MASS_BITS, reset_less=True)
        is_newest = Signal(reset_less=True)
        summed, written = stages[3], stages[4]
        before = Mux(summed["is_new"], 0, sram.r_data[:MASS_BITS])
        total = add_tree([Mux(summed["first_pass"], before, mass), *shares])
        full = Const((1 << MASS_BITS) - 1, MASS_BITS)
        with m.If(valid[3]):
            m.d.sync += mass.eq(Mux(total[MASS_BITS:].any(), full, total[:MASS_BITS]))
            stays = sram.r_data[MASS_BITS] & ~summed["leaves"]
            m.d.sync += is_newest.eq(summed["is_new"] | stays)
        m.d.comb += [
            sram.r_en.eq(valid[2] & stages[2]["first_pass"]),
            sram.r_addr.eq(stages[2]["addr"]),
            sram.w_en.eq(valid[4] & written["last_pass"] & written["present"]),
            sram.w_addr.eq(written["addr"]),
            sram.w_mask.eq(1),
            sram.w_data.eq(Cat(mass, is_newest)),
        ]
        self._least(m, sram.w_en, valid[4] & written["last_pass"], mass, is_newest, written)
        return m

    def _share(self, m: Module, valid: list[Any], lane: int) -> Signal:
        """Attention of a lane's head to the slot, frac 16: two stages behind the numerator."""
        bits = SHARE_SHIFT.bit_length()
        command = self.command
        y = Signal(32, name=f"y{lane}", reset_less=True)
        shift0 = Signal(bits, name=f"shift0_{lane}", reset_less=True)
        with m.If(valid[0]):
            m.d.sync += y.eq(command.y[32 * lane : 32 * lane + 32])
            m.d.sync += shift0.eq(command.shift[bits * lane : bits * lane + bits])
        product = Signal(P_BITS + 32, name=f"product{lane}", reset_less=True)
        shift1 = Signal(bits, name=f"shift1_{lane}", reset_less=True)
        with m.If(valid[1]):
            m.d.sync += product.eq(self.p[P_BITS * lane : P_BITS * (lane + 1)] * y)
            m.d.sync += shift1.eq(shift0)
        share = Signal(_SHARE_BITS, name=f"share{lane}", reset_less=True)
        with m.If(valid[2]):  # a sign, and room for the half that is added
            m.d.sync += share.eq(round_shift_by(Cat(product, Const(0, 2)).as_signed(), shift1))
        return share

    def _least(
        self, m: Module, written: Any, ends: Any, mass: Any, is_newest: Any, flags: dict[str, Any]
    ) -> None:
        """Keep the least mass of a KV head's rows so far."""
        valid, least, row = (held(m, getattr(self.best, n)) for n in ("valid", "mass", "row"))
        has = valid & ~flags["first_row"]
        better = written & ~is_newest & (~has | (mass < least))
        with m.If(ends):
            m.d.sync += valid.eq(has | better)
        with m.If(better):
            m.d.sync += [least.eq(mass), row.eq(flags["row"])]
