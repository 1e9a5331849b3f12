"""Query, key and value words from the broadcast bus to the tiles' banks."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_command import held
from romsim_rtl.attention_sizes import CODES_BITS, SHIFT_BITS, AttentionSizes, log2
from romsim_rtl.kivi_control import place_tables, window_bits
from romsim_rtl.memory import address_bits

__all__ = ["QKV", "BroadcastWriter", "broadcast_members", "query_bits", "write_signature"]

QKV = 2
"""``bc_kind`` of query, key and value words."""


def broadcast_members(sizes: AttentionSizes, *, block_bits: int) -> dict[str, Any]:
    """List the broadcast bus's members, ``bc_*`` of docs/rtl.md, where it reaches the tiles.

    Parameters
    ----------
    block_bits
        Bits of a block's index.
    """
    groups = sizes.n_groups
    members: dict[str, Any] = {
        "bc_kind": In(2),
        "bc_token": In(3),
        "bc_layer": In(8),
        "bc_pos": In(16),
        "bc_block": In(block_bits),
        "bc_mask": In(groups),
        "bc_codes": In(CODES_BITS).array(groups),
        "bc_shift": In(SHIFT_BITS).array(groups),
    }
    if sizes.words.is_affine:
        members["bc_affine"] = In(sizes.words.block_bits).array(groups)
    if sizes.words.has_halves:
        members["bc_second"] = In(CODES_BITS).array(groups)
    return members


def write_signature(sizes: AttentionSizes) -> wiring.Signature:
    """Describe the write bus, controller to tiles; an array index is a bank of `BlockBank`.

    Members
    -------
    q_en
        For each lane, its query buffer is written.
    k_en, v_en, tile
        The K or V bank of one tile is written; ``tile`` if there are several, and for each bank
        where KV heads have slots of their own.
    q_addr, kv_addr, mask, codes, shifts
        Word addresses, blocks of the word, and the word.
    affine, second
        Zeros and scales of the word's blocks, or their second halves; if the codec has such.
    """
    banks, blocks = sizes.n_banks, sizes.word_blocks
    members: dict[str, Any] = {
        "q_en": Out(sizes.heads_parallel).array(banks),
        "k_en": Out(1).array(banks),
        "v_en": Out(1).array(banks),
        "q_addr": Out(query_bits(sizes)).array(banks),
        "kv_addr": Out(_written_bits(sizes)).array(banks),
        "mask": Out(blocks).array(banks),
        "codes": Out(CODES_BITS * blocks).array(banks),
        "shifts": Out(SHIFT_BITS * blocks).array(banks),
    }
    if sizes.words.is_affine:
        members["affine"] = Out(sizes.words.block_bits * blocks).array(banks)
    if sizes.words.has_halves:
        members["second"] = Out(CODES_BITS * blocks).array(banks)
    if sizes.n_tiles > 1:
        tile = Out(log2(sizes.n_tiles))
        members["tile"] = tile.array(banks) if sizes.is_ranked else tile
    return wiring.Signature(members)


def _written_bits(sizes: AttentionSizes) -> int:
    """Address bits of what the broadcast writes: a K or V bank, or its window."""
    return address_bits(sizes.bank_words) if sizes.kivi is None else window_bits(sizes)


def query_bits(sizes: AttentionSizes) -> int:
    """Address bits of the query buffer: in-flight index above the word of an entry.

    With sinks, one bit for their query; there one token is in flight.
    """
    word = address_bits(sizes.n_entries * sizes.row_words) + (sizes.sinks > 0)
    return word + (address_bits(sizes.n_inflight) if sizes.n_inflight > 1 else 0)


class BroadcastWriter(wiring.Component):
    """Find out where each block of a broadcast beat belongs; one cycle.

    Parameters
    ----------
    sizes
        Loop sizes.
    block_bits
        Bits of a block's index on the bus.

    Members
    -------
    bc_* : In
        The bus.
    rows : In, for each token in flight
        Its row in the tile, where a block table gives it.
    free : In
        For each KV head the slot that the token takes once all were taken, the first lowest, and
        with a block table its row above it; where heads have slots of their own.
    write : Out(write_signature)
        The writes, one cycle later.
    """

    def __init__(self, *, sizes: AttentionSizes, block_bits: int) -> None:
        self.sizes = sizes
        members = broadcast_members(sizes, block_bits=block_bits)
        if sizes.looks_up_rows:
            members["rows"] = In(address_bits(sizes.tile_tokens)).array(sizes.n_inflight)
        if sizes.is_ranked:
            row = address_bits(sizes.tile_tokens) if sizes.block else 0
            members["free"] = In((address_bits(sizes.context) + row) * sizes.n_kv_heads)
        super().__init__(members | {"write": Out(write_signature(sizes))})

    def _places(self) -> tuple[list[int], dict[str, slice]]:
        """Table of all blocks of q | k | v: one-hot lane, q word, word of a KV row, block.

        With sinks, their queries come before, in whole beats.
        """
        sizes = self.sizes
        lanes = sizes.heads_parallel
        widths = {
            "lane": lanes,
            "is_k": 1,
            "is_v": 1,
            "word": address_bits(sizes.n_entries * sizes.row_words) + (sizes.sinks > 0),
            "offset": address_bits(sizes.layer_words) if sizes.kivi is None else window_bits(sizes),
        }
        if sizes.is_ranked:
            widths["kv"] = address_bits(sizes.n_kv_heads)
        widths["block"] = address_bits(sizes.word_blocks)
        fields, at = {}, 0
        for name, width in widths.items():
            fields[name] = slice(at, at + width)
            at += width
        rows = []
        for index in range(sizes.n_q_blocks + 2 * sizes.n_kv_blocks):
            kv, is_q = index - sizes.n_q_blocks, index < sizes.n_q_blocks
            head, inside = divmod(index if is_q else kv % sizes.n_kv_blocks, sizes.head_blocks)
            word, block = divmod(inside, sizes.word_blocks)
            values = {"block": block}
            if is_q:
                entry, lane = sizes.place_head(head)
                values |= {"lane": 1 << lane, "word": entry * sizes.row_words + word}
            else:
                values |= {
                    "is_k": int(kv < sizes.n_kv_blocks),
                    "is_v": int(kv >= sizes.n_kv_blocks),
                    "offset": head * self._kv_row(kv >= sizes.n_kv_blocks) + word,
                }
                if sizes.is_ranked:
                    values["kv"] = head
            rows.append(sum(value << fields[name].start for name, value in values.items()))
        if sizes.sinks:
            sink = 1 << fields["word"].stop - 1
            queries = [row | sink for row in rows[: sizes.n_q_blocks]]
            rows = queries + [0] * (sizes.sink_blocks - len(queries)) + rows
        return rows, fields

    def _kv_row(self, is_value: bool) -> int:
        sizes = self.sizes
        if sizes.kivi is None:
            return sizes.kv_row
        return sizes.kivi.places["v" if is_value else "k"] * sizes.row_words

    def _bases(self, m: Module) -> tuple[Any, Any]:
        """Addresses of the token's first words in its layer, of keys and values."""
        sizes = self.sizes
        row: Any = self.bc_pos >> log2(sizes.n_tiles)
        if sizes.looks_up_rows:
            row = self.rows[0]
            for token in range(1, sizes.n_inflight):
                row = Mux(self.bc_token == token, self.rows[token], row)
        if sizes.kivi is None:
            base = self.bc_layer * sizes.layer_words + row * sizes.row_words
            return base, base
        places = place_tables(m, sizes, row, "row_places")
        k, v = (
            self.bc_layer * (sizes.n_kv_heads * self._kv_row(side == "v"))
            + places[side] * sizes.row_words
            for side in "kv"
        )
        return k, v

    def _own_slot(self, m: Module, bank: int, kv: Any) -> tuple[Any, Any]:
        """Slot of the token in one KV head, and its row."""
        sizes = self.sizes
        slot = Signal(address_bits(sizes.context), name=f"slot{bank}")
        takes_next = self.bc_pos <= sizes.heavy + sizes.window
        freed = self.free.word_select(kv, len(self.free) // sizes.n_kv_heads)
        m.d.comb += slot.eq(Mux(takes_next, self.bc_pos, freed[: len(slot)]))
        if not sizes.block:
            return slot, slot >> log2(sizes.n_tiles)
        return slot, Mux(takes_next, self.rows[0], freed[len(slot) :])

    def elaborate(self, platform: Any) -> Module:
        """Build one table for each bank, and the registers."""
        m = Module()
        sizes, write = self.sizes, self.write
        rows, fields = self._places()
        valid = Signal()
        m.d.comb += valid.eq(self.bc_kind == QKV)
        k_base, v_base = self._bases(m)
        for bank in range(sizes.n_banks):
            table = Memory(shape=unsigned(fields["block"].stop), depth=len(rows), init=rows)
            m.submodules[f"places{bank}"] = table
            port = table.read_port(domain="comb")
            m.d.comb += port.addr.eq((self.bc_block + bank)[: len(port.addr)])
            place = {name: port.data[part] for name, part in fields.items()}
            # an aligned beat fills one word; else a bank takes its own lane group
            present = self.bc_mask.any() if sizes.n_banks == 1 else self.bc_mask[bank]
            if sizes.is_ranked:
                slot, row = self._own_slot(m, bank, place["kv"])
                k_base = self.bc_layer * sizes.layer_words + row * sizes.row_words
                if sizes.n_tiles > 1:
                    with m.If(valid):
                        m.d.sync += held(m, write.tile[bank]).eq(slot[: log2(sizes.n_tiles)])
            with m.If(valid):
                m.d.sync += [
                    write.q_en[bank].eq(place["lane"] & present.replicate(len(place["lane"]))),
                    write.k_en[bank].eq(place["is_k"] & present),
                    write.v_en[bank].eq(place["is_v"] & present),
                    held(m, write.kv_addr[bank]).eq(
                        (k_base if sizes.kivi is None else Mux(place["is_k"], k_base, v_base))
                        + place["offset"]
                    ),
                    held(m, write.q_addr[bank]).eq(
                        Cat(place["word"], self.bc_token[: address_bits(sizes.n_inflight)])
                        if sizes.n_inflight > 1
                        else place["word"]
                    ),
                ]
                m.d.sync += self._word(m, bank, place["block"])
            with m.Else():
                m.d.sync += [write.q_en[bank].eq(0), write.k_en[bank].eq(0), write.v_en[bank].eq(0)]
        if sizes.n_tiles > 1 and not sizes.is_ranked:
            with m.If(valid):
                m.d.sync += held(m, write.tile).eq(self.bc_pos[: log2(sizes.n_tiles)])
        return m

    def _word(self, m: Module, bank: int, block: Any) -> list[Any]:
        """Put the beat's blocks where the word wants them: which of them counts, the mask says."""
        sizes = self.sizes
        if sizes.n_banks == 1:
            groups = [index % sizes.n_groups for index in range(sizes.word_blocks)]
            mask: Any = (self.bc_mask << block)[: sizes.word_blocks]
        else:
            groups = [bank] * sizes.word_blocks
            mask = Mux(self.bc_mask[bank], Const(1, sizes.word_blocks) << block, 0)
        more = []
        for name in ("affine", "second"):
            if hasattr(self, f"bc_{name}"):
                parts = Cat(getattr(self, f"bc_{name}")[group] for group in groups)
                more.append(held(m, getattr(self.write, name)[bank]).eq(parts))
        return [
            *more,
            held(m, self.write.mask[bank]).eq(mask),
            held(m, self.write.codes[bank]).eq(Cat(self.bc_codes[group] for group in groups)),
            held(m, self.write.shifts[bank]).eq(Cat(self.bc_shift[group] for group in groups)),
        ]
