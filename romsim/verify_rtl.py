"""Comparing the RTL with the cycle model: tokens, logits, every SRAM write, every issue."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle import CycleModel
from romsim.cycle.timekeeper import Timeline
from romsim.rtl_words import ELEMENT, WordMap
from romsim_compiler.description import Description
from romsim_rtl.driver import ProgramResult, RtlRun
from romsim_rtl.driver_build import BuildOptions
from romsim_rtl.driver_trace import ProgramTrace, TraceReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.timekeeper import Event
    from romsim.cycle.trace import SramWrite
    from romsim.rtl_words import Place
    from romsim_compiler.program import Instruction

__all__ = ["RtlDivergence", "RtlPrompt", "RtlReport", "compare_rtl", "compare_rtl_prompts"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RtlDivergence:
    """The first place at which RTL and cycle model part."""

    what: str  # the operator and where it writes, or "logits", "issue", ...
    program: int  # number of the executed program
    position: int  # of the program's first token
    cycle: int  # from the program's first issue
    index: int
    expected: int  # the cycle model's
    got: int

    def sentence(self) -> str:
        """Return the place and both values in decimal and hexadecimal."""
        mask = (1 << 64) - 1
        return (
            f"{self.what}[{self.index}], cycle {self.cycle} of program {self.program} at position "
            f"{self.position}: cycle model {self.expected} (0x{self.expected & mask:x}), RTL "
            f"{self.got} (0x{self.got & mask:x})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RtlReport:
    """Outcome of a comparison."""

    n_programs: int
    n_tokens: int
    n_logits: int
    n_writes: int  # elements of SRAM words, each with address, value and cycle
    n_events: int  # issues, each with unit, issue and idle cycle
    n_mismatches: int
    first: RtlDivergence | None
    by_memory: dict[str, int]

    @property
    def passed(self) -> bool:
        """Whether something was compared and nothing differed."""
        return self.n_logits > 0 and self.n_mismatches == 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "n_programs": self.n_programs,
            "n_tokens": self.n_tokens,
            "n_logits": self.n_logits,
            "n_writes": self.n_writes,
            "n_events": self.n_events,
            "n_mismatches": self.n_mismatches,
            "first": None if self.first is None else self.first.sentence(),
            "writes_by_memory": dict(sorted(self.by_memory.items())),
            "passed": self.passed,
        }


def compare_rtl(
    description: Description,
    prompt: Sequence[int],
    *,
    n_new: int,
    adapter: str | None = None,
    trace: bool = True,
    options: BuildOptions | None = None,
    sram_seed: int | None = None,
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
        progress=progress,
    )


def compare_rtl_prompts(
    description: Description,
    prompts: Sequence[RtlPrompt],
    *,
    trace: bool = True,
    options: BuildOptions | None = None,
    progress: Callable[[str, float], None] | None = None,
    **simulation: Any,
) -> RtlReport:
    """As `compare_rtl`, for prompts one after the other; ``simulation`` is for `RtlRun`.

    Raises
    ------
    SpecError
        If the RTL has no hardware for the description.
    ToolError
        If the build or the simulation fails.
    """
    base = options or BuildOptions()
    options = BuildOptions(opt=base.opt, threads=base.threads, trace=trace, waves=base.waves)
    tally = _Tally()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace") if trace else None
        with RtlRun(
            description, options=options, trace=file, progress=progress, **simulation
        ) as chip:
            comparison = _Comparison(description, chip, file, tally)
            for prompt in prompts:
                comparison.run(prompt, progress)
    return tally.report(sum(len(prompt.tokens) + prompt.n_new for prompt in prompts))


class _Comparison:
    """One chip on both machines, side by side."""

    def __init__(
        self, description: Description, chip: RtlRun, file: Path | None, tally: _Tally
    ) -> None:
        self._description, self._chip, self._tally = description, chip, tally
        self._words: list[SramWrite] = []
        self._model = CycleModel(description, trace=None if file is None else self._words.append)
        self._reader = None if file is None else TraceReader(file)
        self._map = WordMap(description)
        self._n_clipped = 0

    def run(self, prompt: RtlPrompt, progress: Callable[[str, float], None] | None) -> None:
        adapter, n_tokens = prompt.adapter, len(prompt.tokens)
        self._map = WordMap(self._description, adapter=adapter)
        self._chip.use_adapter(adapter)
        if prompt.begin:
            self._model.reset()
        first = self._model.position()
        expected = self._model.prefill(prompt.tokens, adapter=adapter)
        got = self._chip.prefill(prompt.tokens, begin=prompt.begin)
        self._compare(first, expected.chunks, got, expected.logits)
        token = expected.next_token
        for number in range(prompt.n_new):
            if progress is not None:
                progress("comparing", (n_tokens + number) / (n_tokens + prompt.n_new))
            step = self._model.step(token, adapter=adapter)
            result = self._chip.step(token)
            timeline = Timeline(events=step.timeline, cycles=step.cycles)
            self._compare(step.position, (timeline,), [result], step.logits)
            token = step.next_token

    def _compare(
        self,
        position: int,
        timelines: Sequence[Timeline],
        results: Sequence[ProgramResult],
        logits: NDArray[np.int32],
    ) -> None:
        """Compare consecutive programs, the last one with a head."""
        tally = self._tally
        parts = _by_program(self._words, len(timelines))
        traces = self._reader.read() if self._reader is not None else []
        for number, (timeline, result) in enumerate(zip(timelines, results, strict=True)):
            tally.begin(position)
            tally.compare("cycles", timeline.cycles, [timeline.cycles], [result.cycles])
            if traces:
                tally.compare_events(timeline.events, traces[number])
                tally.compare_writes(
                    timeline.events,
                    self._map.expected(parts[number], timeline.events),
                    self._map.written(traces[number].writes.values()),
                )
            position += max(event[0].token for event in timeline.events) + 1
        end = timelines[-1].cycles
        tally.compare("logits", end, logits, results[-1].logits)
        tally.n_logits += logits.size
        tally.compare("next token", end, [int(np.argmax(logits))], [results[-1].token])
        n_clipped = self._model.saturations - self._n_clipped
        tally.compare("clipped values", end, [n_clipped], [sum(r.clipped for r in results)])
        self._n_clipped += n_clipped
        self._words.clear()


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


class _Tally:
    """Counts what was compared, and keeps the first difference in time."""

    def __init__(self) -> None:
        self.n_programs = self.n_logits = self.n_writes = self.n_events = self.n_mismatches = 0
        self.by_memory: dict[str, int] = {}
        self.first: RtlDivergence | None = None
        self._position = 0

    def begin(self, position: int) -> None:
        """Begin a program."""
        self._position = position
        self.n_programs += 1

    def compare(self, what: str, cycle: int, expected: Any, got: Any) -> None:
        """Compare two vectors."""
        wanted, found = np.asarray(expected, np.int64), np.asarray(got, np.int64)
        n = min(len(wanted), len(found))
        wrong = np.flatnonzero(wanted[:n] != found[:n])
        self.n_mismatches += wrong.size + abs(len(wanted) - len(found))
        if wrong.size:
            at = int(wrong[0])
            self._note(what, cycle, at, int(wanted[at]), int(found[at]))
        elif len(wanted) != len(found):
            self._note(f"number of {what}", cycle, 0, len(wanted), len(found))

    def compare_events(self, events: Sequence[Event], trace: ProgramTrace) -> None:
        """Compare unit, issue and idle cycle of every instruction."""
        self.n_events += len(events)
        for number, (instruction, issue, idle) in enumerate(events):
            if number >= len(trace.issues):
                break
            found = trace.issues[number]
            for what, wanted, got in (
                ("unit", "VLH".index(instruction.unit), "VLH".index(found.unit)),
                ("issue", issue, found.issue),
                ("idle", idle, found.idle),
            ):
                if wanted != got:
                    self.n_mismatches += 1
                    self._note(f"{what} of {_name(instruction)}", issue, number, wanted, got)
        if len(events) != len(trace.issues):
            self.n_mismatches += 1
            last = events[-1][1]
            self._note("number of instructions", last, 0, len(events), len(trace.issues))

    def compare_writes(
        self,
        events: Sequence[Event],
        expected: dict[Place, NDArray[Any]],
        got: dict[Place, NDArray[Any]],
    ) -> None:
        """Compare all elements of all memories: place, cycle and value."""
        nothing = np.zeros(0, dtype=ELEMENT)
        for place in sorted(expected.keys() | got.keys()):
            wanted, found = (_sorted(side.get(place, nothing)) for side in (expected, got))
            memory, tile = place
            self.n_writes += len(wanted)
            self.by_memory[memory] = self.by_memory.get(memory, 0) + len(wanted)
            n = min(len(wanted), len(found))
            fields = ("cycle", "token", "index", "value")
            differ = np.zeros(n, dtype=bool)
            for name in fields:
                differ |= wanted[name][:n] != found[name][:n]
            wrong = np.flatnonzero(differ)
            self.n_mismatches += wrong.size + abs(len(wanted) - len(found))
            if not wrong.size and len(wanted) == len(found):
                continue
            at = int(wrong[0]) if wrong.size else n
            where = memory if tile < 0 else f"{memory} of tile {tile}"
            self._note_write(where, events, wanted, found, at)

    def _note_write(
        self,
        where: str,
        events: Sequence[Event],
        wanted: NDArray[Any],
        found: NDArray[Any],
        at: int,
    ) -> None:
        """Say in which way the first different write differs."""
        if at >= len(wanted):
            extra = found[at]
            cycle, index = int(extra["cycle"]), int(extra["index"])
            self._note(f"number of writes to {where}", cycle, index, len(wanted), len(found))
            return
        want = wanted[at]
        name = _name(events[int(want["event"])][0])
        cycle, index = int(want["cycle"]), int(want["index"])
        if at >= len(found):
            what = f"number of writes to {where} by {name}"
            self._note(what, cycle, index, len(wanted), len(found))
            return
        for part, label in (
            ("cycle", "cycle of a write"),
            ("token", "in-flight index of a write"),
            ("index", "place of a write"),
            ("value", "value"),
        ):
            if want[part] != found[at][part]:
                what = f"{label} of {name} to {where}"
                self._note(what, cycle, index, int(want[part]), int(found[at][part]))
                return

    def _note(self, what: str, cycle: int, index: int, expected: int, got: int) -> None:
        number = self.n_programs - 1
        if self.first is not None and (self.first.program, self.first.cycle) <= (number, cycle):
            return
        self.first = RtlDivergence(
            what=what,
            program=number,
            position=self._position,
            cycle=cycle,
            index=index,
            expected=expected,
            got=got,
        )

    def report(self, n_tokens: int) -> RtlReport:
        """Return the outcome."""
        return RtlReport(
            n_programs=self.n_programs,
            n_tokens=n_tokens,
            n_logits=self.n_logits,
            n_writes=self.n_writes,
            n_events=self.n_events,
            n_mismatches=self.n_mismatches,
            first=self.first,
            by_memory=self.by_memory,
        )


def _sorted(elements: NDArray[Any]) -> NDArray[Any]:
    order = np.lexsort(tuple(elements[name] for name in ("value", "index", "token", "cycle")))
    return np.asarray(elements[order])


def _name(instruction: Instruction) -> str:
    layer = f"L{instruction.layer}." if instruction.layer >= 0 else ""
    operand = instruction.operand.rpartition(".")[2]
    return f"{layer}{instruction.op}" + (f" {operand}" if operand else "")
