from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from romsim_models.errors import SpecError
from romsim_models.reference import FloatDecoder
from romsim_models.registry import open_model
from romsim_models.safetensors_reader import open_huggingface
from tests.models.hf_oracle import TOKENS, edit_json, logits_of, save_bitnet, save_llama


def largest_difference(directory: Path, model: Any) -> float:
    ours = FloatDecoder(open_huggingface(directory)).forward(TOKENS).numpy()
    return float(np.abs(ours - logits_of(model)).max())


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"num_attention_heads": 4, "num_key_value_heads": 2}, id="gqa-4-2"),
        pytest.param(
            {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}, id="gqa-6-3"
        ),
        pytest.param({"num_attention_heads": 8, "num_key_value_heads": 2}, id="gqa-8-2"),
        pytest.param({"num_attention_heads": 4, "num_key_value_heads": 4}, id="mha"),
        pytest.param({"num_attention_heads": 4, "num_key_value_heads": 1}, id="mqa"),
        pytest.param({"head_dim": 32}, id="head-dim-of-its-own"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"rms_norm_eps": 1e-2}, id="large-epsilon"),
        pytest.param(
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, id="theta"
        ),
    ],
)
def test_logits_equal_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    model = save_llama(tmp_path, **config)
    assert largest_difference(tmp_path, model) <= 1e-4


def test_heads_that_do_not_divide_the_width_equal_transformers(tmp_path: Path) -> None:
    model = save_llama(tmp_path, num_attention_heads=6, head_dim=16, late_hidden_size=64)
    assert model.config.hidden_size == 64
    assert largest_difference(tmp_path, model) <= 1e-4


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize("spelling", ["rope_type", "type", "rope_parameters"])
@pytest.mark.parametrize(
    "scaling",
    [
        pytest.param({"rope_type": "llama3", **LLAMA3}, id="llama3"),
        pytest.param({"rope_type": "linear", "factor": 4.0}, id="linear"),
    ],
)
def test_rope_scaling_equals_transformers(
    tmp_path: Path, scaling: dict[str, Any], spelling: str
) -> None:
    model = save_llama(tmp_path, rope_parameters={"rope_theta": 10000.0, **scaling})
    plain = save_llama(tmp_path / "plain")
    if spelling != "rope_parameters":  # as files were written before transformers 5
        old = {**scaling, spelling: scaling["rope_type"]}
        if spelling == "type":
            del old["rope_type"]
        edit_json(tmp_path / "config.json", "rope_parameters", rope_scaling=old, rope_theta=1e4)
    assert largest_difference(tmp_path, model) <= 1e-4
    # The scaling must show, or this test could not fail.
    assert float(np.abs(logits_of(model) - logits_of(plain)).max()) > 0.1


@pytest.mark.parametrize("architecture", ["BitNetForCausalLM", "BitnetForCausalLM"])
def test_bitnet_equals_transformers(tmp_path: Path, architecture: str) -> None:
    model = save_bitnet(tmp_path)
    edit_json(tmp_path / "config.json", architectures=[architecture])
    assert largest_difference(tmp_path, model) <= 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_equal_transformers(tmp_path: Path, dtype: torch.dtype) -> None:
    model = save_llama(tmp_path, dtype=dtype)
    assert largest_difference(tmp_path, model) <= 1e-4


def test_sharded_file_equals_transformers(tmp_path: Path) -> None:
    model = save_llama(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert largest_difference(tmp_path, model) <= 1e-4


def test_greedy_text_equals_transformers(tmp_path: Path) -> None:
    model = save_llama(tmp_path)
    prompt = TOKENS[0][:7]
    theirs = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=24,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    ours = FloatDecoder(open_huggingface(tmp_path)).generate(prompt, n_tokens=24, eos_ids=())
    assert ours == theirs[0, len(prompt) :].tolist()


@pytest.fixture(scope="module", params=["tiny-int4", "tiny-int2", "tiny-ternary"])
def decoder(request: pytest.FixtureRequest) -> FloatDecoder:
    return FloatDecoder(open_model(request.param))


def test_steps_equal_one_forward_pass(decoder: FloatDecoder) -> None:
    tokens = torch.tensor([[1, 40, 77, 200, 5], [9, 8, 7, 6, 5]])
    whole = decoder.forward(tokens)
    cache = decoder.new_cache(batch=2, max_tokens=5)
    parts = [decoder.forward(tokens[:, :2], cache=cache)]
    parts += [decoder.step(tokens[:, index], cache)[:, None] for index in range(2, 5)]
    assert cache.n_tokens == 5
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=2e-5)


def test_last_only_gives_the_last_logits(decoder: FloatDecoder) -> None:
    whole = decoder.forward([[1, 40, 77]])
    last = decoder.forward([[1, 40, 77]], last_only=True)
    torch.testing.assert_close(last, whole[:, -1:], rtol=0, atol=1e-5)


