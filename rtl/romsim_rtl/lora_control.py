"""The controller of ``lora``: adapter table, rows of A, codes of z, rows of B."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import held
from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.lora_command import lora_command_signature
from romsim_rtl.lora_sizes import (
    CHUNK_BITS,
    ENTRY_BITS,
    ENTRY_FIELDS,
    LORA_CYCLES,
    LoraSizes,
    part_sum_cycles,
)
from romsim_rtl.lora_tile import ROW_CYCLES
from romsim_rtl.memory import Sram, address_bits

__all__ = ["LoraControl", "LoraPhase"]

START_CYCLES = 2
"""Cycles from ``start`` to the first command: the table, its entry."""

_A_WAIT = ROW_CYCLES + 2  # a row but the sum over tiles, its block's largest, two for exponents
_Z_WAIT = 4  # exponents chosen, codes, projections, slots
_B_WAIT = ROW_CYCLES + 1  # a row, the sum over tiles
assert START_CYCLES + _A_WAIT + _Z_WAIT + _B_WAIT == LORA_CYCLES


class LoraPhase(IntEnum):
    """State of the controller; ``WAIT_x`` lets x's pipeline run dry."""

    IDLE = 0
    LOOK = 1
    A = 2
    WAIT_A = 3
    Z = 4
    WAIT_Z = 5
    B = 6
    FINISH = 7


