# amaranth: UnusedElaboratable=no
"""Protocols in cocotb: a whole chip and its host, and the sequencer's handshakes by themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from romsim.cycle import CycleModel
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.adapter_images import adapter_bases
from romsim_rtl.driver import adapter_words
from romsim_rtl.driver_cocotb import build_cocotb, build_module, run_cocotb
from romsim_rtl.encoding import WORD_BITS
from romsim_rtl.rom_files import PROGRAMS
from tests.rtl.cocotb_sequencer import SEED
from tests.rtl.sweep_chips import compile_chip
from tests.rtl.test_sequencer import make
from tests.rtl.test_sweep import SIMPLEST

pytestmark = pytest.mark.verilator

CHIP = replace(SIMPLEST, n_tiles=2, n_inflight=2, rank=4)


def runs_of(
    model: CycleModel, prompts: Sequence[tuple[list[int], int, str | None, bool]]
) -> list[dict[str, Any]]:
    """Give the programs of prompts, and what the cycle model says of each."""
    bases = adapter_bases(_description(model))
    size = model.description.target.schedule.n_inflight
    runs: list[dict[str, Any]] = []
    for tokens, n_new, adapter, begin in prompts:
        if begin:
            model.reset()
        base = None if adapter is None else bases[adapter]
        before = model.saturations
        result = model.prefill(tokens, adapter=adapter)
        first = 0
        for number, chunk in enumerate(result.chunks):
            n = size if len(tokens) - first >= size else 1
            is_last = first + n == len(tokens)
            single, several = ("decode", "prefill_n_head"), ("prefill_1", "prefill_n")
            name = (single if is_last else several)[0 if n == 1 else 1]
            runs.append(
                {
                    "program": PROGRAMS.index(name),
                    "tokens": tokens[first : first + n],
                    "begin": begin and number == 0,
                    "adapter": base,
                    "cycles": chunk.cycles,
                    "clipped": 0,
                    "token": result.next_token,
                    "logits": result.logits.tolist() if is_last else None,
                }
            )
            first += n
        token = result.next_token
        for _ in range(n_new):
            step = model.step(token, adapter=adapter)
            runs.append(
                {
                    "program": PROGRAMS.index("decode"),
                    "tokens": [token],
                    "begin": False,
                    "adapter": base,
                    "cycles": step.cycles,
                    "clipped": 0,
                    "token": step.next_token,
                    "logits": step.logits.tolist(),
                }
            )
            token = step.next_token
        assert model.saturations == before
    return runs


def _description(model: CycleModel) -> Description:
    assert isinstance(model.description, Description)
    return model.description


def greedy_run(model: CycleModel, tokens: list[int], n_more: int) -> dict[str, Any]:
    """A prompt of one token and what follows, as one command."""
    model.reset()
    first = model.step(tokens[0])
    cycles, step = first.cycles, first
    for _ in range(n_more):
        step = model.step(step.next_token)
        cycles += step.cycles
    return {
        "program": 0,
        "tokens": tokens,
        "begin": True,
        "adapter": None,
        "n_more": n_more,
        "cycles": cycles,
        "clipped": 0,
        "token": step.next_token,
        "logits": step.logits.tolist(),
    }


def job_of(description: Description) -> dict[str, Any]:
    model = CycleModel(description)
    context = description.context
    switch = runs_of(
        model,
        [
            ([3, 1, 4], 1, "a", True),
            ([1, 5], 0, None, True),
            ([9, 2], 1, "b", True),
            ([6], 0, "a", False),
        ],
    )
    tokens = [(7 * place + 1) % description.spec.vocab_size for place in range(context - 2)]
    full = runs_of(model, [([5], 0, None, True), (tokens, 2, "b", True)])
    greedy = [greedy_run(model, [8], context - 1)]
    assert len({tuple(run["logits"]) for run in switch if run["logits"] is not None}) > 4
    return {"switch": switch, "full": full, "greedy": greedy}


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_chip(CHIP, tmp_path_factory.mktemp("cocotb"))


def test_whole_chip_under_cocotb(chip: Description, tmp_path: Path) -> None:
    build = build_cocotb(chip, opt="-O0")
    job = tmp_path / "job.json"
    values = job_of(chip)
    job.write_text(json.dumps(values))
    adapters = tmp_path / "adapters"
    adapter_words(chip).tofile(adapters)
    options: dict[str, Any] = {
        "sram_seed": 4,
        "plusargs": [f"+adapters={adapters}"],
        "environment": {"ROMSIM_COCOTB_JOB": str(job)},
    }
    results = run_cocotb(build, "tests.rtl.cocotb_chip", tmp_path / "run", **options)
    assert results.read_text().count("<testcase ") == 5
    # and a wrong expectation is found
    values["full"][-1]["logits"][3] += 1
    job.write_text(json.dumps(values))
    folder = tmp_path / "wrong"
    message = (
        f"Tests of tests.rtl.cocotb_chip must all pass in cocotb, not 1 of 1 fail; "
        f"see {folder / 'log'}"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        run_cocotb(build, "tests.rtl.cocotb_chip", folder, testcase="last_position", **options)


def test_handshakes_of_the_sequencer(tmp_path: Path) -> None:
    _, sequencer = make(SEED, counter_bits=48)
    words = b"".join(f"{w:0{-(-WORD_BITS // 4)}x}\n".encode() for w in sequencer.words)
    (tmp_path / "program.hex").write_bytes(words)
    build = build_module(sequencer, "romsim_sequencer", tmp_path / "build")
    results = run_cocotb(
        build,
        "tests.rtl.cocotb_sequencer",
        tmp_path / "run",
        plusargs=[f"+romdir={tmp_path}"],
    )
    assert results.read_text().count("<testcase ") == 2
