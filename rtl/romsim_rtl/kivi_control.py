"""How ``attn`` reads 16-bit words, and where KIVI's keys and values lie: windows and codes."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib.memory import Memory

from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.kivi_sizes import KiviSizes
from romsim_rtl.memory import address_bits

__all__ = [
    "build_halves",
    "build_kivi_addresses",
    "group_bits",
    "kivi_of",
    "place_tables",
    "window_bits",
    "window_words",
]


def kivi_of(sizes: AttentionSizes) -> KiviSizes:
    """Return the rows of a chip with codec ``kivi``."""
    assert sizes.kivi is not None
    return sizes.kivi


def window_bits(sizes: AttentionSizes) -> int:
    """Address bits of the larger of the windows' banks."""
    return address_bits(window_words(sizes, "v"))


def window_words(sizes: AttentionSizes, side: str) -> int:
    """Words of a tile's window of keys (``k``) or values (``v``)."""
    return sizes.n_layers * sizes.n_kv_heads * kivi_of(sizes).places[side] * sizes.row_words


def group_bits(sizes: AttentionSizes) -> int:
    """Address bits of the zeros and scales of keys."""
    heads = sizes.n_layers * sizes.n_kv_heads
    return address_bits(heads * kivi_of(sizes).n_groups * sizes.row_words)


def place_tables(m: Module, sizes: AttentionSizes, row: Any, name: str) -> dict[str, Any]:
    """Look up a row of tokens: its places in the windows, and where words of keys begin for it."""
    kivi = kivi_of(sizes)
    tables = {
        "k": [kivi.place("k", index) for index in range(kivi.n_rows)],
        "v": [kivi.place("v", index) for index in range(kivi.n_rows)],
        "coded": [kivi.coded_rows(index) for index in range(kivi.n_rows)],
    }
    found = {}
    for kind, values in tables.items():
        table = Memory(
            shape=unsigned(max(values).bit_length() or 1), depth=len(values), init=values
        )
        m.submodules[f"{name}_{kind}"] = table
        port = table.read_port(domain="comb")
        m.d.comb += port.addr.eq(row)
        found[kind] = port.data
    return found


def build_kivi_addresses(
    m: Module, control: Any, *, word: Any, tok: Any, kv: Any, is_pv: Any, pos: Any
) -> Any:
    """Address a row of tokens for ``attn``; return whether words are among what it reads.

    Parameters
    ----------
    control
        The `AttentionControl`; its command is driven.
    word, tok, kv
        Word of a head, slot of the block, KV head.
    is_pv
        Values are read, not keys.
    pos
        Of the token that attends.
    """
    sizes, command = control.sizes, control.command
    kivi, tiles = kivi_of(sizes), sizes.n_tiles
    bits = address_bits(kivi.n_rows) + 1
    row, behind = Signal(bits, name="token_row"), Signal(bits, name="row_behind_sinks")
    m.d.comb += [
        row.eq(control._index * sizes.block_slots + tok),
        behind.eq(row - kivi.sink_rows),
    ]
    here = place_tables(m, sizes, row, "row_places")
    newest = place_tables(m, sizes, pos >> log2(tiles), "newest_places")
    # tokens from here on are words, sinks left out
    end = Signal(len(pos) + 1, name="first_word_token")
    left = kivi.plain_sinks + kivi.residual
    m.d.comb += end.eq(
        Mux(
            is_pv,
            Mux(pos >= left, pos - kivi.residual, kivi.plain_sinks),
            newest["coded"] << log2(tiles),
        )
    )
    first = Signal(len(pos) + 1, name="first_of_row")
    coded = Signal(log2(tiles) + 1, name="coded_tiles")
    m.d.comb += first.eq(row << log2(tiles))
    with m.If((row < kivi.sink_rows) | (end <= first)):
        m.d.comb += coded.eq(0)
    with m.Elif(end - first >= tiles):
        m.d.comb += coded.eq(tiles)
    with m.Else():
        m.d.comb += coded.eq(end - first)
    head = Signal(address_bits(sizes.n_layers * sizes.n_kv_heads), name="kv_head")
    places = kivi.places
    wt = sizes.row_words
    words: Any = behind * wt  # from a head's first codes to the row's
    group: Any = behind >> log2(kivi.group_rows)
    group_words = group * wt
    if control._pages is not None:
        words = control._pages.words[0]
        in_group = row[: log2(kivi.group_rows)] * wt
        group_words = (words - in_group)[: len(words)] >> log2(kivi.group_rows)
    m.d.comb += [
        head.eq(control.layer * sizes.n_kv_heads + kv),
        command.coded.eq(coded),
        command.bank.eq(head * (kivi.code_rows * wt) + words + word),
        command.window.eq(
            Mux(
                is_pv,
                (head * places["v"] + here["v"]) * wt + word,
                (head * places["k"] + here["k"]) * wt + word,
            )
        ),
        control.group_addr.eq(head * (kivi.n_groups * wt) + group_words + word),
    ]
    return coded != tiles


def build_halves(
    m: Module, command: Any, is_qk: Any, is_pv: Any, is_wide: Any
) -> tuple[Signal, Signal]:
    """Read words in two cycles, codes in one; return whether a key's, a value's are read."""
    is_second = Signal()
    steps_qk, steps_pv = Signal(), Signal()
    with m.If(is_qk | is_pv):
        m.d.sync += is_second.eq(~is_second & is_wide)
    m.d.comb += [
        command.first_half.eq(~is_second),
        command.last_half.eq(is_second | ~is_wide),
        steps_qk.eq(is_qk & command.last_half),
        steps_pv.eq(is_pv & command.last_half),
    ]
    return steps_qk, steps_pv
