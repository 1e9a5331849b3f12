from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.errors import FormatError, SpecError
from romsim_models.gguf_reader import open_gguf
from romsim_models.registry import open_model
from tests.models.gguf_files import (
    BF16,
    F16,
    F32,
    Q4_0,
    Q4_1,
    Q8_0,
    SPEC,
    Written,
    metadata_of,
    tensors_of,
    write_gguf,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


def refused(path: Path, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^{re.escape(f'{path}: {message}')}$"):
        open_gguf(path)


def norm(values: list[float]) -> Written:
    return Written((len(values),), F32, np.array(values, dtype="<f4").tobytes())


@pytest.mark.parametrize("matrices", [F32, F16, BF16, Q4_0, Q4_1, Q8_0])
def test_file_of_each_type_opens(path: Path, matrices: int) -> None:
    written = tensors_of(matrices=matrices)
    checkpoint = open_gguf(write_gguf(path, metadata_of(), written))
    assert checkpoint.spec == SPEC
    assert checkpoint.names() == tuple(written)
    assert checkpoint.notes == ()
    for name in checkpoint.names():
        tensor = checkpoint.read(name)
        assert tensor.name == name
        assert tensor.shape == checkpoint.shape(name) == written[name].shape
        assert tensor.format == checkpoint.formats()[name]
        assert np.isfinite(tensor.dequantize()).all()


def test_rows_equal_those_of_the_whole(path: Path) -> None:
    for matrices in (F16, Q4_1):
        checkpoint = open_gguf(write_gguf(path, metadata_of(), tensors_of(matrices=matrices)))
        whole = checkpoint.read("blk.0.ffn_up.weight").dequantize()
        part = checkpoint.read_rows("blk.0.ffn_up.weight", 7, 20)
        assert isinstance(part, FloatTensor if matrices == F16 else EncodedTensor)
        np.testing.assert_array_equal(part.dequantize(), whole[7:20])


def test_untied_head_is_found_by_its_tensor(path: Path) -> None:
    tensors = tensors_of()
    tensors["output.weight"] = tensors["token_embd.weight"]
    checkpoint = open_gguf(write_gguf(path, metadata_of(), tensors))
    assert not checkpoint.spec.tie_embeddings
    assert checkpoint.names()[-1] == "output.weight"


def test_rope_factors_are_read_from_their_tensor(path: Path) -> None:
    tensors = {**tensors_of(), "rope_freqs.weight": norm([1.0] * 8 + [8.0] * 8)}
    checkpoint = open_gguf(write_gguf(path, metadata_of(), tensors))
    assert checkpoint.spec.rope_factors == (1.0,) * 8 + (8.0,) * 8
    assert "rope_freqs.weight" not in checkpoint.names()


def test_source_is_the_digest_of_the_file(path: Path) -> None:
    source = open_gguf(write_gguf(path, metadata_of(), tensors_of())).source
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (source.kind, source.name, source.sha256) == ("gguf", "m.gguf", digest)


def test_file_is_opened_by_its_path(path: Path) -> None:
    write_gguf(path, metadata_of(), tensors_of())
    assert open_model(path).spec == open_model(str(path)).spec == SPEC


def test_defaults_are_noted(path: Path) -> None:
    metadata = metadata_of(
        llama__attention__head_count_kv=None, llama__rope__freq_base=None, llama__novel=3
    )
    tensors = tensors_of()
    for part in ("attn_k", "attn_v"):
        tensors[f"blk.0.{part}.weight"] = tensors["blk.0.attn_q.weight"]
    checkpoint = open_gguf(write_gguf(path, metadata, tensors))
    assert (checkpoint.spec.n_kv_heads, checkpoint.spec.rope_theta) == (2, 10000.0)
    assert checkpoint.notes == (
        f"{path.name}: key 'llama.attention.head_count_kv' is missing; taken as 2 (as many as "
        "heads)",
        f"{path.name}: key 'llama.rope.freq_base' is missing; taken as 10000.0 (llama.cpp's "
        "default)",
        f"{path.name}: key 'llama.novel' is not used",
    )


def test_name_is_the_file_s_where_the_metadata_have_none(path: Path) -> None:
    write_gguf(path, metadata_of(general__name=None), tensors_of())
    assert open_gguf(path).spec.name == "m"


def test_head_dim_of_its_own(path: Path) -> None:
    metadata = metadata_of(
        llama__attention__key_length=32,
        llama__attention__value_length=32,
        llama__rope__dimension_count=32,
        llama__attention__head_count=1,
    )
    tensors = tensors_of()
    tensors["blk.0.attn_q.weight"] = tensors["blk.0.attn_k.weight"]
    tensors["blk.0.attn_output.weight"] = Written((64, 32), F32, bytes(64 * 32 * 4))
    assert open_gguf(write_gguf(path, metadata, tensors)).spec.head_dim == 32


@pytest.mark.parametrize(
    "key",
    [
        "llama.embedding_length",
        "llama.block_count",
        "llama.attention.head_count",
        "llama.feed_forward_length",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.context_length",
    ],
)
def test_missing_key_is_refused(path: Path, key: str) -> None:
    write_gguf(path, metadata_of(SPEC, **{key: None}), tensors_of())
    refused(path, f"key {key!r} must be present, not missing; get or convert the model again")


@pytest.mark.parametrize("arch", ["qwen2", None])
def test_other_architecture_is_refused(path: Path, arch: str | None) -> None:
    write_gguf(path, metadata_of(general__architecture=arch), tensors_of())
    refused(
        path,
        f"key 'general.architecture' must be one of llama, bitnet, bitnet-b1.58, bitnet-25, not "
        f"{arch!r}; only decoders of the LLaMA family can be compiled",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"llama.expert_count": 8},
            "key 'llama.expert_count' must be 0, not 8; only the plain decoder can be compiled",
        ),
        (
            {"llama.logit_scale": 2.0},
            "key 'llama.logit_scale' must be 0.0 or 1.0, not 2.0; only the plain decoder "
            "can be compiled",
        ),
        (
            {"llama.rope.dimension_count": 16},
            "key 'llama.rope.dimension_count' must be the head's width 32, not 16; partial or "
            "unequal heads cannot be compiled",
        ),
        (
            {"llama.attention.head_count": 3},
            "key 'llama.embedding_length' must be a multiple of the 3 heads where "
            "'llama.attention.key_length' is missing, not 64",
        ),
        (
            {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 3},
            "llama.attention.head_count must be a multiple of llama.attention.head_count_kv=3, "
            "not 4; each key/value head serves the same number of query heads",
        ),
        (
            {"llama.feed_forward_length": [96]},
            "llama.feed_forward_length must be an integer from 1 to 16777216, not [96]",
        ),
        (
            {"llama.embedding_length": 0},
            "llama.embedding_length must be an integer from 1 to 16777216, not 0",
        ),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0},
            "key 'llama.rope.scaling.type' must be 'none' (scaling then comes from the tensor "
            "rope_freqs.weight) or 'linear' with a factor, not 'yarn' with factor 4.0",
        ),
    ],
)
def test_contradictory_key_is_refused(path: Path, changes: dict[str, Any], message: str) -> None:
    refused(write_gguf(path, metadata_of(**changes), tensors_of()), message)


