"""Unit H: attention over the KV cache in the tiles' SRAM, and adapters."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import delay, delay_command, drive_tile
from romsim_rtl.attention_control import AttentionControl
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.attention_write import BroadcastWriter, broadcast_members
from romsim_rtl.encoding import OPS, WORD_BITS
from romsim_rtl.hside_outputs import build_outputs
from romsim_rtl.htile import HTile
from romsim_rtl.instruction import cut_fields
from romsim_rtl.kivi_side import build_late
from romsim_rtl.kv_copy import PageCopier, copy_members
from romsim_rtl.kv_pages import PageTable, page_members
from romsim_rtl.lora_side import LoraSide, configuration_members, drive
from romsim_rtl.lora_sizes import LoraSizes
from romsim_rtl.mass_side import MassSide, build_mass
from romsim_rtl.memory import address_bits, replicate
from romsim_rtl.merge import MergeTree
from romsim_rtl.primitives import add_tree
from romsim_rtl.tile_trees import block_maximum

__all__ = ["TILE_MODULE", "HSide"]

TILE_MODULE = "romsim_htile"
"""Verilog module of a tile, emitted once."""


class HSide(wiring.Component):
    """Unit H: controller, tiles, merge tree, output buffers.

    Parameters
    ----------
    sizes
        Loop sizes of attention.
    n_rows
        Rows of the tallest matrix group, the size of Y and D.
    block_bits
        Bits of a block's index on the broadcast bus.
    lora
        Memories of the adapter path; without, every ``lora`` ends after λ_lora_off cycles.

    Members
    -------
    start, instr, pos, busy
        Issue; ``pos`` is valid with ``start``.
    slot, begins : In
        Slot of the running program's first token, where slots are reused or lie in pages; its
        first cycle, where they lie in pages.
    page_* : In
        `page_members`: writes of the block table, between programs.
    sequence, copy_*, copying
        Sequence of the running program; `romsim_rtl.kv_copy.copy_members`, and whether a page is
        being copied; where several sequences draw on one pool.
    bc_* : In
        Broadcast from unit V, after its registers. A block is written at the end of the cycle
        after the one in which it comes.
    rd_token : In(3)
        Token whose O, l and D are read.
    o_en, o_addr, o_data
        A beat of the attention sums, one cycle later.
    l_en, l_addr, l_data
        The sum of a head's numerators, one cycle later.
    d_en, d_addr, d_data, d_valid
        A beat of adapter outputs, one cycle later; ``d_valid`` says whether the token's last
        ``lora`` had an adapter.
    sat_count : Out(32)
        Clips of unit H since reset.
    is_adapted, adapter_base : In(1), In(20)
        Whether the slot has an adapter, and its first entry of the adapter table, valid with
        ``start``; an instruction's field ``base`` is added.
    cfg_* : In
        `configuration_members`: writes of the adapter table and the adapter banks.
    """

    def __init__(
        self,
        *,
        sizes: AttentionSizes,
        n_rows: int,
        block_bits: int,
        lora: LoraSizes | None = None,
    ) -> None:
        if lora is not None:
            lora.check_fits(sizes)
        self.sizes, self.block_bits, self.lora = sizes, block_bits, lora
        lanes = sizes.n_lanes
        members: dict[str, Any] = {
            "start": In(1),
            "instr": In(WORD_BITS),
            "pos": In(16),
            "busy": Out(1),
            "rd_token": In(3),
            "o_en": In(1),
            "o_addr": In(address_bits(sizes.beats)),
            "o_data": Out(signed(64)).array(lanes),
            "l_en": In(1),
            "l_addr": In(address_bits(sizes.n_heads)),
            "l_data": Out(32),
            "d_en": In(1),
            "d_addr": In(address_bits(-(-n_rows // lanes) + 1)),
            "d_data": Out(signed(32)).array(lanes),
            "d_valid": Out(1),
            "sat_count": Out(32),
        }
        if sizes.wants_slots:
            members["slot"] = In(address_bits(sizes.context))
        if sizes.block:
            members |= {"begins": In(1)} | page_members(sizes)
        if sizes.n_sequences > 1:
            members |= {"sequence": In(address_bits(sizes.n_sequences)), "copying": Out(1)}
            members |= copy_members(sizes)
        members |= broadcast_members(sizes, block_bits=block_bits)
        if lora is not None:
            members |= {"is_adapted": In(1), "adapter_base": In(20)} | configuration_members()
        super().__init__(members)

    @staticmethod
    def unread_bits() -> dict[str, str]:
        """Ports of which some bits are not read, for the emission of Verilog."""
        few = "fewer tokens, layers or blocks than the field can name"
        return {
            "instr": "fields of other units",
            "pos": "the context is shorter than the field can name",
            "bc_pos": "the context is shorter than the field can name",
            "bc_token": few,
            "rd_token": few,
            "bc_layer": few,
            "bc_block": few,
            "d_en": "no adapters, no D",
            "d_addr": "no adapters, no D",
            "adapter_base": "fewer entries, words or chunks than the field can name",
            "cfg_addr": "fewer entries, words or chunks than the field can name",
            "page_number": "a page's colour is that of its logical page",
            "copy_target": "a copy has the colour of its source",
            "copy_tokens": "all slots of a page are one more than its last",
            "cfg_tile": few,
            "cfg_chunk": few,
        }

    def elaborate(self, platform: Any) -> Module:
        """Connect the parts."""
        m = Module()
        sizes = self.sizes
        fields = cut_fields(self.instr)
        starts = Signal()
        m.d.comb += starts.eq(self.start & (fields["op"] == OPS["attn"]))
        held = {
            "pos": Signal(address_bits(sizes.context), name="held_pos", reset_less=True),
            "layer": Signal(address_bits(sizes.n_layers), name="held_layer", reset_less=True),
            "token": Signal(address_bits(sizes.n_inflight), name="held_token", reset_less=True),
        }
        with m.If(self.start):
            pos: Any = self.pos
            if (
                sizes.is_ring or sizes.is_ranked
            ):  # attention reads all slots from the time on when all are full
                pos = Mux(self.pos < sizes.context, self.pos, sizes.context - 1)
            m.d.sync += held["pos"].eq(pos)
            m.d.sync += [held[name].eq(fields[name]) for name in ("layer", "token")]

        m.submodules.control = control = AttentionControl(sizes=sizes)
        m.d.comb += control.start.eq(starts)
        m.d.comb += [getattr(control, name).eq(value) for name, value in held.items()]
        m.submodules.writer = writer = BroadcastWriter(sizes=sizes, block_bits=self.block_bits)
        self._broadcast(m, writer)
        tiles = replicate(
            m,
            platform,
            "tile",
            TILE_MODULE,
            lambda: HTile(sizes=sizes, lora=self.lora),
            sizes.n_tiles,
        )
        pages = self._pages(m, control, writer) if sizes.block else None
        command = delay_command(m, control.command, sizes.broadcast_cycles)
        for index, tile in enumerate(tiles):
            if sizes.n_tiles > 1:
                m.d.comb += tile.tile.eq(index)
            if sizes.block and sizes.colours > 1:
                drive_tile(m, command, tile.command, index // sizes.block)
            else:
                drive(m, command, tile.command)
            drive(m, writer.write, tile.write)
        if sizes.n_sequences > 1:
            self._copies(m, tiles)
        attends: Any = control.busy
        if sizes.kivi is not None:
            attends = attends | build_late(m, sizes, control, tiles, held, pages)
        maximum = self._maximum(m, control, tiles)
        tree = self._merge(m, control, tiles, maximum)
        mass = None
        if sizes.is_ranked:
            mass = self._mass(m, control, tiles, maximum, starts, fields)
            if pages is not None:
                with m.If(mass.r_en):
                    m.d.comb += [pages.r_en.eq(1), pages.r_page.eq(mass.r_page)]
                m.d.comb += mass.r_row.eq(pages.r_row)
            m.d.comb += writer.free.eq(mass.free)
            attends = attends | mass.busy
        build_outputs(m, self, tree, held["token"], mass)
        clips = [tile.saturations for tile in tiles]
        start_lora = Signal()
        m.d.comb += start_lora.eq(self.start & (fields["op"] == OPS["lora"]))
        if self.lora is None:
            ends = Signal()
            m.d.sync += ends.eq(start_lora)  # λ_lora_off
            m.d.comb += self.busy.eq(attends | ends)
        else:
            clips += [tile.lora_saturations for tile in tiles]
            side = self._adapters(m, self.lora, tiles, start_lora, fields["base"], held["token"])
            clips.append(side.saturations)
            m.d.comb += self.busy.eq(attends | side.busy)
        m.d.sync += self.sat_count.eq(add_tree(clips)[:32])
        return m

    def _pages(self, m: Module, control: Any, writer: Any) -> PageTable:
        """Add the block table."""
        m.submodules.pages = pages = PageTable(sizes=self.sizes)
        m.d.comb += [
            pages.w_en.eq(self.page_en),
            pages.w_index.eq(self.page_index),
            pages.w_number.eq(self.page_number),
            pages.begins.eq(self.begins),
            pages.slot.eq(self.slot),
            pages.r_en.eq(control.r_en),
            pages.r_page.eq(control.r_page),
            control.r_row.eq(pages.r_row),
        ]
        for token in range(self.sizes.n_inflight if self.sizes.looks_up_rows else 0):
            m.d.comb += writer.rows[token].eq(pages.rows[token])
        if self.sizes.n_sequences > 1:
            m.d.comb += pages.sequence.eq(self.sequence)
        return pages

    def _mass(
        self,
        m: Module,
        control: Any,
        tiles: list[Any],
        maximum: dict[str, Any],
        starts: Any,
        fields: dict[str, Any],
    ) -> MassSide:
        """Add what follows attention where its mass chooses what is dropped."""
        m.submodules.mass = side = MassSide(sizes=self.sizes)
        m.d.comb += [
            # the word stands until it is issued, when all masses have been compared
            side.looks.eq(fields["op"] == OPS["rope"]),
            side.looked_layer.eq(fields["layer"]),
            side.begins.eq(starts),
            side.pos.eq(self.pos),
            side.layer.eq(fields["layer"]),
            side.ends.eq(control.ends),
            side.max_en.eq(maximum["valid"]),
            side.max_block.eq(control.command.block),
            side.max_entry.eq(maximum["entry"]),
            side.max_lane.eq(maximum["lane"]),
            side.max_value.eq(maximum["value"]),
        ]
        build_mass(m, self.sizes, side, tiles)
        return side

    def _copies(self, m: Module, tiles: list[Any]) -> None:
        """Add the copies of pages that sequences share."""
        m.submodules.copier = copier = PageCopier(sizes=self.sizes)
        for name in copy_members(self.sizes):
            m.d.comb += getattr(copier, name).eq(getattr(self, name))
        m.d.comb += self.copying.eq(copier.busy)
        names = [name for name in copier.copy.signature.members if name != "en"]
        values = {name: getattr(copier.copy, name) for name in names}
        enable, values = delay(m, copier.copy.en, values, self.sizes.broadcast_cycles, "copy")
        for tile in tiles:
            m.d.comb += tile.copy.en.eq(enable)
            m.d.comb += [getattr(tile.copy, name).eq(value) for name, value in values.items()]

    def _broadcast(self, m: Module, part: Any) -> None:
        """Hand the broadcast bus to a part."""
        for name in broadcast_members(self.sizes, block_bits=self.block_bits):
            ours, theirs = getattr(self, name), getattr(part, name)
            if name == "bc_pos" and self.sizes.is_ring:
                ours = self.slot
            if name in ("bc_codes", "bc_shift", "bc_affine", "bc_second"):
                m.d.comb += [theirs[g].eq(ours[g]) for g in range(self.sizes.n_groups)]
            else:
                m.d.comb += theirs.eq(ours)

    def _adapters(
        self, m: Module, lora: LoraSizes, tiles: list[Any], start: Any, base: Any, token: Any
    ) -> LoraSide:
        sizes = self.sizes
        m.submodules.lora = side = LoraSide(sizes=sizes, lora=lora, block_bits=self.block_bits)
        self._broadcast(m, side)
        for name in configuration_members():
            m.d.comb += getattr(side, name).eq(getattr(self, name))
        m.d.comb += [
            side.start.eq(start),
            side.entry.eq(base + self.adapter_base),
            side.is_adapted.eq(self.is_adapted),
            side.token.eq(token),
            side.rd_token.eq(self.rd_token),
            side.d_en.eq(self.d_en),
            side.d_addr.eq(self.d_addr),
            self.d_valid.eq(side.d_valid),
        ]
        for lane in range(sizes.n_lanes):
            m.d.comb += self.d_data[lane].eq(side.d_data[32 * lane : 32 * lane + 32])
        for index, tile in enumerate(tiles):
            for name in ("parameters", "command", "x", "z", "configuration"):
                drive(m, getattr(side, name), getattr(tile, f"lora_{name}"))
            m.d.comb += [
                side.rows_a[index].eq(tile.lora_row),
                side.rows_b[index].eq(tile.lora_rows),
            ]
        return side

    def _maximum(self, m: Module, control: Any, tiles: list[Any]) -> dict[str, Any]:
        """Find each head's maximum over the tiles and send it back to them."""
        sizes = self.sizes
        where = {
            "entry": control.command.entry,
            "lane": control.command.lane,
            "head": control.head,
        }
        valid, where = delay(m, control.command.mx, where, sizes.broadcast_cycles + 2, "mx")
        values = {f"tile{index}": tile.maximum for index, tile in enumerate(tiles)}
        valid, values = delay(m, valid, where | values, sizes.collect_cycles, "mx_collect")
        where = {name: values[name] for name in where}
        scores = [values[f"tile{index}"].as_signed() for index in range(sizes.n_tiles)]
        valid, value, where = block_maximum(m, valid, scores, where)
        result = where | {"valid": valid, "value": value}
        back = {"entry": where["entry"], "lane": where["lane"], "value": value.as_unsigned()}
        valid, back = delay(m, valid, back, sizes.broadcast_cycles, "mx_back")
        for tile in tiles:
            m.d.comb += [getattr(tile.maximum_in, name).eq(item) for name, item in back.items()]
            m.d.comb += tile.maximum_in.valid.eq(valid)
        return result

    def _merge(
        self, m: Module, control: Any, tiles: list[Any], maximum: dict[str, Any]
    ) -> MergeTree:
        """Collect the tiles' sums and join the blocks."""
        sizes = self.sizes
        m.submodules.tree = tree = MergeTree(sizes=sizes)
        drive(m, control.merge, tree.step)
        m.d.comb += [
            tree.maximum_valid.eq(maximum["valid"]),
            tree.head.eq(maximum["head"]),
            tree.maximum.eq(maximum["value"]),
        ]
        # a beat is on its way from two cycles after its command
        loaded = control.command.mg
        loaded, _ = delay(m, loaded, {}, sizes.broadcast_cycles + 2, "mg")
        values = {}
        for index, tile in enumerate(tiles):
            for group in range(sizes.n_groups):
                values[f"o{index}_{group}"] = tile.o[group]
                values[f"l{index}_{group}"] = tile.l[group]
        _, values = delay(m, loaded, values, sizes.collect_cycles, "mg_collect")
        for index in range(sizes.n_tiles):
            for group in range(sizes.n_groups):
                m.d.comb += tree.o[index][group].eq(values[f"o{index}_{group}"])
                m.d.comb += tree.l[index][group].eq(values[f"l{index}_{group}"])
        return tree
