from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from romsim_models.registry import named_models, open_model
from romsim_models.shapes import SHAPES, TINY
from romsim_models.synthetic import synthetic_checkpoint, synthetic_values
from romsim_models.tensors import EMBEDDING, LM_HEAD, expected_shapes, lm_head_name, n_parameters

# Weights must never change: results of other tests and published figures rest on them.
DIGESTS = {
    "tiny-int4": "9c21229833fc338c00f78e915afcd7aa6dc36a4523f43d9370d3c11ec2f3541f",
    "tiny-int2": "9fd9572e29a25a8e2a51b3b4c9ce7d8338d2c84a323e2ee65a0911b91cad6bfc",
    "tiny-ternary": "c16be85fd4cc6ec023a22a4fa77ca38048b0e0cd5b016d3a5d14ed48ff2f8882",
}


@pytest.mark.parametrize("name", TINY)
def test_weights_never_change(name: str) -> None:
    checkpoint = open_model(name)
    digest = hashlib.sha256()
    for tensor in checkpoint.names():
        digest.update(checkpoint.read(tensor).dequantize().tobytes())
    assert digest.hexdigest() == DIGESTS[name]


def test_weights_depend_on_seed_and_name() -> None:
    spec = TINY["tiny-int4"]
    first, second = (synthetic_checkpoint(spec, seed=seed) for seed in (0, 1))
    gate, up = (f"blk.0.ffn_{part}.weight" for part in ("gate", "up"))
    same = synthetic_checkpoint(spec, seed=0).read(gate).dequantize()
    np.testing.assert_array_equal(first.read(gate).dequantize(), same)
    assert not np.array_equal(second.read(gate).dequantize(), same)
    assert not np.array_equal(first.read(up).dequantize(), same)
    assert first.source.sha256 != second.source.sha256


def test_rows_of_a_large_matrix_equal_those_of_the_whole() -> None:
    name = "blk.0.ffn_down.weight"
    checkpoint = synthetic_checkpoint(SHAPES["bitnet-2b-4t"])
    part = checkpoint.read_rows(name, 2500, 2510).dequantize()
    np.testing.assert_array_equal(checkpoint.read_rows(name, 2440, 2560).dequantize()[60:70], part)
    embedding = checkpoint.read_rows("token_embd.weight", 4090, 4100).dequantize()
    later = checkpoint.read_rows("token_embd.weight", 4096, 4097).dequantize()
    np.testing.assert_array_equal(embedding[6:7], later)  # a row of the next draw
    assert len(np.unique(embedding, axis=0)) == 10


def test_values_have_the_standard_deviation_asked_for() -> None:
    values = synthetic_values("w", (200, 300), std=0.25, seed=3).dequantize()
    assert values.dtype == np.float32
    assert abs(values.std() / 0.25 - 1) < 0.02
    assert abs(values.mean()) < 0.005
    assert np.abs(values).max() <= 0.25 * 3.46


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_suit_small_hardware(name: str) -> None:
    spec = TINY[name]
    assert spec.dim % 32 == spec.hidden_dim % 32 == 0
    assert spec.head_dim == 32
    assert spec.n_kv_heads < spec.n_heads
    assert named_models()[name].weight_format == name.removeprefix("tiny-")
    tokenizer = open_model(name).tokenizer()
    assert tokenizer is not None
    assert tokenizer.vocab_size == spec.vocab_size
    assert tokenizer.eos_ids == spec.eos_ids


def test_small_vocabulary_has_no_tokenizer() -> None:
    spec = dataclasses.replace(TINY["tiny-int4"], vocab_size=64)
    checkpoint = synthetic_checkpoint(spec)
    assert checkpoint.tokenizer() is None
    assert checkpoint.chat_template is None


def test_shapes_have_an_lm_head_only_where_it_is_not_tied() -> None:
    for spec in (*SHAPES.values(), *TINY.values()):
        names = expected_shapes(spec)
        assert (LM_HEAD in names) is not spec.tie_embeddings
        assert lm_head_name(spec) == (EMBEDDING if spec.tie_embeddings else LM_HEAD)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("smollm2", 0.1345),
        ("llama-3.2-1b", 1.236),
        ("llama-3.2-3b", 3.213),
        ("llama-3-8b", 8.030),
        ("llama-3-70b", 70.55),
        ("bitnet-2b-4t", 2.413),
        ("opt-13b-mha", 12.95),
    ],
)
def test_shapes_have_the_parameters_of_their_models(name: str, billions: float) -> None:
    assert abs(n_parameters(SHAPES[name]) / 1e9 / billions - 1) < 1e-3
