"""KIVI's part of unit H beside the tiles: the late encoder, and the memory of keys' scales."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal

from romsim_rtl.attention_command import delay
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.kivi_late import READ_CYCLES, KiviLate
from romsim_rtl.memory import Sram

__all__ = ["build_late"]


def build_late(
    m: Module,
    sizes: AttentionSizes,
    control: Any,
    tiles: list[Any],
    held: dict[str, Any],
    pages: Any = None,
) -> Any:
    """Add what KIVI encodes after attention, and the zeros and scales of its keys.

    Parameters
    ----------
    control, tiles
        The `AttentionControl`, and the tiles' faces.
    held
        ``pos`` and ``layer`` of the instruction.
    pages
        The `PageTable`, if there is one: attention does not read it when codes are made.

    Returns
    -------
    Value
        Unit H is busy with it.
    """
    m.submodules.late = late = KiviLate(sizes=sizes)
    m.d.comb += [late.start.eq(control.ends)]
    if pages is not None:
        with m.If(late.r_en):
            m.d.comb += [pages.r_en.eq(1), pages.r_page.eq(late.r_page)]
        m.d.comb += late.r_row.eq(pages.r_row)
    m.d.comb += [getattr(late, name).eq(held[name]) for name in ("pos", "layer")]
    m.submodules.k_affine = affine = Sram(
        depth=1 << len(late.g_addr), n_lanes=sizes.word_elems, lane_bits=32
    )
    reads = control.command.qk & (control.command.coded != 0)
    m.d.comb += [
        affine.w_en.eq(late.g_en),
        affine.w_addr.eq(late.g_addr),
        affine.w_mask.eq(Const(1, sizes.word_elems) << late.g_channel),
        affine.w_data.eq(late.g_data.replicate(sizes.word_elems)),
        affine.r_en.eq(reads),
        affine.r_addr.eq(control.group_addr),
    ]
    is_read = Signal()
    m.d.sync += is_read.eq(reads)
    _, sent = delay(m, is_read, {"word": affine.r_data}, sizes.broadcast_cycles, "k_affine")
    signature = late.command.signature
    names = [path[0] for path, _, _ in signature.flatten(late.command)]
    values = {name: getattr(late.command, name) for name in names}
    active = ("read_k", "read_v", "write_k", "write_v")
    busy = Cat(values[name] for name in active).any()
    valid, values = delay(m, busy, values, sizes.broadcast_cycles, "late")
    for tile in tiles:
        m.d.comb += tile.k_affine.eq(sent["word"])
        for name in names:
            value = values[name]
            if name in active:
                value = Mux(valid, value, 0)
            m.d.comb += getattr(tile.late, name).eq(value)
    # the words of the tile that has read, after its two cycles
    read, where = delay(
        m,
        valid & (values["read_k"] | values["read_v"]),
        {"tile": values["tile"]},
        READ_CYCLES,
        "late_read",
    )
    word = tiles[0].late_word
    for index in range(1, sizes.n_tiles):
        word = Mux(where["tile"] == index, tiles[index].late_word, word)
    _, collected = delay(m, read, {"word": word}, sizes.collect_cycles, "late_collect")
    m.d.comb += late.word.eq(collected["word"])
    return late.busy
