"""Several sequences on one chip: forks that copy on write, cached prefixes (docs/kv-sharing.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from romsim.cycle.prefix_tree import PrefixNode, PrefixTree
from romsim_compiler.kv_cycles import copy_cycles, fork_cycles
from romsim_models.errors import CapacityError, SpecError

if TYPE_CHECKING:
    from romsim.cycle.machine import CycleModel, PrefillResult, StepResult

__all__ = ["ADMISSIONS", "SequencePool"]

ADMISSIONS = ("now", "later", "never")
"""Whether a prompt's pages are free, will be when sequences end, or are more than there are."""


@dataclass(slots=True)
class _Sequence:
    tokens: list[int]
    adapter: str | None
    node: PrefixNode | None = None  # locked while the sequence lives


class SequencePool:
    """Sequences that share the pages of one chip, each in a slot of its own.

    Parameters
    ----------
    model
        Its KV cache must be paged. All of its slots are the pool's.
    prefixes
        Whether prompts and ended sequences stay known, page by page, until their room is needed.
    watermark
        Fraction of the pages that a new prompt leaves free, for sequences that grow.

    Attributes
    ----------
    tree
        Known prefixes, or ``None``.
    hit_tokens
        Prompt tokens that were found instead of computed.

    Raises
    ------
    SpecError
        If the cache is not paged, or prefixes would not give what computing them anew gives.
    """

    def __init__(
        self, model: CycleModel, *, prefixes: bool = False, watermark: float = 0.01
    ) -> None:
        kv = model.description.target.kv
        pages = model.pages
        if kv.layout != "paged" or pages is None:
            parts = (part for part in kv.text().split(",") if not part.startswith("layout="))
            raise SpecError(
                f"KV layout of a chip whose sequences share must be 'paged', not {kv.layout!r}; "
                f"compile with --kv {','.join(parts)},layout=paged"
            )
        if not 0 <= watermark < 1:
            raise SpecError(f"Watermark must be at least 0 and below 1, not {watermark!r}")
        if prefixes:
            _check_exact(model)
        self._model, self._pages = model, pages
        self._block = kv.block
        self._watermark = watermark
        self._sequences: dict[int, _Sequence] = {}
        self.tree = PrefixTree(pages, kv.block) if prefixes else None
        if self.tree is not None:
            pages.reclaim = self.tree.evict
        self.hit_tokens = 0
        self.fork_cycles = 0

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots with a sequence, ascending."""
        return tuple(sorted(self._sequences))

    @property
    def pages_in_all(self) -> int:
        """Pages of the chip."""
        return self._pages.n_pages

    @property
    def pages_in_use(self) -> int:
        """Pages that somebody holds."""
        return self._pages.n_pages - self._pages.n_free

    @property
    def pages_unshared(self) -> int:
        """Pages that the living sequences would take if each had its own."""
        return sum(len(self._table(slot)) for slot in self._sequences)

    @property
    def copied(self) -> tuple[int, ...]:
        """Tokens moved by each copy of a page so far."""
        return tuple(self._pages.copied)

    @property
    def copy_cycles(self) -> int:
        """Cycles of all copies of pages so far."""
        spec, target = self._model.description.spec, self._model.description.target
        return sum(copy_cycles(n, spec=spec, target=target) for n in self._pages.copied)

    def tokens(self, slot: int) -> tuple[int, ...]:
        """Return the tokens whose keys and values a sequence has."""
        return tuple(self._sequence(slot).tokens)

    def admit(self, n_tokens: int) -> str:
        """Return whether a prompt of that length may start: one of `ADMISSIONS`."""
        needed = -(-self._model.description.target.kv.held(n_tokens) // self._block)
        spare = int(self._watermark * self._pages.n_pages)
        if needed + spare > self._pages.n_pages or n_tokens > self._model.description.context:
            return "never"
        free = self._pages.n_free
        if self.tree is not None:  # what no sequence holds can be had by forgetting it
            free += sum(
                self._pages.count(page) == 1 for node in self.tree.nodes() for page in node.pages
            )
        return "now" if needed + spare <= free and self._has_slot() else "later"

    @property
    def saturations(self) -> int:
        """Values clipped to 32 bits since the model was made."""
        return self._model.saturations

    def check_width(self, n: int) -> None:
        """Refuse more sequences at a time than the chip has slots.

        Raises
        ------
        CapacityError
            With the remedy.
        """
        if n > self._n_slots:
            raise self._too_many(n)

    def start(
        self, prompt: Sequence[int], *, adapter: str | None = None
    ) -> tuple[int, PrefillResult]:
        """Begin a sequence in a free slot; return the slot and the executed part of the prompt.

        Raises
        ------
        SpecError
            If the prompt is empty, or a token or the adapter does not exist.
        CapacityError
            If no slot is free, or the prompt does not fit.
        """
        if not prompt:
            raise SpecError("Prompt must have at least 1 token, not 0")
        slot = self._free_slot()
        state = self._model.state(slot)
        state.restart()
        sequence = _Sequence(list(prompt), adapter)
        found = 0
        if self.tree is not None:
            # The last token is computed in any case: its logits are wanted.
            pages, node = self.tree.match(self._key(adapter), prompt[:-1])
            found = len(pages) * self._block
            self._lock(sequence, node)
            state.adopt(pages, found)
        try:
            result = self._model.prefill(prompt[found:], adapter=adapter, slot=slot)
        except (SpecError, CapacityError):
            self._end(slot, sequence)
            raise
        self.hit_tokens += found
        self._sequences[slot] = sequence
        self._remember(slot, sequence)
        return slot, result

    def fork(self, slot: int) -> int:
        """Begin a sequence with the past of another in a free slot; return it.

        Raises
        ------
        SpecError
            If there is no sequence in the slot.
        CapacityError
            If no slot is free.
        """
        source = self._sequence(slot)
        target = self._free_slot()
        self._model.fork(slot, target)
        sequence = _Sequence(list(source.tokens), source.adapter)
        if source.node is not None:
            self._lock(sequence, source.node)
        self._sequences[target] = sequence
        description = self._model.description
        self.fork_cycles += fork_cycles(
            len(source.tokens), spec=description.spec, target=description.target
        )
        return target

    def step(self, slot: int, token: int) -> StepResult:
        """Execute one token of a sequence.

        Raises
        ------
        SpecError
            If there is no sequence in the slot, or no such token.
        CapacityError
            If the sequence is at the context's end, or no page is free.
        """
        sequence = self._sequence(slot)
        result = self._model.step(token, adapter=sequence.adapter, slot=slot)
        sequence.tokens.append(int(token))
        return result

    def free(self, slot: int) -> None:
        """End a sequence; its whole pages stay known where prefixes are kept.

        Raises
        ------
        SpecError
            If there is no sequence in the slot: it would be freed twice.
        """
        sequence = self._sequence(slot)
        self._remember(slot, sequence)
        self._end(slot, sequence)
        del self._sequences[slot]

    def _end(self, slot: int, sequence: _Sequence) -> None:
        if self.tree is not None and sequence.node is not None:
            self.tree.unlock(sequence.node)
            sequence.node = None
        self._model.reset(slot)

    def _remember(self, slot: int, sequence: _Sequence) -> None:
        if self.tree is not None:
            key, tokens = self._key(sequence.adapter), sequence.tokens
            _, node = self.tree.insert(key, tokens, self._table(slot))
            self._lock(sequence, node)

    def _lock(self, sequence: _Sequence, node: PrefixNode) -> None:
        assert self.tree is not None
        self.tree.lock(node)
        if sequence.node is not None:
            self.tree.unlock(sequence.node)
        sequence.node = node

    def _key(self, adapter: str | None) -> tuple[str | None, str, str]:
        """Return whatever else keys and values depend on: adapter, codec and retention, rotation.

        Keys are stored as rotated at their absolute positions, in every configuration.
        """
        return adapter, self._model.description.target.kv.text(), "rotated"

    def _table(self, slot: int) -> list[int]:
        return self._model.state(slot).stores[0].row_map.table

    def _sequence(self, slot: int) -> _Sequence:
        if slot not in self._sequences:
            listed = ", ".join(map(str, self.slots)) or "none"
            raise SpecError(f"Slot must hold a sequence ({listed} do), not be {slot!r}")
        return self._sequences[slot]

    @property
    def _n_slots(self) -> int:
        return self._model.description.target.schedule.n_slots

    def _has_slot(self) -> bool:
        return len(self._sequences) < self._n_slots

    def _free_slot(self) -> int:
        for slot in range(self._n_slots):
            if slot not in self._sequences:
                return slot
        raise self._too_many(self._n_slots + 1)

    def _too_many(self, n: int) -> CapacityError:
        return CapacityError(
            f"Sequences on target {self._model.description.target.name!r} must be at most "
            f"{self._n_slots}, one a slot, not {n}; free one, narrow the beam, or compile with "
            f"--slots {n}"
        )


def _check_exact(model: CycleModel) -> None:
    """Refuse cached prefixes that would differ from computing them anew."""
    kv = model.description.target.kv
    if kv.codec in ("kivi", "commvq"):
        raise SpecError(
            f"Codec of cached prefixes must encode each token by itself, not be {kv.codec!r}, "
            f"which encodes the last {kv.residual} tokens of a prefix when the sequence goes on; "
            f"compile with --kv codec=int4, or fork a sequence instead"
        )
    if kv.codec == "tiered":
        raise SpecError(
            "Codec of cached prefixes must encode each token by itself, not be 'tiered', whose "
            "narrow tokens depend on what followed; compile with --kv codec=int4"
        )
    if kv.retention != "all":
        raise SpecError(
            f"Retention of cached prefixes must be 'all', not {kv.retention!r}: which tokens are "
            f"left depends on what followed; fork a sequence instead"
        )
