"""The issue rule: in order, a unit at a time (docs/machine.md, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

from romsim_compiler.program import Instruction

__all__ = ["issue_times"]


def issue_times(
    instructions: Sequence[Instruction], durations: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the (issue, idle) cycle of each instruction, the first issuing in cycle 0."""
    idle = {"V": 0, "L": 0, "H": 0}
    at = -1
    times = []
    for instruction, duration in zip(instructions, durations, strict=True):
        at = max(at + 1, idle[instruction.unit], *(idle[u] for u in instruction.wait), 0)
        idle[instruction.unit] = at + duration
        times.append((at, at + duration))
    return times
