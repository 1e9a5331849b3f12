"""The issue rule: in order, a unit at a time (docs/machine.md, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

from romsim_compiler.program import Instruction

__all__ = ["is_woken", "issue_times", "rom_operand"]


def rom_operand(instruction: Instruction) -> str:
    """Return the matrix that an instruction reads from ROM; "" for none."""
    return instruction.operand if instruction.op in ("matvec", "embed") else ""


def is_woken(instructions: Sequence[Instruction]) -> list[bool]:
    """Return which instructions read another matrix than the one that was read last.

    Its banks are switched on when the instruction that reads the matrix before it issues; the first
    one's, when the program begins.
    """
    result, on = [], ""
    for instruction in instructions:
        matrix = rom_operand(instruction)
        result.append(bool(matrix) and matrix != on)
        on = matrix or on
    return result


def issue_times(
    instructions: Sequence[Instruction], durations: Sequence[int], *, wake_cycles: int
) -> list[tuple[int, int]]:
    """Return the (issue, idle) cycle of each instruction of a program that begins in cycle 0.

    Parameters
    ----------
    wake_cycles
        From the switching on of a matrix's banks to the first read of them.
    """
    idle = {"V": 0, "L": 0, "H": 0}
    at, awake = -1, wake_cycles
    times = []
    woken = is_woken(instructions)
    for instruction, duration, wakes in zip(instructions, durations, woken, strict=True):
        at = max(at + 1, idle[instruction.unit], *(idle[u] for u in instruction.wait), 0)
        if wakes:
            at = max(at, awake)
        if rom_operand(instruction):
            awake = at + wake_cycles
        idle[instruction.unit] = at + duration
        times.append((at, at + duration))
    return times
