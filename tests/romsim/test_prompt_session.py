"""``romsim session``: reused prefixes, whose answers are those of a chip of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import romsim
from romsim.cycle import CycleModel
from romsim.kv_room import attention_macs
from romsim.prompt_session import Session
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from tests.command_line import run_command
from tests.romsim.kv_chips import text
from tests.tiny_chips import compile_tiny, tiny_spec, write_adapter

Capture = pytest.CaptureFixture[str]
SYSTEM = text(18, seed=3)
PROMPTS = ([*SYSTEM, 11, 12], [*SYSTEM, 21, 22, 23], [*SYSTEM, 21, 22, 23, 24, 25])


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    folder = tmp_path_factory.mktemp("session")
    adapter = write_adapter(folder / "story", tiny_spec("tiny-int4"))
    return compile_tiny(
        "tiny-int4", folder / "chip", kv="int4,layout=paged,block=4", context=48,
        adapters={"story": adapter},
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(chip: Description) -> Session:
    return romsim.session(chip, PROMPTS, n_new=6, ignore_eos=True)


def greedy(
    chip: Description, prompt: list[int], n_new: int, adapter: str | None = None
) -> list[int]:
    model = CycleModel(chip, threads=1)
    answer = [int(np.argmax(model.prefill(prompt, adapter=adapter).logits))]
    while len(answer) < n_new:
        answer.append(model.step(answer[-1], adapter=adapter).next_token)
    return answer


def test_t2_12_a_second_prompt_finds_the_pages_of_the_first(
    done: Session, chip: Description
) -> None:
    assert [turn.reused_tokens for turn in done.turns] == [0, 16, 20]
    for turn, prompt in zip(done.turns, PROMPTS, strict=True):
        assert list(turn.tokens) == greedy(chip, prompt, 6)
    first, second, _ = done.turns
    assert second.prefill_cycles < first.prefill_cycles
    assert (first.known_pages, done.pages) == (6, 12)  # 20 tokens of the prompt, 5 of the answer
    assert done.hit_percent == pytest.approx(100 * 36 / (20 + 21 + 23))
    spec = chip.spec
    per_layer = spec.dim * (2 * spec.q_dim + 2 * spec.kv_dim + 3 * spec.hidden_dim)
    attention = sum(attention_macs(spec, n) for n in range(1, 17))
    assert second.saved_multiplications == spec.n_layers * (16 * per_layer + attention)
    assert done.saturations == 0


def test_t2_12_adapters_and_room(chip: Description) -> None:
    """Another adapter finds nothing; a full chip forgets what was used longest ago."""
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[0], text(33, seed=9), PROMPTS[0]]
    adapters = [None, "story", None, None, None]
    done = romsim.session(chip, prompts, adapters=adapters, n_new=2, ignore_eos=True)
    assert [turn.reused_tokens for turn in done.turns] == [0, 0, 16, 0, 0]
    assert done.turns[1].tokens == tuple(greedy(chip, PROMPTS[0], 2, "story"))
    assert [turn.forgotten_pages for turn in done.turns] == [0, 0, 0, 10, 8]
    assert done.turns[4].tokens == done.turns[0].tokens


def test_command(done: Session, chip: Description, capsys: Capture) -> None:
    arguments = ["session", chip.path, "--max-tokens", 6, "--ignore-eos"]
    for prompt in PROMPTS:
        arguments += ["--token-ids", ",".join(map(str, prompt))]
    values = json.loads(run_command(capsys, *arguments, "--json").out)
    schema = Path(romsim.__file__).parent / "schemas" / "session.schema.json"
    jsonschema.validate(values, json.loads(schema.read_text()))
    assert values == json.loads(json.dumps(done.to_json()))
    shown = run_command(capsys, *arguments, "--adapter", "story").out.splitlines()
    assert shown[2].startswith("[2] with adapter story 16 of 21 prompt tokens known, first token ")
    assert shown[-1].startswith("KV:   56.2 % of the prompts' tokens were known; ")


def test_refusals(chip: Description, tiny: Description, capsys: Capture) -> None:
    def refused(sentence: str, *arguments: object, **options: object) -> None:
        with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
            romsim.session(*arguments, **options)  # type: ignore[arg-type]

    refused("Prompts of a session must be at least 1, not 0", chip, [])
    refused(
        "Adapters of a session must be as many as its 3 prompts, not 2",
        chip,
        PROMPTS,
        adapters=["story", None],
    )
    refused(
        "KV layout of a chip whose sequences share must be 'paged', not 'contiguous'; compile with "
        "--kv codec=int8,retention=all,layout=paged",
        tiny,
        PROMPTS,
    )
    outcome = run_command(capsys, "session", chip.path, "--token-ids", "1,x")
    assert outcome.code == 2
    assert "--token-ids must be integers separated by commas, not '1,x'" in outcome.sentence()
    outcome = run_command(capsys, "session", chip.path)
    words = "Prompts must be given in one form, --prompt, --chat or --token-ids, not in 0"
    assert (outcome.code, words in outcome.sentence()) == (2, True)
