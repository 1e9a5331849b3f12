"""Rows of A from their parts in several tiles: sums over tiles, shifted and clipped."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import delay
from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.exact_shift import shift_to_saturate
from romsim_rtl.lora_sizes import N_PROJECTIONS, PARTS_BITS, part_sum_cycles
from romsim_rtl.primitives import popcount, saturate32, wire

__all__ = ["LoraSum"]

_LEVELS = 2  # additions of 64 bits between two registers


class LoraSum(wiring.Component):
    """Add the parts of each row of A, which lie in tiles ``P = T / parts`` apart.

    A row's sum is of 64 bits, modulo 2^64, and exact whatever the order; it is rounded and clipped
    here, once (docs/numerics.md, section 6).

    Parameters
    ----------
    sizes
        Gives the number of tiles.

    Members
    -------
    parts_log2, offset1, offset2, rank_sum, out_a0, out_a1, out_a2 : In
        Fields of the adapter table; they hold still.
    valid, row, is_end, sums : In
        Row ``row`` of every tile, or a part of one; whether it is the last.
    out_valid, out_row, out_is_end, rows : Out
        The same ``part_sum_cycles + 2`` cycles later; 0 where no row is.
    saturations : Out(32)
        Rows that were clipped.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        members: dict[str, Any] = {
            "parts_log2": In(PARTS_BITS),
            "offset1": In(10),
            "offset2": In(10),
            "rank_sum": In(10),
            "valid": In(1),
            "row": In(10),
            "is_end": In(1),
            "sums": In(signed(64)).array(sizes.n_tiles),
            "out_valid": Out(1),
            "out_row": Out(10),
            "out_is_end": Out(1),
            "rows": Out(signed(32)).array(sizes.n_tiles),
            "saturations": Out(32),
        }
        members |= {f"out_a{p}": In(signed(9)) for p in range(N_PROJECTIONS)}
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Build the tree, a shift for each row, and the clips' counter."""
        m = Module()
        tiles, levels = self.sizes.n_tiles, log2(self.sizes.n_tiles)
        valid: Any = self.valid
        where: dict[str, Any] = {"row": self.row, "is_end": self.is_end}
        sums: list[Any] = list(self.sums)
        for stage in range(part_sum_cycles(tiles)):
            for level in range(stage * _LEVELS + 1, min(levels, (stage + 1) * _LEVELS) + 1):
                sums = self._halve(m, sums, level)
            valid, where, sums = self._register(m, valid, where, sums, f"sum{stage}")
        index = [((where["row"] << levels) + tile)[:10] for tile in range(tiles)]
        shifted = []
        for tile, total in enumerate(sums):
            amount: Any = Mux(index[tile] >= self.offset1, self.out_a1, self.out_a0)
            amount = Mux(index[tile] >= self.offset2, self.out_a2, amount)
            amount = wire(m, amount, f"amount{tile}")
            shifted.append(shift_to_saturate(m, f"a_row{tile}", total, amount))
        valid, where, shifted = self._register(m, valid, where, shifted, "shifted")
        results, clips = [], []
        for tile, value in enumerate(shifted):
            row, clip = saturate32(value)
            is_row = ((where["row"] << levels) + tile)[:10] < self.rank_sum
            results.append(Mux(is_row, row[:32], 0))
            clips.append(clip & is_row)
        counted = Signal(range(tiles + 1))
        with m.If(valid):
            m.d.sync += counted.eq(popcount(Cat(*clips)))
        valid, where, results = self._register(m, valid, where, results, "row")
        with m.If(valid):
            m.d.sync += self.saturations.eq(self.saturations + counted)
        m.d.comb += [
            self.out_valid.eq(valid),
            self.out_row.eq(where["row"]),
            self.out_is_end.eq(where["is_end"]),
        ]
        m.d.comb += [row.eq(result) for row, result in zip(self.rows, results, strict=True)]
        return m

    def _halve(self, m: Module, sums: list[Any], level: int) -> list[Any]:
        """Add the upper half of what is left to the lower one, if the rows have so many parts."""
        half = self.sizes.n_tiles >> level
        joins = self.parts_log2 >= level
        result = []
        for tile, value in enumerate(sums):
            if tile < half:
                other = Mux(joins, sums[tile + half], 0)
                value = wire(m, (value + other)[:64].as_signed(), f"part{level}_{tile}")
            result.append(value)
        return result

    def _register(
        self, m: Module, valid: Any, where: dict[str, Any], values: list[Any], name: str
    ) -> tuple[Any, dict[str, Any], list[Any]]:
        fields = where | {f"tile{tile}": value for tile, value in enumerate(values)}
        valid, after = delay(m, valid, fields, 1, name)
        return valid, after, [after.pop(f"tile{tile}") for tile in range(len(values))]
