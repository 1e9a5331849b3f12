"""Writes into SRAM, word by word, as docs/machine.md places them.

The page says which instruction writes which words, and between which cycles; in which cycle of an
instruction a word is written is the business of :data:`BeatTimes`, a function that whoever compares
with hardware supplies. Without one, a write has the bounds of its instruction and no cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle.adapters import z_words
from romsim.cycle.trace_kivi import late_words, window_row
from romsim.cycle.trace_mass import mass_words
from romsim.cycle.weights import BLOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.chip import CompiledChip
    from romsim.cycle.datapath import Datapath, Flight
    from romsim.cycle.kv_rows import PageCopy
    from romsim_compiler.program import Instruction

__all__ = [
    "ALL_TILES",
    "NO_TOKEN",
    "BeatTimes",
    "SramWrite",
    "Tracer",
    "kv_address",
]

ALL_TILES = -1
"""Tile number of a word that is written into every tile, or into the vector unit."""

NO_TOKEN = -1
"""In-flight index of a word that no instruction writes: of a page's copy."""

BeatTimes = Callable[["Instruction", str, int, int], "int | None"]
"""Cycle of a word's write, counted from the issue of its instruction: called with the instruction,
the memory, the word's number among those that the instruction writes there, and their count."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SramWrite:
    """One word written.

    Parameters
    ----------
    unit
        ``V`` for the vector unit's buffers, ``H`` and ``L`` for tiles.
    memory
        ``X``, ``Y``, ``D``, ``O``, ``OL`` (vector unit), ``XB`` and ``Q`` (every tile), ``K`` and
        ``V`` (one tile), ``ZB`` (blocks of an adapter's z, every tile; ``lane`` is the number of
        the matrix with an adapter), ``LOGITS`` (host port); of KIVI ``KC``, ``VC`` (codes, one
        tile) and ``KG`` (zeros and scales of keys, for all tiles); of H2O ``MASS`` (one tile),
        ``NEWEST`` and ``FREE`` (`romsim.cycle.trace_mass.mass_words`).
    tile
        Tile of the word, or ``ALL_TILES``.
    address
        Word address. X, Y, D, O, LOGITS: number of the word of ``n_lanes`` elements. OL and Q:
        head, the queries for sinks behind the others. XB: block. K, V: as the page has it.
    lane
        First element of the word that is written; a ``matvec`` may write a part of one.
    data
        int64: elements (O: the sums of all heads, OL: a head's weight); XB: codes, shift, sum of
        codes; Q, K, V: codes, then the shifts, or what else the codec keeps of a block of 32
        (`romsim.cycle.kv_store.KvStore.written`).
    token
        In-flight index, which selects the buffer; ``NO_TOKEN`` in a copy of a page.
    beat
        Number of the word among those that its instruction writes into this memory.
    issue, idle
        Cycles of the instruction, from the start of the program.
    cycle
        Cycle of the write from the start of the program, or ``None`` where no beat times are given.
    """

    unit: str
    memory: str
    tile: int
    address: int
    lane: int
    data: NDArray[np.int64]
    token: int
    beat: int
    issue: int
    idle: int
    cycle: int | None


_Word = tuple[str, str, int, int, int, "NDArray[Any]"]  # unit, memory, tile, address, lane, data


def kv_address(
    *,
    layer: int,
    head: int,
    row: int,
    word: int,
    n_kv_heads: int,
    n_rows: int,
    n_tiles: int,
    words_per_head: int,
    slot: int,
    n_layers: int,
) -> tuple[int, int]:
    """Return (tile, word address) of a KV word (docs/machine.md, section 3; docs/kv.md, 7).

    Sequence slots follow one another, each as large as one sequence's cache, where rows are not of
    a pool that all share.

    Parameters
    ----------
    row
        Of the token: its number in the plain cache.
    n_rows
        Rows of a KV head in all tiles.
    """
    per_head = -(-n_rows // n_tiles)
    place = ((slot * n_layers + layer) * n_kv_heads + head) * per_head + row // n_tiles
    return row % n_tiles, place * words_per_head + word


class Tracer:
    """Reads what an executed instruction has left in the buffers and reports it as words.

    Parameters
    ----------
    description
        The compiled chip.
    report
        Called with every word, in the order of addresses inside an instruction.
    beat_times
        See :data:`BeatTimes`.
    """

    def __init__(
        self,
        description: CompiledChip,
        report: Callable[[SramWrite], None],
        beat_times: BeatTimes | None = None,
    ) -> None:
        self._spec = description.spec
        self._target = description.target
        self._groups = description.groups
        self._context = description.context
        self._report = report
        self._beat_times = beat_times
        # words of pages, which copies move
        self._kept: dict[tuple[str, int, int], NDArray[np.int64]] = {}

    def copied(self, copy: PageCopy, datapath: Datapath) -> None:
        """Report the words of a page that is copied before a program, as beats of one copy.

        Row by row, layer by layer, head by head; a row's tokens are in as many tiles. Cycles count
        from the one after the copy's command.
        """
        spec, target = self._spec, self._target
        n_words = -(-spec.head_dim // target.attention.word_elems)
        n_tiles, block = target.array.n_tiles, target.kv.block
        rows = range(0, copy.n_tokens, n_tiles)
        steps = [
            (layer, head, row, word)
            for layer in range(spec.n_layers)
            for head in range(spec.n_kv_heads)
            for row in rows
            for word in range(n_words)
        ]
        for beat, (layer, head, row, word) in enumerate(steps):
            for inside in range(row, min(row + n_tiles, copy.n_tokens)):
                places = [
                    kv_address(
                        layer=layer,
                        head=head,
                        row=page * block + inside,
                        word=word,
                        n_kv_heads=spec.n_kv_heads,
                        n_rows=self._n_rows(datapath),
                        n_tiles=n_tiles,
                        words_per_head=n_words,
                        slot=0,
                        n_layers=spec.n_layers,
                    )
                    for page in (copy.source, copy.target)
                ]
                for memory in "KV":
                    data = self._kept[memory, *places[0]]
                    self._kept[memory, *places[1]] = data
                    self._report(
                        SramWrite(
                            unit="H",
                            memory=memory,
                            tile=places[1][0],
                            address=places[1][1],
                            lane=0,
                            data=data.copy(),
                            token=NO_TOKEN,
                            beat=beat,
                            issue=0,
                            idle=len(steps),
                            cycle=None,
                        )
                    )

    def after(
        self,
        instruction: Instruction,
        flight: Flight,
        datapath: Datapath,
        slot: int,
        issue: int,
        idle: int,
    ) -> None:
        """Report the words that an instruction wrote."""
        words = list(self._words(instruction, flight, datapath, slot))
        totals: dict[str, int] = {}
        for _, memory, *_ in words:
            totals[memory] = totals.get(memory, 0) + 1
        seen: dict[str, int] = {}
        for unit, memory, tile, address, lane, data in words:
            beat = seen.get(memory, 0)
            seen[memory] = beat + 1
            if memory in ("K", "V") and datapath.pages is not None:
                self._kept[memory, tile, address] = np.array(data, dtype=np.int64)
            offset = None
            if self._beat_times is not None:
                offset = self._beat_times(instruction, memory, beat, totals[memory])
            self._report(
                SramWrite(
                    unit=unit,
                    memory=memory,
                    tile=tile,
                    address=address,
                    lane=lane,
                    data=np.array(data, dtype=np.int64),
                    token=instruction.token,
                    beat=beat,
                    issue=issue,
                    idle=idle,
                    cycle=None if offset is None else issue + offset,
                )
            )

    def _words(
        self, instruction: Instruction, flight: Flight, datapath: Datapath, slot: int
    ) -> Iterator[_Word]:
        buffers, spec = flight.buffers, self._spec
        match instruction.op:
            case "embed" | "resid":
                yield from self._beats("X", buffers.x)
            case "matvec":
                yield from self._matvec(instruction, flight, datapath)
            case "lora" if buffers.has_delta:
                n_rows = {
                    "qkv": spec.q_dim + 2 * spec.kv_dim,
                    "gu": 2 * spec.hidden_dim,
                }.get(instruction.operand.rpartition(".")[2], spec.dim)
                yield from self._beats("D", buffers.delta[:n_rows])
                if self._target.lora.path == "adders":
                    for number, block, word in z_words(buffers.coded_z):
                        yield "L", "ZB", ALL_TILES, block, number, word
            case "rope":
                unit = datapath.kv_unit
                queries = [(buffers.q_codes, buffers.q_shifts)]
                if unit is not None and unit.has_sink_query:
                    queries.append(unit.sink_query)
                words = np.concatenate([np.hstack(query) for query in queries])
                for head, word in enumerate(words):
                    yield "H", "Q", ALL_TILES, head, 0, word
                yield from self._kv(instruction, flight, datapath, slot)
            case "attn":
                yield from self._beats("O", buffers.sums[:, 0, : spec.head_dim].reshape(-1))
                for head in range(spec.n_heads):
                    yield "V", "OL", ALL_TILES, head, 0, buffers.weights[head, :1]
                if self._target.kv.codec == "kivi":
                    store = flight.slot.stores[instruction.layer]
                    for memory, tile, address, data in late_words(
                        store,
                        spec,
                        self._target,
                        layer=instruction.layer,
                        n_rows=self._n_rows(datapath),
                    ):
                        yield "H", memory, tile, address, 0, data
                elif self._target.kv.retention == "h2o":
                    store = flight.slot.stores[instruction.layer]
                    for memory, tile, address, data in mass_words(
                        store,
                        spec,
                        self._target,
                        layer=instruction.layer,
                        position=flight.position,
                    ):
                        yield "H", memory, tile, address, 0, data
            case "norm" | "attn_out" | "glu":
                n = {"attn_out": spec.q_dim, "glu": spec.hidden_dim}.get(instruction.op)
                if n is None:
                    n = datapath.norm_length(instruction.operand)
                if instruction.target == "Y":
                    yield from self._beats("Y", buffers.y[:n])
                else:
                    vector = buffers.matrix_input(n)
                    for block, shift in enumerate(vector.shifts):
                        codes = vector.codes[block * BLOCK : min((block + 1) * BLOCK, n)]
                        word = np.append(codes, (shift, vector.sums[block]))
                        yield "L", "XB", ALL_TILES, block, 0, word

    def _beats(self, memory: str, values: NDArray[Any], first: int = 0) -> Iterator[_Word]:
        """Words of elements that stand at ``first`` of the buffer and behind it."""
        lanes, end = self._target.vector.n_lanes, first + len(values)
        at = first
        while at < end:
            upto = min((at // lanes + 1) * lanes, end)
            yield "V", memory, ALL_TILES, at // lanes, at % lanes, values[at - first : upto - first]
            at = upto

    def _matvec(
        self, instruction: Instruction, flight: Flight, datapath: Datapath
    ) -> Iterator[_Word]:
        """Rows as they are collected, step by step."""
        mapping = self._groups[instruction.operand].mapping
        values, offset = datapath.matvec_output(instruction, flight)
        memory = "LOGITS" if instruction.layer < 0 else "Y"
        for first in range(0, mapping.n_rows, mapping.rows_per_step):
            rows = values[first : first + mapping.rows_per_step]
            yield from self._beats(memory, rows, offset + first)

    def _n_rows(self, datapath: Datapath) -> int:
        unit = datapath.kv_unit
        return self._context if unit is None else unit.n_rows

    def _kv(
        self, instruction: Instruction, flight: Flight, datapath: Datapath, slot: int
    ) -> Iterator[_Word]:
        spec, elems = self._spec, self._target.attention.word_elems
        n_words = -(-spec.head_dim // elems)
        if datapath.pages is not None:
            slot = 0  # rows are of a pool
        if flight.slot.stores:
            sides = flight.slot.stores[instruction.layer].written
        else:
            cache, at = flight.slot.layers[instruction.layer], flight.position
            sides = [
                (codes[:, at].astype(np.int64), shifts[:, at].astype(np.int64))
                for codes, shifts in zip(cache.codes, cache.shifts, strict=True)
            ]
        n_rows = self._n_rows(datapath)
        for memory, (codes, per_block) in zip("KV", sides, strict=True):
            row = None
            if self._target.kv.codec == "kivi":
                row, n_rows = window_row(self._target, int(memory == "V"), flight.position)
            for head in range(spec.n_kv_heads):
                for word in range(n_words):
                    tile, address = kv_address(
                        layer=instruction.layer,
                        head=head,
                        row=_row(instruction, flight, head) if row is None else row,
                        word=word,
                        n_kv_heads=spec.n_kv_heads,
                        n_rows=n_rows,
                        n_tiles=self._target.array.n_tiles,
                        words_per_head=n_words,
                        slot=slot,
                        n_layers=spec.n_layers,
                    )
                    inside = slice(word * elems, (word + 1) * elems)
                    blocks = slice(word * elems // BLOCK, (word + 1) * elems // BLOCK)
                    data = np.concatenate((codes[head, inside], per_block[head, blocks]))
                    yield "H", memory, tile, address, 0, data


def _row(instruction: Instruction, flight: Flight, head: int) -> int:
    """Return the row of the token's words."""
    if not flight.slot.stores:
        return flight.position
    store = flight.slot.stores[instruction.layer]
    return int(store.rows[store.last_slots[head]])