def test_observer_sees_every_operator_in_order() -> None:
    decoder = FloatDecoder(open_model("tiny-int4"))
    seen: dict[str, torch.Tensor] = {}
    logits = decoder.forward([[1, 40, 77]], observe=seen.__setitem__)
    parts = (
        *("attn_norm", "q", "k", "v", "q_rope", "k_rope", "attn_out", "o"),
        *("ffn_norm", "gate", "up", "act", "down", "x"),
    )
    blocks = [f"blk.{layer}.{part}" for layer in range(2) for part in parts]
    assert list(seen) == ["x", *blocks, "output_norm", "logits"]
    assert seen["blk.0.q"].shape == (1, 3, 128)
    assert seen["blk.1.k_rope"].shape == (1, 3, 64)
    assert seen["blk.1.act"].shape == (1, 3, 192)
    assert torch.equal(seen["logits"], logits)
    residual = seen["x"] + seen["blk.0.o"] + seen["blk.0.down"]
    torch.testing.assert_close(residual, seen["blk.0.x"], rtol=0, atol=1e-5)


def test_observer_sees_sub_norms() -> None:
    decoder = FloatDecoder(open_model("tiny-ternary"))
    seen: dict[str, torch.Tensor] = {}
    decoder.forward([[1, 40]], observe=seen.__setitem__)
    assert seen["blk.0.attn_sub_norm"].shape == (1, 2, 128)
    assert seen["blk.1.ffn_sub_norm"].shape == (1, 2, 256)
    assert float(seen["blk.0.act"].min()) < 0 < float(seen["blk.0.act"].max())


def test_token_nll_scores_all_but_the_first_of_each_window(decoder: FloatDecoder) -> None:
    text = [1, 40, 77, 200, 5, 9, 8, 7, 60, 61, 62]  # windows of 4, 4, 3
    scores = decoder.token_nll(text, window=4, batch=1)
    assert scores.shape == (3 + 3 + 2,)
    logits = decoder.forward([text[4:8]])[0]
    expected = -torch.log_softmax(logits, -1)[[0, 1, 2], text[5:8]]
    np.testing.assert_allclose(scores[3:6], expected.numpy(), rtol=1e-5)
    np.testing.assert_allclose(decoder.token_nll(text, window=4, batch=3), scores, rtol=1e-5)


def test_token_nll_leaves_out_a_lone_last_token(decoder: FloatDecoder) -> None:
    assert decoder.token_nll([1, 2, 3, 4, 5], window=4).shape == (3,)
    assert decoder.token_nll([1], window=4).shape == (0,)


def test_generate_stops_at_the_end_token() -> None:
    decoder = FloatDecoder(open_model("tiny-int4"))
    free = decoder.generate([1, 40], n_tokens=8, eos_ids=())
    stop = free[3]
    stopped = decoder.generate([1, 40], n_tokens=8, eos_ids=(stop,))
    assert stopped == free[: free.index(stop) + 1]


def test_decoder_refuses_a_shape_without_weights() -> None:
    with pytest.raises(
        SpecError,
        match=r"^model 'llama-3-8b' must have weights for this, not a shape alone; only timing, "
        r"capacity and area can be had of a shape$",
    ):
        FloatDecoder(open_model("llama-3-8b"))


@pytest.mark.parametrize("token", [-1, 288])
def test_decoder_refuses_a_token_out_of_the_vocabulary(decoder: FloatDecoder, token: int) -> None:
    with pytest.raises(
        SpecError,
        match=rf"^each token must be below the vocabulary's 288, not {token}; the text was encoded "
        r"with another tokenizer$",
    ):
        decoder.forward([[1, token]])


def test_decoder_refuses_tokens_of_another_shape(decoder: FloatDecoder) -> None:
    with pytest.raises(
        SpecError, match=r"^tokens must have the shape \[sequences, tokens\], not \[3\]$"
    ):
        decoder.forward(torch.tensor([1, 2, 3]))


def test_decoder_refuses_more_than_the_cache_holds(decoder: FloatDecoder) -> None:
    with pytest.raises(
        SpecError,
        match=r"^tokens must fit into the context of 4, not be 5; shorten the prompt$",
    ):
        decoder.forward([[1, 2, 3, 4, 5]], cache=decoder.new_cache(max_tokens=4))


def test_generate_refuses_more_than_the_context(decoder: FloatDecoder) -> None:
    with pytest.raises(
        SpecError,
        match=r"^prompt and new tokens must fit into the context of 512 tokens, not be 514 "
        r"together; shorten one of them$",
    ):
        decoder.generate([1, 2], n_tokens=512)


@pytest.mark.parametrize("window", [1, 513])
def test_token_nll_refuses_an_impossible_window(decoder: FloatDecoder, window: int) -> None:
    with pytest.raises(SpecError, match=rf"^window must be 2 to 512 tokens, not {window}$"):
        decoder.token_nll([1, 2, 3], window=window)
