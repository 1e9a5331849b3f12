"""The cycle-level model: executes a compiled program, values and cycles.

Every engine that is compared with it implements docs/numerics.md on its own; when things happen is
docs/machine.md. Nothing here depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from romsim.cycle.adapters import AdapterGroup, load_adapter
from romsim.cycle.datapath import Datapath, Flight, Recorder
from romsim.cycle.state import SlotState, TokenBuffers
from romsim.cycle.timekeeper import Event, Timekeeper, Timeline
from romsim.cycle.trace import Tracer
from romsim.cycle.traced import check_traced
from romsim.cycle.weights import BLOCK
from romsim.cycle.workers import Workers
from romsim_models.errors import CapacityError, DescriptionError, SpecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.chip import CompiledChip
    from romsim.cycle.kv_rows import PagePool
    from romsim.cycle.trace import BeatTimes, SramWrite
    from romsim_compiler.program import Program
    from romsim_compiler.target import Target

__all__ = ["CycleModel", "PrefillResult", "StepResult"]

_EXECUTABLE_FORMAT = "mxint8"
_TWINS = {name: f"its executable twin '{name}-int8'" for name in ("roma-7nm", "tom-7nm")}
_OTHER = "an executable target such as 'roma-7nm-int8'"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """One executed token.

    Parameters
    ----------
    logits
        int32 [vocab_size], frac as in the description's numerics.
    next_token
        The lowest id among the largest logits.
    cycles
        Cycles of the token, host hand-over and copies of shared pages included.
    position
        Where the token stands, 0 for the first.
    timeline
        Each instruction with the cycle of its issue and the one from which its unit is idle,
        counted from the token's start.
    """

    logits: NDArray[np.int32]
    next_token: int
    cycles: int
    position: int
    timeline: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillResult:
    """An executed prompt.

    Parameters
    ----------
    logits
        int32 [vocab_size] after the last prompt token.
    next_token
        The lowest id among the largest logits.
    cycles
        Cycles of the whole prompt: what a user waits for the first token.
    position
        Where the last prompt token stands.
    chunks
        Times of each executed program, in order; each counts from its own start.
    """

    logits: NDArray[np.int32]
    next_token: int
    cycles: int
    position: int
    chunks: tuple[Timeline, ...]


class CycleModel:
    """A compiled chip that runs; one thread at a time may use it.

    Parameters
    ----------
    description
        What to execute; it must have images and an executable target.
    threads
        Threads that share large matrices and attention. Values do not depend on it.
    record
        Called with every operator's output: name (``L0.attn_norm.codes``), position, values.
    trace
        Called with every word written into a buffer or into the SRAM of a tile.
    beat_times
        Cycle of a word inside its instruction, for ``trace``; see `romsim.cycle.trace.BeatTimes`.
    page_order
        Order in which free pages of the KV cache are handed out; values do not depend on it.

    Raises
    ------
    SpecError
        If the target is not executable, or ``threads`` is no positive number.
    DescriptionError
        If there are no images, or the description needs what this model does not have.
    """

    def __init__(
        self,
        description: CompiledChip,
        *,
        threads: int = 2,
        record: Recorder | None = None,
        trace: Callable[[SramWrite], None] | None = None,
        beat_times: BeatTimes | None = None,
        page_order: Sequence[int] | None = None,
    ) -> None:
        _check(description)
        _check_kv(description.target, has_trace=trace is not None, has_order=page_order is not None)
        if threads < 1:
            raise SpecError(f"threads must be at least 1, not {threads!r}")
        self.description = description
        self.threads = threads
        self.saturations = 0
        """Values clipped to 32 bits since the model was made."""
        self._datapath = Datapath(description, Workers(threads), page_order)
        self._datapath.record = record
        self._tracer = Tracer(description, trace, beat_times) if trace is not None else None
        self._timekeeper = Timekeeper(description)
        self._adapters: dict[str, dict[str, AdapterGroup]] = {}
        self._slots: dict[int, SlotState] = {}
        self._buffers: list[TokenBuffers] = []
        self._prefill_program = lru_cache(maxsize=8)(description.prefill)

    @property
    def record(self) -> Recorder | None:
        """The callback of operator outputs; may be replaced between tokens."""
        return self._datapath.record

    @record.setter
    def record(self, callback: Recorder | None) -> None:
        self._datapath.record = callback

    @property
    def n_weight_bytes(self) -> int:
        """Memory that the matrices take in this process, in bytes."""
        return self._datapath.n_weight_bytes

    def position(self, slot: int = 0) -> int:
        """Return the number of tokens that the slot's sequence has."""
        return self._slot(slot).position

    @property
    def pages(self) -> PagePool | None:
        """Pages of the KV cache, all slots together; ``None`` without a block table."""
        return self._datapath.pages

    def reset(self, slot: int = 0) -> None:
        """Start a new sequence in a slot; as on the chip, SRAM keeps what it holds."""
        self._slot(slot).restart()

    def state(self, slot: int = 0) -> SlotState:
        """Return what the chip holds of a slot's sequence."""
        return self._slot(slot)

    def fork(self, source: int, slot: int) -> None:
        """Begin in ``slot`` a sequence with the past of that in ``source``, sharing its pages."""
        forked = self._slot(source).fork()
        self.reset(slot)
        self._slots[slot] = forked

    def check_run(self, prompt_tokens: int, new_tokens: int, *, slot: int = 0) -> None:
        """Refuse a run that would pass the context, before it starts.

        A run of ``new_tokens`` generated tokens puts all but the last of them into the KV cache.

        Raises
        ------
        SpecError
            If a number is impossible.
        CapacityError
            If the KV cache has no room for the run.
        """
        if prompt_tokens < 1:
            raise SpecError(f"Prompt must have at least 1 token, not {prompt_tokens!r}")
        if new_tokens < 0:
            raise SpecError(f"Number of new tokens must be at least 0, not {new_tokens!r}")
        context, used = self.description.context, self._slot(slot).position
        if used + prompt_tokens + max(new_tokens - 1, 0) > context:
            room = context - used
            remedy = "compile with a larger context"
            if prompt_tokens <= room:
                remedy = f"ask for at most {room - prompt_tokens + 1} new tokens, or {remedy}"
            else:
                remedy = f"shorten the prompt to {room} tokens, or {remedy}"
            raise CapacityError(
                f"Run of {prompt_tokens} prompt and {new_tokens} new tokens must fit the KV cache "
                f"of {context} tokens, of which {used} are taken; {remedy}"
            )

    def step(self, token: int, *, adapter: str | None = None, slot: int = 0) -> StepResult:
        """Execute the decode program for one token.

        Raises
        ------
        SpecError
            If the token, the adapter or the slot does not exist.
        CapacityError
            If the KV cache is full.
        """
        groups = self._adapter(adapter)
        self.check_run(1, 0, slot=slot)
        position = self._slot(slot).position
        timeline = self._run(self.description.decode, [token], groups, slot)
        logits = self._datapath.logits.copy()
        return StepResult(
            logits=logits,
            next_token=int(np.argmax(logits)),  # the first, hence the lowest id
            cycles=timeline.cycles + timeline.copy_cycles,
            position=position,
            timeline=timeline.events,
        )

    def prefill(
        self, tokens: Sequence[int], *, adapter: str | None = None, slot: int = 0
    ) -> PrefillResult:
        """Execute a prompt: chunks of ``n_inflight`` interleaved tokens, then single ones.

        Values are those of :meth:`step` for one token after the other.

        Raises
        ------
        SpecError
            If there is no token, or a token, the adapter or the slot does not exist.
        CapacityError
            If the prompt does not fit the KV cache.
        """
        groups = self._adapter(adapter)
        self.check_run(len(tokens), 0, slot=slot)
        self._check_tokens(tokens)
        n_inflight = self.description.target.schedule.n_inflight
        chunks = []
        first = 0
        while first < len(tokens):
            n = n_inflight if len(tokens) - first >= n_inflight else 1
            program = self._prefill_program(n, first + n == len(tokens))
            chunks.append(self._run(program, tokens[first : first + n], groups, slot))
            first += n
        logits = self._datapath.logits.copy()
        return PrefillResult(
            logits=logits,
            next_token=int(np.argmax(logits)),
            cycles=sum(chunk.cycles + chunk.copy_cycles for chunk in chunks),
            position=self._slot(slot).position - 1,
            chunks=tuple(chunks),
        )

    def _run(
        self,
        program: Program,
        tokens: Sequence[int],
        groups: dict[str, AdapterGroup],
        slot: int,
    ) -> Timeline:
        """Execute one program for consecutive tokens; return its times."""
        self._check_tokens(tokens)
        state = self._slot(slot)
        flights = [
            Flight(
                token=int(token),
                position=state.position + index,
                buffers=self._token_buffers(index),
                slot=state,
                adapter=groups,
            )
            for index, token in enumerate(tokens)
        ]
        ranks = {name: group.ranks for name, group in groups.items()}
        timeline = self._timekeeper.time(program, state.position, ranks)
        n_copied = len(self.pages.copies) if self.pages is not None else 0
        state.prepare(len(tokens))
        if self._tracer is not None and self.pages is not None:
            for copy in self.pages.copies[n_copied:]:
                self._tracer.copied(copy, self._datapath)
        execute = self._datapath.execute
        clipped = 0
        for instruction, issue, idle in timeline.events:
            flight = flights[instruction.token]
            clipped += execute(instruction, flight)
            if self._tracer is not None:
                self._tracer.after(instruction, flight, self._datapath, slot, issue, idle)
        self.saturations += clipped
        state.position += len(tokens)
        if self.pages is None:
            return timeline
        return self._timekeeper.with_copies(timeline, self.pages.copied[n_copied:])

    def _slot(self, slot: int) -> SlotState:
        n_slots = self.description.target.schedule.n_slots
        if not 0 <= slot < n_slots:
            raise SpecError(
                f"Slot must be 0 to {n_slots - 1} on target {self.description.target.name!r}, "
                f"not {slot!r}"
            )
        if slot not in self._slots:
            self._slots[slot] = self._datapath.new_slot()
        return self._slots[slot]

    def _token_buffers(self, index: int) -> TokenBuffers:
        while len(self._buffers) <= index:
            self._buffers.append(
                TokenBuffers(
                    spec=self.description.spec, n_merge_levels=self._datapath.n_merge_levels
                )
            )
        return self._buffers[index]

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        vocab_size = self.description.spec.vocab_size
        for token in tokens:
            if not 0 <= token < vocab_size:
                raise SpecError(f"Token must be 0 to {vocab_size - 1}, not {token!r}")

    def _adapter(self, name: str | None) -> dict[str, AdapterGroup]:
        if name is None:
            return {}
        if name not in self._adapters:
            resident = self.description.loras
            if name not in resident:
                listed = ", ".join(sorted(resident)) or "none (compile with one)"
                raise SpecError(f"Adapter must be a resident one: {listed}; not {name!r}")
            self._adapters[name] = load_adapter(resident[name])
        return self._adapters[name]


