"""The sequencer against the issue rule of docs/machine.md, section 4."""

from __future__ import annotations

import random
from typing import Any

import pytest

from romsim_models.errors import SpecError
from romsim_rtl.encoding import FIELDS, OPS, pack
from romsim_rtl.sequencer import TOKEN_CYCLES, Sequencer, SequencerConfig
from tests.rtl.stepped import simulate

UNITS = "VLH"


class Program:
    """Random instructions with their durations, and when they must issue."""

    def __init__(self, rng: random.Random, length: int, n_tokens: int) -> None:
        self.n_tokens = n_tokens
        self.items = []
        for _ in range(length):
            unit = rng.randrange(3)
            wait = rng.randrange(8) & ~(1 << unit)
            duration = rng.choice((2, 3, 5, 17))
            op = "embed" if unit == 0 and rng.random() < 0.3 else "norm"
            self.items.append((unit, wait, duration, rng.randrange(n_tokens), op))
        # what the units read and the sequencer only hands on
        self.noise = [
            {name: rng.getrandbits(bits - is_signed) for name, (bits, is_signed) in FIELDS.items()}
            for _ in range(length)
        ]

    def words(self) -> list[int]:
        words = [
            pack(
                noise
                | {"op": OPS[op], "unit": unit, "wait": wait, "token": token, "n_rows": duration}
            )
            for noise, (unit, wait, duration, token, op) in zip(self.noise, self.items, strict=True)
        ]
        return [*words, pack({"op": OPS["end"]})]

    def times(self, wake_cycles: int) -> tuple[list[int], int]:
        """Cycle of each issue, and the one from which all units are idle."""
        idle = [0, 0, 0]
        at, awake = -1, wake_cycles
        issues = []
        for (unit, wait, duration, _, _), noise in zip(self.items, self.noise, strict=True):
            at = max([at + 1, idle[unit], *(idle[u] for u in range(3) if wait >> u & 1)])
            if noise["rom"] & 2:
                at = max(at, awake)
            if noise["rom"] & 1:
                awake = at + wake_cycles
            idle[unit] = at + duration
            issues.append(at)
        return issues, max(idle)


def make(
    seed: int, *, wake_cycles: int = 0, counter_bits: int = 9
) -> tuple[list[Program], Sequencer]:
    rng = random.Random(seed)
    programs = [Program(rng, rng.randrange(1, 30), n) for n in (1, 1, 3)]
    words: list[int] = []
    starts = []
    for program in programs:
        starts.append(len(words))
        words += program.words()
    config = SequencerConfig(
        starts=tuple(starts),
        n_tokens=(1, 1, 3),
        n_words=len(words),
        n_inflight=3,
        wake_cycles=wake_cycles,
        counter_bits=counter_bits,  # so few that they overflow
    )
    return programs, Sequencer(config=config, words=words)


