from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from romsim_models.errors import FormatError
from romsim_models.hf_config import spec_from_huggingface
from romsim_models.spec import RopeScaling
from tests.models.hf_files import config_with

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def write(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(config_with(**changes)))


def refused(path: Path, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^{re.escape(f'{path}: {message}')}$"):
        spec_from_huggingface(path.parent)


def test_complete_configuration_takes_no_default(path: Path) -> None:
    write(path)
    spec, notes = spec_from_huggingface(path.parent)
    assert notes == ()
    assert (spec.name, spec.arch, spec.activation) == (path.parent.name, "llama", "silu")
    assert (spec.dim, spec.n_layers, spec.n_heads, spec.n_kv_heads) == (64, 1, 2, 1)
    assert (spec.head_dim, spec.hidden_dim, spec.vocab_size) == (32, 96, 40)
    assert (spec.max_seq_len, spec.tie_embeddings, spec.bos_id) == (64, True, 1)
    assert spec.eos_ids == (2,)


def test_end_tokens_of_both_files_are_taken(path: Path) -> None:
    write(path, eos_token_id=[2, 5])
    (path.parent / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert spec_from_huggingface(path.parent)[0].eos_ids == (2, 5, 7)
    (path.parent / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert spec_from_huggingface(path.parent)[0].eos_ids == (2, 5, 9)


@pytest.mark.parametrize(
    ("key", "field", "value", "shown"),
    [
        ("num_key_value_heads", "n_kv_heads", 2, "2 (num_attention_heads)"),
        ("head_dim", "head_dim", 32, "32 (hidden_size / num_attention_heads)"),
        ("rope_theta", "rope_theta", 10000.0, "10000.0 (transformers' default)"),
        ("max_position_embeddings", "max_seq_len", 2048, "2048 (transformers' default)"),
        ("hidden_act", "activation", "silu", '"silu" (the architecture\'s default)'),
        ("tie_word_embeddings", "tie_embeddings", False, "false (transformers' default)"),
        ("bos_token_id", "bos_id", None, "null (no token)"),
        ("eos_token_id", "eos_ids", (), "[] (no token)"),
    ],
)
def test_default_is_taken_and_noted(
    path: Path, key: str, field: str, value: Any, shown: str
) -> None:
    write(path, **{key: None})
    spec, notes = spec_from_huggingface(path.parent)
    assert getattr(spec, field) == value
    assert notes == (f"config.json: key {key!r} is missing; taken as {shown}",)


def test_null_counts_as_missing(path: Path) -> None:
    path.write_text(json.dumps({**config_with(), "num_key_value_heads": None}))
    assert spec_from_huggingface(path.parent)[0].n_kv_heads == 2


def test_architecture_is_taken_from_the_model_type(path: Path) -> None:
    write(path, architectures=None)
    spec, notes = spec_from_huggingface(path.parent)
    assert spec.arch == "llama"
    assert notes == ("config.json: key 'architectures' is missing; taken from model_type 'llama'",)


def test_unknown_keys_are_noted(path: Path) -> None:
    write(path, novel=1, torch_dtype="bfloat16", use_cache=True)
    assert spec_from_huggingface(path.parent)[1] == ("config.json: key 'novel' is not used",)


@pytest.mark.parametrize("name", ["BitNetForCausalLM", "BitnetForCausalLM"])
def test_bitnet_has_sub_norms_and_squared_relu(path: Path, name: str) -> None:
    write(path, architectures=[name], model_type="bitnet", hidden_act="relu2")
    spec, _ = spec_from_huggingface(path.parent)
    assert (spec.arch, spec.activation, spec.has_sub_norms) == ("bitnet", "relu2", True)


@pytest.mark.parametrize(
    "key",
    [
        *("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"),
        *("vocab_size", "rms_norm_eps"),
    ],
)
def test_required_key_is_named(path: Path, key: str) -> None:
    write(path, **{key: None})
    refused(path, f"key {key!r} must be present, not missing; get or convert the model again")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "'Qwen2ForCausalLM'"),
        ({"architectures": ["LlamaModel"]}, "'LlamaModel'"),
        ({"architectures": ["BitNetForCausalLM"]}, "'BitNetForCausalLM'"),
        ({"architectures": "LlamaForCausalLM", "model_type": "gpt2"}, "'LlamaForCausalLM'"),
        ({"architectures": []}, "[]"),
        ({"architectures": None, "model_type": None}, "None"),
    ],
)
def test_other_architecture_is_refused(path: Path, changes: dict[str, Any], found: str) -> None:
    write(path, **changes)
    model_type = changes.get("model_type", "llama")
    refused(
        path,
        "key 'architectures' must be one of LlamaForCausalLM, BitNetForCausalLM, "
        f"BitnetForCausalLM with a model_type to match, not {found} with model_type "
        f"{model_type!r}; only decoders of the LLaMA family can be compiled",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_attention_heads": 6, "num_key_value_heads": 4},
            "num_attention_heads must be a multiple of num_key_value_heads=4, not 6; each "
            "key/value head serves the same number of query heads",
        ),
        (
            {"num_attention_heads": 3, "head_dim": None},
            "key 'hidden_size' must be a multiple of the 3 heads where 'head_dim' is missing, "
            "not 64",
        ),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer from 1 to 4096, not 0"),
        ({"hidden_size": "64"}, "hidden_size must be an integer from 1 to 16777216, not '64'"),
        ({"head_dim": 0}, "head_dim must be an integer from 1 to 16777216, not 0"),
        (
            {"head_dim": 31},
            "head_dim must be even, not 31; rotary positions turn pairs of elements",
        ),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a finite number above 0, not 0"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu' or 'relu2', not 'gelu'"),
        (
            {"tie_word_embeddings": "yes"},
            "key 'tie_word_embeddings' must be true or false, not 'yes'",
        ),
        (
            {"eos_token_id": 40},
            "bos_token_id and eos_token_id must be tokens below vocab_size=40, not 40",
        ),
        (
            {"attention_bias": True},
            "key 'attention_bias' must be false, not True; only models without biases can be "
            "compiled",
        ),
        (
            {"mlp_bias": True},
            "key 'mlp_bias' must be false, not True; only models without biases can be compiled",
        ),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "key 'quantization_config' must be absent or of quant_method 'bitnet', not 'gptq'; "
            "give the model in bf16, f16 or f32, or as GGUF",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "key 'rope_scaling.rope_type' must be 'default', 'linear' or 'llama3', not 'yarn'; "
            "this scaling of rotary positions cannot be compiled",
        ),
        (
            {"rope_scaling": {"type": "foo"}},
            "key 'rope_scaling.rope_type' must be 'default', 'linear' or 'llama3', not 'foo'; this "
            "scaling of rotary positions cannot be compiled",
        ),
        ({"rope_scaling": 8}, "key 'rope_scaling' must be an object, not 8"),
        (
            {"rope_scaling": {"rope_type": "linear"}},
            "key 'rope_scaling.factor' must be present, not missing; get or convert the model "
            "again",
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 0}},
            "key 'rope_scaling.factor' must be a positive number, not 0",
        ),
        (
            {"rope_scaling": {**LLAMA3, "factor": 0.5}},
            "rope_scaling.factor must be a finite number of at least 1, not 0.5",
        ),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 0}},
            "rope_scaling.original_max_position must be an integer from 1 to 16777216, not 0",
        ),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2.0}},
            "keys 'rope_scaling.type' and 'rope_scaling.rope_type' must agree, not be 'linear' and "
            "'llama3'; keep one of the two",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            "keys 'rope_theta' and 'rope_parameters.rope_theta' must agree, not be 10000.0 and "
            "500000.0; keep one of the two",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "key 'rope_parameters.partial_rotary_factor' must be 1.0, not 0.5; partial rotary "
            "positions cannot be compiled",
        ),
        (
            {
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
            "keys 'rope_scaling' and 'rope_parameters' must agree, not be {'rope_type': 'linear', "
            "'factor': 2.0} and {'rope_type': 'linear', 'factor': 4.0}; keep one of the two",
        ),
    ],
)
def test_impossible_value_is_refused(path: Path, changes: dict[str, Any], message: str) -> None:
    write(path, **changes)
    refused(path, message)


