"""The L-unit of a tile: ROM cells, x buffer, tree over the cells of a row, requantising."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_models.errors import SpecError
from romsim_rtl.cell import Cell, CellConfig
from romsim_rtl.ltile_adders import add_trits, adder_members, build_z, choose_z
from romsim_rtl.ltile_rows import Row
from romsim_rtl.memory import Rom, VerilogPlatform, address_bits, replicate
from romsim_rtl.xbuffer import XBuffer, XBufferSizes, beat_signature, token_member

__all__ = ["CELL_MODULE", "ROW_MODULE", "TILE_PARAMETER", "LTile", "LTileConfig", "tile_signature"]

CELL_MODULE = "romsim_cell"
"""Verilog module of a cell."""

ROW_MODULE = "romsim_row"
"""Verilog module of a row's requantising."""

TILE_PARAMETER = "@TILE@"
"""Stands for the tile's number in emitted Verilog, where it becomes a parameter of the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LTileConfig:
    """What a tile's L-unit is built for.

    Parameters
    ----------
    n_cells, rom_rows
        Cells, a power of two, and words of each.
    ks_logs
        Base-2 logarithms of the numbers of cells that share a row, ascending.
    cell
        The cells.
    x
        The x buffer.
    trit_words, z_words
        Words of trits beside each cell, and words of the buffer of z, where adapters run here.

    Raises
    ------
    SpecError
        If more cells share a row than there are, or none is said to.
    """

    n_cells: int
    rom_rows: int
    ks_logs: tuple[int, ...]
    cell: CellConfig
    x: XBufferSizes
    trit_words: int = 0
    z_words: int = 0

    def __post_init__(self) -> None:
        if self.n_cells < 1 or self.n_cells & (self.n_cells - 1):
            raise SpecError(f"n_cells of the RTL must be a power of two, not {self.n_cells!r}")
        if not self.ks_logs or list(self.ks_logs) != sorted(set(self.ks_logs)):
            raise SpecError(f"ks_logs must be ascending and not empty, not {self.ks_logs!r}")
        if not 0 <= self.ks_logs[0] <= self.ks_logs[-1] <= self.n_cells.bit_length() - 1:
            raise SpecError(
                f"ks_logs must be from 0 to {self.n_cells.bit_length() - 1}, not {self.ks_logs!r}"
            )

    @property
    def z(self) -> XBufferSizes:
        """The buffer of z: as the x buffer, for one token."""
        return replace(self.x, n_words=self.z_words, n_inflight=1)

    @property
    def n_ports(self) -> int:
        """Words of the x buffer that are read in one cycle."""
        return 1 << self.ks_logs[-1]

    @property
    def n_rows(self) -> int:
        """Rows that a tile can finish at a time."""
        return self.n_cells >> self.ks_logs[0]

    @property
    def cell_bits(self) -> int:
        """Bits of a cell's number."""
        return address_bits(self.n_cells)


def tile_signature(config: LTileConfig) -> dict[str, Any]:
    """Describe what the controller tells every tile in the same cycle.

    Members
    -------
    bc_*
        Broadcast into the x buffer; see `XBuffer`.
    x_en, x_token, x_word
        Read the x buffer: one address for each port.
    rom_en, rom_addr
        Read the ROM; in the cycle after it the word goes into a register.
    v_unpack
        That of a word's first plane does: its activations are unpacked.
    offset, grid
        Of the matrix.
    v_dot, v_sum, v_mul, v_shift, v_acc, first_plane, first_sum, plane_place, first_word, plain
        See `Cell`.
    v_tree
        For each level of the tree: add pairs.
    v_pre, v_times, v_round
        Requantise: shift before, times the multiplier, shift and saturate.
    ks_log2, pre_shift, multiplier, out_shift
        Of the matrix.
    em_en
        A word of the embedding's row is in the register behind the ROM.
    *
        See `romsim_rtl.ltile_adders.adder_members`, where adapters run here.
    """
    cell = config.cell
    members = beat_signature(config.x)
    stages = ("v_unpack", "v_dot", "v_sum", "v_mul", "v_shift", "v_acc")
    members |= {name: In(1) for name in stages}
    members |= {
        "x_en": In(1),
        **token_member(config.x, "x_token"),
        "x_word": In(config.x.word_bits).array(config.n_ports),
        "rom_en": In(1),
        "rom_addr": In(address_bits(config.rom_rows)),
        "offset": In(8),
        "grid": In(signed(8)),
        "first_plane": In(1),
        "first_word": In(1),
        "v_pre": In(1),
        "v_times": In(1),
        "v_round": In(1),
        "ks_log2": In(4),
        "pre_shift": In(6),
        "multiplier": In(24),
        "out_shift": In(signed(8)),
        "em_en": In(1),
    }
    if cell.max_planes > 1:
        members |= {"first_sum": In(1), "plane_place": In(3)}
    if cell.has_plain:
        members["plain"] = In(1)
    if config.ks_logs[-1]:
        members["v_tree"] = In(config.ks_logs[-1])
    return members | adder_members(config)