def _check_kv(target: Target, *, has_trace: bool, has_order: bool) -> None:
    """Refuse options that do not go with the target's KV configuration."""
    kv = target.kv
    if has_trace:
        check_traced(kv)
    if has_order and kv.layout != "paged":
        raise SpecError(
            f"Order of pages must be given with KV layout paged, not with {kv.layout!r}"
        )


def _check(description: CompiledChip) -> None:
    """Refuse a description that cannot be executed."""
    target = description.target
    if not target.executable:
        raise SpecError(
            f"Target {target.name!r} must be executable for a run with values, but its formats "
            f"(activations {target.formats.activation}, KV {target.formats.kv}, adapters "
            f"{target.formats.lora}) are for area and timing only; compile for "
            f"{_TWINS.get(target.name, _OTHER)}, or use the timing engine"
        )
    wanted = {"activation": _EXECUTABLE_FORMAT, "kv": _EXECUTABLE_FORMAT}
    for what, expected in {**wanted, "lora": target.lora_format}.items():
        found = getattr(target.formats, what)
        if found != expected:
            raise SpecError(
                f"Format of {what} of target {target.name!r} must be {expected!r} to be executed, "
                f"not {found!r}; change it in the target's [formats]"
            )
    if not description.has_images:
        raise DescriptionError(
            f"Description of {description.spec.name!r} must have ROM images to be executed, but it "
            f"was compiled from a shape without weights; compile a model with weights, or use the "
            f"timing engine"
        )
    numerics = description.numerics
    if numerics.act_block != BLOCK or numerics.linear_frac != 16:
        raise DescriptionError(
            f"Numerics must have act_block 32 and linear_frac 16, not {numerics.act_block} and "
            f"{numerics.linear_frac}; compile again"
        )
    operations = [i for i in description.decode.instructions if i.layer < 0]
    if not any(i.op == "embed" and i.operand for i in operations):
        raise SpecError(
            f"Target {target.name!r} must keep the input embedding in ROM to be executed; set "
            f'input = "rom" in its [embedding]'
        )
    if not any(i.op == "matvec" and i.operand == "head" for i in operations):
        raise SpecError(
            f"Target {target.name!r} must keep the LM head in ROM to be executed; set "
            f'head = "rom" in its [embedding]'
        )
