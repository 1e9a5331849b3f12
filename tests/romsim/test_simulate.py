from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from romsim.sampling import Sampler
from romsim.simulate import (
    Simulation,
    check_length,
    generate,
    load_tokenizer,
    prompt_tokens,
    simulate,
)
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, RomsimError, SpecError


class Script:
    """An engine that says what it is told to, one cycle more each time."""

    def __init__(self, tokens: Sequence[int], *, vocab: int = 288, clock: bool = True) -> None:
        self._tokens = list(tokens)
        self._vocab = vocab
        self._clock = clock
        self.fed: list[int] = []
        self.calls = 0
        self.saturations = 3

    def _next(self) -> NDArray[np.int32]:
        logits = np.zeros(self._vocab, np.int32)
        logits[self._tokens[self.calls]] = 5
        self.calls += 1
        return logits

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        self.fed += tokens
        return self._next()

    def step(self, token: int) -> NDArray[np.int32]:
        self.fed.append(token)
        return self._next()

    @property
    def cycles(self) -> int | None:
        return 100 + self.calls if self._clock else None


def run(description: Description, engine: Script, n_new: int, **options: object) -> Simulation:
    return simulate(description, engine, [40, 41], n_new=n_new, **options)  # type: ignore[arg-type]


def refused(error: type[RomsimError], sentence: str, call: object, **arguments: object) -> None:
    assert callable(call)
    with pytest.raises(error, match=rf"^{re.escape(sentence)}$"):
        call(**arguments)


def test_last_token_is_chosen_and_not_fed_back(tiny: Description) -> None:
    engine = Script([104, 105, 106, 107])
    done = run(tiny, engine, 3)
    assert done.tokens == (104, 105, 106)
    assert engine.fed == [40, 41, 104, 105]
    assert (done.prefill_cycles, done.token_cycles) == (101, (102, 103))
    assert (done.prompt, done.saturations) == ((40, 41), 3)
    tokenizer = load_tokenizer(tiny)
    assert done.text == tokenizer.decode([104, 105, 106])


def test_run_stops_at_the_end_of_text_unless_told_not_to(tiny: Description) -> None:
    assert tiny.spec.eos_ids == (2,)
    assert run(tiny, Script([104, 2, 105]), 3).tokens == (104, 2)
    assert run(tiny, Script([104, 2, 105]), 3, ignore_eos=True).tokens == (104, 2, 105)


def test_text_comes_piece_by_piece_and_adds_up(tiny: Description) -> None:
    pieces: list[str] = []
    tokenizer = load_tokenizer(tiny)
    ids = tokenizer.encode("B€!")
    done = run(tiny, Script(ids), len(ids), on_text=pieces.append)
    assert done.text == "".join(pieces) == "B€!"
    assert "€" in pieces  # never half a character


def test_rates_follow_from_cycles_and_clock(tiny: Description) -> None:
    done = run(tiny, Script([104, 105, 106]), 3)
    assert done.clock_hz == 500e6
    assert done.tokens_per_s == pytest.approx(500e6 * 2 / (102 + 103), rel=1e-12)
    assert done.ttft_s == pytest.approx(101 / 500e6, rel=1e-12)
    values = done.to_json()
    assert values["tokens_per_s"] == done.tokens_per_s
    assert "wall_s" not in values
    single = run(tiny, Script([104]), 1)
    assert (single.tokens_per_s, single.token_cycles, single.ttft_s) == (None, (), 101 / 500e6)
    clockless = run(tiny, Script([104, 105], clock=False), 2)
    assert (clockless.prefill_cycles, clockless.token_cycles) == (None, ())
    assert (clockless.tokens_per_s, clockless.ttft_s) == (None, None)


def test_position_of_a_draw_is_that_of_the_token_before(tiny: Description) -> None:
    class Spy:
        positions: list[int] = []  # noqa: RUF012

        def choose(self, logits: NDArray[np.int32], position: int, table: object) -> int:
            self.positions.append(position)
            return 9

    engine = Script([1, 2, 3])
    generate(engine, [7, 8, 9], n_new=3, sampler=Spy(), exp_table=None)  # type: ignore[arg-type]
    assert Spy.positions == [2, 3, 4]