class LTile(wiring.Component):
    """Multiply the rows of one tile (docs/machine.md, section 2).

    A word whose activations are addressed in cycle τ is read from ROM in τ as well, stands in the
    register behind it when its products are summed in τ+2, and is in the accumulator in τ+7; one
    cycle for each level of the tree and three of requantising later, rows are on the output.

    Parameters
    ----------
    config
        What the tile is built for.
    contents
        ROM words of each cell, for simulation in Amaranth; never part of the Verilog.

    Members
    -------
    *
        See `tile_signature`.
    em_mine, em_cell : In
        With ``em_en``: the row is one of this tile's, and the cell that holds it.
    bank_mine : In
        With ``bank_en``: the word is beside a cell of this tile; where adapters run here.
    rows : Out(signed(32)) array
        Finished rows, from the cycle after ``v_round`` until the next.
    clipped : Out
        Rows that were clipped, valid with ``rows``.
    em_word : Out(word_bits)
        Embedding word, one cycle after ``em_en``; 0 if it is another tile's.
    """

    def __init__(self, *, config: LTileConfig, contents: Sequence[Sequence[int]] = ()) -> None:
        self.config, self.contents = config, contents
        super().__init__(
            tile_signature(config)
            | {
                "em_mine": In(1),
                "em_cell": In(config.cell_bits),
                "rows": Out(signed(32)).array(config.n_rows),
                "clipped": Out(config.n_rows),
                "em_word": Out(config.cell.word_bits),
            }
            | ({"bank_mine": In(1)} if config.trit_words else {})
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the x buffer, the cells, the tree and the rows."""
        m = Module()
        config = self.config
        activations = self._activations(m)
        cells = replicate(
            m, platform, "cell", CELL_MODULE, lambda: Cell(config=config.cell), config.n_cells
        )
        words = []
        reads, is_read = Signal(name="reads_word"), Signal(name="word_read")
        m.d.comb += reads.eq(self.rom_en | self.trit_en if config.trit_words else self.rom_en)
        m.d.sync += is_read.eq(reads)
        for index, cell in enumerate(cells):
            words.append(cell.held)
            x, less, total, place = activations[index % config.n_ports]
            names = ["v_dot", "v_sum", "v_mul", "v_shift", "v_acc", "first_plane", "first_word"]
            if config.cell.max_planes > 1:
                names += ["first_sum", "plane_place"]
            if config.cell.has_plain:
                names.append("plain")
            m.d.comb += [getattr(cell, name).eq(getattr(self, name)) for name in names]
            word = self._rom(m, platform, index)
            m.d.comb += [cell.v_read.eq(is_read), cell.word.eq(add_trits(m, self, index, word))]
            m.d.comb += [port.eq(value) for port, value in zip(cell.x, x, strict=True)]
            for block in range(config.cell.n_blocks):
                m.d.comb += [
                    cell.less[block].eq(less[block]),
                    cell.total[block].eq(total[block]),
                    cell.place[block].eq(place[block]),
                ]
        self._rows(m, platform, [cell.acc for cell in cells])

        em_word = Signal(config.cell.word_bits, reset_less=True)
        with m.If(self.em_en):
            chosen: Value = Const(0, config.cell.word_bits)
            for index, word in enumerate(words):
                chosen = Mux(self.em_mine & (self.em_cell == index), word, chosen)
            m.d.sync += em_word.eq(chosen)
        m.d.comb += self.em_word.eq(em_word)
        return m

    def _rom(self, m: Module, platform: Any, index: int) -> Value:
        config = self.config
        width, file = config.cell.word_bits, f"c{index}.hex"
        if not isinstance(platform, VerilogPlatform):
            init = self.contents[index] if index < len(self.contents) else ()
            rom = Rom(depth=config.rom_rows, width=width, file=file, init=init)
            m.submodules[f"rom{index}"] = rom
            m.d.comb += [rom.r_en.eq(self.rom_en), rom.r_addr.eq(self.rom_addr)]
            return rom.r_data
        word = Signal(width, name=f"word{index}")
        m.submodules[f"rom{index}"] = Instance(
            "romsim_rom",
            p_DEPTH=config.rom_rows,
            p_ADDR_BITS=address_bits(config.rom_rows),
            p_WIDTH=width,
            p_FILE=file,
            p_TILE=TILE_PARAMETER,
            i_clk=ClockSignal("sync"),
            i_r_en=self.rom_en,
            i_r_addr=self.rom_addr,
            o_r_data=word,
        )
        return word

    def _rows(self, m: Module, platform: Any, accumulators: list[Value]) -> None:
        """Sum the accumulators of a row's cells, one level of the tree a cycle."""
        config = self.config
        levels: list[list[Value]] = [accumulators]
        for level in range(config.ks_logs[-1]):
            before, sums = levels[-1], []
            for node in range(len(before) // 2):
                total = Signal(64, name=f"tree{level + 1}_{node}", reset_less=True)
                with m.If(self.v_tree[level]):
                    m.d.sync += total.eq((before[2 * node] + before[2 * node + 1])[:64])
                sums.append(total)
            levels.append(sums)
        rows = replicate(
            m, platform, "row", ROW_MODULE, lambda: Row(ks_logs=config.ks_logs), config.n_rows
        )
        clipped = []
        for index, row in enumerate(rows):
            for name in ("v_pre", "v_times", "v_round"):
                m.d.comb += getattr(row, name).eq(getattr(self, name))
            for name in ("ks_log2", "pre_shift", "multiplier", "out_shift"):
                m.d.comb += getattr(row, name).eq(getattr(self, name))
            for choice, log in enumerate(config.ks_logs):
                if index < len(levels[log]):
                    m.d.comb += row.sums[choice].eq(levels[log][index])
            m.d.comb += self.rows[index].eq(row.row)
            # the other matrices have fewer rows a tile
            logs = [log for log in config.ks_logs if index < len(levels[log])]
            is_used = Const(1, 1) if logs == list(config.ks_logs) else self.ks_log2 <= logs[-1]
            clipped.append(row.clipped & is_used)
        m.d.comb += self.clipped.eq(Cat(*clipped))

    def _activations(self, m: Module) -> list[tuple[list[Any], ...]]:
        """Read each port's word; follow its sums and shifts to the stages that need them."""
        config = self.config
        result: list[tuple[list[Any], ...]] = []
        for port in range(config.n_ports):
            buffer = XBuffer(sizes=config.x, config=config.cell)
            m.submodules[f"x{port}"] = buffer
            for name in ("bc_en", "bc_row", "bc_mask"):
                m.d.comb += getattr(buffer, name).eq(getattr(self, name))
            if config.x.token_bits:
                m.d.comb += [
                    buffer.bc_token.eq(self.bc_token),
                    buffer.r_token.eq(self.x_token),
                ]
            for group in range(config.x.n_groups):
                m.d.comb += [
                    buffer.bc_codes[group].eq(self.bc_codes[group]),
                    buffer.bc_shift[group].eq(self.bc_shift[group]),
                    buffer.bc_sum[group].eq(self.bc_sum[group]),
                ]
            m.d.comb += [
                buffer.r_en.eq(self.x_en & ~self.of_z if config.trit_words else self.x_en),
                buffer.r_word.eq(self.x_word[port]),
                buffer.v_unpack.eq(self.v_unpack),
            ]
            packed: list[Value] = list(buffer.x)
            block_totals: list[Value] = list(buffer.total)
            block_shifts: list[Value] = list(buffer.shift)
            if config.trit_words:
                z = build_z(m, self, port)
                packed = choose_z(m, self, f"packed{port}_", z.x, packed)
                block_totals = choose_z(m, self, f"total{port}_", z.total, block_totals)
                block_shifts = choose_z(m, self, f"shift{port}_", z.shift, block_shifts)
            less, totals, places = [], [], []
            for block in range(config.cell.n_blocks):
                name = f"{port}_{block}"
                less.append(Signal(signed(22), name=f"less{name}", reset_less=True))
                total = Signal(signed(13), name=f"total{name}", reset_less=True)
                shift = Signal(5, name=f"shift{name}", reset_less=True)
                with m.If(self.v_dot & self.first_plane):
                    m.d.sync += [
                        less[block].eq(self.offset * block_totals[block]),
                        total.eq(block_totals[block]),
                        shift.eq(block_shifts[block]),
                    ]
                totals.append(Signal(signed(13), name=f"held_total{name}", reset_less=True))
                places.append(Signal(signed(9), name=f"place{name}", reset_less=True))
                with m.If(self.v_sum):
                    m.d.sync += [
                        totals[block].eq(total),
                        places[block].eq(shift - self.grid - 25),
                    ]
            result.append((packed, less, totals, places))
        return result
