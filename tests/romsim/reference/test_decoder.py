from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from romsim.reference import IntegerDecoder, NumericsConfig, WeightChoice
from romsim_models.errors import CapacityError, SpecError
from tests.romsim.reference.small_models import (
    SPEC,
    Recorder,
    changed,
    checkpoint_of,
    compare_with_scalar,
    random_adapter,
    random_tensors,
    scalar_of,
)


def tokens_of(n: int, seed: int = 0, vocab: int = SPEC.vocab_size) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, vocab, n)]


VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "gqa_head_dim_16_q4_1": ({}, "q4_1"),
    "mha_head_dim_32_q4_0": ({"n_heads": 2, "n_kv_heads": 2, "head_dim": 32}, "q4_0"),
    "mqa_head_dim_64_q8_0": ({"n_heads": 2, "n_kv_heads": 1, "head_dim": 64}, "q8_0"),
    "head_dim_48_short_block": ({"n_heads": 2, "n_kv_heads": 1, "head_dim": 48}, "q4_1"),
    "untied": ({"tie_embeddings": False, "n_layers": 1}, "q4_1"),
    "relu2_sub_norms": (
        {"arch": "bitnet", "activation": "relu2", "has_sub_norms": True, "n_layers": 1},
        "q4_1",
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_operator_equals_the_scalar_reading(variant: str) -> None:
    changes, kind = VARIANTS[variant]
    spec = changed(**changes)
    tensors = random_tensors(spec, seed=1, kind=kind)
    decoder = IntegerDecoder(checkpoint_of(spec, tensors))
    compare_with_scalar(decoder, scalar_of(spec, tensors), tokens_of(9))
    assert decoder.saturations == 0


@pytest.mark.parametrize("kind", ["int4", "int2", "int8", "ternary"])
def test_float_models_equal_the_scalar_reading(kind: str) -> None:
    spec = changed(n_layers=1)
    tensors = random_tensors(spec, seed=2, kind="f32")
    choice = WeightChoice(kind=kind, group=None if kind == "ternary" else 32)
    choices = {name: choice for name, tensor in tensors.items() if len(tensor.shape) == 2}
    decoder = IntegerDecoder(checkpoint_of(spec, tensors), choices=choices)
    compare_with_scalar(decoder, scalar_of(spec, tensors, choices=choices), tokens_of(5))


def test_widths_that_are_no_multiple_of_a_block_equal_the_scalar_reading() -> None:
    spec = changed(n_layers=1, dim=72, hidden_dim=40, n_heads=3, n_kv_heads=1, head_dim=24)
    tensors = random_tensors(spec, seed=3, kind="f32")
    choices = {
        name: WeightChoice(kind="int8", group=tensor.shape[1])
        for name, tensor in tensors.items()
        if len(tensor.shape) == 2
    }
    decoder = IntegerDecoder(checkpoint_of(spec, tensors), choices=choices)
    compare_with_scalar(decoder, scalar_of(spec, tensors, choices=choices), tokens_of(4))


@pytest.mark.parametrize("attn_block", [1, 4, 32])
def test_attention_blocks_equal_the_scalar_reading(attn_block: int) -> None:
    spec = changed(n_layers=1, dim=32, n_heads=2, n_kv_heads=1, hidden_dim=32)
    tensors = random_tensors(spec, seed=4)
    config = NumericsConfig(attn_block=attn_block)
    decoder = IntegerDecoder(checkpoint_of(spec, tensors), config=config)
    compare_with_scalar(decoder, scalar_of(spec, tensors, config=config), tokens_of(70))


def test_other_fracs_equal_the_scalar_reading() -> None:
    spec = changed(n_layers=1, activation="relu2")
    tensors = random_tensors(spec, seed=5)
    config = NumericsConfig(residual_frac=16, linear_frac=14, logit_frac=12)
    decoder = IntegerDecoder(checkpoint_of(spec, tensors), config=config)
    compare_with_scalar(decoder, scalar_of(spec, tensors, config=config), tokens_of(5))


def test_clips_are_counted_as_the_scalar_reading_counts_them() -> None:
    spec = changed(n_layers=1)
    tensors = random_tensors(spec, seed=6, gain=3000.0)
    decoder = IntegerDecoder(checkpoint_of(spec, tensors))
    compare_with_scalar(decoder, scalar_of(spec, tensors), tokens_of(12))
    assert decoder.saturations > 100
    decoder.reset()
    assert decoder.saturations == 0


@pytest.mark.parametrize("rank", [3, 8, 40])
def test_adapters_equal_the_scalar_reading(rank: int) -> None:
    spec = changed(n_layers=1)
    tensors = random_tensors(spec, seed=7)
    parts = ("attn_q", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_k")
    adapter = random_adapter(spec, rank=rank, seed=8, parts=parts)
    decoder = IntegerDecoder(checkpoint_of(spec, tensors), loras={"a": adapter})
    scalar = scalar_of(spec, tensors, adapter=adapter)
    compare_with_scalar(decoder, scalar, tokens_of(3), adapter="a")


def test_an_adapter_serves_only_the_calls_that_name_it() -> None:
    tensors = random_tensors(SPEC, seed=7)
    adapter = random_adapter(SPEC, rank=4, seed=8, parts=("attn_q",))
    checkpoint = checkpoint_of(SPEC, tensors)
    plain, adapted = IntegerDecoder(checkpoint), IntegerDecoder(checkpoint, loras={"a": adapter})
    tokens = tokens_of(6)
    expected = plain.forward(tokens)
    assert torch.equal(adapted.forward(tokens), expected)
    adapted.reset()
    assert not torch.equal(adapted.forward(tokens, adapter="a"), expected)


def test_token_by_token_equals_any_batch() -> None:
    tensors = random_tensors(SPEC, seed=9)
    decoder = IntegerDecoder(checkpoint_of(SPEC, tensors))
    tokens = tokens_of(100)
    serial = Recorder()
    for token in tokens:
        decoder.forward([token], record=serial)
    expected = serial.arrays()
    words = decoder.kv(1)
    for sizes in ([100], [1, 31, 32, 33, 3], [65, 35]):
        decoder.reset()
        batched = Recorder()
        first = 0
        for size in sizes:
            decoder.forward(tokens[first : first + size], record=batched, all_logits=True)
            first += size
        assert decoder.position == len(tokens)
        for name, values in batched.arrays().items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)
        for part in ("k_codes", "k_shifts", "v_codes", "v_shifts"):
            np.testing.assert_array_equal(getattr(decoder.kv(1), part), getattr(words, part))


def test_a_prompt_longer_than_one_batch_equals_its_parts() -> None:
    spec = changed(n_layers=1, dim=32, n_heads=2, n_kv_heads=1, hidden_dim=32, max_seq_len=1024)
    decoder = IntegerDecoder(checkpoint_of(spec, random_tensors(spec, seed=10)))
    tokens = tokens_of(600)
    whole = decoder.forward(tokens, all_logits=True)
    decoder.reset()
    parts = [decoder.forward(tokens[i : i + 150], all_logits=True) for i in range(0, 600, 150)]
    assert torch.equal(whole, torch.cat(parts))
    decoder.reset()
    assert torch.equal(decoder.forward(tokens), whole[-1])


def test_cached_words_are_those_recorded() -> None:
    decoder = IntegerDecoder(checkpoint_of(SPEC, random_tensors(SPEC, seed=11)))
    recorder = Recorder()
    decoder.forward(tokens_of(7), record=recorder)
    found = recorder.arrays()
    for layer in range(SPEC.n_layers):
        words = decoder.kv(layer)
        np.testing.assert_array_equal(words.k_codes, found[f"L{layer}.k.codes"])
        np.testing.assert_array_equal(words.k_shifts, found[f"L{layer}.k.shifts"])
        np.testing.assert_array_equal(words.v_codes, found[f"L{layer}.v.codes"])
        np.testing.assert_array_equal(words.v_shifts, found[f"L{layer}.v.shifts"])


def test_int32_residence_gives_the_same_logits() -> None:
    checkpoint = checkpoint_of(SPEC, random_tensors(SPEC, seed=12))
    tokens = tokens_of(20)
    wide = IntegerDecoder(checkpoint).forward(tokens, all_logits=True)
    narrow = IntegerDecoder(checkpoint, resident="int32").forward(tokens, all_logits=True)
    assert torch.equal(wide, narrow)


def test_given_grids_are_used_and_raised_ones_round() -> None:
    spec = changed(n_layers=1)
    tensors = random_tensors(spec, seed=13)
    checkpoint = checkpoint_of(spec, tensors)
    scalar = scalar_of(spec, tensors)
    scalar.grids = {"L0.qkv": 9, "L0.o": 7, "L0.gu": 9, "L0.down": 7, "head": 9}
    decoder = IntegerDecoder(checkpoint, grids=scalar.grids)
    compare_with_scalar(decoder, scalar, tokens_of(5))
    exact = IntegerDecoder(checkpoint).forward(tokens_of(5))
    decoder.reset()
    assert not torch.equal(decoder.forward(tokens_of(5)), exact)


def test_matrices_that_are_not_fused_have_grids_of_their_own() -> None:
    spec = changed(n_layers=1)
    tensors = random_tensors(spec, seed=13)
    scalar = scalar_of(spec, tensors)
    scalar.grids = {"L0.q": 9, "L0.k": 8, "L0.v": 10, "L0.o": 7, "L0.gate": 9, "L0.up": 8,
                    "L0.down": 7, "head": 9}  # fmt: skip
    decoder = IntegerDecoder(checkpoint_of(spec, tensors), grids=scalar.grids)
    compare_with_scalar(decoder, scalar, tokens_of(5))


def decode(**options: Any) -> IntegerDecoder:
    return IntegerDecoder(checkpoint_of(SPEC, random_tensors(SPEC, seed=14)), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"config": NumericsConfig(linear_frac=15)},
            "linear_frac of a model with SiLU must be 16, the frac of the sigmoid's table, not 15",
        ),
        ({"resident": "int8"}, "resident must be 'float64' or 'int32', not 'int8'"),
        (
            {"choices": {"blk.9.attn_q.weight": WeightChoice(kind="int4", group=32)}},
            "choices must name tensors of the model, not 'blk.9.attn_q.weight'",
        ),
        (
            {"grids": {"L0.kqv": 0}},
            "grids must name fused groups such as 'L0.qkv' or 'head', not 'L0.kqv'",
        ),
        ({"grids": {}}, "grids must name every fused group; 'L0.qkv' is missing"),
        (
            {"grids": {"L0.q": 0, "L0.k": 0}},
            "grids must name every fused group; 'L0.qkv' is missing",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        decode(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "tokens must be a sequence of at least one id, not of shape [0]"),
        ([[1]], "tokens must be a sequence of at least one id, not of shape [1, 1]"),
        ([3, 40], "tokens must be ids below vocab_size=40, not 40"),
        ([-1], "tokens must be ids below vocab_size=40, not -1"),
    ],
)
def test_wrong_tokens_are_refused(tokens: list[Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        decode().forward(tokens)
    assert str(caught.value) == message


def test_an_unknown_adapter_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"^adapter must be one of the decoder's \(none, as none was given\), not 'x'$",
    ):
        decode().forward([1], adapter="x")


def test_a_context_past_the_exact_sums_is_refused() -> None:
    with pytest.raises(
        CapacityError,
        match=r"^context must be at most 65536 tokens, the bound of the exact sums, not 65537; "
        r"reset the decoder or shorten the prompt$",
    ):
        decode().forward(np.zeros(65_537, dtype=np.int64))
