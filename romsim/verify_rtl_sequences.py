"""Comparing the RTL with the cycle model where sequences fork and share pages of the KV cache."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from romsim.cycle.sequences import SequencePool
from romsim.cycle.timekeeper import Timeline
from romsim.cycle.trace import NO_TOKEN
from romsim.rtl_report import RtlReport, Tally
from romsim.rtl_words_copy import copied_words
from romsim.verify_rtl import Comparison
from romsim_compiler.description import Description
from romsim_compiler.kv_cycles import copy_cycles
from romsim_compiler.program import Instruction
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.driver import RtlRun
from romsim_rtl.driver_build import BuildOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from romsim.cycle.kv_rows import PageCopy
    from romsim.cycle.trace import SramWrite
    from romsim_rtl.die import Die
    from romsim_rtl.driver import ProgramResult
    from romsim_rtl.driver_trace import ProgramTrace

__all__ = ["ACTIONS", "SequenceComparison", "act", "compare_sequences", "page_order"]

ACTIONS = ("step", "step", "step", "fork", "start", "free")
"""What `act` does, as often as it is to be drawn."""

_COPY = Instruction(op="copy of a page", unit="H", wait=(), layer=-1, token=0, slot=0)


class SequenceComparison:
    """Sequences of a chip with pages, on both machines, step by step; a context manager.

    The cycle model's pool says which page is whose; the RTL is given the entries of the block
    tables that change, and the copies.

    Parameters
    ----------
    description
        The compiled chip, of as many sequences as its ``schedule.n_slots``.
    options
        How the RTL is compiled; ``trace`` is set.
    sram_seed
        Begin with random memories: nothing may change.
    page_order
        Order in which pages are taken.
    die
        What the chip is built for, if not for the description alone.
    progress
        Called with what is being done and the part that is done.

    Attributes
    ----------
    pool
        The cycle model's sequences.

    Raises
    ------
    SpecError
        If the KV cache has no pages, or the RTL no hardware for the description.
    ToolError
        If the build fails.
    """

    def __init__(
        self,
        description: Description,
        *,
        options: BuildOptions | None = None,
        sram_seed: int | None = None,
        page_order: Sequence[int] | None = None,
        die: Die | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        self._description, self._die = description, die
        self._tally = Tally(description)
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name, "trace")
        try:
            self._chip = RtlRun(
                description,
                options=replace(options or BuildOptions(), trace=True),
                die=die,
                trace=file,
                sram_seed=sram_seed,
                page_order=page_order,
                progress=progress,
            )
        except BaseException:
            self._folder.cleanup()
            raise
        self._both = Comparison(description, self._chip, file, self._tally, die, page_order)
        self.pool = SequencePool(self._both.model)
        self._tables: dict[int, list[int]] = {}
        self._n_tokens = 0
        self._begun = time.monotonic()

    def __enter__(self) -> SequenceComparison:
        """Give the comparison itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the simulation."""
        self._chip.close()
        self._folder.cleanup()

    def start(self, prompt: Sequence[int]) -> int:
        """Begin a sequence with a prompt; return its slot."""
        slot, expected = self.pool.start(prompt)
        self._tables[slot] = []
        self._map(slot)
        self._chip.use_sequence(slot)
        got = self._chip.prefill(prompt, begin=True)
        self._compare(0, expected.chunks, got, expected.logits, [], [])
        self._n_tokens += len(prompt)
        return slot

    def fork(self, slot: int) -> int:
        """Begin a sequence with the past of another; return its slot."""
        forked = self.pool.fork(slot)
        self._tables[forked] = []
        self._chip.fork(slot, forked)
        self._map(forked)
        return forked

    def step(self, slot: int, token: int) -> int:
        """Execute one token of a sequence, with the copies that it waits for; return the next."""
        pages = self._both.model.pages
        assert pages is not None
        n_copies = len(pages.copies)
        step = self.pool.step(slot, token)
        copies = pages.copies[n_copies:]
        cycles = [self._chip.copy_page(*copy) for copy in copies]
        self._map(slot)
        self._chip.use_sequence(slot)
        result = self._chip.step(token)
        own = self._description.spec.n_layers
        layers = own if self._die is None else self._die.attention.n_layers
        program = step.cycles - sum(self._cycles(copy, own) for copy in copies)
        timeline = Timeline(events=step.timeline, cycles=program)
        # the chip copies all layers that it has room for
        expected = [self._cycles(copy, layers) for copy in copies]
        self._compare(step.position, [timeline], [result], step.logits, expected, cycles)
        self._n_tokens += 1
        return step.next_token

    def free(self, slot: int) -> None:
        """End a sequence."""
        self.pool.free(slot)
        del self._tables[slot]

    def report(self) -> RtlReport:
        """Return what was compared so far."""
        return self._tally.report(self._n_tokens, time.monotonic() - self._begun)

    def _cycles(self, copy: PageCopy, n_layers: int) -> int:
        spec = replace(self._description.spec, n_layers=n_layers)
        return copy_cycles(copy.n_tokens, spec=spec, target=self._description.target)

    def _map(self, slot: int) -> None:
        """Give the RTL the entries of a block table that are new."""
        table = self._both.model.state(slot).stores[0].row_map.table
        known = self._tables[slot]
        new = {
            page: number
            for page, number in enumerate(table)
            if page >= len(known) or known[page] != number
        }
        self._chip.map_pages(new, sequence=slot)
        self._tables[slot] = list(table)

    def _compare(
        self,
        position: int,
        timelines: Sequence[Timeline],
        results: Sequence[ProgramResult],
        logits: NDArray[np.int32],
        expected: Sequence[int],
        copied: Sequence[int],
    ) -> None:
        """Compare copies, then programs."""
        both, tally = self._both, self._tally
        assert both.reader is not None
        traces: list[ProgramTrace] = both.reader.read()
        moved = [word for word in both.words if word.token == NO_TOKEN]
        words = [word for word in both.words if word.token != NO_TOKEN]
        both.words.clear()
        for number, (want, got) in enumerate(zip(expected, copied, strict=True)):
            tally.begin(position, traces[number].begin)
            tally.compare("cycles of a copy", want, [want], [got])
            tally.end(got)
            tally.compare_writes(
                [(_COPY, 0, want)],
                both.word_map.copied(_one_copy(moved, number)),
                both.word_map.written(
                    copied_words(traces[number].writes.values(), both.word_map.sizes)
                ),
            )
        both.compare_programs(position, timelines, results, logits, traces[len(copied) :], words)


def compare_sequences(
    description: Description,
    actions: Sequence[tuple[str, int]],
    *,
    options: BuildOptions | None = None,
    sram_seed: int | None = None,
    page_order: Sequence[int] | None = None,
    die: Die | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> RtlReport:
    """Run `act` on both machines; parameters as of `SequenceComparison`."""
    with SequenceComparison(
        description,
        options=options,
        sram_seed=sram_seed,
        page_order=page_order,
        die=die,
        progress=progress,
    ) as both:
        act(both, description, actions)
        return both.report()


def page_order(description: Description, seed: int | None) -> list[int] | None:
    """Permute the pages of a chip's KV cache; ``None`` leaves them as they are."""
    if seed is None:
        return None
    sizes = AttentionSizes.of(
        description.target,
        description.spec,
        context=description.context,
        linear_frac=description.numerics.linear_frac,
    )
    return random.Random(f"pages {seed}").sample(range(sizes.n_pages), sizes.n_pages)


