"""SRAM words of both machines as elements: what the cycle model says and what the RTL wrote.

An element is one number in one memory: where (tile, in-flight token, index), when, and its value.
How words are laid out in the RTL's memories is known here and nowhere in the cycle model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle.trace import ALL_TILES
from romsim.rtl_words_kivi import KIVI_MEMORY, late_cycles, model_late, rtl_late
from romsim.rtl_words_lora import Z_MEMORY, delta_cycles, z_cycle
from romsim.rtl_words_mass import MASS_MEMORIES, MASS_MEMORY, model_mass, rtl_mass
from romsim_compiler.target import MX_BLOCK
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.encoding import first_row
from romsim_rtl.lside import LSideConfig
from romsim_rtl.lside_run import MATVEC_CYCLES
from romsim_rtl.memory import address_bits
from romsim_rtl.mx_quantizer import QUANTIZER_CYCLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.timekeeper import Event
    from romsim.cycle.trace import SramWrite
    from romsim_compiler.description import Description
    from romsim_rtl.die import Die
    from romsim_rtl.driver_trace import Writes

__all__ = ["ELEMENT", "Place", "WordMap"]

ELEMENT = np.dtype(
    [("cycle", "i8"), ("token", "i8"), ("index", "i8"), ("value", "i8"), ("event", "i8")]
)
"""One element; ``event`` is the number of its instruction, -1 where only the RTL knows it."""

Place = tuple[str, int]
"""A memory's name, and the tile, or -1 for unit V."""

_SHARED = ("K", "V", "KC", "VC", "KG", "ZB", *MASS_MEMORIES)  # not kept by in-flight index
_XB_WORD = MX_BLOCK + 2  # codes, shift, sum of codes
_WORD_DELAY = 4  # cycles from a word of the embedding at unit V to X
_ROW_DELAY = MATVEC_CYCLES - 1  # from a step's last word to its rows at the wires


