from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romsim_models.errors import FormatError
from romsim_models.hf_names import interleave_rotary_rows
from romsim_models.registry import open_model
from romsim_models.safetensors_reader import open_huggingface
from romsim_models.spec import rope_frequencies
from tests.models.gguf_files import SPEC
from tests.models.hf_files import (
    config_with,
    three_shards,
    weights_of,
    write_model,
    write_safetensors,
    write_sharded,
)

INDEX = "model.safetensors.index.json"
UP = "model.layers.0.mlp.up_proj.weight"


def refused(directory: Path, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        open_huggingface(directory)


def edit_index(directory: Path, **changes: str | None) -> None:
    path = directory / INDEX
    index = json.loads(path.read_text())
    for tensor, file in changes.items():
        if file is None:
            del index["weight_map"][tensor]
        else:
            index["weight_map"][tensor] = file
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_tensors_are_read_by_canonical_name(tmp_path: Path, kind: str) -> None:
    weights = weights_of()
    tensors: dict[str, Any] = dict(weights)
    if kind == "f16":
        tensors = {name: each.astype(np.float16) for name, each in weights.items()}
        weights = {name: each.astype(np.float32) for name, each in tensors.items()}
    if kind == "bf16":
        tensors = {
            name: (each.view(np.uint32) >> 16).astype(np.uint16) for name, each in weights.items()
        }
        weights = {
            name: (each.astype(np.uint32) << 16).view(np.float32) for name, each in tensors.items()
        }
    checkpoint = open_huggingface(write_model(tmp_path / "m", tensors=tensors))
    assert checkpoint.formats() == dict.fromkeys(checkpoint.names(), kind)
    up = checkpoint.read("blk.0.ffn_up.weight")
    assert (up.name, up.format, up.shape) == ("blk.0.ffn_up.weight", kind, (96, 64))
    np.testing.assert_array_equal(up.dequantize(), weights[UP])
    norm = checkpoint.read("output_norm.weight").dequantize()
    np.testing.assert_array_equal(norm, weights["model.norm.weight"])
    query = weights["model.layers.0.self_attn.q_proj.weight"]
    expected = interleave_rotary_rows(query, 32)
    np.testing.assert_array_equal(checkpoint.read("blk.0.attn_q.weight").dequantize(), expected)
    for first, last in ((0, 64), (3, 5), (30, 35), (32, 64), (63, 64)):
        rows = checkpoint.read_rows("blk.0.attn_q.weight", first, last).dequantize()
        np.testing.assert_array_equal(rows, expected[first:last])


def test_directory_opens_by_path_with_its_specification(tmp_path: Path) -> None:
    checkpoint = open_model(write_model(tmp_path / "test"))
    found = checkpoint.spec.to_dict()
    assert {**found, "bos_id": None, "eos_ids": ()} == SPEC.to_dict()
    assert repr(checkpoint) == "Checkpoint(huggingface, 'test', 'test')"


def test_source_changes_with_every_file(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    first = open_huggingface(directory).source
    assert (first.kind, first.name, len(first.sha256)) == ("huggingface", "m", 64)
    assert open_huggingface(directory).source == first
    write_safetensors(directory / "model.safetensors", weights_of(seed=1))
    second = open_huggingface(directory).source
    (directory / "config.json").write_text(json.dumps(config_with(rope_theta=5e5)))
    third = open_huggingface(directory).source
    assert len({first.sha256, second.sha256, third.sha256}) == 3


def test_equal_head_of_a_tied_model_is_kept_once(tmp_path: Path) -> None:
    weights = weights_of()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    checkpoint = open_huggingface(write_model(tmp_path / "m", tensors=weights))
    assert "output.weight" not in checkpoint.names()
    assert checkpoint.notes[0] == (
        "m: tensor 'lm_head.weight' equals the embedding that it is tied to; it is kept once"
    )


@pytest.mark.parametrize("change", ["value", "shape"])
def test_other_head_of_a_tied_model_is_refused(tmp_path: Path, change: str) -> None:
    weights = weights_of()
    head = weights["model.embed_tokens.weight"].copy()
    head[39, 63] += 1
    weights["lm_head.weight"] = head if change == "value" else head[:-1]
    refused(
        write_model(tmp_path / "m", tensors=weights),
        f"{tmp_path / 'm'}: tensor 'lm_head.weight' must equal 'model.embed_tokens.weight' where "
        "tie_word_embeddings is true, not differ from it; set tie_word_embeddings to false to use "
        "it, or remove it",
    )


def test_missing_head_of_an_untied_model_is_refused(tmp_path: Path) -> None:
    refused(
        write_model(tmp_path / "m", config_with(tie_word_embeddings=False)),
        f"{tmp_path / 'm'}: tensor 'lm_head.weight' of shape [40, 64] must be present, not "
        "missing; the file is incomplete: get or convert it again",
    )


def test_missing_sub_norm_of_a_bitnet_is_refused(tmp_path: Path) -> None:
    config = config_with(
        architectures=["BitNetForCausalLM"], model_type="bitnet", hidden_act="relu2"
    )
    weights = weights_of()
    weights["model.layers.0.mlp.ffn_sub_norm.weight"] = np.ones(96, np.float32)
    refused(
        write_model(tmp_path / "m", config, weights),
        f"{tmp_path / 'm'}: tensor 'model.layers.0.self_attn.attn_sub_norm.weight' of shape [64] "
        "must be present, not missing; the file is incomplete: get or convert it again",
    )


def test_biases_are_refused(tmp_path: Path) -> None:
    weights = weights_of()
    for part in ("q", "k", "v"):
        weights[f"model.layers.0.self_attn.{part}_proj.bias"] = np.zeros(64, np.float32)
    refused(
        write_model(tmp_path / "m", tensors=weights),
        f"{tmp_path / 'm'}: tensor 'model.layers.0.self_attn.q_proj.bias' (and 2 more: "
        "model.layers.0.self_attn.k_proj.bias, model.layers.0.self_attn.v_proj.bias) must be one "
        "of a 'llama' decoder's, not a bias; only models without biases can be compiled",
    )


def test_wrong_shape_is_refused(tmp_path: Path) -> None:
    weights = {**weights_of(), UP: np.ones((64, 96), np.float32)}
    refused(
        write_model(tmp_path / "m", tensors=weights),
        f"{tmp_path / 'm'}: shape of tensor '{UP}' must be [96, 64], not [64, 96]; the "
        "configuration and the weights do not belong together",
    )


def test_weight_that_is_no_number_is_named_with_its_place(tmp_path: Path) -> None:
    weights = weights_of()
    weights[UP][95, 1] = np.inf
    checkpoint = open_huggingface(write_model(tmp_path / "m", tensors=weights))
    message = (
        f"{tmp_path / 'm' / 'model.safetensors'}: element [95, 1] of tensor 'blk.0.ffn_up.weight' "
        "must be a finite number, not inf"
    )
    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        checkpoint.read("blk.0.ffn_up.weight")


def test_integer_tensor_is_refused_on_opening(tmp_path: Path) -> None:
    weights: dict[str, Any] = {**weights_of(), UP: np.ones((96, 64), np.int8)}
    refused(
        write_model(tmp_path / "m", tensors=weights),
        f"{tmp_path / 'm' / 'model.safetensors'}: type of tensor '{UP}' must be one of F32, F16, "
        "BF16, not 'I8'; save the model in one of these types",
    )


def test_rotary_buffers_are_dropped_when_they_are_right(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    right = rope_frequencies(SPEC).astype(np.float32)
    directory = write_model(tmp_path / "m", tensors={**weights_of(), name: right})
    assert open_huggingface(directory).notes[0] == (
        f"{directory.name}: 1 tensors of rotary frequencies are not used; they equal those of "
        "config.json"
    )
    write_model(directory, tensors={**weights_of(), name: right * 1.01})
    refused(
        directory,
        f"{directory / 'model.safetensors'}: tensor {name!r} must be the rotary frequencies of "
        "config.json, not others; configuration and weights do not belong together",
    )


def test_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(
        tmp_path,
        f"{tmp_path}: model directory must hold a whole model, not a LoRA adapter; give the base "
        "model here and the directory as an adapter",
    )


def test_directory_without_safetensors_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    refused(
        tmp_path,
        f"{tmp_path}: directory must hold model.safetensors or {INDEX}, not only config.json, "
        "pytorch_model.bin; save the model with save_pretrained(..., safe_serialization=True)",
    )


def test_both_single_file_and_index_are_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path, three_shards())
    write_safetensors(tmp_path / "model.safetensors", weights_of())
    refused(
        tmp_path,
        f"{tmp_path}: weights must be in model.safetensors or in the shards of {INDEX}, not in "
        "both; remove the one that does not belong to the model",
    )


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    whole = open_huggingface(write_model(tmp_path / "whole"))
    sharded = open_huggingface(write_sharded(tmp_path / "sharded", three_shards()))
    assert sharded.names() == whole.names()
    for name in whole.names():
        np.testing.assert_array_equal(
            sharded.read(name).dequantize(), whole.read(name).dequantize()
        )


def test_missing_shard_is_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path, three_shards())
    shard = tmp_path / "model-00002-of-00003.safetensors"
    shard.unlink()
    refused(
        tmp_path,
        f"{shard}: safetensors file must be readable, not 'No such file or directory'; check that "
        "the directory is complete",
    )


def test_stray_file_is_not_used_and_noted(tmp_path: Path) -> None:
    write_sharded(tmp_path, three_shards())
    write_safetensors(tmp_path / "extra.safetensors", {UP: np.zeros((96, 64), np.float32)})
    checkpoint = open_huggingface(tmp_path)
    assert checkpoint.notes[0] == "extra.safetensors: file is not used"
    np.testing.assert_array_equal(
        checkpoint.read("blk.0.ffn_up.weight").dequantize(), weights_of()[UP]
    )


def test_index_of_another_shard_is_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path, three_shards())
    files = sorted(three_shards())
    wrong = next(file for file in files if UP not in three_shards()[file])
    edit_index(tmp_path, **{UP: wrong})
    refused(
        tmp_path,
        f"{tmp_path / INDEX}: tensor {UP!r} must be in the file that the index names, not missing "
        f"from {wrong!r}; index and shards do not belong together",
    )


def test_index_without_a_tensor_is_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path, three_shards())
    file = next(file for file, tensors in three_shards().items() if UP in tensors)
    edit_index(tmp_path, **{UP: None})
    refused(
        tmp_path,
        f"{tmp_path / INDEX}: each tensor of {file!r} must be in the index with that file, not "
        f"{UP!r} with None; index and shards do not belong together",
    )


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/x.safetensors", "a\\b", "..", 3])
def test_path_that_leaves_the_directory_is_refused(tmp_path: Path, name: Any) -> None:
    write_sharded(tmp_path, three_shards())
    edit_index(tmp_path, **{UP: name})
    refused(
        tmp_path,
        f"{tmp_path / INDEX}: file of tensor {UP!r} must be a name inside the directory, not "
        f"{name!r}; the index does not belong to a model that can be trusted",
    )


@pytest.mark.parametrize("weight_map", [None, {}, []])
def test_index_must_have_a_weight_map(tmp_path: Path, weight_map: Any) -> None:
    write_sharded(tmp_path, three_shards())
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    refused(
        tmp_path,
        f"{tmp_path / INDEX}: key 'weight_map' must be an object that names a file for each "
        f"tensor, not {weight_map!r}",
    )
