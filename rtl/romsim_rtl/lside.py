"""Unit L: the controller of all tiles' L-units, the broadcast into them and the collected rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from amaranth.hdl import (
    ClockSignal,
    Instance,
    Module,
    Mux,
    ResetSignal,
    signed,
)
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.description import Description
from romsim_compiler.target import MX_BLOCK
from romsim_models.errors import SpecError
from romsim_rtl.adder_side import BANK, CONFIGURATION, AdderSide, configuration_members, z_signature
from romsim_rtl.adder_sizes import AdderSizes, run_mappings
from romsim_rtl.cell import CellConfig
from romsim_rtl.encoding import OPS, WORD_BITS
from romsim_rtl.instruction import cut_fields
from romsim_rtl.lside_rows import build_collect
from romsim_rtl.lside_run import MATVEC_CYCLES, build_embed, build_run
from romsim_rtl.ltile import LTile, LTileConfig, tile_signature
from romsim_rtl.memory import VerilogPlatform, address_bits
from romsim_rtl.xbuffer import XBufferSizes

__all__ = ["TILE_MODULE", "LSide", "LSideConfig"]

TILE_MODULE = "romsim_ltile"
"""Verilog module of a tile's L-unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LSideConfig:
    """What unit L is built for.

    Parameters
    ----------
    tile
        A tile.
    n_tiles, n_lanes
        ``T`` and ``VL`` of docs/machine.md, powers of two.
    collect_cycles
        Register stages from the tiles to unit V.
    adders
        Memories of adapters in the adder arrays, or ``None``.

    Raises
    ------
    SpecError
        If a size is impossible for the RTL.
    """

    tile: LTileConfig
    n_tiles: int
    n_lanes: int
    collect_cycles: int
    adders: AdderSizes | None = None

    def __post_init__(self) -> None:
        for name, least in (("n_tiles", 1), ("n_lanes", MX_BLOCK)):
            value = getattr(self, name)
            if value < least or value & (value - 1):
                raise SpecError(
                    f"{name} of the RTL must be a power of two of at least {least}, not {value!r}"
                )
        if self.collect_cycles < 1:
            raise SpecError(
                f"collect_cycles of an RTL target must be at least 1, not {self.collect_cycles!r}"
            )

    @classmethod
    def of(cls, *models: Description, is_packed: bool = True) -> LSideConfig:
        """Take the sizes from a description, or the largest of several with one target.

        ``is_packed`` as in `CellConfig`.

        Raises
        ------
        SpecError
            If the RTL has no hardware for the target or for a matrix.
        """
        target, array = models[0].target, models[0].target.array
        if target.latency.matvec != MATVEC_CYCLES:
            raise SpecError(
                f"latency.matvec of target {target.name!r} must be {MATVEC_CYCLES}, the RTL's "
                f"depth, not {target.latency.matvec!r}; leave it out of the target"
            )
        placed = [group for model in models for group in model.groups.values()]
        matrices = [group for group in placed if group.name != "embd"]
        adders = AdderSizes.of(*models)
        ks_logs = {g.mapping.ks.bit_length() - 1 for g in matrices}
        if adders is not None:
            ks_logs |= set(run_mappings(*models))
        cell = CellConfig.of(
            array,
            max_planes=max(group.mapping.planes for group in matrices),
            may_round=any(
                model.manifest["accuracy"]["groups_with_rounded_terms"] for model in models
            ),
            has_plain=adders is not None or any(group.group == 0 for group in matrices),
        )
        n_lanes = target.vector.n_lanes
        return cls(
            tile=LTileConfig(
                n_cells=array.n_cells,
                rom_rows=array.rom_rows,
                ks_logs=tuple(sorted(ks_logs)),
                cell=replace(cell, is_packed=is_packed),
                x=XBufferSizes(
                    n_words=max(g.mapping.ks * g.mapping.wpc for g in matrices),
                    n_inflight=target.schedule.n_inflight,
                    n_groups=n_lanes // MX_BLOCK,
                    word_blocks=cell.n_blocks,
                ),
                trit_words=adders.bank_words if adders is not None else 0,
                z_words=adders.z_words if adders is not None else 0,
            ),
            n_tiles=array.n_tiles,
            n_lanes=n_lanes,
            collect_cycles=target.network.collect_cycles,
            adders=adders,
        )

    @property
    def rows_log2(self) -> int:
        """Base-2 logarithm of the rows of a step if no cells share one."""
        return (self.n_tiles * self.tile.n_cells).bit_length() - 1

    @property
    def lanes_log2(self) -> int:
        """Base-2 logarithm of the lanes of a beat."""
        return self.n_lanes.bit_length() - 1

    def step_beats(self, ks_log2: int) -> int:
        """Return the beats that a step's rows take, if all are there."""
        return max(1, 1 << self.rows_log2 - ks_log2 >> self.lanes_log2)

    def row_place(self, ks_log2: int, beat: int, lane: int) -> tuple[int, int]:
        """Return the tile and the row in it that a lane of a beat takes."""
        row = (beat * self.n_lanes + lane) % (1 << self.rows_log2 - ks_log2)
        return divmod(row, self.tile.n_cells >> ks_log2)