@pytest.mark.parametrize(
    "missing", ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
)
def test_llama3_scaling_must_be_complete(path: Path, missing: str) -> None:
    scaling = {key: value for key, value in LLAMA3.items() if key != missing}
    write(path, rope_scaling=scaling)
    refused(
        path,
        f"key 'rope_scaling.{missing}' must be present, not missing; get or convert the model "
        "again",
    )


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_scaling_is_read(path: Path, key: str) -> None:
    write(path, **{key: LLAMA3})
    assert spec_from_huggingface(path.parent)[0].rope_scaling == RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16
    )


def test_missing_file_is_named(path: Path) -> None:
    refused(
        path,
        "file must be readable, not 'No such file or directory'; check that the directory is "
        "complete",
    )


def test_syntax_error_has_line_and_column(path: Path) -> None:
    path.write_text('{"vocab_size": 40,\n "hidden_size": }')
    refused(
        path,
        "file must be JSON, not text with an error in line 2, column 17: Expecting value",
    )


def test_file_must_hold_one_object_in_utf8(path: Path) -> None:
    path.write_text("[1]")
    refused(path, "file must hold a JSON object, not 'list'")
    path.write_bytes(b"\xff{}")
    refused(path, "file must be UTF-8, not 'invalid start byte'")


def test_key_twice_is_refused(path: Path) -> None:
    path.write_text('{"vocab_size": 40, "vocab_size": 41}')
    refused(path, "key 'vocab_size' must stand once, not twice")
