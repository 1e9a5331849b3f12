from __future__ import annotations

import re

import pytest

from romsim.cycle import CycleModel
from romsim.rates import adapter_ranks, decode_rates, prefill_chunks, prefill_cycles, timing_model
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, SpecError


def test_prompt_runs_in_full_programs_first() -> None:
    assert prefill_chunks(7, 3) == [
        (0, 3, False), (3, 3, False), (6, 1, True),
    ]  # fmt: skip
    assert prefill_chunks(6, 3) == [(0, 3, False), (3, 3, True)]
    assert prefill_chunks(2, 3) == [(0, 1, False), (1, 1, True)]
    assert prefill_chunks(1, 1) == [(0, 1, True)]


@pytest.mark.parametrize("n_tokens", [0, -1])
def test_empty_prompt_is_refused(n_tokens: int, tiny: Description) -> None:
    sentence = rf"^Prompt must have at least one token, not {n_tokens}$"
    with pytest.raises(SpecError, match=sentence):
        prefill_chunks(n_tokens, 4)
    with pytest.raises(SpecError, match=sentence):
        prefill_cycles(tiny, n_tokens)


def test_prompt_past_the_context_is_refused(tiny: Description) -> None:
    sentence = (
        f"Prompt must have at most 96 tokens in {tiny.path}, not 97; shorten it or compile with a "
        f"larger --context"
    )
    with pytest.raises(CapacityError, match=rf"^{re.escape(sentence)}$"):
        prefill_cycles(tiny, 97)


def test_rates_are_the_cycle_model_s(tiny: Description) -> None:
    model = CycleModel(tiny, threads=1)
    cycles = [model.step(5).cycles for _ in range(20)]
    rows = decode_rates(tiny, range(20))
    assert [row["cycles"] for row in rows] == cycles
    assert [row["context"] for row in rows] == list(range(20))
    assert rows[3]["tokens_per_s"] == 500e6 / cycles[3]


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 5, 17])
def test_time_to_first_token_is_the_cycle_model_s(n_tokens: int, tiny: Description) -> None:
    assert prefill_cycles(tiny, n_tokens) == (
        CycleModel(tiny, threads=1).prefill([9] * n_tokens).cycles
    )


def test_default_contexts_end_at_the_last_place_and_come_once(
    tiny: Description, shape: Description
) -> None:
    assert [row["context"] for row in decode_rates(tiny)] == [0, 95]
    wanted = [0, 128, 256, 512, shape.context - 1]
    assert [row["context"] for row in decode_rates(shape)] == wanted


def test_context_of_one_token_has_one_row(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.tiny_chips import compile_tiny

    chip = compile_tiny("tiny-int4", tmp_path_factory.mktemp("one") / "chip", context=1)
    assert [row["context"] for row in decode_rates(chip)] == [0]


@pytest.mark.parametrize("context", [-1, 96])
def test_context_that_does_not_fit_is_refused(context: int, tiny: Description) -> None:
    sentence = f"Context must be from 0 to 95 tokens in {tiny.path}, not {context}"
    with pytest.raises(CapacityError, match=rf"^{re.escape(sentence)}$"):
        decode_rates(tiny, [0, context])


def test_shape_and_paper_machine_have_rates(shape: Description, paper: Description) -> None:
    for chip in (shape, paper):
        cycles = [row["cycles"] for row in decode_rates(chip)]
        assert cycles == sorted(cycles)
        model = timing_model(chip)
        last = chip.context - 1
        assert model.run(chip.decode, last).cycles == cycles[-1]


def test_ranks_are_those_of_the_resident_adapter(tiny: Description) -> None:
    assert adapter_ranks(tiny, None) == {}
    assert adapter_ranks(tiny, "story") == {
        f"L{n}.{name}": (8,) * count
        for n in (0, 1)
        for name, count in (("qkv", 3), ("o", 1), ("gu", 2), ("down", 1))
    }
    sentence = (
        f"Adapter must be one that is resident in {tiny.path} (story), not 'x'; compile with "
        f"--lora x=FOLDER"
    )
    for call in (adapter_ranks, lambda d, a: decode_rates(d, adapter=a)):
        with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
            call(tiny, "x")
