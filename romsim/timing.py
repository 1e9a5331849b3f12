"""Cycles without values: a token's time at any position, exact, at event speed.

A token's program is a chain of instructions whose issue times follow a max-plus recurrence over
five numbers (the last issue, the idle time of each unit, and when the next matrix's banks are
awake). Layers of one shape have the same durations, so once a layer has shifted all five numbers by
the same amount, every later layer of that shape shifts them by that amount too: the recurrence is
homogeneous. One or two layers are therefore stepped and the rest is a product, without any
approximation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from romsim_compiler.durations import adapter_cycles, attention_cycles, fixed_cycles
from romsim_compiler.issue import is_woken, issue_times, rom_operand
from romsim_compiler.mapping import Mapping
from romsim_compiler.program import Instruction, Program
from romsim_compiler.target import Target
from romsim_models.spec import ModelSpec

__all__ = ["Ranks", "TimingModel", "TokenTiming"]

Ranks = dict[str, tuple[int, ...]]
"""Padded ranks of a group's projections, by group name; a group left out has no adapter."""

_State = tuple[int, int, int, int, int]  # last issue, idle of V, L, H, next matrix awake


@dataclass(frozen=True, slots=True)
class TokenTiming:
    """Cycles of a token and of each of its instructions."""

    cycles: int
    times: tuple[tuple[int, int], ...]


class TimingModel:
    """Timing of a compiled program.

    Parameters
    ----------
    spec, target
        Model and chip.
    mappings
        Mapping of each matrix group by name.
    decode
        The program of one token.
    """

    def __init__(
        self,
        *,
        spec: ModelSpec,
        target: Target,
        mappings: dict[str, Mapping],
        decode: Program,
    ) -> None:
        self.spec = spec
        self.target = target
        self._mappings = mappings
        self._decode = decode

    def durations(self, program: Program, position: int, ranks: Ranks | None = None) -> list[int]:
        """Return each instruction's duration, the program's first token at ``position``."""
        attention: dict[int, int] = {}
        result = []
        for instruction in program.instructions:
            if instruction.op == "attn":
                token = instruction.token
                if token not in attention:
                    attention[token] = attention_cycles(
                        [position + token], spec=self.spec, target=self.target
                    )[0]
                result.append(attention[token])
            else:
                result.append(self._fixed(instruction, ranks or {}))
        return result

    def _fixed(self, instruction: Instruction, ranks: Ranks) -> int:
        if instruction.op == "lora":
            stem = instruction.operand.partition(".")[2]
            mine = ranks.get(instruction.operand, (0,))
            return adapter_cycles(stem, mine, spec=self.spec, target=self.target)
        return fixed_cycles(
            instruction,
            spec=self.spec,
            target=self.target,
            mapping_of=self._mappings.__getitem__,
        )

    def run(self, program: Program, position: int, ranks: Ranks | None = None) -> TokenTiming:
        """Step one program through, instruction by instruction."""
        durations = self.durations(program, position, ranks)
        wake = self.target.power.wake_cycles
        times = issue_times(program.instructions, durations, wake_cycles=wake)
        end = max(idle for _, idle in times) + self.target.latency.token
        return TokenTiming(end, tuple(times))

    def decode_cycles(self, positions: Sequence[int], ranks: Ranks | None = None) -> list[int]:
        """Return the cycles of one decoded token at each position.

        Equal to :meth:`run` at every position; a token's time depends on its position only through
        the attention's duration, so each distinct duration is evaluated once.
        """
        attention = attention_cycles(positions, spec=self.spec, target=self.target)
        blocks = self._blocks(ranks or {})
        wake = self.target.power.wake_cycles
        cycles = {d: _evaluate(blocks, d, wake) for d in set(attention)}
        return [cycles[d] + self.target.latency.token for d in attention]

    def _blocks(self, ranks: Ranks) -> list[tuple[int, tuple[_Step, ...]]]:
        """Return the program as (repetitions, steps): equal neighbouring layers folded."""
        folded: list[tuple[int, tuple[_Step, ...]]] = []
        layer: int | None = None
        steps: list[_Step] = []

        def close() -> None:
            if not steps:
                return
            made = tuple(steps)
            if folded and folded[-1][1] == made:
                folded[-1] = (folded[-1][0] + 1, made)
            else:
                folded.append((1, made))
            steps.clear()

        decode = self._decode.instructions
        for instruction, wakes in zip(decode, is_woken(decode), strict=True):
            if instruction.layer != layer:
                close()
                layer = instruction.layer
            duration = None if instruction.op == "attn" else self._fixed(instruction, ranks)
            reads = (bool(rom_operand(instruction)), wakes)
            steps.append((instruction.unit, instruction.wait, duration, reads))
        close()
        return folded


_Step = tuple[str, tuple[str, ...], int | None, tuple[bool, bool]]
"""Unit, units waited for, duration (None: the attention's), whether it reads ROM, and another
matrix than the last."""

_UNIT = {"V": 1, "L": 2, "H": 3}


def _advance(state: _State, steps: tuple[_Step, ...], attention: int, wake: int) -> _State:
    values = list(state)
    for unit, wait, duration, (reads, wakes) in steps:
        own = _UNIT[unit]
        at = max(values[0] + 1, values[own], *[values[_UNIT[u]] for u in wait], 0)
        if wakes:
            at = max(at, values[4])
        if reads:
            values[4] = at + wake
        values[0] = at
        values[own] = at + (attention if duration is None else duration)
    return values[0], values[1], values[2], values[3], values[4]


def _evaluate(blocks: list[tuple[int, tuple[_Step, ...]]], attention: int, wake: int) -> int:
    state: _State = (-1, 0, 0, 0, wake)
    for repetitions, steps in blocks:
        left = repetitions
        while left:
            after = _advance(state, steps, attention, wake)
            shifts = {b - a for a, b in zip(state, after, strict=True)}
            left -= 1
            state = after
            if len(shifts) == 1:  # homogeneous: every later layer shifts the state alike
                rest = shifts.pop() * left
                a, v, h, m, w = state
                state = (a + rest, v + rest, h + rest, m + rest, w + rest)
                break
    return max(state[1:4])
