"""The cycle at which every instruction of an executed program issues and its unit falls idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from romsim_compiler.durations import adapter_cycles, attention_cycles, fixed_cycles
from romsim_compiler.issue import issue_times
from romsim_compiler.kv_cycles import copy_cycles

if TYPE_CHECKING:
    from romsim.cycle.chip import CompiledChip
    from romsim_compiler.program import Instruction, Program

__all__ = ["Event", "Timekeeper", "Timeline"]

_AHEAD = 64  # positions whose attention is timed at once

Event = tuple["Instruction", int, int]
"""An instruction, the cycle in which it issues, and the cycle from which its unit is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Times of one executed program, the first instruction issuing in cycle 0.

    Parameters
    ----------
    events
        Every instruction in issue order.
    cycles
        From cycle 0 until the next program may start.
    copy_cycles
        Of shared pages, copied before cycle 0.
    """

    events: tuple[Event, ...]
    cycles: int
    copy_cycles: int = 0


class Timekeeper:
    """Times programs of one description; what does not depend on the position is computed once."""

    def __init__(self, description: CompiledChip) -> None:
        self._spec = description.spec
        self._target = description.target
        self._context = description.context
        self._mappings = {name: group.mapping for name, group in description.groups.items()}
        self._fixed: dict[tuple[int, frozenset[tuple[str, tuple[int, ...]]]], list[int]] = {}
        self._programs: dict[int, Program] = {}  # keeps the keys of _fixed unique
        self._attention: dict[int, int] = {}

    def time(
        self, program: Program, position: int, ranks: Mapping[str, tuple[int, ...]]
    ) -> Timeline:
        """Time a program whose first token stands at ``position``.

        Parameters
        ----------
        ranks
            Padded ranks of each group that the adapter extends, by the group's name.
        """
        durations = list(self._fixed_durations(program, ranks))
        for index, instruction in enumerate(program.instructions):
            if instruction.op == "attn":
                durations[index] = self._attention_cycles(position + instruction.token)
        times = issue_times(
            program.instructions, durations, wake_cycles=self._target.power.wake_cycles
        )
        events = tuple(
            (instruction, issue, idle)
            for instruction, (issue, idle) in zip(program.instructions, times, strict=True)
        )
        end = max(idle for _, idle in times)
        return Timeline(events=events, cycles=end + self._target.latency.token)

    def with_copies(self, timeline: Timeline, copied: Sequence[int]) -> Timeline:
        """Return the times of a program before which pages were copied, tokens of each given."""
        if not copied:
            return timeline
        cycles = sum(copy_cycles(n, spec=self._spec, target=self._target) for n in copied)
        return replace(timeline, copy_cycles=cycles)

    def _attention_cycles(self, position: int) -> int:
        if position not in self._attention:
            wanted = range(position, min(position + _AHEAD, max(self._context, position + 1)))
            cycles = attention_cycles(wanted, spec=self._spec, target=self._target)
            self._attention.update(zip(wanted, cycles, strict=True))
        return self._attention[position]

    def _fixed_durations(self, program: Program, ranks: Mapping[str, tuple[int, ...]]) -> list[int]:
        key = (id(program), frozenset(ranks.items()))
        if key not in self._fixed:
            self._programs[id(program)] = program
            self._fixed[key] = [self._duration(i, ranks) for i in program.instructions]
        return self._fixed[key]

    def _duration(self, instruction: Instruction, ranks: Mapping[str, tuple[int, ...]]) -> int:
        if instruction.op == "attn":
            return 0  # filled in for every position
        if instruction.op == "lora":
            stem = instruction.operand.partition(".")[2]
            mine = ranks.get(instruction.operand, (0,))
            return adapter_cycles(stem, mine, spec=self._spec, target=self._target)
        return fixed_cycles(
            instruction,
            spec=self._spec,
            target=self._target,
            mapping_of=self._mappings.__getitem__,
        )
