"""What follows attention where attention mass chooses what is dropped: reciprocals, slots, argmin.

Reciprocals of the heads' sums come first, one a cycle. Then the tiles are swept, KV head by KV head
and slot by slot, with all passes over a slot's queries in turn, so that each accumulator is read
and written once (docs/kv.md, sections 3 and 7).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.kv_sram import MASS_BITS
from romsim_compiler.tables import tables
from romsim_rtl.attention_command import delay, held
from romsim_rtl.attention_sizes import MAX_BITS, AttentionSizes, log2
from romsim_rtl.htile_mass import MASS_CYCLES
from romsim_rtl.kv_pages import divided
from romsim_rtl.mass_command import SHARE_SHIFT, best_signature, mass_signature, mass_words
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.primitives import wire
from romsim_rtl.recip import RECIP_CYCLES, Recip

__all__ = ["LEAST_CYCLES", "MassSide", "build_mass"]

_COMMAND_CYCLES = 2  # a slot's shifts: maxima are read, and subtracted
_HEAD_CYCLES = RECIP_CYCLES + 1  # from the read of a head's sum to its reciprocal

LEAST_CYCLES = _HEAD_CYCLES + _COMMAND_CYCLES + MASS_CYCLES + 1
"""λ of the pass, heads, slots and wires apart: until the slot of least mass is written; one more
with a block table, which gives its row."""


class _State(IntEnum):
    IDLE = 0
    HEADS = 1
    RECIPROCALS = 2
    SWEEP = 3
    DRAIN = 4


class MassSide(wiring.Component):
    """Sequence the update of all masses of a layer, and find each KV head's slot to be freed.

    Parameters
    ----------
    sizes
        Loop sizes, with a window.

    Members
    -------
    looks, looked_layer : In
        Have the free slots of this layer in ``free`` from the next cycle on.
    free : Out
        Slots that were freed after the token before, of all KV heads, the first lowest; above each,
        with a block table, its row.
    begins, pos, layer : In
        In the first cycle of ``attn``: position and layer.
    ends : In(1)
        The last cycle of attention.
    max_en, max_block, max_entry, max_lane, max_value : In
        A head's maximum in a block.
    head_en, head, l, m
        Read port of the heads' sums and maxima, one cycle later.
    command : Out(mass_signature)
        To the tiles, before the broadcast registers.
    best : In(best_signature), for each tile
        After the collecting registers.
    busy : Out(1)
        1 from the cycle after ``ends`` on, until all is written.
    r_en, r_page, r_row
        Read port of the block table, if there is one; a page's first row, one cycle later.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        self._slot_bits = address_bits(sizes.context)
        self._free_bits = self._slot_bits
        table: dict[str, Any] = {}
        if sizes.block:
            page, row = address_bits(sizes.sequence_pages), address_bits(sizes.tile_tokens)
            table = {"r_en": Out(1), "r_page": Out(page), "r_row": In(row)}
            self._free_bits += row
        layer = address_bits(sizes.n_layers)
        super().__init__(
            table
            | {
                "looks": In(1),
                "looked_layer": In(layer),
                "free": Out(self._free_bits * sizes.n_kv_heads),
                "begins": In(1),
                "pos": In(16),
                "layer": In(layer),
                "ends": In(1),
                "max_en": In(1),
                "max_block": In(address_bits(sizes.n_blocks)),
                "max_entry": In(address_bits(sizes.n_entries)),
                "max_lane": In(address_bits(sizes.heads_parallel)),
                "max_value": In(MAX_BITS),
                "head_en": Out(1),
                "head": Out(address_bits(sizes.n_heads)),
                "l": In(32),
                "m": In(signed(MAX_BITS)),
                "command": Out(mass_signature(sizes)),
                "best": In(best_signature(sizes)).array(sizes.n_tiles),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the state machine and its memories."""
        m = Module()
        sizes = self.sizes
        state = Signal(_State)
        position = Signal(16, reset_less=True)
        layer = Signal.like(self.layer, name="held_layer", reset_less=True)
        with m.If(self.begins):
            m.d.sync += [position.eq(self.pos), layer.eq(self.layer)]
        m.d.comb += self.busy.eq(state != _State.IDLE)
        hop = sizes.broadcast_cycles + sizes.collect_cycles
        drain = _COMMAND_CYCLES + MASS_CYCLES + 1 + hop + (sizes.block > 0)
        wait = Signal(range(max(drain, _HEAD_CYCLES)))
        for waiting, following, cycles in (
            (_State.RECIPROCALS, _State.SWEEP, _HEAD_CYCLES),
            (_State.DRAIN, _State.IDLE, drain),
        ):
            with m.If(state == waiting):
                m.d.sync += wait.eq(wait + 1)
                with m.If(wait == cycles - 1):
                    m.d.sync += [state.eq(following), wait.eq(0)]
        slots = self._slots(m, position, layer)
        self._heads(m, state)
        ends_head, kv = self._sweep(m, state, position, layer, slots)
        self._choose(m, ends_head, kv, position, layer)
        return m

    def _slots(self, m: Module, position: Any, layer: Any) -> dict[str, Any]:
        """Slots of the newest token and of the one that leaves the newest, of all KV heads."""
        sizes, bits = self.sizes, self._slot_bits
        m.submodules.free_slots = self._free = free = Sram(
            depth=sizes.n_layers, n_lanes=sizes.n_kv_heads, lane_bits=self._free_bits
        )
        m.d.comb += [
            free.r_en.eq(self.looks),
            free.r_addr.eq(self.looked_layer),
            self.free.eq(free.r_data),
        ]
        # a ring: the slot of a token, in place of that of the token ``window`` before it
        m.submodules.newest = newest = Sram(
            depth=sizes.n_layers * sizes.window, n_lanes=1, lane_bits=bits * sizes.n_kv_heads
        )
        turn = wire(m, divided(m, position, sizes.window), "turn")
        place = wire(m, layer * sizes.window + position - turn * sizes.window, "newest_place")
        new = wire(
            m,
            Mux(
                position <= sizes.heavy + sizes.window,
                Cat(*[position[:bits]] * sizes.n_kv_heads),
                Cat(
                    free.r_data.word_select(kv, self._free_bits)[:bits]
                    for kv in range(sizes.n_kv_heads)
                ),
            ),
            "new_slots",
        )
        is_read = Signal()
        m.d.sync += is_read.eq(self.ends)
        m.d.comb += [
            newest.r_en.eq(self.ends),
            newest.r_addr.eq(place),
            newest.w_en.eq(is_read),
            newest.w_addr.eq(place),
            newest.w_mask.eq(1),
            newest.w_data.eq(new),
        ]
        return {"new": new, "left": newest.r_data}

    def _heads(self, m: Module, state: Signal) -> None:
        """Keep each head's reciprocal, and what its shifts begin with; and maxima of blocks."""
        sizes = self.sizes
        lanes = sizes.heads_parallel
        head, entry = Signal.like(self.head), Signal(address_bits(sizes.n_entries))
        lane, in_pass = Signal(address_bits(lanes)), Signal(address_bits(sizes.n_passes))
        is_last, last_lane, last_pass = Signal(), Signal(), Signal()
        limit = Mux(last_pass, sizes.last_lanes - 1, lanes - 1)
        m.d.comb += [
            self.head_en.eq(state == _State.HEADS),
            self.head.eq(head),
            is_last.eq(head == sizes.n_heads - 1),
            last_pass.eq(in_pass == sizes.n_passes - 1),
            last_lane.eq(lane == limit),
        ]
        with m.If(self.ends):
            m.d.sync += [state.eq(_State.HEADS), head.eq(0), entry.eq(0), lane.eq(0), in_pass.eq(0)]
        with m.If(self.head_en):
            m.d.sync += [head.eq(head + 1), lane.eq(Mux(last_lane, 0, lane + 1))]
            with m.If(last_lane):
                m.d.sync += [entry.eq(entry + 1), in_pass.eq(Mux(last_pass, 0, in_pass + 1))]
            with m.If(is_last):
                m.d.sync += state.eq(_State.RECIPROCALS)
        m.submodules.recip = recip = Recip(table=[int(value) for value in tables()["RCP"]])
        read, where = delay(m, self.head_en, {"entry": entry, "lane": lane}, 1, "head")
        m.d.comb += [recip.start.eq(read), recip.l.eq(self.l)]
        # the length is there a cycle later
        read, where = delay(m, read, where | {"m": self.m}, 1, "sum")
        base = Signal(signed(MAX_BITS), name="shift_base", reset_less=True)
        m.d.comb += base.eq(where["m"].as_signed() + recip.length + 14)
        where = {"entry": where["entry"], "lane": where["lane"], "base": base.as_unsigned()}
        done, where = delay(m, read, where, RECIP_CYCLES - 1, "recip")
        m.submodules.heads = heads = Sram(
            depth=sizes.n_entries, n_lanes=lanes, lane_bits=32 + MAX_BITS
        )
        m.d.comb += [
            heads.w_en.eq(done),
            heads.w_addr.eq(where["entry"]),
            heads.w_mask.eq(Const(1, lanes) << where["lane"]),
            heads.w_data.eq(Cat(recip.y, where["base"]).replicate(lanes)),
        ]
        m.submodules.maxima = maxima = Sram(
            depth=sizes.n_blocks << len(self.max_entry), n_lanes=lanes, lane_bits=MAX_BITS
        )
        m.d.comb += [
            maxima.w_en.eq(self.max_en),
            maxima.w_addr.eq(Cat(self.max_entry, self.max_block)),
            maxima.w_mask.eq(Const(1, lanes) << self.max_lane),
            maxima.w_data.eq(self.max_value.replicate(lanes)),
        ]
        self._memories = heads, maxima

    def _sweep(
        self, m: Module, state: Signal, position: Any, layer: Any, slots: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Step through KV heads, rows of slots and passes; return a KV head's end, and which."""
        sizes = self.sizes
        heads, maxima = self._memories
        tiles, tok_bits = log2(sizes.n_tiles), log2(sizes.block_slots)
        row = Signal(address_bits(sizes.slot_rows))
        in_pass = Signal(address_bits(sizes.n_passes))
        entry, kv = Signal(address_bits(sizes.n_entries)), Signal(address_bits(sizes.n_kv_heads))
        base = Signal(address_bits(mass_words(sizes)), name="head_base", reset_less=True)
        last_slot = Signal(self._slot_bits)  # of those that attention has read
        last_row, last_pass, ends_head = Signal(), Signal(), Signal()
        sweeps = state == _State.SWEEP
        m.d.comb += [
            last_slot.eq(Mux(position < sizes.context, position, sizes.context - 1)),
            last_row.eq(row == last_slot >> tiles),
            last_pass.eq(in_pass == sizes.n_passes - 1),
            ends_head.eq(sweeps & last_row & last_pass),
        ]
        with m.If(self.ends):
            m.d.sync += [row.eq(0), in_pass.eq(0), entry.eq(0), kv.eq(0)]
            m.d.sync += base.eq(layer * (sizes.n_kv_heads * sizes.slot_rows))
        with m.If(sweeps):
            first_entry = entry - (sizes.n_passes - 1)
            m.d.sync += in_pass.eq(Mux(last_pass, 0, in_pass + 1))
            m.d.sync += entry.eq(Mux(last_pass & ~last_row, first_entry, entry + 1))
            with m.If(last_pass):
                m.d.sync += row.eq(Mux(last_row, 0, row + 1))
            with m.If(ends_head):
                m.d.sync += [kv.eq(kv + 1), base.eq(base + sizes.slot_rows)]
                with m.If(kv == sizes.n_kv_heads - 1):
                    m.d.sync += state.eq(_State.DRAIN)
        block = row >> tok_bits
        of_head = {
            name: wire(m, value.word_select(kv, self._slot_bits), f"{name}_slot")
            for name, value in slots.items()
        }
        m.d.comb += [
            heads.r_en.eq(sweeps),
            heads.r_addr.eq(entry),
            maxima.r_en.eq(sweeps),
            maxima.r_addr.eq(Cat(entry, block[: len(self.max_block)])),
        ]
        slot_bits = address_bits(sizes.n_entries * sizes.block_slots)
        # all slots may be in one block, and not fill it
        inside = Cat(row, Const(0, max(0, tok_bits - len(row))))[:tok_bits]
        flags = {
            "p_slot": Cat(Cat(inside, entry)[:slot_bits], block)[: len(self.command.p_slot)],
            "addr": (base + row)[: len(base)],
            "row": row,
            "first_pass": in_pass == 0,
            "last_pass": last_pass,
            "first_row": row == 0,
            "last_row": last_row,
            "is_new": row == of_head["new"] >> tiles,
            "leaves": (row == of_head["left"] >> tiles) & (position >= sizes.window),
        }
        if sizes.n_tiles > 1:
            flags["last_valid"] = last_slot[:tiles]
            flags |= {f"{name}_tile": slot[:tiles] for name, slot in of_head.items()}
        self._shifts(m, sweeps, flags, last_pass)
        return ends_head, kv

    def _shifts(self, m: Module, sweeps: Any, flags: dict[str, Any], last_pass: Any) -> None:
        """Command the tiles, two cycles after the slot's maxima are read."""
        sizes, command = self.sizes, self.command
        heads, maxima = self._memories
        is_full = ~last_pass if sizes.last_lanes < sizes.heads_parallel else Const(1)
        read, flags1 = delay(m, sweeps, flags | {"is_full": is_full}, 1, "read")
        ys, shifts = [], []
        for lane in range(sizes.heads_parallel):
            word = heads.r_data.word_select(lane, 32 + MAX_BITS)
            largest = maxima.r_data.word_select(lane, MAX_BITS).as_signed()
            apart = wire(m, word[32:].as_signed() - largest, f"apart{lane}")
            is_there = flags1["is_full"] | (lane < sizes.last_lanes)
            ys.append(Mux(is_there, word[:32], 0))
            shifts.append(Mux(apart > SHARE_SHIFT, SHARE_SHIFT, apart)[: SHARE_SHIFT.bit_length()])
        with m.If(read):
            m.d.sync += [held(m, command.y).eq(Cat(*ys)), held(m, command.shift).eq(Cat(*shifts))]
            m.d.sync += [held(m, getattr(command, name)).eq(flags1[name]) for name in flags]
        valid = Signal(name="command_valid")
        m.d.sync += valid.eq(read)
        m.d.comb += command.en.eq(valid)

    def _choose(self, m: Module, ends_head: Any, kv: Any, position: Any, layer: Any) -> None:
        """Compare the tiles' least masses; free the least one's slot where slots are all taken."""
        sizes = self.sizes
        tiles = log2(sizes.n_tiles)
        cycles = _COMMAND_CYCLES + sizes.broadcast_cycles + MASS_CYCLES + sizes.collect_cycles
        arrived, where = delay(m, ends_head, {"kv": kv}, cycles, "least")
        found = [
            {
                "valid": best.valid,
                "mass": best.mass,
                "slot": Cat(Const(number, tiles), best.row) if tiles else best.row,
            }
            for number, best in enumerate(self.best)
        ]
        level = 0
        while len(found) > 1:
            found = [
                _lesser(m, found[n], found[n + 1], f"level{level}_{n}")
                for n in range(0, len(found), 2)
            ]
            level += 1
        slot = Signal(self._slot_bits, name="freed", reset_less=True)
        with m.If(arrived):
            m.d.sync += slot.eq(found[0]["slot"])
        valid, where = delay(m, arrived, where, 1, "freed")
        word: Any = slot
        if sizes.block:
            valid, where, word = self._row_of(m, valid, where, slot)
        free = self._free
        m.d.comb += [
            free.w_en.eq(valid & (position >= sizes.heavy + sizes.window)),
            free.w_addr.eq(layer),
            free.w_mask.eq(Const(1, sizes.n_kv_heads) << where["kv"]),
            free.w_data.eq(word.replicate(sizes.n_kv_heads)),
        ]

    def _row_of(
        self, m: Module, valid: Any, where: dict[str, Any], slot: Any
    ) -> tuple[Any, dict[str, Any], Any]:
        """Look up a slot's row, in one cycle; return the slot with its row above it."""
        sizes = self.sizes
        page = wire(m, divided(m, slot, sizes.block), "freed_page")
        inside = wire(m, (slot - page * sizes.block)[: len(slot)] >> log2(sizes.n_tiles), "inside")
        m.d.comb += [self.r_en.eq(valid), self.r_page.eq(page)]
        valid, after = delay(m, valid, where | {"slot": slot, "inside": inside}, 1, "looked_up")
        row = Signal(len(self.r_row), name="freed_row")
        m.d.comb += row.eq(self.r_row + after["inside"])
        return valid, after, Cat(after["slot"], row)


def _lesser(m: Module, a: dict[str, Any], b: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the lesser of two masses; ties: the lower slot."""
    key_a, key_b = (Cat(one["slot"], one["mass"]) for one in (a, b))
    takes_b = wire(m, b["valid"] & (~a["valid"] | (key_b < key_a)), f"{name}_takes_b")
    return {
        "valid": a["valid"] | b["valid"],
        "mass": wire(m, Mux(takes_b, b["mass"], a["mass"])[:MASS_BITS], f"{name}_mass"),
        "slot": wire(m, Mux(takes_b, b["slot"], a["slot"]), f"{name}_slot"),
    }


def build_mass(m: Module, sizes: AttentionSizes, side: Any, tiles: list[Any]) -> None:
    """Connect a `MassSide` with the tiles, through the broadcast and collecting registers."""
    names = [name for name in side.command.signature.members if name != "en"]
    values = {name: getattr(side.command, name) for name in names}
    enable, values = delay(m, side.command.en, values, sizes.broadcast_cycles, "mass")
    for tile in tiles:
        m.d.comb += tile.mass.en.eq(enable)
        m.d.comb += [getattr(tile.mass, name).eq(value) for name, value in values.items()]
    found = {
        f"{name}{index}": getattr(tile.best, name)
        for index, tile in enumerate(tiles)
        for name in tile.best.signature.members
    }
    # a KV head's least is there MASS_CYCLES after its last command, and stands for one cycle
    arrives, _ = delay(m, enable, {}, MASS_CYCLES, "mass_summed")
    _, found = delay(m, arrives, found, sizes.collect_cycles, "mass_collect")
    for index in range(sizes.n_tiles):
        for name in side.best[index].signature.members:
            m.d.comb += getattr(side.best[index], name).eq(found[f"{name}{index}"])