@pytest.mark.parametrize(
    ("seed", "wake_cycles"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 13), (6, 64)]
)
@pytest.mark.parametrize("stalls", [False, True])
def test_instructions_issue_in_the_first_cycle_that_the_rule_allows(
    seed: int, wake_cycles: int, stalls: bool
) -> None:
    programs, dut = make(seed, wake_cycles=wake_cycles)
    rng = random.Random(seed + 100)
    fields_at = _places()

    async def bench(ctx: Any) -> None:
        left = [0, 0, 0]
        busy = dict.fromkeys("vlh", 0)
        position = 0
        cycle = 0
        previous_end: int | None = None
        waited = 0

        async def tick() -> list[tuple[Any, ...]]:
            """Advance; give what was issued in the cycle that is over."""
            nonlocal cycle
            issued: list[tuple[Any, ...]] = []
            for unit, name in enumerate("vlh"):
                if ctx.get(getattr(dut, f"start_{name}")):
                    word = ctx.get(dut.instr)
                    duration = word >> fields_at["n_rows"] & 0xFFFFF
                    left[unit] = duration
                    issued.append(
                        (
                            cycle,
                            unit,
                            duration,
                            ctx.get(dut.pos),
                            ctx.get(dut.start_embed),
                            ctx.get(dut.token),
                            word,
                            ctx.get(dut.is_adapted),
                            ctx.get(dut.adapter_base),
                        )
                    )
                busy[name] += ctx.get(getattr(dut, f"busy_{name}"))
            await ctx.tick()
            cycle += 1
            for unit, name in enumerate("vlh"):
                left[unit] = max(0, left[unit] - 1)
                ctx.set(getattr(dut, f"busy_{name}"), int(left[unit] > 0))
            assert len(issued) <= 1
            return issued

        issued_total = 0
        for turn, number in enumerate([0, 2, 1, 2, 0, *(rng.randrange(3) for _ in range(10))]):
            reset = number == 1 and turn < 9
            program = programs[number]
            tokens = [rng.randrange(1 << 20) for _ in range(3)]
            for _ in range(rng.randrange(4) if stalls else 0):
                assert ctx.get(dut.cmd_ready)
                await tick()
                waited += 1
            ctx.set(dut.cmd_valid, 1)
            ctx.set(dut.cmd_program, number)
            ctx.set(dut.cmd_reset, int(reset))
            ctx.set(dut.cmd_tokens, sum(t << 20 * k for k, t in enumerate(tokens)))
            adapter = (rng.randrange(2), rng.getrandbits(20))
            ctx.set(dut.cmd_adapted, adapter[0])
            ctx.set(dut.cmd_adapter, adapter[1])
            assert ctx.get(dut.cmd_ready)
            await tick()
            waited += 1
            ctx.set(dut.cmd_valid, rng.randrange(2))  # not ready: nothing may be taken
            ctx.set(dut.cmd_tokens, rng.getrandbits(60))
            ctx.set(dut.cmd_program, rng.randrange(3))
            ctx.set(dut.cmd_reset, rng.randrange(2))
            ctx.set(dut.cmd_adapted, rng.randrange(2))
            ctx.set(dut.cmd_adapter, rng.getrandbits(20))
            begin = cycle
            if previous_end is not None and not stalls:
                assert begin - previous_end == TOKEN_CYCLES
            position = 0 if reset else position
            seen = []
            while not ctx.get(dut.done_valid):
                assert not ctx.get(dut.cmd_ready)
                seen += await tick()
                assert cycle < begin + 3000
            issues, end = program.times(wake_cycles)
            assert [(c - begin, u, d) for c, u, d, *_ in seen] == [
                (at, unit, duration)
                for at, (unit, _, duration, _, _) in zip(issues, program.items, strict=True)
            ]
            assert [s[3] for s in seen] == [position + i[3] for i in program.items]
            assert [s[4] for s in seen] == [int(i[4] == "embed") for i in program.items]
            assert [s[5] for s in seen] == [tokens[i[3]] for i in program.items]
            assert [s[6] for s in seen] == program.words()[:-1]
            assert {s[7:] for s in seen} == {adapter}
            ctx.set(dut.cmd_valid, 0)
            assert cycle - begin == end + TOKEN_CYCLES - 2
            previous_end = begin + end
            position += program.n_tokens
            issued_total += len(seen)
            for _ in range(rng.randrange(4) if stalls else 0):
                await tick()
                waited += 1
                assert ctx.get(dut.done_valid)
            ctx.set(dut.done_ready, 1)
            await tick()
            waited += 1
            ctx.set(dut.done_ready, 0)
            assert ctx.get(dut.count_issued) == issued_total % 512
            assert ctx.get(dut.count_wait) == waited % 512
            assert ctx.get(dut.count_cycles) == (cycle - waited) % 512
            for name, count in busy.items():
                assert ctx.get(getattr(dut, f"count_{name}")) == count % 512

    simulate(dut, bench)


def _places() -> dict[str, int]:
    from romsim_rtl.encoding import FIELDS

    places, at = {}, 0
    for name, (bits, _) in FIELDS.items():
        places[name] = at
        at += bits
    return places


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"starts": (0,), "n_tokens": (1, 1), "n_words": 4, "n_inflight": 1},
            "programs of the sequencer must have a start and a token count each, not 1 starts and "
            "2 counts",
        ),
        (
            {"starts": (0, 4), "n_tokens": (1, 1), "n_words": 4, "n_inflight": 1},
            "programs of the sequencer must begin in its 4 words, not at 4",
        ),
        (
            {"starts": (0,), "n_tokens": (3,), "n_words": 4, "n_inflight": 2},
            "programs of the sequencer must have from 1 to 2 tokens, not 3",
        ),
    ],
)
def test_programs_that_do_not_fit_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}$"):
        SequencerConfig(**values)