def _adapter_members(config: LSideConfig) -> dict[str, Any]:
    """List the ports that unit L has where adapters run in it."""
    if config.adders is None:
        return {}
    return {
        "is_adapted": In(1),
        "adapter_base": In(20),
        "rd_token": In(address_bits(config.adders.n_inflight)),
        "d_en": In(1),
        "d_addr": In(config.adders.d_bits(config.n_lanes)),
        "d_data": Out(32 * config.n_lanes),
        "d_valid": Out(1),
    } | configuration_members()


class LSide(wiring.Component):
    """Unit L (docs/machine.md, sections 1 and 2; docs/rtl.md, sections 2 and 3).

    Parameters
    ----------
    config
        What the unit is built for.
    contents
        ROM words of each cell of each tile, for simulation in Amaranth; never part of the Verilog.

    Members
    -------
    start, instr, busy
        Issue of ``matvec``; and of ``lora`` where adapters run here.
    embed, row
        Issue of ``embed`` to unit V, with its word on ``instr``; the token.
    bc_kind, bc_token, bc_block, bc_mask, bc_codes, bc_shift, bc_sum
        Broadcast; only kind 1 is for the x buffers. Blocks are in them two cycles later.
    ly_valid, ly_token, ly_row, ly_mask, ly_head, ly_data
        Rows: ``ly_row`` is that of lane 0, a multiple of the lanes. Beat ``b`` of step ``s`` of an
        instruction started in cycle ``t`` comes in cycle ``t + s·cps + wpc·planes + 10 + log2(ks)
        + b + collect_cycles``.
    em_valid, em_word, em_plane, em_data
        ROM words of the embedding's row, the first in cycle ``t + 4 + collect_cycles``.
    sat_count : Out(32)
        Rows that were clipped, since reset.
    is_adapted, adapter_base, cfg_*, rd_token, d_en, d_addr, d_data, d_valid
        Adapter of the program, configuration, and read port of buffer D: where adapters run here;
        see `romsim_rtl.adder_side.AdderSide`.
    """

    def __init__(
        self, *, config: LSideConfig, contents: Sequence[Sequence[Sequence[int]]] = ()
    ) -> None:
        self.config, self.contents = config, contents
        groups, lanes = config.tile.x.n_groups, config.n_lanes
        super().__init__(
            _adapter_members(config)
            | {
                "start": In(1),
                "embed": In(1),
                "instr": In(WORD_BITS),
                "row": In(20),
                "busy": Out(1),
                "bc_kind": In(2),
                "bc_token": In(3),
                "bc_block": In(16),
                "bc_mask": In(groups),
                "bc_codes": In(8 * MX_BLOCK).array(groups),
                "bc_shift": In(5).array(groups),
                "bc_sum": In(signed(13)).array(groups),
                "ly_valid": Out(1),
                "ly_token": Out(3),
                "ly_row": Out(20),
                "ly_mask": Out(lanes),
                "ly_head": Out(1),
                "ly_data": Out(signed(32)).array(lanes),
                "em_valid": Out(1),
                "em_word": Out(10),
                "em_plane": Out(4),
                "em_data": Out(config.tile.cell.word_bits),
                "sat_count": Out(32),
            }
        )

    @staticmethod
    def unread_bits() -> dict[str, str]:
        """Ports of which some bits are not read, for the emission of Verilog."""
        return {
            "instr": "fields of other units",
            "bc_token": "fewer tokens in flight than the field can name",
            "bc_block": "blocks that no vector has",
            "adapter_base": "fewer entries than the field can name",
            "rd_token": "fewer tokens in flight than the field can name",
        }

    def elaborate(self, platform: Any) -> Module:
        """Wire the tiles, what drives them all, and what they give."""
        m = Module()
        config = self.config
        tiles = self._tiles(m, platform)
        drive = wiring.Signature(tile_signature(config.tile)).flip().create(path=("drive",))
        groups = config.tile.x.n_groups
        m.d.comb += [
            drive.bc_en.eq(self.bc_kind == 1),
            drive.bc_row.eq(self.bc_block[(groups - 1).bit_length() :]),
            drive.bc_mask.eq(self.bc_mask),
        ]
        if config.tile.x.token_bits:
            m.d.comb += drive.bc_token.eq(self.bc_token)
        for group in range(groups):
            m.d.comb += [
                drive.bc_codes[group].eq(self.bc_codes[group]),
                drive.bc_shift[group].eq(self.bc_shift[group]),
                drive.bc_sum[group].eq(self.bc_sum[group]),
            ]
        adders = self._adders(m, drive) if config.adders is not None else None
        run = build_run(m, self, drive, adders)
        embed = build_embed(m, self, run)
        m.d.comb += [
            drive.rom_en.eq(run.rom_en | embed.reading),
            drive.rom_addr.eq(Mux(embed.reading, embed.address, run.address)),
            drive.em_en.eq(embed.there),
        ]
        for index, tile in enumerate(tiles):
            for path, _, value in drive.signature.flatten(drive):
                port = tile
                for part in path:
                    port = port[part] if isinstance(part, int) else getattr(port, part)
                m.d.comb += port.eq(value)
            m.d.comb += [tile.em_mine.eq(embed.tile == index), tile.em_cell.eq(embed.cell)]
            if adders is not None:
                m.d.comb += tile.bank_mine.eq(adders.bank_tile == index)
        build_collect(m, self, tiles, run, embed, adders)
        return m

    def _adders(self, m: Module, drive: Any) -> AdderSide:
        """Add what sequences adapters; connect it with the ports and the tiles."""
        sizes = self.config.adders
        assert sizes is not None
        side = AdderSide(sizes=sizes, n_lanes=self.config.n_lanes)
        m.submodules.adders = side
        fields = cut_fields(self.instr)
        m.d.comb += [
            side.start.eq(self.start & (fields["op"] == OPS["lora"])),
            side.entry.eq(self.adapter_base + fields["base"]),
            side.is_adapted.eq(self.is_adapted),
            side.token.eq(fields["token"]),
            side.beat.eq(self.ly_row[self.config.lanes_log2 :]),
            side.mask.eq(self.ly_mask),
        ]
        m.d.comb += [a.eq(b) for a, b in zip(side.data, self.ly_data, strict=True)]
        for name in ("rd_token", "d_en", "d_addr", *CONFIGURATION):
            m.d.comb += getattr(side, name).eq(getattr(self, name))
        for name in ("d_data", "d_valid"):
            m.d.comb += getattr(self, name).eq(getattr(side, name))
        for name in (*BANK, *z_signature(sizes)):
            m.d.comb += getattr(drive, name).eq(getattr(side, name))
        m.d.comb += [drive.of_trits.eq(side.busy), drive.of_z.eq(side.is_up)]
        return side

    def _tiles(self, m: Module, platform: Any) -> list[Any]:
        """Put the tiles in: one module for all, told its number by a parameter."""
        config = self.config
        if not isinstance(platform, VerilogPlatform):
            tiles = [
                LTile(config=config.tile, contents=self.contents[index] if self.contents else ())
                for index in range(config.n_tiles)
            ]
            for index, tile in enumerate(tiles):
                m.submodules[f"tile{index}"] = tile
            return list(tiles)
        shared = platform.shared.setdefault(TILE_MODULE, LTile(config=config.tile))
        signature = shared.signature
        faces = []
        for index in range(config.n_tiles):
            face = signature.create(path=(f"tile{index}",))
            ports: dict[str, Any] = {"i_clk": ClockSignal("sync"), "i_rst": ResetSignal("sync")}
            for path, member, value in signature.flatten(face):
                direction = "i" if member.flow == wiring.In else "o"
                ports[f"{direction}_{'__'.join(map(str, path))}"] = value
            m.submodules[f"tile{index}"] = Instance(TILE_MODULE, p_TILE=index, **ports)
            faces.append(face)
        return faces