def test_prompt_in_its_three_forms(tiny: Description) -> None:
    tokenizer = load_tokenizer(tiny)
    assert prompt_tokens(tiny, tokens=[0, 287]) == [0, 287]
    assert prompt_tokens(tiny, prompt="Hi") == tokenizer.encode("Hi")
    assert prompt_tokens(tiny, chat="Hi") == tokenizer.encode_chat("Hi")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "Prompt must be given once, as --prompt, --chat or --token-ids, not 0 times"),
        (
            {"prompt": "a", "tokens": [1]},
            "Prompt must be given once, as --prompt, --chat or --token-ids, not 2 times",
        ),
        ({"prompt": ""}, "Prompt must have at least one token, not none; give a text"),
        ({"tokens": []}, "Prompt must have at least one token, not none; give a text"),
        ({"tokens": [1, 288]}, "Token id must be from 0 to 287, not 288"),
        ({"tokens": [-1]}, "Token id must be from 0 to 287, not -1"),
    ],
)
def test_prompt_that_is_none_is_refused(
    arguments: dict[str, object], sentence: str, tiny: Description
) -> None:
    refused(SpecError, sentence, prompt_tokens, description=tiny, **arguments)


def test_text_without_a_tokenizer_is_refused(shape: Description) -> None:
    sentence = (
        f"{shape.path} must have a tokenizer for text, but its model brought none; give token ids "
        f"with --token-ids"
    )
    refused(SpecError, sentence, prompt_tokens, description=shape, prompt="a")


def test_length_is_checked_against_the_context(tiny: Description) -> None:
    assert tiny.context == 96
    check_length(tiny, 90, 7)
    refused(
        CapacityError,
        "Prompt of 90 tokens and 8 new ones must fit the context of 96 tokens, not 97; lower "
        "--max-tokens to 7, or compile with a larger --context",
        check_length, description=tiny, n_prompt=90, n_new=8,
    )  # fmt: skip
    check_length(tiny, 96, 1)
    refused(
        CapacityError,
        "Prompt of 97 tokens and 1 new ones must fit the context of 96 tokens, not 97; shorten the "
        "prompt, or compile with a larger --context",
        check_length, description=tiny, n_prompt=97, n_new=1,
    )  # fmt: skip
    refused(
        SpecError, "Number of new tokens must be at least 1, not 0",
        check_length, description=tiny, n_prompt=1, n_new=0,
    )  # fmt: skip


def test_a_run_that_feeds_its_last_token_back_needs_one_place_more(tiny: Description) -> None:
    check_length(tiny, 90, 6, feeds_last=True)
    check_length(tiny, 96, 0, feeds_last=True)
    refused(
        CapacityError,
        "Prompt of 90 tokens and 7 new ones must fit the context of 96 tokens, not 97; lower "
        "--tokens to 6, or compile with a larger --context",
        check_length, description=tiny, n_prompt=90, n_new=7, feeds_last=True,
    )  # fmt: skip
    refused(
        SpecError, "Number of new tokens must be at least 0, not -1",
        check_length, description=tiny, n_prompt=1, n_new=-1, feeds_last=True,
    )  # fmt: skip


def test_nothing_is_run_that_would_pass_the_context(tiny: Description) -> None:
    engine = Script([1] * 100)
    with pytest.raises(CapacityError, match=r"^Prompt of 2 tokens and 96 new ones must fit"):
        run(tiny, engine, 96)
    assert engine.calls == 0


def test_sampler_is_greedy_unless_given(tiny: Description) -> None:
    assert run(tiny, Script([9, 9]), 2).tokens == (9, 9)
    drawn = run(tiny, Script([9, 9]), 2, sampler=Sampler(temperature=1e4, seed=5)).tokens
    assert drawn != (9, 9)
