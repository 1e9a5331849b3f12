"""What the chip holds between instructions: buffers of in-flight tokens, and the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from romsim.cycle.weights import BLOCK, MatrixInput
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from romsim.cycle.kv_store import KvStore
    from romsim_models.spec import ModelSpec

__all__ = ["KvCache", "SlotState", "TokenBuffers", "head_blocks"]


def head_blocks(head_dim: int) -> int:
    """Return the number of MXINT8 blocks in one head."""
    return -(-head_dim // BLOCK)


class KvCache:
    """Keys and values of one sequence in one layer, MXINT8, in logical order.

    Parameters
    ----------
    n_kv_heads, head_dim
        Shape of the model's heads.
    context
        Tokens that fit.

    Attributes
    ----------
    codes
        Of keys and of values: int8 [n_kv_heads, context, n_blocks * 32] each; heads are padded
        with zeros to whole blocks.
    shifts
        int8 [n_kv_heads, context, n_blocks] each.
    """

    __slots__ = ("codes", "shifts")

    def __init__(self, *, n_kv_heads: int, head_dim: int, context: int) -> None:
        n_blocks = head_blocks(head_dim)
        shape = (n_kv_heads, context, n_blocks * BLOCK)
        self.codes = np.zeros(shape, np.int8), np.zeros(shape, np.int8)
        shape = (n_kv_heads, context, n_blocks)
        self.shifts = np.zeros(shape, np.int8), np.zeros(shape, np.int8)


@dataclass(slots=True, kw_only=True)
class SlotState:
    """State registers and KV cache of one sequence slot.

    ``layers`` hold the plain cache; ``stores`` that of any other configuration.
    """

    position: int = 0
    layers: tuple[KvCache, ...] = field(default=())
    stores: tuple[KvStore, ...] = field(default=())

    def restart(self) -> None:
        """Begin a new sequence: pages go back, SRAM keeps what it holds."""
        self.position = 0
        if self.stores:
            self.stores[0].row_map.release()

    def prepare(self, n_tokens: int) -> None:
        """Have pages of its own for whatever the next tokens will write."""
        for position in range(self.position, self.position + n_tokens):
            for store in self.stores:
                store.prepare(position)

    def fork(self) -> SlotState:
        """Return a sequence with the same past, whose pages are shared until one is written.

        Raises
        ------
        SpecError
            If the cache has no pages, or its codec writes where attention says.
        """
        if not self.stores:
            raise SpecError(
                "Sequence to be forked must lie in pages, not in the plain cache; compile with "
                "--kv int8,layout=paged"
            )
        codec = self.stores[0].kv.codec
        if codec in ("tiered", "commvq"):
            when = "as attention ranks them" if codec == "tiered" else "when their window is whole"
            raise SpecError(
                f"Codec of a sequence to be forked must not be {codec!r}, which encodes tokens of "
                f"shared pages anew {when}; compile with another codec"
            )
        row_map = self.stores[0].row_map.fork()
        return SlotState(
            position=self.position, stores=tuple(store.fork(row_map) for store in self.stores)
        )

    def adopt(self, pages: Sequence[int], n_tokens: int) -> None:
        """Begin a new sequence with a prefix of ``n_tokens`` that others hold."""
        self.restart()
        self.stores[0].row_map.adopt(pages, n_tokens)
        for store in self.stores:
            store.adopt(n_tokens)
        self.position = n_tokens

    @classmethod
    def create(cls, spec: ModelSpec, context: int) -> SlotState:
        """Return an empty slot."""
        return cls(
            layers=tuple(
                KvCache(n_kv_heads=spec.n_kv_heads, head_dim=spec.head_dim, context=context)
                for _ in range(spec.n_layers)
            )
        )


class TokenBuffers:
    """The buffers of one in-flight token (docs/machine.md, section 1).

    Parameters
    ----------
    spec
        The model.
    n_merge_levels
        Entries of a head's merge stack.

    Attributes
    ----------
    x
        Residual stream, int32 [dim].
    y, delta
        Linear outputs and adapter outputs, int32, as long as the longest group of a layer.
    linear
        Scratch: ``SAT32(y + delta)``.
    coded_z
        What the last adapter multiplied its matrices B by.
    has_delta
        Whether ``delta`` was written since ``y`` was: without adapter nothing is added.
    sines, cosines
        Of the position's angles, frac 20, int64 [head_dim / 2].
    maxima, weights, sums
        Attention sums: merge stacks of every head, int64 [n_heads, levels(, width)]; the result is
        in entry 0.
    """

    def __init__(self, *, spec: ModelSpec, n_merge_levels: int) -> None:
        longest = max(spec.q_dim + 2 * spec.kv_dim, 2 * spec.hidden_dim, spec.dim)
        width = head_blocks(spec.head_dim) * BLOCK
        n_inputs = max(spec.dim, spec.hidden_dim, spec.q_dim) + BLOCK
        n_heads = spec.n_heads
        self.x = np.zeros(spec.dim, np.int32)
        self.y = np.zeros(longest, np.int32)
        self.delta = np.zeros(longest, np.int32)
        self.linear = np.zeros(longest, np.int32)
        self.has_delta = False
        self.coded_z: list[MatrixInput] = []
        self.vector = np.zeros(max(spec.dim, spec.hidden_dim, spec.q_dim), np.int32)
        self.sines = np.zeros(spec.head_dim // 2, np.int64)
        self.cosines = np.zeros(spec.head_dim // 2, np.int64)
        self.q_codes = np.zeros((n_heads, width), np.int16)
        self.q_shifts = np.zeros((n_heads, width // BLOCK), np.int64)
        self.kv_codes = np.zeros((spec.n_kv_heads, width), np.int16)
        self.kv_shifts = np.zeros((spec.n_kv_heads, width // BLOCK), np.int64)
        self.maxima = np.zeros((n_heads, n_merge_levels), np.int64)
        self.weights = np.zeros((n_heads, n_merge_levels), np.int64)
        self.sums = np.zeros((n_heads, n_merge_levels, width), np.int64)
        self._codes = np.zeros(n_inputs, np.int16)
        self._shifts = np.zeros(n_inputs // BLOCK, np.int64)
        self._sums = np.zeros(n_inputs // BLOCK, np.int64)
        self._inputs: dict[int, MatrixInput] = {}

    def matrix_input(self, length: int) -> MatrixInput:
        """Return the x buffer's first ``length`` elements, padded to whole blocks."""
        if length not in self._inputs:
            n_blocks = -(-length // BLOCK)
            self._inputs[length] = MatrixInput(
                codes=self._codes[: n_blocks * BLOCK],
                shifts=self._shifts[:n_blocks],
                sums=self._sums[:n_blocks],
            )
        return self._inputs[length]
