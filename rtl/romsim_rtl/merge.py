"""The merge tree of attention blocks: sum over tiles, and the stack of unfinished nodes."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import delay, merge_signature
from romsim_rtl.attention_sizes import MAX_BITS, AttentionSizes
from romsim_rtl.exact_shift import round_parts
from romsim_rtl.htile_values import SUM_BITS
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.primitives import add_tree, wire

__all__ = ["MergeTree"]


class MergeTree(wiring.Component):
    """Join attention blocks (docs/numerics.md, softmax and values).

    Parameters
    ----------
    sizes
        Loop sizes.

    Members
    -------
    step : In(merge_signature)
        Steps, as the controller gives them.
    maximum_valid, head, maximum : In
        A head's maximum in this block.
    o, l : In, for each tile and lane group
        Sums and weights of a beat, as they come from the tiles, collect_cycles +
        broadcast_cycles + 2 cycles after their step.
    out_valid, out_beat, out_o, out_l : Out
        Results of the last block, 2 + 2 cycles after that.
    out_m : Out
        The maxima that their sums are relative to; where attention mass is counted.
    """

    def __init__(self, *, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        groups = sizes.n_groups
        super().__init__(
            {
                "step": In(merge_signature(sizes)),
                "maximum_valid": In(1),
                "head": In(address_bits(sizes.n_heads)),
                "maximum": In(signed(MAX_BITS)),
                "o": In(SUM_BITS).array(sizes.n_tiles, groups),
                "l": In(32).array(sizes.n_tiles, groups),
                "out_valid": Out(1),
                "out_beat": Out(address_bits(sizes.beats)),
                "out_o": Out(SUM_BITS).array(groups),
                "out_l": Out(32).array(groups),
            }
            | ({"out_m": Out(signed(MAX_BITS)).array(groups)} if sizes.is_ranked else {})
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline: levels, maxima, shifts and sums, write."""
        m = Module()
        sizes = self.sizes
        names = ("load", "join", "store", "final", "beat")
        values = {name: getattr(self.step, name) for name in names}
        valid = self.step.valid
        valid1, flags1 = delay(m, valid, values, 1, "step")
        level = Signal(address_bits(sizes.n_levels), reset_less=True)
        target = Signal(address_bits(sizes.n_levels), reset_less=True)
        with m.If(valid):
            m.d.sync += [level.eq(_index(self.step.level)), target.eq(_index(self.step.target))]
        flags1 |= {"level": level, "target": target}
        hop = sizes.broadcast_cycles + sizes.collect_cycles
        valid_m, flags_m = delay(m, valid1, flags1, hop, "way")  # maxima are read
        valid_s, flags_s = delay(m, valid_m, flags_m, 1, "maxima")  # maxima are compared
        valid_o, flags_o = delay(m, valid_s, flags_s, 1, "shifts")  # sums are joined
        valid_w, flags_w = delay(m, valid_o, flags_o, 1, "joined")  # sums are written

        loads = Signal()
        stores = Signal()
        ends = Signal()
        m.d.comb += [
            loads.eq(valid_s & flags_s["load"]),
            stores.eq(valid_w & flags_w["store"] & ~flags_w["final"]),
            ends.eq(valid_w & flags_w["store"] & flags_w["final"]),
            self.out_valid.eq(ends),
            self.out_beat.eq(flags_w["beat"]),
        ]
        for group in range(sizes.n_groups):
            maxima = self._stack(m, f"m{group}", MAX_BITS)
            sums = self._stack(m, f"o{group}", SUM_BITS)
            weights = self._stack(m, f"l{group}", 32)
            for stack, enable, flags in (
                (maxima, valid_m, flags_m),
                (sums, valid_s, flags_s),
                (weights, valid_s, flags_s),
            ):
                m.d.comb += [
                    stack.r_en.eq(enable & flags["join"]),
                    stack.r_addr.eq(Cat(flags["beat"], flags["level"])),
                    stack.w_en.eq(stores),
                    stack.w_addr.eq(Cat(flags_w["beat"], flags_w["target"])),
                    stack.w_mask.eq(1),
                ]
            shifts = self._maxima(m, group, valid_m, flags_m, valid_s, flags_s, maxima)
            largest = Signal(signed(MAX_BITS), name=f"largest_w{group}", reset_less=True)
            with m.If(valid_o):
                m.d.sync += largest.eq(shifts["largest"])
            m.d.comb += maxima.w_data.eq(largest)
            if sizes.is_ranked:
                m.d.comb += self.out_m[group].eq(largest)
            for name, stack, tiles, width, out in (
                ("o", sums, self.o, 64, self.out_o),
                ("l", weights, self.l, 32, self.out_l),
            ):
                joined = self._join(
                    m,
                    f"{name}{group}",
                    [tile[group] for tile in tiles],
                    stack.r_data,
                    width,
                    (loads, valid_o, flags_o),
                    shifts,
                )
                m.d.comb += [stack.w_data.eq(joined), out[group].eq(joined)]
        return m

    def _stack(self, m: Module, name: str, bits: int) -> Sram:
        sizes = self.sizes
        depth = sizes.n_levels << address_bits(sizes.beats)
        sram = Sram(depth=depth, n_lanes=1, lane_bits=bits)
        m.submodules[f"stack_{name}"] = sram
        return sram

    def _maxima(
        self,
        m: Module,
        group: int,
        valid_m: Any,
        flags_m: dict[str, Any],
        valid_s: Any,
        flags_s: dict[str, Any],
        stack: Sram,
    ) -> dict[str, Any]:
        """Compare a node's maximum with the stack's; return both sums' shifts."""
        sizes = self.sizes
        blocks = Sram(depth=sizes.n_heads, n_lanes=1, lane_bits=MAX_BITS)
        m.submodules[f"block_maxima{group}"] = blocks
        heads = [
            min(index * sizes.n_groups + group, sizes.n_q_blocks - 1) // sizes.head_blocks
            for index in range(sizes.beats)
        ]
        table = Memory(shape=unsigned(address_bits(sizes.n_heads)), depth=len(heads), init=heads)
        m.submodules[f"heads{group}"] = table
        port = table.read_port(domain="comb")
        m.d.comb += [
            port.addr.eq(flags_m["beat"]),
            blocks.w_en.eq(self.maximum_valid),
            blocks.w_addr.eq(self.head),
            blocks.w_mask.eq(1),
            blocks.w_data.eq(self.maximum),
            blocks.r_en.eq(valid_m & flags_m["load"]),
            blocks.r_addr.eq(port.data),
        ]
        so_far = Signal(signed(MAX_BITS), name=f"largest{group}", reset_less=True)
        left = Mux(flags_s["load"], blocks.r_data.as_signed(), so_far)
        right = stack.r_data.as_signed()
        is_right = flags_s["join"] & (right > left)
        apart = Mux(is_right, right - left, left - right)[:MAX_BITS]
        result: dict[str, Any] = {"largest": so_far}
        shift = Signal(6, name=f"shift{group}", reset_less=True)
        vanishes = Signal(name=f"vanishes{group}", reset_less=True)
        on_left = Signal(name=f"on_left{group}", reset_less=True)
        with m.If(valid_s):
            m.d.sync += [
                so_far.eq(Mux(is_right, right, left)),
                shift.eq(apart),
                vanishes.eq(apart >= 63),
                on_left.eq(is_right),
            ]
        return result | {"shift": shift, "vanishes": vanishes, "on_left": on_left}

    def _join(
        self,
        m: Module,
        name: str,
        tiles: list[Any],
        stacked: Any,
        width: int,
        stage: tuple[Any, Any, dict[str, Any]],
        shifts: dict[str, Any],
    ) -> Any:
        """Add up the tiles' beats; join them, or what there is so far, with the stack's."""
        loads, valid, flags = stage
        bits = len(stacked)
        summed = Signal(bits, name=f"summed_{name}", reset_less=True)
        joined = Signal(bits, name=f"joined_{name}", reset_less=True)
        lanes = [slice(at, at + width) for at in range(0, bits, width)]
        with m.If(loads):
            m.d.sync += summed.eq(
                Cat(add_tree([tile[lane] for tile in tiles])[:width] for lane in lanes)
            )
        results = []
        for lane in lanes:
            left = Mux(flags["load"], summed[lane], joined[lane])
            right = Mux(flags["join"], stacked[lane], 0)
            # only the sum whose maximum is the smaller is shifted
            shifted = wire(m, Mux(shifts["on_left"], left, right), f"{name}_{lane.start}_shifted")
            kept = Mux(shifts["on_left"], right, left)
            at = f"{name}_{lane.start}"
            if (
                width != 64
            ):  # a sum of weights is unsigned, and 0 when shifted by more than its bits
                shifted = Cat(shifted, Const(0, 32))
            floor, is_up = round_parts(
                m, at, shifted.as_signed(), shifts["shift"], shifts["vanishes"]
            )
            results.append((kept + floor[:width] + is_up)[:width])
        with m.If(valid):
            m.d.sync += joined.eq(Cat(*results))
        return joined


def _index(one_hot: Any) -> Any:
    """Position of the only bit that is set."""
    width = len(one_hot)
    bits = []
    for bit in range(address_bits(width)):
        bits.append(Cat(one_hot[i] for i in range(width) if i >> bit & 1).any())
    return Cat(*bits)
