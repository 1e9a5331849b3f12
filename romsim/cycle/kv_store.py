"""Keys and values of one layer under any KV configuration: codecs and slots (docs/kv.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle.kernels_attention import quantise_heads
from romsim.cycle.kernels_kv_attention import least_mass
from romsim.cycle.kernels_kv_codec import (
    decode_blocks,
    encode_channels,
    encode_rows,
    encode_words,
)
from romsim.cycle.kv_memory import KvMemory
from romsim.cycle.state import head_blocks
from romsim.cycle.weights import BLOCK
from romsim_compiler.kv_sram import stored_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.kv_rows import RowMap
    from romsim.cycle.kv_vectors import LayerBooks
    from romsim_compiler.kv import KvConfig
    from romsim_models.spec import ModelSpec

__all__ = ["KvStore", "Note"]

Note = Callable[[str, "NDArray[Any]"], None]
"""Called with the name of a compared value inside the layer (``k.words``) and the values."""

_SIDES = ("k", "v")


class KvStore:
    """One layer's cache of one sequence.

    Parameters
    ----------
    spec, kv
        Model and configuration.
    row_map
        Where the sequence's slots lie.
    rcp_table
        The numerics page's RCP.
    memory
        Of the layer, where other sequences share it; one of its own if ``None``.
    books
        CommVQ's codebooks of the layer, under that codec.
    layer
        Its number: widths of narrowed tokens are those of its heads.

    Attributes
    ----------
    row_map
        Where slots lie, one for all layers of the sequence.
    memory
        Keys and values by row.
    positions
        Of the token in each slot where slots are reused, and of wide tokens where widths differ:
        int64 [n_kv_heads, slots]; -1: none.
    last_slots
        The last token's slot in each KV head, int64 [n_kv_heads].
    mass
        Attention mass of each slot, int64 [n_kv_heads, slots], where tokens are ranked by it.
    written
        Words of the newest key and value: elements or codes, int64 [n_kv_heads, head_dim], and of
        each block of 32 its exponent, or its zero and, 16 bits higher, its scale, int64
        [n_kv_heads, blocks]; none under ``fp16``.
    late
        What KIVI encoded after the newest token's attention: side, tokens, codes int64
        [n_kv_heads, tokens, head_dim], and zeros with scales, int64 [n_kv_heads, groups, head_dim]
        of keys, [n_kv_heads, tokens, blocks] of values.
    """

    def __init__(
        self,
        spec: ModelSpec,
        kv: KvConfig,
        *,
        row_map: RowMap,
        rcp_table: NDArray[np.int64],
        memory: KvMemory | None = None,
        books: LayerBooks | None = None,
        layer: int = 0,
    ) -> None:
        self._spec, self.kv, self._layer = spec, kv, layer
        self.row_map, self._rcp_table = row_map, rcp_table
        self._width = head_blocks(spec.head_dim) * BLOCK
        self.memory = memory or KvMemory(spec.n_kv_heads, self._width)
        n_slots = len(row_map.rows) if kv.is_ranked or kv.retention == "stream" else 0
        self.mass = np.zeros((spec.n_kv_heads, n_slots), np.int64)
        self.positions = np.full((spec.n_kv_heads, n_slots), -1, np.int64)
        self.last_slots: NDArray[np.int64] = np.full(spec.n_kv_heads, -1, np.int64)
        self._free = np.full(spec.n_kv_heads, -1, np.int64)
        self._bits: dict[tuple[int, int], int] = {}
        self._books = books
        n_window = kv.residual if books is not None else 0
        self._window = np.zeros((spec.n_kv_heads, n_window, spec.head_dim), np.int64)
        self.clipped = 0
        none = np.zeros((spec.n_kv_heads, 0), np.int64)
        self.written = [(none, none), (none, none)]
        self.late: list[tuple[int, range, NDArray[np.int64], NDArray[np.int64]]] = []

    @property
    def seen(self) -> list[NDArray[np.float64]]:
        """Keys and values by row, as `KvMemory` has them."""
        return self.memory.seen

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row of each slot, int64 [n_slots]."""
        return self.row_map.rows

    @property
    def free_slots(self) -> NDArray[np.int64]:
        """Slot that H2O has freed in each KV head, int64 [n_kv_heads]; -1: none."""
        return self._free

    @property
    def capacity(self) -> int:
        """Rows that the arrays have."""
        return int(self.seen[0].shape[1])

    @property
    def held_bits(self) -> int:
        """Bits of the words that are held, all KV heads together: counted as they are written."""
        return sum(self._bits.values())

    def write(self, position: int, k: NDArray[np.int32], v: NDArray[np.int32], note: Note) -> None:
        """Encode the key and value of a token, int32 [n_kv_heads * head_dim] each.

        Keys are rotated; under CommVQ they are not, and are when they are read.
        """
        if position == 0:
            self.mass[:] = 0
            self.positions[:] = -1
            self._free[:] = -1
            self._bits.clear()
        slots = self._slots(position)
        for slot in set(slots.tolist()):
            self.row_map.own(slot)
        self.last_slots[:] = slots
        self.memory.grow(int(self.row_map.rows[slots].max()) + 1)
        for side, values in enumerate((k, v)):
            encoded, bits = self._encode(side, position, values, note)
            for head, slot in enumerate(slots):
                self.seen[side][head, self.row_map.rows[slot]] = encoded[head]
            place = int(slots[0]) if self.kv.retention == "stream" else position
            self._bits[side, place] = bits
        self._bound(encoded)
        if self.mass.size:
            heads = np.arange(len(slots))
            self.mass[heads, slots] = 0
            self.positions[heads, slots] = position

    def prepare(self, position: int) -> None:
        """Have pages of its own for whatever the step of a token will write.

        Before the step, so that one that finds no page leaves the sequence as it was.
        """
        for slot in set(self._slots(position).tolist()):
            self.row_map.own(slot)
        for tokens in self._leaving(position):
            for token in tokens:
                self.row_map.own(token)

    def _leaving(self, position: int) -> tuple[range, range]:
        """Return the keys and the values that leave KIVI's windows after the token's attention."""
        kv = self.kv
        n = position + 1 - kv.plain_sinks
        if kv.codec == "commvq" and n % kv.residual == 0:
            whole = range(position + 1 - kv.residual, position + 1)
            return whole, whole
        if kv.codec != "kivi" or n <= 0:
            return range(0), range(0)
        keys = range(position + 1 - kv.residual, position + 1) if n % kv.residual == 0 else range(0)
        late = position - kv.residual
        return keys, range(late, late + 1) if n > kv.residual else range(0)

    def _slots(self, position: int) -> NDArray[np.int64]:
        """Return the slot of a new token in each KV head."""
        kv, n_heads = self.kv, self._spec.n_kv_heads
        if kv.retention == "h2o" and position > kv.heavy + kv.window:
            return self._free
        slot = position
        if kv.retention == "stream" and position >= kv.sinks:
            slot = kv.sinks + (position - kv.sinks) % kv.window
        self.row_map.reach(slot)
        return np.full(n_heads, slot, np.int64)

    def _bound(self, values: NDArray[np.float64]) -> None:
        self.memory.largest = max(self.memory.largest, float(np.abs(values).max()))

    def _encode(
        self, side: int, position: int, values: NDArray[np.int32], note: Note
    ) -> tuple[NDArray[np.float64], int]:
        """Return what attention sees, float64 [n_kv_heads, width], and the bits of the words."""
        spec, kv, name = self._spec, self.kv, _SIDES[side]
        seen = np.zeros((spec.n_kv_heads, self._width))
        if kv.codec in ("int8", "tiered"):
            codes = np.zeros((spec.n_kv_heads, self._width), np.int16)
            shifts = np.zeros((spec.n_kv_heads, self._width // BLOCK), np.int64)
            quantise_heads(values, spec.head_dim, codes, shifts)
            decode_blocks(codes, shifts, seen)
            heads = codes[:, : spec.head_dim]
            note(f"{name}.codes", heads.astype(np.int8))
            note(f"{name}.shifts", shifts.astype(np.int8))
            self.written[side] = heads.astype(np.int64), shifts
            return seen, 8 * (heads.size + shifts.size)
        flat = np.zeros(len(values))
        if kv.codec in ("fp16", "kivi", "commvq"):
            words = np.zeros(len(values), np.uint16)
            encode_words(values, words, flat)
            note(f"{name}.words", words)
            bits = 16 * words.size
            if self._books is not None and side == 0:
                self._window[:, position % kv.residual] = flat.reshape(spec.n_kv_heads, -1)
                flat = self._rotated(flat, position)
            plain = words.astype(np.int64).reshape(spec.n_kv_heads, -1)
            self.written[side] = plain, np.zeros((spec.n_kv_heads, 0), np.int64)
        else:
            bits, self.written[side] = self._affine(
                values, kv.code_bits()[side], f"{name}.", flat, note
            )
        seen[:, : spec.head_dim] = flat.reshape(spec.n_kv_heads, spec.head_dim)
        return seen, bits

    def _affine(
        self, values: NDArray[Any], bits: int, name: str, flat: NDArray[np.float64], note: Note
    ) -> tuple[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Encode groups of channels into ``flat``; return the bits of the words, and the words."""
        n_groups = len(values) // self.kv.group
        codes = np.zeros(len(values), np.uint8)
        scales, zeros = np.zeros(n_groups, np.uint16), np.zeros(n_groups, np.uint16)
        encode_rows(values, self.kv.group, bits, self._rcp_table, codes, scales, zeros, flat)
        for kind, words in (("codes", codes), ("scales", scales), ("zeros", zeros)):
            note(f"{name}{kind}", words)
        meta = np.repeat(zeros | scales.astype(np.int64) << 16, max(1, self.kv.group // BLOCK))
        shape = (len(values) // self._spec.head_dim, -1)
        words_of = codes.astype(np.int64).reshape(shape), meta.reshape(shape)
        return bits * codes.size + 16 * (scales.size + zeros.size), words_of

    def after_attention(self, position: int, note: Note) -> None:
        """Encode what has left KIVI's windows."""
        self.late = []
        keys, values = self._leaving(position)
        for token in (*keys, *values):
            self.row_map.own(token)
        if self._books is not None:
            if keys:
                self._encode_vectors(keys, note)
            return
        if keys:
            self._encode_keys(keys, note)
        if values:
            self._encode_value(values[0], note)

    def _rotated(self, keys: NDArray[Any], position: int) -> NDArray[np.float64]:
        """Return a token's keys, flat integers, as they are read at a position."""
        assert self._books is not None
        limits = np.iinfo(np.int32)
        turned = np.clip(keys, limits.min, limits.max).astype(np.int32)
        self.clipped += self._books.rotated(turned, position)
        result: NDArray[np.float64] = turned.astype(np.float64)
        return result

    def _encode_vectors(self, tokens: range, note: Note) -> None:
        """Encode a window of CommVQ: keys from their words before rotation."""
        assert self._books is not None
        dim, rows = self._spec.head_dim, self.row_map.rows[tokens.start : tokens.stop]
        values = self.seen[1][:, rows, :dim].astype(np.int64)
        k, v, bits = self._books.encode(self._window, values, note)
        for index, token in enumerate(tokens):
            turned = self._rotated(k[:, index].reshape(-1), token)
            self.seen[0][:, rows[index], :dim] = turned.reshape(-1, dim)
            self._bits[0, token] = self._bits[1, token] = 0
        self.seen[1][:, rows, :dim] = v
        self._bound(v.astype(np.float64))
        self._bits[0, tokens[0]] = bits

    def _encode_value(self, token: int, note: Note) -> None:
        kv, head_dim = self.kv, self._spec.head_dim
        row = self.row_map.rows[token]
        values = self.seen[1][:, row, :head_dim].astype(np.int64).reshape(-1)
        flat = np.zeros(len(values))
        bits, (codes, affine) = self._affine(values, kv.value_bits, "v.late.", flat, note)
        self.late.append((1, range(token, token + 1), codes[:, None], affine[:, None]))
        self.seen[1][:, row, :head_dim] = flat.reshape(-1, head_dim)
        self._bound(flat)
        self._bits[1, token] = bits

    def _encode_keys(self, tokens: range, note: Note) -> None:
        kv, spec = self.kv, self._spec
        shape = (spec.n_kv_heads, kv.residual // kv.group, spec.head_dim)
        codes = np.zeros((spec.n_kv_heads, kv.residual, spec.head_dim), np.uint8)
        scales, zeros = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
        rows = self.row_map.rows[tokens.start : tokens.stop]
        encode_channels(
            self.seen[0], rows, kv.group, kv.key_bits, self._rcp_table, codes, scales, zeros
        )
        for kind, words in (("codes", codes), ("scales", scales), ("zeros", zeros)):
            note(f"k.group.{kind}", words)
        affine = zeros | scales.astype(np.int64) << 16
        self.late.append((0, tokens, codes.astype(np.int64), affine))
        bits = kv.key_bits * codes.size + 16 * (scales.size + zeros.size)
        for token in tokens:
            self._bits[0, token] = 0
        self._bits[0, tokens[0]] = bits

    def adopt(self, n_tokens: int) -> None:
        """Begin with tokens whose words others have written, under a codec per token."""
        bits = stored_bits(self.kv, self._spec.head_dim, n_tokens)
        self._bits = {(0, -1): bits * self._spec.n_kv_heads}

    def fork(self, row_map: RowMap) -> KvStore:
        """Return the cache of a sequence with the same past: pages shared, the rest copied."""
        other = KvStore(
            self._spec,
            self.kv,
            row_map=row_map,
            rcp_table=self._rcp_table,
            memory=self.memory,
            layer=self._layer,
        )
        other.mass[:] = self.mass
        other.positions[:] = self.positions
        other._free[:] = self._free
        other._bits = dict(self._bits)
        return other

    def demote(self, position: int, n_slots: int, note: Note) -> None:
        """Drop or narrow the token of least mass in each KV head, where there is one too many."""
        kv = self.kv
        if kv.codec == "tiered":
            self.mass[self.positions < 0] = 0
        note("mass", self.mass[:, :n_slots])
        slots = np.full(self._spec.n_kv_heads, -1, np.int64)
        budget = kv.heavy + kv.window
        if position + 1 > budget:
            least_mass(self.mass, self.positions, n_slots, position + 1 - kv.window, slots)
            self.positions[np.arange(len(slots)), slots] = -1
            for side in (0, 1):
                self._bits.pop((side, position - budget), None)
            if kv.codec == "tiered":
                self._narrow(slots, position - budget, note)
            else:
                self._free[:] = slots
        note("narrowed" if kv.codec == "tiered" else "evicted", slots)

    def _narrow(self, slots: NDArray[np.int64], place: int, note: Note) -> None:
        """Encode one token of each KV head anew, from the integers of its wide words."""
        heads, rows, dim = np.arange(len(slots)), self.rows[slots], self._spec.head_dim
        widths = np.array(self.kv.narrow_bits(self._layer, len(slots)))
        for side in (0, 1):
            values = self.seen[side][heads, rows, :dim].astype(np.int64)
            flat = np.zeros((len(slots), dim))
            parts: dict[str, list[Any]] = {}
            self._bits[side, place] = 0

            def keep(kind: str, words: NDArray[Any], into: dict[str, list[Any]] = parts) -> None:
                into.setdefault(kind, []).append(words)

            for head, bits in enumerate(widths[:, side]):
                n_bits, _ = self._affine(values[head], int(bits), "", flat[head], keep)
                self._bits[side, place] += n_bits
            for kind, words in parts.items():
                note(f"{_SIDES[side]}.narrow.{kind}", np.concatenate(words))
            self.seen[side][heads, rows, :dim] = flat
        self._bound(flat)
