"""Unit L's adapter side: table of runs, their sequence, z on its way to the tiles, buffer D."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.lora_adders import CODE_CYCLES
from romsim_compiler.target import MX_BLOCK
from romsim_rtl.adder_sizes import RUNS_LOG2, AdderSizes
from romsim_rtl.attention_command import delay, held
from romsim_rtl.lora_side import configuration_members
from romsim_rtl.lora_sizes import CHUNK_BITS
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.mx_quantizer import QUANTIZER_CYCLES, MxQuantizer

__all__ = ["BANK", "CONFIGURATION", "AdderSide", "configuration_members", "z_signature"]

CONFIGURATION = tuple(configuration_members())
"""Ports by which a host loads adapters."""

assert CODE_CYCLES == QUANTIZER_CYCLES + 1  # and the cycle in which a run's end is seen


BANK = {"bank_en": 1, "bank_addr": 20, "bank_chunk": 5, "bank_data": CHUNK_BITS}
"""Bits of what all tiles hear of a write of trits."""


class _Phase(IntEnum):
    """State: look up a run, wait for its end, quantise z, wait until the tiles have it."""

    IDLE = 0
    LOOK = 1
    RUN = 2
    CODE = 3
    SEND = 4


def z_signature(sizes: AdderSizes) -> dict[str, Any]:
    """Describe a block of z on its way to the tiles: number, codes, shift and sum."""
    return {
        "z_en": Out(1),
        "z_block": Out(address_bits(sizes.n_blocks)),
        "z_codes": Out(8 * MX_BLOCK),
        "z_shift": Out(5),
        "z_sum": Out(signed(13)),
    }


class AdderSide(wiring.Component):
    """Sequence the runs of a ``lora`` instruction (docs/machine.md, section 5).

    Parameters
    ----------
    sizes
        Memories.
    n_lanes
        Lanes of a beat of rows.

    Members
    -------
    start, entry, is_adapted, token : In
        Begin with the first entry of this group of the table, or with none; in-flight index.
    busy : Out(1)
        While the instruction runs.
    running : In(1)
        The array is at a run; from the cycle after ``run``.
    looks, run : Out(1)
        The table's output is an entry; a run begins in this cycle, with the entry's fields.
    is_up, held_token : Out
        What the current run multiplies by is z; token of the instruction, registers both.
    rows_valid, beat, mask, data : In
        Rows of the current run.
    z_* : Out
        See `z_signature`; after the broadcast registers.
    rd_token, d_en, d_addr, d_data, d_valid
        Read port of buffer D.
    cfg_kind, cfg_tile, cfg_addr, cfg_chunk, cfg_data : In
        Configuration: 1 a chunk of the table, 2 of a word of trits.
    bank_en, bank_tile, bank_addr, bank_chunk, bank_data : Out
        A chunk of a word of trits, one cycle later.
    """

    def __init__(self, *, sizes: AdderSizes, n_lanes: int) -> None:
        self.sizes, self.n_lanes = sizes, n_lanes
        self.token_bits = address_bits(sizes.n_inflight)
        members: dict[str, Any] = {
            "start": In(1),
            "entry": In(address_bits(sizes.n_groups)),
            "is_adapted": In(1),
            "token": In(self.token_bits),
            "busy": Out(1),
            "running": In(1),
            "looks": Out(1),
            "run": Out(1),
            "is_up": Out(1),
            "held_token": Out(self.token_bits),
            "rows_valid": In(1),
            "beat": In(sizes.d_bits(n_lanes)),
            "mask": In(n_lanes),
            "data": In(signed(32)).array(n_lanes),
            "rd_token": In(self.token_bits),
            "d_en": In(1),
            "d_addr": In(sizes.d_bits(n_lanes)),
            "d_data": Out(32 * n_lanes),
            "d_valid": Out(1),
            "bank_tile": Out(8),
        }
        members |= configuration_members() | {name: Out(BANK[name]) for name in BANK}
        members |= {
            name: Out(signed(bits) if is_signed else bits)
            for name, (bits, is_signed) in sizes.entry_fields.items()
            if name not in ("enable", "is_up", "is_last", "n_blocks")
        }
        super().__init__(members | z_signature(sizes))

    def elaborate(self, platform: Any) -> Module:
        """Build table, state, quantiser and buffer."""
        m = Module()
        sizes = self.sizes
        bus = self._configure(m)
        phase = Signal(_Phase)
        group = Signal(len(self.entry), reset_less=True)
        index = Signal(RUNS_LOG2, reset_less=True)
        is_adapted, is_last = Signal(reset_less=True), Signal(reset_less=True)
        left = Signal(sizes.entry_fields["n_blocks"][0], reset_less=True)
        block = Signal(range(sizes.n_blocks + 1), reset_less=True)
        wait = Signal(range(CODE_CYCLES + sizes.broadcast_cycles), reset_less=True)
        is_up = Signal(name="multiplies_z", reset_less=True)
        token = Signal(self.token_bits, name="lora_token", reset_less=True)

        m.submodules.table = table = Sram(
            depth=sizes.n_groups << RUNS_LOG2, n_lanes=sizes.n_chunks, lane_bits=sizes.chunk_bits
        )
        entry: dict[str, Value] = {}
        at = 0
        for name, (bits, is_signed) in sizes.entry_fields.items():
            part = table.r_data[at : at + bits]
            entry[name] = part.as_signed() if is_signed else part
            at += bits
        m.d.comb += [
            getattr(self, name).eq(value)
            for name, value in entry.items()
            if name not in ("enable", "is_up", "is_last", "n_blocks")
        ]
        follows = Signal()
        first = Cat(Const(0, RUNS_LOG2), self.entry)
        m.d.comb += [
            table.w_en.eq(bus["table"]),
            table.w_addr.eq(self.bank_addr),
            table.w_mask.eq(Const(1, sizes.n_chunks) << self.bank_chunk),
            table.w_data.eq(self.bank_data[: sizes.chunk_bits].replicate(sizes.n_chunks)),
            table.r_en.eq(self.start | follows),
            table.r_addr.eq(Mux(self.start, first, Cat(index, group))),
        ]
        is_on = is_adapted & entry["enable"]
        clears = Signal()
        m.d.comb += [
            self.busy.eq(phase != _Phase.IDLE),
            self.looks.eq(phase == _Phase.LOOK),
            self.run.eq(self.looks & is_on),
            self.is_up.eq(self.busy & is_up),
            self.held_token.eq(token),
            clears.eq(self.run & ~entry["is_up"]),
        ]
        codes = Signal()
        m.d.comb += codes.eq(phase == _Phase.CODE)
        ended, sent = Signal(), Signal()
        m.d.comb += [
            ended.eq((phase == _Phase.RUN) & ~self.running),
            sent.eq((phase == _Phase.SEND) & (wait == 0)),
            follows.eq((ended & is_up & ~is_last) | sent),
        ]
        with m.If(self.start):
            m.d.sync += [phase.eq(_Phase.LOOK), index.eq(1), group.eq(self.entry)]
            m.d.sync += [is_adapted.eq(self.is_adapted), token.eq(self.token)]
        with m.If(self.looks):
            m.d.sync += phase.eq(Mux(is_on, _Phase.RUN, _Phase.IDLE))
            m.d.sync += [is_up.eq(entry["is_up"]), is_last.eq(entry["is_last"])]
            m.d.sync += left.eq(entry["n_blocks"])
        with m.If(ended):
            m.d.sync += [block.eq(0), wait.eq(QUANTIZER_CYCLES + sizes.broadcast_cycles - 1)]
            m.d.sync += phase.eq(Mux(is_up, _Phase.IDLE, _Phase.CODE))
        with m.If(codes):
            m.d.sync += block.eq(block + 1)
            with m.If(block + 1 == left):
                m.d.sync += phase.eq(_Phase.SEND)
        with m.If(phase == _Phase.SEND):
            m.d.sync += wait.eq(wait - 1)
        with m.If(follows):
            m.d.sync += [phase.eq(_Phase.LOOK), index.eq(index + 1)]
        self._code(m, clears, codes, block, is_up)
        self._buffer(m, is_up, is_on, token)
        return m

    def _code(self, m: Module, clears: Value, codes: Value, block: Value, is_up: Value) -> None:
        """Keep rows of A, absent ones 0; quantise them block by block; send the blocks."""
        sizes, lanes = self.sizes, self.n_lanes
        low: list[Signal] = []
        for row in range(MX_BLOCK * sizes.n_blocks):
            beat, lane = divmod(row, lanes)
            z = Signal(signed(32), name=f"z{row}", reset_less=True)
            here = self.rows_valid & ~is_up & self.mask[lane]
            if sizes.max_rank > lanes:
                here &= self.beat == beat
            with m.If(clears):
                m.d.sync += z.eq(0)
            with m.Elif(here):
                m.d.sync += z.eq(self.data[lane])
            low.append(z)
        m.submodules.quantizer = quantizer = MxQuantizer()
        m.d.comb += [quantizer.measure.eq(codes), quantizer.start.eq(codes)]
        for lane in range(MX_BLOCK):
            value: Value = low[lane]
            for number in range(1, sizes.n_blocks):
                value = Mux(block == number, low[MX_BLOCK * number + lane], value)
            m.d.comb += quantizer.values[lane].eq(value)
        values: dict[str, Value] = {"block": block[: len(self.z_block)]}
        _, values = delay(m, codes, values, QUANTIZER_CYCLES, "z_coded")
        values |= {"codes": quantizer.codes, "shift": quantizer.shift, "sum": quantizer.total}
        valid, values = delay(m, quantizer.done, values, sizes.broadcast_cycles, "z_way")
        m.d.comb += self.z_en.eq(valid)
        m.d.comb += [getattr(self, f"z_{name}").eq(value) for name, value in values.items()]

    def _buffer(self, m: Module, is_up: Value, is_on: Value, token: Value) -> None:
        """Write rows of B into D; remember which tokens have an adapter's."""
        sizes = self.sizes
        several = sizes.n_inflight > 1
        m.submodules.d_buffer = sram = Sram(
            depth=sizes.n_inflight << len(self.d_addr), n_lanes=self.n_lanes, lane_bits=32
        )
        m.d.comb += [
            sram.w_en.eq(self.rows_valid & is_up),
            sram.w_addr.eq(Cat(self.beat, token) if several else self.beat),
            sram.w_mask.eq(self.mask),
            sram.w_data.eq(Cat(self.data[lane] for lane in range(self.n_lanes))),
            sram.r_en.eq(self.d_en),
            sram.r_addr.eq(Cat(self.d_addr, self.rd_token) if several else self.d_addr),
            self.d_data.eq(sram.r_data),
        ]
        adapted = Signal(sizes.n_inflight)
        with m.If(self.looks):
            m.d.sync += adapted.bit_select(token if several else 0, 1).eq(is_on)
        m.d.comb += self.d_valid.eq(adapted.bit_select(self.rd_token if several else 0, 1))

    def _configure(self, m: Module) -> dict[str, Value]:
        """Register the configuration port on its way to the table and the tiles."""
        table, bank = Signal(name="table_writes"), Signal(name="bank_writes")
        m.d.sync += [table.eq(self.cfg_kind == 1), bank.eq(self.cfg_kind == 2)]
        m.d.comb += self.bank_en.eq(bank)
        with m.If(self.cfg_kind != 0):
            m.d.sync += [
                held(m, getattr(self, f"bank_{name}")).eq(getattr(self, f"cfg_{name}"))
                for name in ("tile", "addr", "chunk", "data")
            ]
        return {"table": table}
