"""A design point: a model on a target, without weights; one layer scheduled per distinct shape.

The issue rule is docs/machine.md, section 4. A layer's instructions wait on nothing outside the
layer but the units themselves, so the program of a whole model is its first instructions, a layer
repeated, and its last; and since the rule is homogeneous (all times later by c make all later times
later by c), a layer that has shifted every unit's time by the same amount does so for ever. Cycles
are equal to those of the compiled program, which tests prove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby

from romsim.folded_blocks import Block, folded_blocks
from romsim.rates import prefill_chunks
from romsim_compiler.durations import adapter_cycles, attention_cycles, fixed_cycles
from romsim_compiler.formats import WeightFormat, check_format
from romsim_compiler.groups import Group, build_groups
from romsim_compiler.issue import rom_operand
from romsim_compiler.lora_adders import lora_parts
from romsim_compiler.mapping import Mapping, map_group
from romsim_compiler.memory_map import max_context
from romsim_compiler.program import Instruction
from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec

__all__ = ["Block", "DesignPoint", "Step", "adapter_ranks"]

Step = tuple[int, tuple[int, ...], int, int]
"""Unit (1 = V, 2 = L, 3 = H), units waited for (4 = the matrix's banks), duration (``-1 - token``
for the attention of an in-flight token), cycles until the next matrix is awake (-1: no ROM)."""

_UNIT, _AWAKE = {"V": 1, "L": 2, "H": 3}, 4
_State = list[int]  # last issue, idle of V, L, H, and next matrix awake if banks are gated


def adapter_ranks(rank: int) -> dict[str, tuple[int, ...]]:
    """Return the padded rank of every projection for an adapter of one rank on all of them.

    Raises
    ------
    SpecError
        If the rank is negative.
    """
    if rank < 0:
        raise SpecError(f"Adapter rank must be 0 or more, not {rank!r}")
    if rank == 0:
        return {}
    block = min(MX_BLOCK, rank)
    padded = -(-rank // block) * block
    n_members = {"qkv": 3, "o": 1, "gu": 2, "down": 1}
    return {stem: (padded,) * n for stem, n in n_members.items()}


@dataclass(frozen=True)
class DesignPoint:
    """A model's shape on a target.

    Parameters
    ----------
    spec, target
        Model and chip.
    groups
        Matrix groups of the whole model, in program order (:func:`build_groups`); those of equal
        neighbouring layers but the first may be left out, ``layer_runs`` giving the counts.
    layer_runs
        (first layer, number of layers) of each run of equal layers.
    """

    spec: ModelSpec
    target: Target
    groups: tuple[Group, ...]
    layer_runs: tuple[tuple[int, int], ...]

    @classmethod
    def uniform(
        cls,
        spec: ModelSpec,
        target: Target,
        weights: WeightFormat,
        *,
        head: WeightFormat | None = None,
    ) -> DesignPoint:
        """Return the point at which every layer's matrices have one format.

        Parameters
        ----------
        weights
            Format of the layers' matrices.
        head
            Format of the embedding and the LM head; ``weights`` when left out.

        Raises
        ------
        SpecError
            If the target's ROM words cannot hold a format.
        """
        top = head if head is not None else weights
        home = target.embedding
        groups = _uniform_groups(spec, weights, top, home.input == "rom", home.head == "rom")
        check_format(weights, target, "blk.0.attn_q.weight")
        if any(g.layer < 0 for g in groups):
            check_format(top, target, "token_embd.weight")
        return cls(spec, target, groups, ((0, spec.n_layers),))

    @classmethod
    def of_formats(
        cls, spec: ModelSpec, target: Target, fmt_of: Callable[[str], WeightFormat]
    ) -> DesignPoint:
        """Return the point of a model whose tensors each have a format of their own."""
        home = target.embedding
        groups = build_groups(
            spec, fmt_of, input_in_rom=home.input == "rom", head_in_rom=home.head == "rom"
        )
        return cls.of_groups(spec, target, groups)

    @classmethod
    def of_groups(cls, spec: ModelSpec, target: Target, groups: Iterable[Group]) -> DesignPoint:
        """Return the point of a model's groups, equal neighbouring layers folded into one."""
        by_layer: dict[int, list[Group]] = {}
        for group in groups:
            by_layer.setdefault(group.layer, []).append(group)
        kept: list[Group] = []
        runs: list[tuple[int, int]] = []
        for _, run in groupby(range(spec.n_layers), key=lambda n: _shape(by_layer[n])):
            layers = list(run)
            runs.append((layers[0], len(layers)))
            kept += by_layer[layers[0]]
        return cls(spec, target, (*kept, *by_layer.get(-1, [])), tuple(runs))

    @cached_property
    def mappings(self) -> dict[str, Mapping]:
        """Mapping of each group by name; of equal layers, the first's."""
        array, lanes = self.target.array, self.target.vector.n_lanes
        return {
            g.name: map_group(g.n_rows, g.n_cols, g.fmt.planes(array), array, lanes)
            for g in self.groups
        }

    @cached_property
    def repetitions(self) -> dict[str, int]:
        """How often each group stands in the model, by name."""
        counts = dict(self.layer_runs)
        return {g.name: counts.get(g.layer, 1) for g in self.groups}

    @property
    def rom_words(self) -> int:
        """Words that the model takes in every cell."""
        return sum(m.n_words * self.repetitions[name] for name, m in self.mappings.items())

    @property
    def weight_bits(self) -> int:
        """Bits of codes, scales and minima of the model in ROM."""
        return sum(
            round(g.n_rows * g.n_cols * g.fmt.bits_per_weight()) * self.repetitions[g.name]
            for g in self.groups
        )

    @property
    def n_weights(self) -> int:
        """Number of weights in ROM."""
        return sum(g.n_rows * g.n_cols * self.repetitions[g.name] for g in self.groups)

    @property
    def fits_rom(self) -> bool:
        """Whether the cells have as many words as the model takes."""
        return self.rom_words <= self.target.array.rom_rows

    def max_context(self, lora_bytes: float = 0.0) -> int:
        """Return the tokens of KV cache that the tiles' SRAM holds beside adapters."""
        return max_context(self.spec, self.target, lora_bytes)

    def blocks(self, n_tokens: int = 1, *, with_head: bool = True) -> tuple[Block, ...]:
        """Return the program of ``n_tokens`` in-flight tokens, equal layers folded.

        Parameters
        ----------
        n_tokens
            1 with a head is the decode program.
        with_head
            Whether the last token's logits are computed.
        """
        unit = self.target.lora_unit
        return folded_blocks(self.spec, self.groups, self.layer_runs, n_tokens, with_head, unit)

    def duration(self, instruction: Instruction, ranks: dict[str, tuple[int, ...]]) -> int:
        """Return the duration of one instruction other than ``attn``."""
        if instruction.op == "lora":
            stem = instruction.operand.partition(".")[2]
            mine = ranks.get(stem, (0,))
            return adapter_cycles(stem, mine, spec=self.spec, target=self.target)
        key = (instruction.op, instruction.operand)
        cycles = self._fixed.get(key)
        if cycles is None:
            cycles = self._fixed[key] = fixed_cycles(
                instruction,
                spec=self.spec,
                target=self.target,
                mapping_of=self.mappings.__getitem__,
            )
        return cycles

    @cached_property
    def _fixed(self) -> dict[tuple[str, str], int]:
        """Durations known so far, by operation and operand."""
        return {}

    def lora_shape(self, stem: str) -> tuple[int, int]:
        """Return rows and columns of the matrices that an adapter's ``qkv``, ``o`` … extend."""
        parts, n_cols = lora_parts(self.spec, stem)
        return sum(parts), n_cols

    def decode_cycles(self, positions: Sequence[int], *, rank: int = 0) -> list[int]:
        """Return the cycles of a decoded token at each position (0 = the first).

        Parameters
        ----------
        rank
            Rank of an adapter on all projections; 0 for none.
        """
        attention = self.attention(positions)
        known = self._decoded
        missing = {one for one in attention if (one, rank) not in known}
        if missing:
            program = self._programs.get(rank)
            if program is None:
                program = self._steps(self.blocks(), adapter_ranks(rank))
                self._programs[rank] = program
            for one in missing:
                known[one, rank] = _evaluate(program, (one,), self.target)
        return [known[one, rank] for one in attention]

    def attention(self, positions: Sequence[int]) -> list[int]:
        """Return the duration of ``attn`` at each position, computed once."""
        known = self._attended
        missing = [position for position in positions if position not in known]
        if missing:
            cycles = attention_cycles(missing, spec=self.spec, target=self.target)
            known.update(zip(missing, cycles, strict=True))
        return [known[position] for position in positions]

    @cached_property
    def _attended(self) -> dict[int, int]:
        """Durations of ``attn`` known so far, by position."""
        return {}

    @cached_property
    def _programs(self) -> dict[int, list[tuple[int, list[Step]]]]:
        """Decode programs known so far, by the adapter's rank."""
        return {}

    @cached_property
    def _decoded(self) -> dict[tuple[int, int], int]:
        """Cycles of a token known so far, by the attention's duration and the adapter's rank."""
        return {}

    def prefill_cycles(self, n_prompt: int, *, rank: int = 0) -> int:
        """Return the cycles from the first prompt token to the first logits.

        Programs run one after another, as :func:`romsim.rates.prefill_chunks` divides the prompt;
        only the last has the LM head.

        Raises
        ------
        SpecError
            If the prompt is empty.
        """
        if n_prompt < 1:
            raise SpecError(f"Prompt must have at least 1 token, not {n_prompt!r}")
        ranks = adapter_ranks(rank)
        attention = self.attention(range(n_prompt))
        known: dict[tuple[bool, tuple[int, ...]], int] = {}
        programs: dict[tuple[int, bool], list[tuple[int, list[Step]]]] = {}
        total = 0
        for first, n_tokens, with_head in prefill_chunks(n_prompt, self.target.schedule.n_inflight):
            mine = tuple(attention[first : first + n_tokens])
            key = (with_head, mine)
            if key not in known:
                kind = (n_tokens, with_head)
                if kind not in programs:
                    blocks = self.blocks(n_tokens, with_head=with_head)
                    programs[kind] = self._steps(blocks, ranks)
                known[key] = _evaluate(programs[kind], mine, self.target)
            total += known[key]
        return total

    def _steps(
        self, blocks: tuple[Block, ...], ranks: dict[str, tuple[int, ...]]
    ) -> list[tuple[int, list[Step]]]:
        """Return (repetitions, steps) of each block."""
        program: list[tuple[int, list[Step]]] = []
        wake, on = self.target.power.wake_cycles, ""
        for block in blocks:
            steps: list[Step] = []
            for one in block.instructions:
                cycles = -1 - one.token if one.op == "attn" else self.duration(one, ranks)
                matrix = rom_operand(one) * bool(wake)
                waits = [_UNIT[u] for u in one.wait] + [_AWAKE] * (matrix not in ("", on))
                on = matrix or on
                steps.append((_UNIT[one.unit], tuple(waits), cycles, wake if matrix else -1))
            program.append((block.repetitions, steps))
        return program


