"""Attention under any KV configuration: queries, slots, what follows (docs/kv.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle.kernels_attention import quantise_heads
from romsim.cycle.kernels_kv_attention import add_mass, kv_attention
from romsim.cycle.kernels_vector import rotate, scale_query, sine_cosine
from romsim.cycle.kv_memory import KvMemory
from romsim.cycle.kv_rows import PagePool, RowMap
from romsim.cycle.kv_store import KvStore, Note
from romsim.cycle.kv_vectors import LayerBooks
from romsim.cycle.state import TokenBuffers, head_blocks
from romsim.cycle.weights import BLOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.chip import CompiledChip
    from romsim.cycle.workers import Workers

__all__ = ["KvUnit"]


class KvUnit:
    """Executes ``rope``'s KV part and ``attn`` for a cache that is not the plain one.

    Parameters
    ----------
    description
        The compiled chip.
    tables
        The numerics page's tables.
    workers
        Threads that share attention.
    page_order
        In which free pages are handed out, for layouts with a table; ascending if ``None``.

    Attributes
    ----------
    kv
        The configuration.
    n_slots
        Slots of a sequence.
    pool
        Pages of all sequences, or ``None`` without a table.
    n_rows
        Rows of a KV head in one layer, all tiles together: of a sequence, or of the pool.
    """

    def __init__(
        self,
        description: CompiledChip,
        tables: Mapping[str, NDArray[np.int64]],
        workers: Workers,
        page_order: Sequence[int] | None = None,
    ) -> None:
        self.kv = description.target.kv
        self._spec = description.spec
        self._numerics = description.numerics
        self._tables, self._workers = tables, workers
        self._increments = description.phase_increments.astype(np.int64)
        self._query_scale = description.query_scale
        self._tiles = description.target.array.n_tiles
        self.n_slots = self.kv.held(description.context)
        width = head_blocks(self._spec.head_dim) * BLOCK
        self.pool: PagePool | None = None
        self._block = self.kv.block
        if self._block:
            sequences = description.target.schedule.n_slots
            colours = max(1, self._tiles // self._block)
            n_pages = -(-self.n_slots // self._block)
            if sequences > 1:  # each may take as many of every colour
                n_pages = -(-n_pages // colours) * colours * sequences
            self.pool = PagePool(n_pages, n_colours=colours, order=page_order)
        self.n_rows = self.n_slots if self.pool is None else self.pool.n_pages * self._block
        self._memories = [
            KvMemory(self._spec.n_kv_heads, width) for _ in range(self._spec.n_layers)
        ]
        self._books = self._layer_books(description)
        n_heads = self._spec.n_heads
        self._queries = np.zeros((2, n_heads, width))
        self._q_shifts = np.zeros((2, n_heads, width // BLOCK), np.int64)
        self._sink_codes = np.zeros((n_heads, width), np.int16)
        self._sink_shifts = np.zeros((n_heads, width // BLOCK), np.int64)
        self._numerators = np.zeros((n_heads, 0), np.int64)
        self._tops = np.zeros((n_heads, 0), np.int64)
        self._totals = np.zeros(n_heads * width)

    def new_stores(self) -> tuple[KvStore, ...]:
        """Return the empty caches of a sequence, one a layer; pages are of the chip's pool."""
        row_map = RowMap(self.n_slots, block=self._block, pool=self.pool, copy=self._copy_rows)
        memories: Sequence[KvMemory | None] = self._memories
        if self.pool is None:  # rows are the sequence's own
            memories = [None] * self._spec.n_layers
        return tuple(
            KvStore(
                self._spec,
                self.kv,
                row_map=row_map,
                rcp_table=self._tables["RCP"],
                memory=one,
                books=books,
                layer=layer,
            )
            for layer, (one, books) in enumerate(zip(memories, self._books, strict=True))
        )

    def _layer_books(self, description: CompiledChip) -> list[LayerBooks | None]:
        """Return CommVQ's codebooks layer by layer, under that codec."""
        books = description.kv_codebooks()
        if books is None:
            return [None] * self._spec.n_layers
        return [
            LayerBooks(keys, values, increments=self._increments, tables=self._tables)
            for keys, values in zip(books.keys, books.values, strict=True)
        ]

    def _copy_rows(self, source: int, target: int, n_rows: int) -> None:
        for memory in self._memories:
            memory.copy(source, target, n_rows)

    @property
    def takes_plain_keys(self) -> bool:
        """Whether keys are kept as they are before rotation."""
        return self.kv.codec == "commvq"

    @property
    def has_sink_query(self) -> bool:
        """Whether the sinks are read by a query of their own."""
        return self.kv.retention == "stream" and self.kv.sinks > 0

    @property
    def sink_query(self) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Codes [n_heads, width] and shifts of the last query for the sinks."""
        return self._sink_codes, self._sink_shifts

    def code_sink_query(self, q: NDArray[np.int32], position: int, note: Note) -> int:
        """Rotate, scale and quantise the query for the sinks, in place; return the saturations."""
        spec, kv = self._spec, self.kv
        sines = np.zeros(spec.head_dim // 2, np.int64)
        cosines = np.zeros(spec.head_dim // 2, np.int64)
        inside = min(position, kv.sinks + kv.window - 1)
        sine_cosine(self._increments, inside, self._tables["SIN"], sines, cosines)
        clipped = int(rotate(q, sines, cosines)) + int(scale_query(q, self._query_scale))
        quantise_heads(q, spec.head_dim, self._sink_codes, self._sink_shifts)
        note("q.sink.codes", self._sink_codes[:, : spec.head_dim].astype(np.int8))
        note("q.sink.shifts", self._sink_shifts.astype(np.int8))
        return clipped

    def attend(self, store: KvStore, position: int, buffers: TokenBuffers, note: Note) -> int:
        """Attend, then encode and drop what the configuration says; return the saturations."""
        spec, kv = self._spec, self.kv
        n_slots, attn_block = kv.held(position + 1), self._numerics.attn_block
        self._make_room(n_slots)
        self._queries[0] = buffers.q_codes
        self._q_shifts[0] = buffers.q_shifts
        if self.has_sink_query:
            self._queries[1] = self._sink_codes
            self._q_shifts[1] = self._sink_shifts
        rows = store.rows
        is_small = store.memory.largest * 2.0**15 * min(attn_block, n_slots) < 2.0**53
        arguments: tuple[Any, ...] = (
            self._queries.reshape(-1),
            self._q_shifts.reshape(-1),
            kv.sinks if self.has_sink_query else 0,
            store.seen[0].reshape(-1),
            store.seen[1].reshape(-1),
            rows,
            store.capacity,
            n_slots,
            attn_block,
            spec.n_groups,
            2 * self._numerics.linear_frac - 16,
            is_small,
            self._tables["EXP"],
            self._numerators,
            self._tops,
            self._totals,
            buffers.maxima.reshape(-1),
            buffers.weights.reshape(-1),
            buffers.sums.reshape(-1),
        )
        clipped = self._workers.run(kv_attention, arguments, n_pieces=spec.n_heads)
        store.after_attention(position, note)
        clipped += store.clipped
        store.clipped = 0
        if kv.is_ranked:
            add_mass(
                self._numerators,
                self._tops,
                buffers.maxima[:, 0].copy(),
                buffers.weights[:, 0].copy(),
                n_slots,
                attn_block,
                spec.n_groups,
                self._tables["RCP"],
                store.mass,
            )
            store.demote(position, n_slots, note)
        return clipped

    def _make_room(self, n_slots: int) -> None:
        n_heads, room = self._numerators.shape
        if n_slots > room:
            room = max(n_slots, 2 * room)
            self._numerators = np.zeros((n_heads, room), np.int64)
            n_blocks = -(-room // self._numerics.attn_block)
            self._tops = np.zeros((n_heads, n_blocks), np.int64)
