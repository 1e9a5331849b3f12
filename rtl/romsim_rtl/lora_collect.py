"""Rows of A from all tiles: their blocks' exponents, and their codes for the tiles."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import delay, held, valid_chain
from romsim_rtl.attention_sizes import SHIFT_BITS, AttentionSizes, log2
from romsim_rtl.lora_command import z_signature
from romsim_rtl.lora_sizes import N_PROJECTIONS, LoraSizes
from romsim_rtl.memory import Sram
from romsim_rtl.primitives import bit_length, magnitude, round_shift_by, wire

__all__ = ["LoraCollect"]


class LoraCollect(wiring.Component):
    """Quantise z (docs/numerics.md, sections 2 and 6).

    Parameters
    ----------
    sizes, lora
        Loop sizes and memories.

    Members
    -------
    clear : In(1)
        A new instruction begins.
    offset1, offset2 : In
        First rows of projections 1 and 2.
    valid, row, is_end, rows : In
        Row ``row`` of every tile, 0 where there is none; whether it is the last.
    z_shift : Out
        Exponents by projection and block, 4 cycles after the last row.
    en, beat, is_last : In
        A beat is to be quantised.
    z : Out(z_signature)
        Its codes, 3 cycles later.
    """

    def __init__(self, *, sizes: AttentionSizes, lora: LoraSizes) -> None:
        self.sizes, self.lora = sizes, lora
        super().__init__(
            {
                "clear": In(1),
                "offset1": In(10),
                "offset2": In(10),
                "valid": In(1),
                "row": In(10),
                "is_end": In(1),
                "rows": In(signed(32)).array(sizes.n_tiles),
                "z_shift": Out(SHIFT_BITS).array(N_PROJECTIONS, lora.rank_blocks),
                "en": In(1),
                "beat": In(6),
                "is_last": In(1),
                "z": Out(z_signature(sizes, lora)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipelines in and out."""
        m = Module()
        sizes = self.sizes
        tiles_log2 = log2(sizes.n_tiles)
        arrived, ended, sized = Signal(), Signal(), Signal()
        m.d.sync += [arrived.eq(self.valid), ended.eq(arrived & self._end(m)), sized.eq(ended)]
        sizes_of: list[Any] = []
        owners: list[tuple[Any, Any]] = []
        rows = Signal(32 * sizes.n_tiles, reset_less=True)
        place = Signal(10, reset_less=True)
        with m.If(self.valid):
            m.d.sync += [rows.eq(Cat(*self.rows)), place.eq(self.row)]
        for tile in range(sizes.n_tiles):
            index = ((self.row << tiles_log2) + tile)[:10]
            projection, block = self._owner(index)
            size = Signal(32, name=f"size{tile}", reset_less=True)
            owner = Signal(2, name=f"owner{tile}", reset_less=True)
            part = Signal(2, name=f"part{tile}", reset_less=True)
            with m.If(self.valid):
                m.d.sync += [
                    size.eq(magnitude(self.rows[tile])),
                    owner.eq(projection),
                    part.eq(block),
                ]
            sizes_of.append(size)
            owners.append((owner, part))
        self._exponents(m, arrived, ended, sized, sizes_of, owners)
        word = self._buffer(m, arrived, rows, place)
        self._quantise(m, word)
        return m

    def _end(self, m: Module) -> Any:
        is_end = Signal(name="is_last_row", reset_less=True)
        with m.If(self.valid):
            m.d.sync += is_end.eq(self.is_end)
        return is_end

    def _owner(self, index: Any) -> tuple[Any, Any]:
        """Projection and block of a row of z."""
        after1, after2 = index >= self.offset1, index >= self.offset2
        start = Mux(after2, self.offset2, Mux(after1, self.offset1, 0))
        block = ((index - start)[:10] >> 5)[:2] if self.lora.rank_blocks > 1 else Const(0, 2)
        return Mux(after2, 2, Mux(after1, 1, 0)), block

    def _exponents(
        self,
        m: Module,
        arrived: Any,
        ended: Any,
        sized: Any,
        sizes_of: list[Any],
        owners: list[tuple[Any, Any]],
    ) -> None:
        """Find each block's exponent from what its magnitudes have in common.

        The longest one's length gives the shift to 7 bits. A code then rounds to 128, which takes
        one more, where that length's highest 8 bits are ones in some magnitude. Both are ORs, not
        comparisons one after another.
        """
        runs = [
            wire(m, Cat(size[low : low + 8].all() for low in range(25)), f"runs{tile}")
            for tile, size in enumerate(sizes_of)
        ]
        for projection in range(N_PROJECTIONS):
            for block in range(self.lora.rank_blocks):
                name = f"{projection}_{block}"
                bits: list[Any] = []
                for size, run, (owner, part) in zip(sizes_of, runs, owners, strict=True):
                    is_mine = owner == projection
                    if self.lora.rank_blocks > 1:
                        is_mine &= part == block
                    bits.append(Mux(is_mine, Cat(size, run), 0))
                seen = Signal(32 + 25, name=f"seen{name}", reset_less=True)
                with m.If(self.clear):
                    m.d.sync += seen.eq(0)
                with m.Elif(arrived):
                    m.d.sync += seen.eq(reduce(or_, bits, seen))
                first = Signal(SHIFT_BITS, name=f"first_shift{name}", reset_less=True)
                length = bit_length(m, seen[:32], f"length{name}")
                with m.If(ended):
                    m.d.sync += first.eq(Mux(length > 7, length - 7, 0))
                is_up = (Cat(Const(0, 1), seen[32:]) >> first)[0]
                with m.If(sized):
                    m.d.sync += held(m, self.z_shift[projection][block]).eq(first + is_up)

    def _buffer(self, m: Module, arrived: Any, rows: Any, place: Any) -> list[Any]:
        """Put rows of all tiles into beats; return the lanes of the beat that was asked for."""
        sizes = self.sizes
        parts = sizes.n_lanes // sizes.n_tiles
        m.submodules.z_sram = sram = Sram(
            depth=-(-self.lora.n_z // sizes.n_lanes), n_lanes=parts, lane_bits=32 * sizes.n_tiles
        )
        m.d.comb += [
            sram.w_en.eq(arrived),
            sram.w_addr.eq(place >> log2(parts)),
            sram.w_mask.eq(Const(1, parts) << place[: log2(parts)]),
            sram.w_data.eq(rows.replicate(parts)),
            sram.r_en.eq(self.en),
            sram.r_addr.eq(self.beat),
        ]
        return [sram.r_data[32 * lane : 32 * lane + 32] for lane in range(sizes.n_lanes)]

    def _quantise(self, m: Module, word: list[Any]) -> None:
        sizes = self.sizes
        valid = valid_chain(m, self.en, 3, "z")
        where = {"beat": self.beat, "last": self.is_last}
        _, where1 = delay(m, valid[0], where, 1, "z_read")
        _, where2 = delay(m, valid[1], where1, 1, "z_chosen")
        _, where3 = delay(m, valid[2], where2, 1, "z_coded")
        codes = []
        for lane, value in enumerate(word):
            index = ((where1["beat"] << log2(sizes.n_lanes)) + lane)[:10]
            projection, block = self._owner(index)
            shift: Any = self.z_shift[0][0]
            for p in range(N_PROJECTIONS):
                for b in range(self.lora.rank_blocks):
                    is_this = projection == p
                    if self.lora.rank_blocks > 1:
                        is_this &= block == b
                    shift = Mux(is_this, self.z_shift[p][b], shift)
            z = Signal(signed(33), name=f"z{lane}", reset_less=True)
            by = Signal(SHIFT_BITS, name=f"z_by{lane}", reset_less=True)
            with m.If(valid[1]):
                m.d.sync += [z.eq(value.as_signed()), by.eq(shift)]
            codes.append(round_shift_by(z, by)[:8])
        with m.If(valid[2]):
            m.d.sync += held(m, self.z.codes).eq(Cat(*codes))
        m.d.comb += [
            self.z.valid.eq(valid[3]),
            self.z.beat.eq(where3["beat"]),
            self.z.last.eq(where3["last"]),
        ]
