"""Comparing the RTL with the cycle model: tokens, logits, every SRAM write, every issue."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle import CycleModel
from romsim.cycle.timekeeper import Timeline
from romsim.rtl_report import RtlReport, Tally
from romsim.rtl_words import WordMap
from romsim_compiler.description import Description
from romsim_rtl.die import Die
from romsim_rtl.driver import ProgramResult, RtlRun
from romsim_rtl.driver_build import BuildOptions
from romsim_rtl.driver_trace import ProgramTrace, TraceReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.trace import SramWrite

__all__ = ["Comparison", "RtlPrompt", "compare_rtl", "compare_rtl_prompts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RtlPrompt:
    """A prompt, and greedy decoding after it.

    Parameters
    ----------
    tokens
        The prompt.
    n_new
        Tokens that are decoded after it.
    adapter
        Resident adapter to use.
    begin
        Begin a sequence at position 0, or go on where the last prompt's decoding ended.
    """

    tokens: tuple[int, ...]
    n_new: int = 0
    adapter: str | None = None
    begin: bool = True


def compare_rtl(
    description: Description,
    prompt: Sequence[int],
    *,
    n_new: int,
    adapter: str | None = None,
    trace: bool = True,
    options: BuildOptions | None = None,
    sram_seed: int | None = None,
    waves: tuple[Path, int, int] | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> RtlReport:
    """Run prompt and greedy decoding on both, and compare.

    Parameters
    ----------
    adapter
        Resident adapter to use.
    trace
        Compare SRAM writes and issues as well as tokens, logits and cycles.
    options
        How the chip is compiled; ``trace`` is set as asked here.
    sram_seed
        Begin with random memories: nothing may change.
    waves
        File for a waveform, its first cycle and the one after its last, for ``options.waves``.

    Raises
    ------
    SpecError
        If the RTL has no hardware for the description.
    ToolError
        If the build or the simulation fails.
    """
    one = RtlPrompt(tokens=tuple(prompt), n_new=n_new, adapter=adapter)
    return compare_rtl_prompts(
        description,
        [one],
        trace=trace,
        options=options,
        sram_seed=sram_seed,
        waves=waves,
        progress=progress,
    )


def compare_rtl_prompts(
    description: Description,
    prompts: Sequence[RtlPrompt],
    *,
    trace: bool = True,
    options: BuildOptions | None = None,
    die: Die | None = None,
    page_order: Sequence[int] | None = None,
    progress: Callable[[str, float], None] | None = None,
    **simulation: Any,
) -> RtlReport:
    """As `compare_rtl`, for prompts one after the other; ``simulation`` is for `RtlRun`.

    Parameters
    ----------
    die
        What the chip is built for, if not for the description alone.
    page_order
        Order in which pages of the KV cache are taken, on both; values do not depend on it.

    Raises
    ------
    SpecError
        If the RTL has no hardware for the description.
    ToolError
        If the build or the simulation fails.
    """
    options = replace(options or BuildOptions(), trace=trace)
    tally = Tally(description)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace") if trace else None
        with RtlRun(
            description,
            options=options,
            die=die,
            trace=file,
            page_order=page_order,
            progress=progress,
            **simulation,
        ) as chip:
            begun = time.monotonic()
            comparison = Comparison(description, chip, file, tally, die, page_order)
            for prompt in prompts:
                comparison.run(prompt, progress)
    n_tokens = sum(len(prompt.tokens) + prompt.n_new for prompt in prompts)
    return tally.report(n_tokens, time.monotonic() - begun)


class Comparison:
    """One chip on both machines, side by side.

    Parameters
    ----------
    description, chip
        The chip, and its RTL.
    file
        Trace of the RTL, or ``None``.
    tally
        Where the outcome is counted.
    die
        What the chip is built for, if not for the description alone.
    page_order
        Order in which pages of the KV cache are taken.

    Attributes
    ----------
    model
        The cycle model.
    words, reader, word_map
        What both wrote since the last comparison, and how their words are understood.
    """

    def __init__(
        self,
        description: Description,
        chip: RtlRun,
        file: Path | None,
        tally: Tally,
        die: Die | None,
        page_order: Sequence[int] | None,
    ) -> None:
        self._die = die
        self._description, self.chip, self.tally = description, chip, tally
        self.words: list[SramWrite] = []
        self.model = CycleModel(
            description,
            trace=None if file is None else self.words.append,
            page_order=page_order,
        )
        self.reader = None if file is None else TraceReader(file)
        self.word_map = WordMap(description, die=die)
        self._n_clipped = 0

    def run(self, prompt: RtlPrompt, progress: Callable[[str, float], None] | None) -> None:
        """Run a prompt on both, and greedy decoding after it."""
        adapter, n_tokens = prompt.adapter, len(prompt.tokens)
        self.word_map = WordMap(self._description, adapter=adapter, die=self._die)
        self.chip.use_adapter(adapter)
        if prompt.begin:
            self.model.reset()
        first = self.model.position()
        expected = self.model.prefill(prompt.tokens, adapter=adapter)
        got = self.chip.prefill(prompt.tokens, begin=prompt.begin)
        self.compare(first, expected.chunks, got, expected.logits)
        token = expected.next_token
        for number in range(prompt.n_new):
            if progress is not None:
                progress("comparing", (n_tokens + number) / (n_tokens + prompt.n_new))
            step = self.model.step(token, adapter=adapter)
            result = self.chip.step(token)
            timeline = Timeline(events=step.timeline, cycles=step.cycles)
            self.compare(step.position, (timeline,), [result], step.logits)
            token = step.next_token

    def compare(
        self,
        position: int,
        timelines: Sequence[Timeline],
        results: Sequence[ProgramResult],
        logits: NDArray[np.int32],
    ) -> None:
        """Compare consecutive programs, the last one with a head."""
        traces = self.reader.read() if self.reader is not None else []
        self.compare_programs(position, timelines, results, logits, traces, self.words)
        self.words.clear()

    def compare_programs(
        self,
        position: int,
        timelines: Sequence[Timeline],
        results: Sequence[ProgramResult],
        logits: NDArray[np.int32],
        traces: Sequence[ProgramTrace],
        words: Sequence[SramWrite],
    ) -> None:
        """As `compare`, with what both wrote."""
        tally = self.tally
        parts = _by_program(words, len(timelines))
        for number, (timeline, result) in enumerate(zip(timelines, results, strict=True)):
            tally.begin(position, traces[number].begin if traces else tally.n_cycles)
            tally.compare("cycles", timeline.cycles, [timeline.cycles], [result.cycles])
            tally.end(result.cycles)
            if traces:
                tally.compare_events(timeline.events, traces[number])
                tally.compare_writes(
                    timeline.events,
                    self.word_map.expected(parts[number], timeline.events, position=position),
                    self.word_map.written(traces[number].writes.values()),
                )
            position += max(event[0].token for event in timeline.events) + 1
        end = timelines[-1].cycles
        tally.compare("logits", end, logits, results[-1].logits)
        tally.n_logits += logits.size
        tally.compare("next token", end, [int(np.argmax(logits))], [results[-1].token])
        n_clipped = self.model.saturations - self._n_clipped
        tally.compare("clipped values", end, [n_clipped], [sum(r.clipped for r in results)])
        self._n_clipped += n_clipped


def _by_program(words: Sequence[SramWrite], n_programs: int) -> list[list[SramWrite]]:
    """Cut the cycle model's words where a program begins: there the cycle of issue falls."""
    parts: list[list[SramWrite]] = [[] for _ in range(n_programs)]
    number, before = 0, -1
    for word in words:
        if word.issue < before:
            number += 1
        before = word.issue
        parts[number].append(word)
    return parts