def _shape(groups: list[Group]) -> tuple[tuple[int, int, WeightFormat], ...]:
    return tuple((g.n_rows, g.n_cols, g.fmt) for g in groups)


@lru_cache(maxsize=256)
def _uniform_groups(
    spec: ModelSpec, weights: WeightFormat, head: WeightFormat, input_rom: bool, head_rom: bool
) -> tuple[Group, ...]:
    groups = build_groups(
        replace(spec, n_layers=1),
        lambda name: weights if name.startswith("blk.") else head,
        input_in_rom=input_rom,
        head_in_rom=head_rom,
    )
    return tuple(groups)


def _evaluate(
    program: list[tuple[int, list[Step]]], attention: tuple[int, ...], target: Target
) -> int:
    """Return the cycles until the next program may begin."""
    state = [-1, 0, 0, 0, target.power.wake_cycles][: 5 if target.power.wake_cycles else 4]
    for repetitions, steps in program:
        left = repetitions
        while left:
            before = state.copy()
            _advance(state, steps, attention)
            left -= 1
            shift = state[0] - before[0]
            if left and all(b - a == shift for a, b in zip(before, state, strict=True)):
                state = [value + shift * left for value in state]
                break
    return max(state[1:_AWAKE]) + target.latency.token


def _advance(state: _State, steps: list[Step], attention: tuple[int, ...]) -> None:
    at = state[0]
    for unit, waits, cycles, wake in steps:
        at += 1
        idle = state[unit]
        if idle > at:
            at = idle
        for other in waits:
            idle = state[other]
            if idle > at:
                at = idle
        if wake >= 0:
            state[_AWAKE] = at + wake
        state[unit] = at + (cycles if cycles >= 0 else attention[-1 - cycles])
    state[0] = at
