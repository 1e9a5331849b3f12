"""Unit H's adapter side: controller, z, buffer D, x buffers' and configuration's writes."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import delay, held, valid_chain
from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.attention_write import broadcast_members
from romsim_rtl.lora_collect import LoraCollect
from romsim_rtl.lora_command import (
    PARAMETERS,
    configuration_signature,
    input_signature,
    lora_command_signature,
    parameter_signature,
    z_signature,
)
from romsim_rtl.lora_control import LoraControl
from romsim_rtl.lora_sizes import CHUNK_BITS, N_PROJECTIONS, LoraSizes
from romsim_rtl.lora_sum import LoraSum
from romsim_rtl.lora_tile import ROW_CYCLES, SUM_CYCLES
from romsim_rtl.memory import Sram, address_bits

__all__ = ["LoraSide", "configuration_members", "drive"]

X_CODES = 1
"""``bc_kind`` of the input of matrices."""


def drive(m: Module, source: Any, target: Any) -> None:
    """Connect all members of two interfaces of one signature."""
    for (_, _, before), (_, _, after) in zip(
        source.signature.flatten(source), target.signature.flatten(target), strict=True
    ):
        m.d.comb += after.eq(before)


def configuration_members() -> dict[str, Any]:
    """List the configuration port's members.

    Members
    -------
    cfg_kind
        0 nothing, 1 a chunk of the adapter table, 2 of an A bank, 3 of a B bank.
    cfg_tile, cfg_addr, cfg_chunk, cfg_data
        Tile of a bank; word; chunk of 64 bits in the word; the chunk.
    """
    return {
        "cfg_kind": In(2),
        "cfg_tile": In(8),
        "cfg_addr": In(20),
        "cfg_chunk": In(5),
        "cfg_data": In(CHUNK_BITS),
    }


class LoraSide(wiring.Component):
    """Everything of adapters that is not in a tile.

    Parameters
    ----------
    sizes, lora
        Loop sizes and memories.
    block_bits
        Bits of a block's index on the broadcast bus.

    Members
    -------
    start, entry, is_adapted, token
        As for `LoraControl`.
    bc_*, cfg_* : In
        Broadcast and configuration.
    busy : Out(1)
        While an instruction runs.
    parameters, command, z, x, configuration : Out
        To the tiles; the command and z after their broadcast registers.
    rows_a, rows_b : In, for each tile
        Sums of A's rows or of parts of them, and rows of B, before the collect registers.
    rd_token, d_en, d_addr, d_data, d_valid
        Read port of buffer D.
    saturations : Out(32)
        Rows of A that were clipped.
    """

    def __init__(self, *, sizes: AttentionSizes, lora: LoraSizes, block_bits: int) -> None:
        self.sizes, self.lora = sizes, lora
        self.d_bits = address_bits(-(-lora.n_rows // sizes.n_lanes) + 1)
        members: dict[str, Any] = {
            "start": In(1),
            "entry": In(address_bits(lora.n_entries)),
            "is_adapted": In(1),
            "token": In(address_bits(sizes.n_inflight)),
            "busy": Out(1),
            "parameters": Out(parameter_signature(lora)),
            "command": Out(lora_command_signature(sizes, lora)),
            "z": Out(z_signature(sizes, lora)),
            "x": Out(input_signature(sizes, lora)),
            "configuration": Out(configuration_signature(sizes, lora)),
            "rows_a": In(signed(64)).array(sizes.n_tiles),
            "rows_b": In(32 * sizes.n_lanes).array(sizes.n_tiles),
            "rd_token": In(address_bits(sizes.n_inflight)),
            "d_en": In(1),
            "d_addr": In(self.d_bits),
            "d_data": Out(32 * sizes.n_lanes),
            "d_valid": Out(1),
            "saturations": Out(32),
        }
        members |= configuration_members()
        super().__init__(members | broadcast_members(sizes, block_bits=block_bits))

    def elaborate(self, platform: Any) -> Module:
        """Connect the parts."""
        m = Module()
        sizes, lora = self.sizes, self.lora
        m.submodules.control = control = LoraControl(sizes=sizes, lora=lora)
        m.submodules.collect = collect = LoraCollect(sizes=sizes, lora=lora)
        for name in ("start", "entry", "is_adapted", "token"):
            m.d.comb += getattr(control, name).eq(getattr(self, name))
        m.d.comb += self.busy.eq(control.busy)
        m.d.comb += [
            getattr(self.parameters, name).eq(getattr(control, name)) for name in PARAMETERS
        ]
        for ours, theirs in zip(self.parameters.z_shift, collect.z_shift, strict=True):
            m.d.comb += [a.eq(b) for a, b in zip(ours, theirs, strict=True)]
        self._commands(m, control)
        self._collect(m, control, collect)
        self._results(m, control)
        self._inputs(m)
        self._configure(m, control)
        return m

    def _commands(self, m: Module, control: LoraControl) -> None:
        command = control.command
        fields = {
            path[0]: value
            for path, _, value in command.signature.flatten(command)
            if path[0] not in ("a", "b")
        }
        ops: tuple[Any, Any] = (command.a, command.b)
        for hop in range(self.sizes.broadcast_cycles):
            busy = Signal(name=f"lora_busy{hop}")
            m.d.comb += busy.eq(ops[0] | ops[1])
            _, fields = delay(m, busy, fields, 1, f"lora_way{hop}")
            ops = (
                valid_chain(m, ops[0], 1, f"lora_a{hop}")[1],
                valid_chain(m, ops[1], 1, f"lora_b{hop}")[1],
            )
        m.d.comb += [self.command.a.eq(ops[0]), self.command.b.eq(ops[1])]
        m.d.comb += [getattr(self.command, name).eq(value) for name, value in fields.items()]

    def _collect(self, m: Module, control: LoraControl, collect: LoraCollect) -> None:
        """Bring rows of A here, and codes of z there."""
        sizes = self.sizes
        where = {"row": control.command.row[:10], "is_end": control.is_end}
        valid, where = delay(
            m, control.ends_row, where, sizes.broadcast_cycles + SUM_CYCLES, "row_a"
        )
        rows = {f"tile{index}": row for index, row in enumerate(self.rows_a)}
        valid, values = delay(m, valid, where | rows, sizes.collect_cycles, "row_a_collect")
        m.submodules.sum = total = LoraSum(sizes=sizes)
        fields = ("parts_log2", "offset1", "offset2", "rank_sum")
        for name in (*fields, *(f"out_a{p}" for p in range(N_PROJECTIONS))):
            m.d.comb += getattr(total, name).eq(getattr(control, name))
        m.d.comb += [
            total.valid.eq(valid),
            total.row.eq(values["row"]),
            total.is_end.eq(values["is_end"]),
            self.saturations.eq(total.saturations),
            collect.clear.eq(control.looks),
            collect.offset1.eq(control.offset1),
            collect.offset2.eq(control.offset2),
            collect.valid.eq(total.out_valid),
            collect.row.eq(total.out_row),
            collect.is_end.eq(total.out_is_end),
            collect.en.eq(control.z_en),
            collect.beat.eq(control.z_beat),
            collect.is_last.eq(control.z_last),
        ]
        for index in range(sizes.n_tiles):
            m.d.comb += [
                total.sums[index].eq(values[f"tile{index}"]),
                collect.rows[index].eq(total.rows[index]),
            ]
        z = {name: getattr(collect.z, name) for name in ("last", "beat", "codes")}
        valid, z = delay(m, collect.z.valid, z, sizes.broadcast_cycles, "z_way")
        m.d.comb += self.z.valid.eq(valid)
        m.d.comb += [getattr(self.z, name).eq(value) for name, value in z.items()]

    def _results(self, m: Module, control: LoraControl) -> None:
        """Join the tiles' rows of B to beats of D."""
        sizes = self.sizes
        lanes_log2 = log2(sizes.n_lanes)
        where = {"row": control.command.row, "beat": control.command.beat}
        cycles = sizes.broadcast_cycles + ROW_CYCLES
        valid, where = delay(m, control.command.b, where, cycles, "row_b")
        rows = {f"tile{index}": row for index, row in enumerate(self.rows_b)}
        valid, values = delay(m, valid, where | rows, sizes.collect_cycles, "row_b_collect")
        joined = values["tile0"]
        for index in range(1, sizes.n_tiles):
            joined = joined | values[f"tile{index}"]
        # a step of fewer rows than lanes fills a part of a beat
        step_log2 = Signal(range(16))
        m.d.comb += step_log2.eq(log2(sizes.word_elems) + log2(sizes.n_tiles) - control.slot_log2)
        start = (values["row"][:lanes_log2] >> step_log2)[:lanes_log2]
        mask = Cat(lane >> step_log2 == start for lane in map(_constant, range(sizes.n_lanes)))
        is_row = (values["beat"] << lanes_log2) < control.n_rows
        word = Signal(32 * sizes.n_lanes, name="d_word", reset_less=True)
        writes = Signal(name="d_writes")
        d_mask = Signal(sizes.n_lanes, name="d_mask", reset_less=True)
        address = Signal(self.d_bits, name="d_address", reset_less=True)
        m.d.sync += writes.eq(valid & is_row)
        with m.If(valid):
            m.d.sync += [word.eq(joined), d_mask.eq(mask), address.eq(values["beat"])]
        several = sizes.n_inflight > 1
        m.submodules.d_buffer = sram = Sram(
            depth=sizes.n_inflight << self.d_bits, n_lanes=sizes.n_lanes, lane_bits=32
        )
        m.d.comb += [
            sram.w_en.eq(writes),
            sram.w_addr.eq(Cat(address, self.token) if several else address),
            sram.w_mask.eq(d_mask),
            sram.w_data.eq(word),
            sram.r_en.eq(self.d_en),
            sram.r_addr.eq(Cat(self.d_addr, self.rd_token) if several else self.d_addr),
            self.d_data.eq(sram.r_data),
        ]
        adapted = Signal(sizes.n_inflight)
        with m.If(control.looks):
            m.d.sync += adapted.bit_select(self.token if several else 0, 1).eq(control.is_on)
        m.d.comb += self.d_valid.eq(adapted.bit_select(self.rd_token if several else 0, 1))

    def _inputs(self, m: Module) -> None:
        """Write the x buffers; one cycle."""
        sizes, lora, x = self.sizes, self.lora, self.x
        blocks = max(sizes.word_blocks, sizes.n_groups)
        valid = Signal(name="is_x")
        m.d.comb += valid.eq(self.bc_kind == X_CODES)
        m.d.sync += x.en.eq(valid)
        word = Cat(self.bc_block, self.bc_block & 0)[log2(blocks) :][: lora.x_bits(sizes)]
        shift = self.bc_block[: log2(blocks)] if blocks > 1 else 0
        groups = [index % sizes.n_groups for index in range(blocks)]
        token = self.bc_token[: address_bits(sizes.n_inflight)]
        with m.If(valid):
            m.d.sync += [
                held(m, x.addr).eq(Cat(word, token) if sizes.n_inflight > 1 else word),
                held(m, x.mask).eq(self.bc_mask << shift),
                held(m, x.codes).eq(Cat(self.bc_codes[group] for group in groups)),
                held(m, x.shifts).eq(Cat(self.bc_shift[group] for group in groups)),
            ]

    def _configure(self, m: Module, control: LoraControl) -> None:
        """Register the configuration port on its way to the tiles."""
        bus = self.configuration
        writes = Signal(name="cfg_writes")
        m.d.comb += writes.eq(self.cfg_kind != 0)
        m.d.sync += [bus.a.eq(self.cfg_kind == 2), bus.b.eq(self.cfg_kind == 3)]
        table = Signal(name="table_writes")
        entry = Signal(len(control.table_addr), name="table_entry", reset_less=True)
        m.d.sync += table.eq(self.cfg_kind == 1)
        with m.If(writes):
            m.d.sync += [
                held(m, bus.address).eq(self.cfg_addr),
                held(m, bus.chunk).eq(self.cfg_chunk),
                held(m, bus.data).eq(self.cfg_data),
                entry.eq(self.cfg_addr),
            ]
            if self.sizes.n_tiles > 1:
                m.d.sync += held(m, bus.tile).eq(self.cfg_tile)
        m.d.comb += [
            control.table_en.eq(table),
            control.table_addr.eq(entry),
            control.table_chunk.eq(bus.chunk),
            control.table_data.eq(bus.data),
        ]


def _constant(value: int) -> Any:
    return Const(value, max(1, value.bit_length()))
