"""Buffers of unit H's results: attention sums and the numerators' sums, read by unit V."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal

from romsim_rtl.attention_sizes import MAX_BITS, log2
from romsim_rtl.memory import Sram, address_bits

__all__ = ["build_outputs"]


def build_outputs(m: Module, side: Any, tree: Any, token: Any, mass: Any = None) -> None:
    """Keep the results of each token in flight for unit V, and drive its read ports.

    Parameters
    ----------
    side, tree
        The `HSide` and its `MergeTree`.
    token
        In-flight index of the token that attends.
    mass
        The `MassSide`, which reads sums of numerators and their maxima while V does not.
    """
    sizes = side.sizes
    beat_bits = address_bits(sizes.beats)
    several = sizes.n_inflight > 1
    token_bits = address_bits(sizes.n_inflight)
    w_addr = Cat(tree.out_beat, token) if several else tree.out_beat
    l_en, l_addr = side.l_en, side.l_addr
    if mass is not None:
        l_en, l_addr = l_en | mass.head_en, Mux(mass.head_en, mass.head, l_addr)
    blocks = l_addr * sizes.head_blocks
    l_beat = (blocks >> log2(sizes.n_groups))[:beat_bits]
    reads = {"o": (side.o_en, side.o_addr, 64 * 32), "l": (l_en, l_beat, 32)}
    if mass is not None:
        reads["m"] = (l_en, l_beat, MAX_BITS)
    l_group: Any = None
    if sizes.n_groups > 1:
        l_group = Signal(log2(sizes.n_groups), reset_less=True)
        with m.If(l_en):
            m.d.sync += l_group.eq(blocks)
    words: dict[str, list[Any]] = {name: [] for name in reads}
    for name, (enable, beat, bits) in reads.items():
        for group in range(sizes.n_groups):
            depth = sizes.n_inflight << beat_bits
            sram = Sram(depth=depth, n_lanes=1, lane_bits=bits)
            m.submodules[f"{name}_buffer{group}"] = sram
            m.d.comb += [
                sram.w_en.eq(tree.out_valid),
                sram.w_addr.eq(w_addr),
                sram.w_mask.eq(1),
                sram.w_data.eq(getattr(tree, f"out_{name}")[group]),
                sram.r_en.eq(enable),
                sram.r_addr.eq(Cat(beat, side.rd_token[:token_bits]) if several else beat),
            ]
            words[name].append(sram.r_data)
    for lane in range(sizes.n_lanes):
        m.d.comb += side.o_data[lane].eq(words["o"][lane // 32].word_select(lane % 32, 64))
    m.d.comb += side.l_data.eq(_of_group(words["l"], l_group))
    if mass is not None:
        m.d.comb += mass.l.eq(side.l_data)
        m.d.comb += mass.m.eq(_of_group(words["m"], l_group))


def _of_group(words: list[Any], group: Any) -> Any:
    value = words[0]
    for index in range(1, len(words)):
        value = Mux(group == index, words[index], value)
    return value