def test_linear_rope_scaling_divides_every_frequency(path: Path) -> None:
    metadata = metadata_of(llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    spec = open_gguf(write_gguf(path, metadata, tensors_of())).spec
    assert spec.rope_factors == (4.0,) * 16


def test_missing_embedding_is_refused(path: Path) -> None:
    tensors = tensors_of()
    del tensors["token_embd.weight"]
    refused(
        write_gguf(path, metadata_of(), tensors),
        "tensor 'token_embd.weight' must be present as a matrix, not 'missing'; the file is "
        "incomplete: get or convert it again",
    )


def test_missing_tensors_are_refused(path: Path) -> None:
    tensors = tensors_of()
    for part in ("ffn_up", "ffn_down"):
        del tensors[f"blk.0.{part}.weight"]
    refused(
        write_gguf(path, metadata_of(), tensors),
        "tensor 'blk.0.ffn_up.weight' of shape [96, 64] must be present, not missing (and 1 more: "
        "blk.0.ffn_down.weight); the file is incomplete: get or convert it again",
    )


def test_biases_are_refused(path: Path) -> None:
    tensors = tensors_of()
    for part in ("q", "k", "v", "output", "x"):
        tensors[f"blk.0.attn_{part}.bias"] = norm([0.0] * 64)
    refused(
        write_gguf(path, metadata_of(), tensors),
        "tensor 'blk.0.attn_q.bias' (and 4 more: blk.0.attn_k.bias, blk.0.attn_v.bias, "
        "blk.0.attn_output.bias, ...) must be one of a 'llama' decoder's, not a bias; only models "
        "without biases can be compiled",
    )


def test_extra_tensor_is_refused(path: Path) -> None:
    refused(
        write_gguf(path, metadata_of(), {**tensors_of(), "blk.1.attn_norm.weight": norm([1.0])}),
        "tensor 'blk.1.attn_norm.weight' must be one of a 'llama' decoder's, not one without a "
        "use; check that the architecture is the right one",
    )


def test_wrong_shape_is_refused(path: Path) -> None:
    tensors = tensors_of()
    tensors["blk.0.attn_k.weight"] = tensors["blk.0.attn_q.weight"]
    refused(
        write_gguf(path, metadata_of(), tensors),
        "shape of tensor 'blk.0.attn_k.weight' must be [32, 64], not [64, 64]; the configuration "
        "and the weights do not belong together",
    )


def test_quantised_norm_is_refused(path: Path) -> None:
    tensors = {**tensors_of(), "blk.0.attn_norm.weight": Written((64,), Q8_0, bytes(68))}
    refused(
        write_gguf(path, metadata_of(), tensors),
        "tensor 'blk.0.attn_norm.weight' must be a vector in F32, F16 or BF16, not 'Q8_0' of "
        "shape [64]",
    )


def test_weight_that_is_no_number_is_named_with_its_place(path: Path) -> None:
    tensors = tensors_of()
    values = np.ones((96, 64), dtype="<f4")
    values[5, 6] = np.nan
    tensors["blk.0.ffn_up.weight"] = Written((96, 64), F32, values.tobytes())
    checkpoint = open_gguf(write_gguf(path, metadata_of(), tensors))
    message = (
        f"{path}: element [5, 6] of tensor 'blk.0.ffn_up.weight' must be a finite number, not nan"
    )
    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        checkpoint.read("blk.0.ffn_up.weight")


def test_file_that_shrinks_while_open_is_refused(path: Path) -> None:
    checkpoint = open_gguf(write_gguf(path, metadata_of(), tensors_of()))
    path.write_bytes(path.read_bytes()[:-100])
    message = (
        f"{path}: data of tensor 'output_norm.weight' must be 256 bytes, not 156; the file was "
        "changed while it was open"
    )
    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        checkpoint.read("output_norm.weight")


def test_name_that_is_no_tensor_is_refused(path: Path) -> None:
    checkpoint = open_gguf(write_gguf(path, metadata_of(), tensors_of()))
    with pytest.raises(
        SpecError,
        match=r"^tensor name must be one of model 'test' \(see names\(\)\), not 'lm_head'$",
    ):
        checkpoint.read("lm_head")


@pytest.mark.parametrize(
    ("name", "rows", "shape"),
    [
        ("blk.0.ffn_up.weight", (90, 97), "[96, 64]"),
        ("blk.0.ffn_up.weight", (3, 3), "[96, 64]"),
        ("blk.0.attn_norm.weight", (0, 1), "[64]"),
    ],
)
def test_rows_outside_a_matrix_are_refused(
    path: Path, name: str, rows: tuple[int, int], shape: str
) -> None:
    checkpoint = open_gguf(write_gguf(path, metadata_of(), tensors_of()))
    message = (
        f"rows to read of tensor {name!r} of shape {shape} must be a range inside a matrix, "
        f"not {rows!r}"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(message)}$"):
        checkpoint.read_rows(name, *rows)


def test_shape_has_names_but_no_tensors() -> None:
    checkpoint = open_model("llama-3.2-1b")
    assert not checkpoint.has_weights
    assert len(checkpoint.names()) == 1 + 16 * 9 + 1
    assert checkpoint.shape("blk.15.ffn_down.weight") == (2048, 8192)
    assert checkpoint.source.kind == "shape"
    assert checkpoint.tokenizer() is None
    message = (
        "model 'llama-3.2-1b' must have weights for this, not a shape alone; only timing, capacity "
        "and area can be had of a shape"
    )
    for call in (checkpoint.formats, lambda: checkpoint.read("output_norm.weight")):
        with pytest.raises(SpecError, match=rf"^{re.escape(message)}$"):
            call()