class WordMap:
    """Turns words into elements.

    Parameters
    ----------
    description
        The compiled chip.
    adapter
        Resident adapter that the run uses.
    die
        What the chip is built for, if not for the description alone.

    Raises
    ------
    SpecError
        If the RTL has no hardware for it.
    """

    def __init__(
        self, description: Description, *, adapter: str | None = None, die: Die | None = None
    ) -> None:
        spec, target = description.spec, description.target
        self._target, self._spec, self._description = target, spec, description
        self._groups = description.groups
        self.sizes = AttentionSizes.of(
            target,
            spec,
            context=description.context,
            linear_frac=description.numerics.linear_frac,
        )
        self._l = die.l_side if die else LSideConfig.of(description)
        self._lanes = target.vector.n_lanes
        self._n_tiles = target.array.n_tiles
        longest = max(2 * spec.hidden_dim, spec.q_dim + 2 * spec.kv_dim, spec.dim)
        beats = -(-longest // self._lanes)
        self._bits = {
            "x": address_bits(-(-spec.dim // self._lanes)),
            "y": address_bits(beats + 1),
            "d": address_bits(beats + 1),
        }
        self._hop = target.network.broadcast_cycles
        self._adapter = {} if adapter is None else description.loras[adapter].groups
        self._y_banks = target.schedule.n_inflight if spec.has_sub_norms else 1

    # what the cycle model says

    def expected(
        self, words: Iterable[SramWrite], events: Sequence[Event], *, position: int
    ) -> dict[Place, NDArray[Any]]:
        """Return the cycle model's words of one program as elements, each with its cycle.

        Parameters
        ----------
        position
            Of the program's first token.
        """
        by_issue = {issue: number for number, (_, issue, _) in enumerate(events)}
        counts: dict[tuple[int, str], int] = {}
        # the host port is no memory: who compares logits sees them there
        listed = [word for word in words if word.memory != "LOGITS"]
        for word in listed:
            key = (word.issue, word.memory)
            counts[key] = counts.get(key, 0) + 1
        parts: dict[Place, list[NDArray[Any]]] = {}
        for word in listed:
            number = by_issue[word.issue]
            instruction = events[number][0]
            count = counts[word.issue, word.memory]
            for memory, index, values, cycles in self._model_word(
                word, instruction, count, position
            ):
                part = np.zeros(len(values), dtype=ELEMENT)
                part["cycle"], part["event"] = cycles, number
                part["token"] = word.token if word.memory not in _SHARED else -1
                part["index"], part["value"] = index, values
                if word.tile != ALL_TILES:
                    tiles: Iterable[int] = [word.tile]
                else:
                    tiles = range(self._n_tiles) if memory in self._in_tiles() else [ALL_TILES]
                for tile in tiles:
                    parts.setdefault((memory, tile), []).append(part)
        return {place: np.concatenate(found) for place, found in parts.items()}

    def _in_tiles(self) -> set[str]:
        ports = range(self._l.tile.n_ports)
        return {"Q", "K", "V", *(f"{kind}{port}" for kind in ("XB", "ZB") for port in ports)}

    def _model_word(
        self, word: SramWrite, instruction: Any, count: int, position: int
    ) -> list[tuple[Any, ...]]:
        values = word.data
        lanes, groups = self._lanes, self._lanes // MX_BLOCK
        pace = 2 if instruction.op == "glu" else 1  # cycles a beat: gate, then up
        idle = word.idle
        if instruction.op == "attn":
            n_tokens = position + word.token + 1
            if word.memory in MASS_MEMORIES:
                return model_mass(word, self.sizes, n_tokens)
            if word.memory in ("VC", "KC", "KG"):
                return model_late(word, self._description, self.sizes, n_tokens)
            idle -= late_cycles(self._description, n_tokens)
            # a beat's sum over the tiles joins the nodes of the merge stack one a cycle
            held = self._target.kv.held(position + word.token + 1)
            last_block = (held - 1) // self._target.attention.attn_block
            pace = 1 + (last_block >> 1).bit_count()
        if word.memory in ("X", "Y", "D", "O"):
            index = word.address * lanes + word.lane + np.arange(len(values))
            if instruction.op == "matvec":
                cycles: Any = self._row_cycle(word, instruction)
            elif instruction.op == "lora":
                image = self._adapter[instruction.operand]
                cycles = delta_cycles(word, image, self._description, index)
            elif instruction.op == "embed":
                cycles = self._embed_cycles(word, instruction, index)
            else:
                # values that go to Y are there before those of x buffers are quantised and sent
                early = QUANTIZER_CYCLES + self._hop if word.memory == "Y" else 0
                cycles = idle - 1 - early - pace * (count - 1 - word.beat)
            return [(word.memory, index, values, cycles)]
        if word.memory in ("XB", "ZB"):
            padded = np.zeros(_XB_WORD, dtype=np.int64)
            padded[: len(values) - 2] = values[:-2]
            padded[-2:] = values[-2:]
            index = word.address * _XB_WORD + np.arange(_XB_WORD)
            beats = -(-count // groups)
            cycle = word.idle - pace * (beats - 1 - word.address // groups)
            if word.memory == "ZB":
                image = self._adapter[instruction.operand]
                cycle = z_cycle(word, image, self._description)
            ports = range(self._l.tile.n_ports)
            return [(f"{word.memory}{port}", index, padded, cycle) for port in ports]
        if word.memory == "OL":  # with every block of the head
            blocks = word.address * self.sizes.head_blocks + np.arange(self.sizes.head_blocks)
            cycles = idle - 1 - pace * (self.sizes.beats - 1 - blocks // groups)
            return [("OL", blocks, np.full(len(blocks), values[0]), cycles)]
        return self._model_encoded(word)

    def _row_cycle(self, word: SramWrite, instruction: Any) -> int:
        group = self._groups[instruction.operand]
        mapping = group.mapping
        row = word.address * self._lanes + word.lane - first_row(group, self._spec)
        step, inside = divmod(row, mapping.rows_per_step)
        return (
            word.issue
            + step * mapping.step_cycles(self._lanes)
            + mapping.wpc * mapping.planes
            + (mapping.ks.bit_length() - 1)
            + _ROW_DELAY
            + inside // self._lanes
            + self._target.network.collect_cycles
        )

    def _embed_cycles(
        self, word: SramWrite, instruction: Any, index: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        planes = self._groups[instruction.operand].mapping.planes
        last = (index // self._target.array.word_codes + 1) * planes - 1
        first = word.issue + 4 + self._target.network.collect_cycles
        return np.asarray(first + last + _WORD_DELAY)

    def copied(self, words: Iterable[SramWrite]) -> dict[Place, NDArray[Any]]:
        """Return the cycle model's words of one copy of a page as elements.

        Cycles count from the one after the copy's command.
        """
        parts: dict[Place, list[NDArray[Any]]] = {}
        for word in words:
            memory, index, values, _ = self._model_encoded(word)[0]
            part = np.zeros(len(values), dtype=ELEMENT)
            part["cycle"], part["token"] = word.beat + self._hop + 1, -1
            part["index"], part["value"] = index, values
            parts.setdefault((memory, word.tile), []).append(part)
        return {place: np.concatenate(found) for place, found in parts.items()}

    def _model_encoded(self, word: SramWrite) -> list[tuple[Any, ...]]:
        """Codes and shifts of a query head, or of a word of a KV head."""
        sizes = self.sizes
        elems = sizes.head_dim if word.memory == "Q" else sizes.word_elems
        n_blocks = -(-len(word.data) // (MX_BLOCK + 1))
        if word.memory != "Q" and not sizes.words.block_bits:
            n_blocks = 0  # elements alone
        n_codes = len(word.data) - n_blocks
        size = elems + elems // MX_BLOCK
        index = np.concatenate((np.arange(n_codes), elems + np.arange(n_blocks)))
        if word.memory == "Q":
            is_sink, head = divmod(word.address, sizes.n_heads)
            first, beat_of = head * sizes.head_blocks, 0 if is_sink else sizes.sink_blocks
        else:
            head, inside = self._kv_place(word.address, word.memory)
            first = head * sizes.head_blocks + inside * sizes.word_blocks
            beat_of = (
                sizes.sink_blocks
                + sizes.n_q_blocks
                + (sizes.n_kv_blocks if word.memory == "V" else 0)
            )
        block = np.where(index < elems, index // MX_BLOCK, index - elems) + first + beat_of
        beats = -(-(sizes.n_q_blocks + 2 * sizes.n_kv_blocks) // sizes.n_groups)
        beats += sizes.sink_blocks // sizes.n_groups
        # queries do not wait for the encoder of keys and values
        late = sizes.words.encode_cycles if word.memory == "Q" else 0
        cycles = word.idle - late - (beats - 1 - block // sizes.n_groups)
        return [(word.memory, word.address * size + index, word.data, cycles)]

    def _kv_place(self, address: int, memory: str) -> tuple[int, int]:
        """Return the KV head of a bank's word, and the word's number in the head."""
        sizes = self.sizes
        row, inside = divmod(address, sizes.row_words)
        rows = sizes.tile_tokens if sizes.kivi is None else sizes.kivi.places[memory.lower()]
        return row // rows % sizes.n_kv_heads, inside

    # what the RTL wrote

    def written(self, writes: Iterable[Writes]) -> dict[Place, NDArray[Any]]:
        """Return the RTL's words as elements, of the memories that the cycle model has too."""
        parts: dict[Place, list[NDArray[Any]]] = {}
        for one in writes:
            for place, token, index, value, mask in self._rtl_word(one):
                cycles = np.broadcast_to(one.cycles[:, None], index.shape)
                part = np.zeros(int(mask.sum()), dtype=ELEMENT)
                part["cycle"], part["event"] = cycles[mask], -1
                part["token"] = np.broadcast_to(token[:, None], index.shape)[mask]
                part["index"], part["value"] = index[mask], value[mask]
                parts.setdefault(place, []).append(part)
        return {place: np.concatenate(found) for place, found in parts.items()}

    def _rtl_word(self, one: Writes) -> list[tuple[Any, ...]]:
        name = one.memory.name
        if match := re.fullmatch(r"vector0\.group(\d+)\.(x|y)(\d*)", name):
            return self._rtl_beat(one, int(match[1]), match[2], int(match[3] or 0))
        if name in ("hside0.lora.d_buffer", "lside0.adders.d_buffer"):
            return self._rtl_adapted(one)
        if match := re.fullmatch(r"lside0\.tile(\d+)\.x(\d+)\.bank(\d+)", name):
            return self._rtl_input(one, "XB", *map(int, match.groups()))
        if match := re.fullmatch(Z_MEMORY, name):
            return self._rtl_input(one, "ZB", *map(int, match.groups()))
        if match := re.fullmatch(
            r"hside0\.tile(\d+)\.(q\d+|[kv](?:_second)?)\.(codes|shifts)\d+", name
        ):
            return self._rtl_encoded(one, int(match[1]), match[2], match[3])
        if match := re.fullmatch(KIVI_MEMORY, name):
            return rtl_late(one, match, self.sizes)
        if match := re.fullmatch(MASS_MEMORY, name):
            return rtl_mass(one, match, self.sizes)
        if match := re.fullmatch(r"hside0\.(o|l)_buffer(\d+)", name):
            return self._rtl_sums(one, match[1], int(match[2]))
        return []

    def _rtl_beat(self, one: Writes, group: int, kind: str, bank: int) -> list[tuple[Any, ...]]:
        bits = self._bits[kind]
        token = one.addresses >> bits
        if kind == "y" and self._y_banks > 1:
            token = np.full(len(one.addresses), bank)
        word = one.addresses & (1 << bits) - 1
        index = word[:, None] * self._lanes + MX_BLOCK * group + np.arange(MX_BLOCK)
        value = one.field(0, 32, is_signed=True)
        return [((kind.upper(), ALL_TILES), token, index, value, one.masks)]

    def _rtl_adapted(self, one: Writes) -> list[tuple[Any, ...]]:
        bits = self._bits["d"]
        word = one.addresses & (1 << bits) - 1
        index = word[:, None] * self._lanes + np.arange(self._lanes)
        value = one.field(0, 32, is_signed=True)
        return [(("D", ALL_TILES), one.addresses >> bits, index, value, one.masks)]

    def _rtl_input(
        self, one: Writes, kind: str, tile: int, port: int, bank: int
    ) -> list[tuple[Any, ...]]:
        sizes, cell = self._l.tile.x if kind == "XB" else self._l.tile.z, self._l.tile.cell
        token = one.addresses >> sizes.row_bits if kind == "XB" else 0 * one.addresses - 1
        row = one.addresses & (1 << sizes.row_bits) - 1
        order = np.empty(MX_BLOCK, dtype=np.int64)
        for at in range(MX_BLOCK):
            pair, inside = divmod(at, 8)
            order[cell.lane(2 * pair + inside % 2, inside // 2)] = at
        results = []
        for lane in range(sizes.word_blocks):
            block = (row * sizes.n_banks + bank) * sizes.word_blocks + lane
            codes = one.bits[:, lane, : 8 * MX_BLOCK].reshape(-1, MX_BLOCK, 8)
            codes = codes.astype(np.int64) @ (1 << np.arange(8)) - 128
            rest = (
                one.field(8 * MX_BLOCK, 5)[:, lane],
                one.field(8 * MX_BLOCK + 5, 13, is_signed=True)[:, lane],
            )
            value = np.column_stack((codes[:, order], *rest))
            index = block[:, None] * _XB_WORD + np.arange(_XB_WORD)
            mask = np.broadcast_to(one.masks[:, lane, None], index.shape)
            results.append(((f"{kind}{port}", tile), token, index, value, mask))
        return results

    def _rtl_encoded(self, one: Writes, tile: int, bank: str, kind: str) -> list[tuple[Any, ...]]:
        sizes = self.sizes
        token = np.zeros(len(one.addresses), dtype=np.int64)
        if bank.startswith("q"):
            memory, elems = "Q", sizes.head_dim
            bits = (sizes.n_entries * sizes.row_words - 1).bit_length() or 1
            entry, word = np.divmod(one.addresses & (1 << bits) - 1, sizes.row_words)
            head = self._head(entry, int(bank[1:]))
            if sizes.sinks:  # the upper half is their query's
                head = head + (one.addresses >> bits) * sizes.n_heads
            else:
                token = one.addresses >> bits
            where, first = head, word * sizes.word_blocks
        else:
            memory, elems = bank[0].upper(), sizes.word_elems
            token -= 1  # not kept by in-flight index
            where, first = one.addresses, np.zeros(len(one.addresses), dtype=np.int64)
        size = elems + elems // MX_BLOCK
        results = []
        for lane in range(one.memory.n_lanes):
            block = first + lane
            if kind == "codes":
                bits = 8 if memory == "Q" else sizes.words.element_bits
                codes = one.bits[:, lane].astype(np.int64)
                codes = codes.reshape(len(codes), -1, bits)
                value = codes @ (1 << np.arange(bits))
                if bits == 8:  # signed; the others are not
                    value -= 256 * codes[:, :, 7]
                first_of = value.shape[1] if bank.endswith("_second") else 0
                inside = block[:, None] * MX_BLOCK + first_of + np.arange(value.shape[1])
            else:
                value = one.field(0, one.memory.lane_bits)[:, lane, None]
                inside = elems + block[:, None]
            index = where[:, None] * size + inside
            mask = np.broadcast_to(one.masks[:, lane, None], index.shape)
            results.append(((memory, tile), token, index, value, mask))
        return results

    def _head(self, entry: NDArray[np.int64], lane: int) -> NDArray[np.int64]:
        sizes = self.sizes
        kv, in_pass = np.divmod(entry, sizes.n_passes)
        head = kv * sizes.heads_per_kv + in_pass * sizes.heads_parallel + lane
        return np.asarray(head, dtype=np.int64)

    def _rtl_sums(self, one: Writes, kind: str, group: int) -> list[tuple[Any, ...]]:
        sizes = self.sizes
        bits = max(1, (sizes.beats - 1).bit_length())
        token, beat = one.addresses >> bits, one.addresses & (1 << bits) - 1
        block = beat * sizes.n_groups + group
        mask = (block < sizes.n_q_blocks)[:, None]
        if kind == "l":
            value = one.field(0, 32)
            return [(("OL", ALL_TILES), token, block[:, None], value, mask)]
        sums = one.bits[:, 0].reshape(-1, MX_BLOCK, 64).astype(np.int64)
        value = sums @ (np.int64(1) << np.arange(64, dtype=np.int64))
        index = block[:, None] * MX_BLOCK + np.arange(MX_BLOCK)
        wide = np.broadcast_to(mask, index.shape)
        return [(("O", ALL_TILES), token, index, value, wide)]
