"""Cycles without values: a token's time at any position, exact, at event speed.

A token's program is a chain of instructions whose issue times follow a max-plus recurrence over
four numbers (the last issue and the idle time of each unit). Layers of one shape have the same
durations, so once a layer has shifted all four numbers by the same amount, every later layer of
that shape shifts them by that amount too: the recurrence is homogeneous. One or two layers are
therefore stepped and the rest is a product, without any approximation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from romsim_compiler.durations import attention_cycles, fixed_cycles, lora_cycles
from romsim_compiler.issue import issue_times
from romsim_compiler.mapping import Mapping
from romsim_compiler.program import Instruction, Program
from romsim_compiler.target import Target
from romsim_models.spec import ModelSpec

__all__ = ["Ranks", "TimingModel", "TokenTiming"]

Ranks = dict[str, tuple[int, ...]]
"""Padded ranks of a group's projections, by group name; a group left out has no adapter."""

_State = tuple[int, int, int, int]  # last issue, idle of V, L, H


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
    shapes
        Rows and columns of each group that an adapter may extend, by name.
    """

    def __init__(
        self,
        *,
        spec: ModelSpec,
        target: Target,
        mappings: dict[str, Mapping],
        decode: Program,
        shapes: dict[str, tuple[int, int]],
    ) -> None:
        self.spec = spec
        self.target = target
        self._mappings = mappings
        self._decode = decode
        self._shapes = shapes

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
            n_rows, n_cols = self._shapes[instruction.operand]
            mine = ranks.get(instruction.operand, (0,))
            return lora_cycles(n_rows, n_cols, mine, target=self.target)
        return fixed_cycles(
            instruction,
            spec=self.spec,
            target=self.target,
            mapping_of=self._mappings.__getitem__,
        )

    def run(self, program: Program, position: int, ranks: Ranks | None = None) -> TokenTiming:
        """Step one program through, instruction by instruction."""
        times = issue_times(program.instructions, self.durations(program, position, ranks))
        end = max(idle for _, idle in times) + self.target.latency.token
        return TokenTiming(end, tuple(times))

    def decode_cycles(self, positions: Sequence[int], ranks: Ranks | None = None) -> list[int]:
        """Return the cycles of one decoded token at each position.

        Equal to :meth:`run` at every position; a token's time depends on its position only through
        the attention's duration, so each distinct duration is evaluated once.
        """
        attention = attention_cycles(positions, spec=self.spec, target=self.target)
        blocks = self._blocks(ranks or {})
        cycles = {d: _evaluate(blocks, d) for d in set(attention)}
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

        for instruction in self._decode.instructions:
            if instruction.layer != layer:
                close()
                layer = instruction.layer
            duration = None if instruction.op == "attn" else self._fixed(instruction, ranks)
            steps.append((instruction.unit, instruction.wait, duration))
        close()
        return folded


_Step = tuple[str, tuple[str, ...], int | None]
_UNIT = {"V": 1, "L": 2, "H": 3}


def _advance(state: _State, steps: tuple[_Step, ...], attention: int) -> _State:
    values = list(state)
    for unit, wait, duration in steps:
        own = _UNIT[unit]
        at = max(values[0] + 1, values[own], *[values[_UNIT[u]] for u in wait], 0)
        values[0] = at
        values[own] = at + (attention if duration is None else duration)
    return values[0], values[1], values[2], values[3]


def _evaluate(blocks: list[tuple[int, tuple[_Step, ...]]], attention: int) -> int:
    state: _State = (-1, 0, 0, 0)
    for repetitions, steps in blocks:
        left = repetitions
        while left:
            after = _advance(state, steps, attention)
            shifts = {b - a for a, b in zip(state, after, strict=True)}
            left -= 1
            state = after
            if len(shifts) == 1:  # homogeneous: every later layer shifts the state alike
                rest = shifts.pop() * left
                state = (state[0] + rest, state[1] + rest, state[2] + rest, state[3] + rest)
                break
    return max(state[1:])