class LoraControl(wiring.Component):
    """Sequence one ``lora`` instruction.

    Parameters
    ----------
    sizes, lora
        Loop sizes and memories.

    Members
    -------
    start, entry, is_adapted : In
        Begin with this entry of the table, or with none.
    token : In
        In-flight index, valid in the cycle after ``start``.
    table_en, table_addr, table_chunk, table_data : In
        Write of a chunk of the table.
    busy : Out(1)
        1 from the cycle after ``start`` until all results are written.
    looks, is_on : Out(1)
        The entry is there, and the group has an adapter.
    parameters : fields of the entry, Out
        They hold until the next ``lora`` with an adapter.
    command : Out(lora_command_signature)
        To the tiles, before the broadcast registers.
    ends_row : Out(1)
        With ``command.a``: the last word of a row of A.
    is_end : Out(1)
        With ``ends_row``: the last row.
    z_en, z_beat, z_last : Out
        A beat of z is to be quantised.
    """

    def __init__(self, *, sizes: AttentionSizes, lora: LoraSizes) -> None:
        self.sizes, self.lora = sizes, lora
        members: dict[str, Any] = {
            "start": In(1),
            "entry": In(address_bits(lora.n_entries)),
            "is_adapted": In(1),
            "token": In(address_bits(sizes.n_inflight)),
            "table_en": In(1),
            "table_addr": In(address_bits(lora.n_entries)),
            "table_chunk": In(5),
            "table_data": In(CHUNK_BITS),
            "busy": Out(1),
            "looks": Out(1),
            "is_on": Out(1),
            "command": Out(lora_command_signature(sizes, lora)),
            "ends_row": Out(1),
            "is_end": Out(1),
            "z_en": Out(1),
            "z_beat": Out(6),
            "z_last": Out(1),
        }
        for name, (bits, is_signed) in ENTRY_FIELDS.items():
            members[name] = Out(signed(bits) if is_signed else bits)
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Build the table and the counters."""
        m = Module()
        sizes = self.sizes
        self._phase = phase = Signal(LoraPhase)
        adds = part_sum_cycles(sizes.n_tiles)
        wait = Signal(range(16 + adds + sizes.broadcast_cycles + sizes.collect_cycles))
        entry = self._table(m)
        m.d.comb += [
            self.busy.eq(phase != LoraPhase.IDLE),
            self.looks.eq(phase == LoraPhase.LOOK),
        ]
        is_adapted = Signal()
        m.d.sync += is_adapted.eq(self.is_adapted)
        m.d.comb += self.is_on.eq(self.looks & is_adapted & entry["enable"])
        with m.If(self.is_on):
            m.d.sync += [held(m, getattr(self, name)).eq(v) for name, v in entry.items()]
        with m.If(self.start):
            m.d.sync += phase.eq(LoraPhase.LOOK)
        with m.If(self.looks):
            m.d.sync += phase.eq(Mux(self.is_on, LoraPhase.A, LoraPhase.IDLE))
        self._sweep(m)
        hop = sizes.broadcast_cycles + sizes.collect_cycles
        for waiting, following, cycles in (
            (LoraPhase.WAIT_A, LoraPhase.Z, _A_WAIT + adds + hop),
            (LoraPhase.WAIT_Z, LoraPhase.B, _Z_WAIT),
            (LoraPhase.FINISH, LoraPhase.IDLE, _B_WAIT + hop),
        ):
            with m.If(phase == waiting):
                m.d.sync += wait.eq(wait + 1)
                with m.If(wait == cycles - 1):
                    m.d.sync += [phase.eq(following), wait.eq(0)]
        return m

    def _table(self, m: Module) -> dict[str, Any]:
        """Read the entry in the cycle of ``start``."""
        chunks = ENTRY_BITS // CHUNK_BITS
        m.submodules.table = sram = Sram(
            depth=self.lora.n_entries, n_lanes=chunks, lane_bits=CHUNK_BITS
        )
        m.d.comb += [
            sram.w_en.eq(self.table_en),
            sram.w_addr.eq(self.table_addr),
            sram.w_mask.eq(Const(1, chunks) << self.table_chunk),
            sram.w_data.eq(self.table_data.replicate(chunks)),
            sram.r_en.eq(self.start & self.is_adapted),
            sram.r_addr.eq(self.entry),
        ]
        entry, at = {}, 0
        for name, (bits, _) in ENTRY_FIELDS.items():
            entry[name] = sram.r_data[at : at + bits]
            at += bits
        return entry

    def _sweep(self, m: Module) -> None:
        """Count rows and words of A, beats of z, steps of B and their cycles."""
        sizes, lora, command, phase = self.sizes, self.lora, self.command, self._phase
        offset = Signal(len(command.address), reset_less=True)  # words since the first
        word = Signal(12)
        count = Signal(20)
        row = Signal(20, reset_less=True)
        is_a, is_z, is_b = (phase == p for p in (LoraPhase.A, LoraPhase.Z, LoraPhase.B))
        last_word, last_row = Signal(), Signal()
        last_part, last_step = Signal(), Signal()
        parts = log2(max(1, sizes.n_lanes // sizes.word_elems))
        # tiles that share a row take its words in turn
        x_word = (Cat(word, Const(0, 16)) << self.parts_log2)[: lora.x_bits(sizes) + parts]
        m.d.comb += [
            last_word.eq(word == self.last_word),
            last_row.eq(count == self.last_row),
            last_part.eq(word == self.last_part),
            last_step.eq(count == self.last_step),
            command.a.eq(is_a),
            command.b.eq(is_b),
            command.first.eq(word == 0),
            self.ends_row.eq(last_word & is_a),
            command.address.eq(Mux(is_a, self.a_base, self.b_base) + offset),
            command.x_address.eq(Cat(x_word, self.token) if sizes.n_inflight > 1 else x_word),
            command.row.eq(Mux(is_a, count, row)),
            command.beat.eq((row >> log2(sizes.n_lanes)) + word),
            self.is_end.eq(last_word & last_row),
            self.z_en.eq(is_z),
            self.z_beat.eq(count),
            self.z_last.eq(count == self.last_beat),
        ]
        rows_log2 = Signal(3)
        m.d.comb += rows_log2.eq(log2(sizes.word_elems) - self.slot_log2)
        with m.If(self.looks):
            m.d.sync += offset.eq(0)
        with m.If(is_a):
            m.d.sync += [offset.eq(offset + 1), word.eq(Mux(last_word, 0, word + 1))]
            with m.If(last_word):
                m.d.sync += count.eq(count + 1)
                with m.If(last_row):
                    m.d.sync += [count.eq(0), phase.eq(LoraPhase.WAIT_A)]
        with m.If(is_z):
            m.d.sync += [count.eq(count + 1), row.eq(0), offset.eq(0)]
            with m.If(self.z_last):
                m.d.sync += [count.eq(0), phase.eq(LoraPhase.WAIT_Z)]
        with m.If(is_b):
            m.d.sync += word.eq(Mux(last_part, 0, word + 1))
            with m.If(last_part):
                m.d.sync += [
                    count.eq(count + 1),
                    offset.eq(offset + 1),
                    row.eq(row + (Const(sizes.n_tiles, 16) << rows_log2)),
                ]
                with m.If(last_step):
                    m.d.sync += [count.eq(0), phase.eq(LoraPhase.FINISH)]
