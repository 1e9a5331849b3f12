"""``romsim sample``: what each answer would be alone, shared pages, beams, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import romsim
from romsim.cycle import CycleModel
from romsim.engines import CycleEngine
from romsim.parallel_sampling import Samples
from romsim.sampling import Sampler
from romsim.simulate import generate
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, SpecError
from tests.command_line import run_command
from tests.romsim.kv_chips import text
from tests.tiny_chips import compile_tiny

Capture = pytest.CaptureFixture[str]
PROMPT = text(21, seed=8)


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    folder = tmp_path_factory.mktemp("slots") / "chip"
    return compile_tiny("tiny-int4", folder, kv="int8,layout=paged,block=4", slots=4, context=48)


@pytest.fixture(scope="module")
def drawn(chip: Description) -> Samples:
    sampler = Sampler(temperature=0.8, top_k=40, seed=5)
    return romsim.sample(chip, PROMPT, n=4, n_new=14, sampler=sampler, ignore_eos=True)


def test_t1_06_each_sample_is_what_its_seed_gives_alone(drawn: Samples, chip: Description) -> None:
    assert len({answer.tokens for answer in drawn.answers}) == 4
    cycles = 0
    for number, answer in enumerate(drawn.answers):
        tokens, prefill, steps = generate(
            CycleEngine(chip),
            PROMPT,
            n_new=14,
            sampler=Sampler(temperature=0.8, top_k=40, seed=5 + number),
            exp_table=chip.tables["EXP"],
        )
        assert answer.tokens == tuple(tokens)
        assert drawn.prefill_cycles == prefill
        cycles += sum(steps)
    # Beyond what each takes alone: three copies of the prompt's last token, three block tables.
    assert drawn.copied == (1, 1, 1)
    assert drawn.fork_cycles == 3 * 6
    assert drawn.decode_cycles == cycles + drawn.copy_cycles + drawn.fork_cycles
    assert drawn.n_decoded == 4 * 13
    assert drawn.tokens_per_s == 500e6 * 52 / drawn.decode_cycles
    # 21 + 13 tokens are 9 pages; five of them hold nothing but the prompt.
    assert (drawn.pages, drawn.pages_unshared) == (5 + 4 * 4, 4 * 9)
    assert drawn.saved_percent == pytest.approx(100 * 15 / 36)


def test_samples_end_at_the_end_of_text(chip: Description) -> None:
    """An answer that ends earlier takes no more steps, and the others go on."""
    stop = chip.spec.eos_ids[0]
    sampler = Sampler(temperature=30.0, seed=4)  # any token, nearly
    done = romsim.sample(chip, PROMPT, n=4, n_new=20, sampler=sampler)
    assert {len(answer.tokens) == 20 for answer in done.answers} == {True, False}
    for answer in done.answers:
        assert stop not in answer.tokens[:-1]
        assert len(answer.tokens) == 20 or answer.tokens[-1] == stop
    assert done.n_decoded == sum(len(answer.tokens) - 1 for answer in done.answers)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_t1_06_beams_are_those_of_a_search_that_shares_nothing(
    width: int, chip: Description
) -> None:
    prompt = PROMPT[:9]
    n_new = 7
    done = romsim.sample(chip, prompt, n=width, n_new=n_new, beams=True, ignore_eos=True)

    def log2_probabilities(tokens: list[int]) -> list[float]:
        logits = CycleModel(chip, threads=1).prefill(tokens).logits.astype(np.float64) / 65536
        return list(
            (logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())) / np.log(2)
        )

    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(n_new):
        grown = [
            (score + more, [*tokens, token])
            for score, tokens in beams
            for token, more in enumerate(log2_probabilities([*prompt, *tokens]))
        ]
        beams = sorted(grown, key=lambda beam: -beam[0])[:width]
    assert [list(answer.tokens) for answer in done.answers] == [tokens for _, tokens in beams]
    for answer, (score, _) in zip(done.answers, beams, strict=True):
        assert answer.log2_probability == pytest.approx(score, rel=1e-9)
    assert done.n_decoded == width * (n_new - 1)
    assert (done.saved_percent > 0) == (width > 1)
    assert all(1 <= moved <= 3 for moved in done.copied)


def test_beams_that_end_stay_among_the_answers(chip: Description) -> None:
    done = romsim.sample(chip, PROMPT[:5], n=3, n_new=6, beams=True)
    scores = [answer.log2_probability for answer in done.answers]
    assert scores == sorted(scores, key=lambda score: -(score or 0.0))
    stop = chip.spec.eos_ids
    for answer in done.answers:
        assert len(answer.tokens) == 6 or answer.tokens[-1] in stop


def test_command(drawn: Samples, chip: Description, capsys: Capture) -> None:
    arguments = ["sample", chip.path, "--token-ids", ",".join(map(str, PROMPT)), "--max-tokens", 14]
    arguments += ["--temperature", 0.8, "--top-k", 40, "--seed", 5, "--ignore-eos"]
    done = run_command(capsys, *arguments, "--json")
    assert done.code == 0
    values = json.loads(done.out)
    schema = Path(romsim.__file__).parent / "schemas" / "sample.schema.json"
    jsonschema.validate(values, json.loads(schema.read_text()))
    assert [tuple(answer["tokens"]) for answer in values["answers"]] == [
        answer.tokens for answer in drawn.answers
    ]
    shown = run_command(capsys, *arguments)
    assert shown.code == 0
    assert shown.out.splitlines()[-1] == (
        "KV:   21 pages of 4 tokens at most, 36 if nothing were shared (41.7 % saved); 3 copies "
        f"moved 3 tokens in {drawn.copy_cycles:,} cycles; forks took 18"
    )


def test_refusals(chip: Description, tiny: Description, capsys: Capture) -> None:
    for options, error, told in (
        ({"n": 0}, SpecError, "Number of answers must be at least 1, not 0"),
        (
            {"n": 5, "n_new": 4, "beams": True},
            CapacityError,
            "Sequences on target 'small' must be at most 4, one a slot, not 5; free one, narrow "
            "the beam, or compile with --slots 5",
        ),
        (
            {"n": 2, "n_new": 4, "sampler": Sampler()},
            SpecError,
            "Temperature of 2 samples must be above 0, not 0: greedy choice gives one answer; "
            "raise --temperature, or ask for --beams",
        ),
        (
            {"n_new": 40},
            CapacityError,
            "Prompt of 21 tokens and 40 new ones must fit the context of 48 tokens, not 60; lower "
            "--max-tokens to 28, or compile with a larger --context",
        ),
    ):
        with pytest.raises(error, match=f"^{re.escape(told)}$"):
            romsim.sample(chip, PROMPT, **options)
    told = (
        "KV layout of a chip whose sequences share must be 'paged', not 'contiguous'; compile with "
        "--kv codec=int8,retention=all,layout=paged"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(told)}$"):
        romsim.sample(tiny, PROMPT)
    done = run_command(capsys, "sample", chip.path, "--token-ids", "1", "--beams", "--seed", 1)
    assert (done.code, done.err) == (2, "romsim: --seed must be used without --beams\n")
    with pytest.raises(SpecError, match=r"^Slots must be 1 to 256, not 0$"):
        romsim.compile("tiny-int4", chip.path.parent / "other", target="small", slots=0)