def act(
    both: SequenceComparison, description: Description, actions: Sequence[tuple[str, int]]
) -> None:
    """Start a sequence of three tokens and do what can be done of ``actions``.

    "start", "fork" and "free" need a slot or a sequence to spare and are steps where there is none;
    a step of a sequence that is as long as the context does nothing. At the end every sequence that
    has room steps once more, so that what the others did to its pages shows.
    """
    n_slots, vocab_size = description.target.schedule.n_slots, description.spec.vocab_size
    lengths: dict[int, int] = {}

    def step(slot: int, number: int) -> None:
        if lengths[slot] < description.context:
            both.step(slot, number % vocab_size)
            lengths[slot] += 1

    def start(number: int) -> None:
        lengths[both.start([(number + place) % vocab_size for place in range(3)])] = 3

    start(5)
    for what, number in actions:
        slot = sorted(lengths)[number % len(lengths)]
        if what == "free" and len(lengths) > 1:
            both.free(slot)
            del lengths[slot]
        elif what == "fork" and len(lengths) < n_slots:
            lengths[both.fork(slot)] = lengths[slot]
        elif what == "start" and len(lengths) < n_slots:
            start(number)
        else:
            step(slot, number)
    for slot in sorted(lengths):
        step(slot, 1)


def _one_copy(words: Sequence[SramWrite], number: int) -> list[SramWrite]:
    """Return the words of one of several copies: beats begin anew with each."""
    copies: list[list[SramWrite]] = [[]]
    for word in words:
        if copies[-1] and word.beat < copies[-1][-1].beat:
            copies.append([])
        copies[-1].append(word)
    return copies[number]
