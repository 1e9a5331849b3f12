"""cocotb tests of a whole chip; `test_cocotb.py` builds it and says what must come out."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import cocotb
from cocotb.triggers import Timer, ValueChange, with_timeout

LIMIT = 400_000  # ns, two a cycle
HAND_OVER = 2  # cycles of a program that its counter does not see: result and command


def job() -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path(os.environ["ROMSIM_COCOTB_JOB"]).read_text())
    return values


async def reset(dut: Any) -> None:
    dut.rst.value = 1
    await Timer(6, "ns")
    dut.rst.value = 0
    await Timer(2, "ns")
    if not int(dut.is_loaded.value):
        await with_timeout(ValueChange(dut.is_loaded), LIMIT, "ns")
        await Timer(8, "ns")


def give(dut: Any, run: dict[str, Any], stalls: tuple[int, int] = (0, 0)) -> None:
    """Give the host a command."""
    dut.program_number.value = run["program"]
    dut.tokens.value = sum(token << 20 * place for place, token in enumerate(run["tokens"]))
    dut.begin_sequence.value = int(run["begin"])
    dut.adapted.value = int(run["adapter"] is not None)
    dut.adapter.value = run["adapter"] or 0
    dut.n_more.value = run.get("n_more", 0)
    dut.command_stall.value, dut.result_stall.value = stalls
    dut.go.value = 1 - int(dut.go.value)


async def execute(dut: Any, run: dict[str, Any], stalls: tuple[int, int] = (0, 0)) -> None:
    """Run a program and compare what comes out."""
    cycles, clipped = int(dut.n_cycles.value), int(dut.n_clipped.value)
    give(dut, run, stalls)
    await with_timeout(ValueChange(dut.finished), LIMIT, "ns")
    taken = int(dut.n_cycles.value) - cycles + HAND_OVER * (1 + run.get("n_more", 0))
    assert taken == run["cycles"]
    assert int(dut.n_clipped.value) - clipped == run["clipped"]
    if run["logits"] is not None:
        assert int(dut.token.value) == run["token"]
        assert [dut.logits[row].value.to_signed() for row in range(len(run["logits"]))] == run[
            "logits"
        ]


async def sequence(dut: Any, runs: list[dict[str, Any]], rng: random.Random | None) -> int:
    """Run programs, with random stalls or none; return cycles waited less the stalls."""
    waited, stalled = int(dut.n_waited.value), 0
    for run in runs:
        stalls = (0, 0) if rng is None else (rng.choice((0, 1, 2, 50)), rng.choice((0, 1, 3, 70)))
        await execute(dut, run, stalls)
        stalled += sum(stalls)
    return int(dut.n_waited.value) - waited - stalled


@cocotb.test()
async def stalls_change_no_result_and_are_counted_apart(dut: Any) -> None:
    await reset(dut)
    runs = job()["switch"]
    await sequence(dut, runs, None)  # from here on each begins in the cycle after a result
    plain = await sequence(dut, runs, None)
    rng = random.Random(5)
    for _ in range(2):
        assert await sequence(dut, runs, rng) == plain


@cocotb.test()
async def adapters_switch_between_prompts(dut: Any) -> None:
    await reset(dut)
    runs = job()["switch"]
    assert len({run["adapter"] for run in runs}) == 3
    await sequence(dut, [*runs, *reversed([run for run in runs if run["begin"]])], None)


@cocotb.test()
async def reset_in_a_program_leaves_no_trace(dut: Any) -> None:
    await reset(dut)
    rng = random.Random(6)
    runs = job()["switch"]
    for run in runs[:3]:
        give(dut, run)
        await Timer(2 * rng.randrange(5, max(6, run["cycles"] - 5)), "ns")
        await reset(dut)
        assert int(dut.n_cycles.value) == 0
        await sequence(dut, runs[:2], None)


@cocotb.test()
async def context_fills_to_its_last_position(dut: Any) -> None:
    await reset(dut)
    await sequence(dut, job()["full"], None)


@cocotb.test()
async def tokens_are_decoded_without_waking_python(dut: Any) -> None:
    await reset(dut)
    await sequence(dut, job()["greedy"], None)
