"""What comparing the RTL with the cycle model gives: counts of each kind, the first difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.rtl_words import ELEMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.timekeeper import Event
    from romsim.rtl_words import Place
    from romsim_compiler.description import Description
    from romsim_compiler.program import Instruction
    from romsim_rtl.driver_trace import ProgramTrace

__all__ = ["RtlDivergence", "RtlReport", "Tally"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RtlDivergence:
    """The first place at which RTL and cycle model part."""

    what: str  # the operator and where it writes, or "logits", "issue", ...
    layer: int  # -1 outside the layers
    operator: str  # and its operand; "" where it is no operator's
    tile: int  # -1 where it is in no tile
    lane: int  # of the word; -1 where it is in no word
    program: int  # number of the executed program
    position: int  # of the program's first token
    cycle: int  # from the program's first issue
    chip_cycle: int  # of the simulation, as waveforms count
    index: int
    expected: int  # the cycle model's
    got: int

    def sentence(self) -> str:
        """Return the place and both values in decimal and hexadecimal."""
        mask = (1 << 64) - 1
        lane = f", lane {self.lane}" if self.lane >= 0 else ""
        return (
            f"{self.what}[{self.index}]{lane}, cycle {self.cycle} of program {self.program} at "
            f"position {self.position}: cycle model {self.expected} (0x{self.expected & mask:x}), "
            f"RTL {self.got} (0x{self.got & mask:x})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the place and both values as JSON-ready values."""
        return {**asdict(self), "sentence": self.sentence()}


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
    by_operator: dict[str, int]  # elements written by each operator
    n_cycles: int  # of the simulation until the last program ended
    wall_s: float = field(compare=False)  # of both machines, the build left out

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
            "n_cycles": self.n_cycles,
            "first": None if self.first is None else self.first.to_json(),
            "writes_by_memory": dict(sorted(self.by_memory.items())),
            "writes_by_operator": dict(sorted(self.by_operator.items())),
            "passed": self.passed,
        }


class Tally:
    """Counts what was compared, and keeps the first difference in time.

    Parameters
    ----------
    description
        The chip: how wide its words are.
    """

    def __init__(self, description: Description) -> None:
        lanes, head = description.target.vector.n_lanes, description.spec.head_dim
        elems = description.target.attention.word_elems
        # elements of a word, as `romsim.rtl_words` counts them
        self._words = {"Q": head + head // 32, "K": elems + elems // 32, "V": elems + elems // 32}
        self._lanes = lanes
        self.n_cycles = self._begun = 0
        self.by_operator: dict[str, int] = {}
        self.n_programs = self.n_logits = self.n_writes = self.n_events = self.n_mismatches = 0
        self.by_memory: dict[str, int] = {}
        self.first: RtlDivergence | None = None
        self._position = 0

    def begin(self, position: int, cycle: int) -> None:
        """Begin a program in that cycle of the simulation."""
        self._position, self._begun = position, cycle
        self.n_programs += 1

    def end(self, cycles: int) -> None:
        """End a program, that many cycles after its begin."""
        self.n_cycles = self._begun + cycles

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
                    label = f"{what} of {_name(instruction)}"
                    self._note(label, issue, number, wanted, got, instruction=instruction)
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
            memory, _ = place
            self.n_writes += len(wanted)
            self.by_memory[memory] = self.by_memory.get(memory, 0) + len(wanted)
            for event, count in zip(*np.unique(wanted["event"], return_counts=True), strict=True):
                operator = _operator(events[int(event)][0])
                self.by_operator[operator] = self.by_operator.get(operator, 0) + int(count)
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
            self._note_write(place, events, wanted, found, at)

    def _note_write(
        self,
        place: Place,
        events: Sequence[Event],
        wanted: NDArray[Any],
        found: NDArray[Any],
        at: int,
    ) -> None:
        """Say in which way the first different write differs."""
        memory, tile = place
        where = memory if tile < 0 else f"{memory} of tile {tile}"
        word = 34 if memory.startswith("XB") else self._words.get(memory, self._lanes)

        def note(what: str, cycle: int, index: int, wanted: int, got: int, event: int) -> None:
            instruction = events[event][0] if event >= 0 else None
            lane = index % word
            self._note(
                what, cycle, index, wanted, got, instruction=instruction, tile=tile, lane=lane
            )

        if at >= len(wanted):
            extra = found[at]
            cycle, index = int(extra["cycle"]), int(extra["index"])
            note(f"number of writes to {where}", cycle, index, len(wanted), len(found), -1)
            return
        want = wanted[at]
        event = int(want["event"])
        name = _name(events[event][0])
        cycle, index = int(want["cycle"]), int(want["index"])
        if at >= len(found):
            what = f"number of writes to {where} by {name}"
            note(what, cycle, index, len(wanted), len(found), event)
            return
        for part, label in (
            ("cycle", "cycle of a write"),
            ("token", "in-flight index of a write"),
            ("index", "place of a write"),
            ("value", "value"),
        ):
            if want[part] != found[at][part]:
                what = f"{label} of {name} to {where}"
                note(what, cycle, index, int(want[part]), int(found[at][part]), event)
                return

    def _note(
        self,
        what: str,
        cycle: int,
        index: int,
        expected: int,
        got: int,
        *,
        instruction: Instruction | None = None,
        tile: int = -1,
        lane: int = -1,
    ) -> None:
        number = self.n_programs - 1
        if self.first is not None and (self.first.program, self.first.cycle) <= (number, cycle):
            return
        self.first = RtlDivergence(
            what=what,
            layer=-1 if instruction is None else instruction.layer,
            operator="" if instruction is None else _operator(instruction),
            tile=tile,
            lane=lane,
            program=number,
            position=self._position,
            cycle=cycle,
            chip_cycle=self._begun + cycle,
            index=index,
            expected=expected,
            got=got,
        )

    def report(self, n_tokens: int, wall_s: float) -> RtlReport:
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
            by_operator=self.by_operator,
            n_cycles=self.n_cycles,
            wall_s=wall_s,
        )


def _sorted(elements: NDArray[Any]) -> NDArray[Any]:
    order = np.lexsort(tuple(elements[name] for name in ("value", "index", "token", "cycle")))
    return np.asarray(elements[order])


def _operator(instruction: Instruction) -> str:
    operand = instruction.operand.rpartition(".")[2]
    return instruction.op + (f" {operand}" if operand else "")


def _name(instruction: Instruction) -> str:
    layer = f"L{instruction.layer}." if instruction.layer >= 0 else ""
    return layer + _operator(instruction)
