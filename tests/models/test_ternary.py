from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.errors import FormatError
from romsim_models.registry import open_model
from romsim_models.ternary import absmean_codes, absmean_scale, float32_parts
from tests.models.gguf_files import F16, Written
from tests.models.ternary_files import (
    AUTO,
    BITLINEAR,
    I2_S,
    LAYOUTS,
    ONLINE,
    SCALE,
    SPEC,
    TQ1_0,
    TQ2_0,
    as_floats,
    i2_s,
    in_halves,
    metadata,
    others,
    pack_rows,
    scaled_f16,
    signs,
    tq,
    write_bitnet_gguf,
    write_hf,
)

gguf = pytest.importorskip("gguf", reason="an independent quantiser (extra 'oracle')")

FORMATS = {"hf-values": "f32", "tq1_0": "tq1_0", "tq2_0": "tq2_0", "i2_s": "i2_s"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_same_model(tmp_path: Path, layout: str) -> None:
    model = open_model(LAYOUTS[layout](tmp_path))
    assert (model.spec.arch, model.spec.activation, model.spec.has_sub_norms) == (
        *("bitnet", "relu2", True),
    )
    for name, values in signs().items():
        tensor = model.read(name)
        np.testing.assert_array_equal(tensor.dequantize(), values * np.float32(SCALE), name)
        part = model.read_rows(name, 3, 70)  # not whole heads
        np.testing.assert_array_equal(part.dequantize(), tensor.dequantize()[3:70], name)
        if layout != "hf-values":
            assert isinstance(tensor, EncodedTensor)
            np.testing.assert_array_equal(tensor.codes.astype(np.int8) - 1, values)
    for name, floats in others().items():
        np.testing.assert_array_equal(model.read(name).dequantize(), floats, name)
    formats = model.formats()
    assert {formats[name] for name in signs()} == {
        FORMATS.get(layout.removesuffix("-scale"), "bitnet")
    }
    assert {model.read(name).format for name in signs()} == {formats[name] for name in signs()}


@pytest.mark.parametrize(("type_id", "name"), [(TQ1_0, "TQ1_0"), (TQ2_0, "TQ2_0")])
def test_any_block_equals_the_gguf_package(tmp_path: Path, type_id: int, name: str) -> None:
    generator = np.random.RandomState(type_id)
    scales = generator.standard_normal((256, 1)).astype(np.float32)  # one per row: groups differ
    values = generator.randint(-1, 2, (256, 256)) * scales
    kind = gguf.GGMLQuantizationType(type_id)
    raw = gguf.quants.quantize(values.astype(np.float32), kind)

    def change(tensors: dict[str, Written]) -> None:
        tensors["blk.0.ffn_up.weight"] = Written((256, 256), type_id, raw.tobytes())

    path = write_bitnet_gguf(tmp_path / "m.gguf", lambda v: tq(v, type_id), change=change)
    ours = open_model(path).read("blk.0.ffn_up.weight")
    assert isinstance(ours, EncodedTensor)
    assert (ours.code_bits, ours.group_size, ours.bits_per_weight) == (2, 256, 2.0625)
    np.testing.assert_array_equal(ours.dequantize(), gguf.quants.dequantize(raw, kind))


def test_plain_bitnet_of_llama_cpp_has_a_silu(tmp_path: Path) -> None:
    path = write_bitnet_gguf(tmp_path / "m.gguf", i2_s, arch="bitnet")
    assert open_model(path).spec.activation == "silu"
    path = write_bitnet_gguf(tmp_path / "n.gguf", i2_s, arch="bitnet-25")
    assert open_model(path).spec.activation == "relu2"


def test_packing_is_that_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    bitnet = pytest.importorskip("transformers.integrations.bitnet")
    values = signs()["blk.0.attn_k.weight"]
    theirs = bitnet.pack_weights(torch.tensor(values.astype(np.int8)))
    np.testing.assert_array_equal(pack_rows(values), theirs.numpy())


def test_a_scale_is_divided_by_or_multiplied_with_as_the_configuration_says(tmp_path: Path) -> None:
    stored = np.float32(0.3)
    for quantization, expected in ((BITLINEAR, np.float32(1) / stored), (AUTO, stored)):
        folder = write_hf(
            tmp_path / "m", quantization=quantization, weights=pack_rows, scale=float(stored)
        )
        tensor = open_model(folder).read("blk.0.ffn_up.weight")
        assert isinstance(tensor, EncodedTensor)
        assert tensor.matrix_scale is not None
        assert math.ldexp(*tensor.matrix_scale) == float(expected)


def test_defaults_of_transformers_are_noted(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m", quantization={}, weights=pack_rows, scale=1 / SCALE)
    model = open_model(folder)
    np.testing.assert_array_equal(
        model.read("blk.0.ffn_up.weight").dequantize(), signs()["blk.0.ffn_up.weight"] * SCALE
    )
    assert [note for note in model.notes if "quantization_config" in note] == [
        "config.json: key 'quantization_config.linear_class' is missing; taken as \"bitlinear\" "
        "(transformers' default)",
        "config.json: key 'quantization_config.quantization_mode' is missing; taken as \"offline\" "
        "(transformers' default)",
    ]


def test_llama_with_packed_matrices_is_read(tmp_path: Path) -> None:
    def without_sub_norms(tensors: dict[str, NDArray[Any]]) -> None:
        for name in [name for name in tensors if "sub_norm" in name]:
            del tensors[name]

    folder = write_hf(
        tmp_path / "m", quantization=BITLINEAR, weights=pack_rows, scale=2.0,
        config={
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        },
        change=without_sub_norms,
    )  # fmt: skip
    model = open_model(folder)
    assert (model.spec.arch, model.spec.has_sub_norms) == ("llama", False)
    assert model.formats()["blk.0.attn_q.weight"] == "bitnet"


def test_modules_not_converted_stay_floating_point(tmp_path: Path) -> None:
    def change(tensors: dict[str, NDArray[Any]]) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = np.full((256, 256), 0.3, dtype=np.float32)
        del tensors[f"{name}_scale"]

    folder = write_hf(
        tmp_path / "m", quantization={**AUTO, "modules_to_not_convert": ["up_proj", "lm_head"]},
        weights=pack_rows, scale=SCALE, change=change,
    )  # fmt: skip
    tensor = open_model(folder).read("blk.0.ffn_up.weight")
    assert isinstance(tensor, FloatTensor)
    assert tensor.values[0, 0] == np.float32(0.3)


def test_online_floats_are_made_ternary_by_their_exact_mean(tmp_path: Path) -> None:
    masters = {}
    for index, (name, values) in enumerate(signs().items()):
        noise = np.random.RandomState(index).standard_normal(values.shape).astype(np.float32)
        masters[name] = noise * np.float32(0.02)

    def change(tensors: dict[str, NDArray[Any]]) -> None:
        from romsim_models.hf_names import huggingface_name

        for name, master in masters.items():
            tensors[huggingface_name(name)] = in_halves(name, master)

    folder = write_hf(
        tmp_path / "m", quantization=ONLINE, weights=as_floats, scale=None, change=change
    )
    model = open_model(folder)
    for name, master in masters.items():
        tensor = model.read(name)
        assert isinstance(tensor, EncodedTensor)
        exact = sum(Fraction(abs(float(value))) for value in master.flat) / master.size
        assert tensor.matrix_scale is not None
        significand, exponent = tensor.matrix_scale
        found = significand * Fraction(2) ** exponent
        assert found <= Fraction(float(exact)) < found + Fraction(2) ** exponent
        assert 2**23 <= significand < 2**24
        rounded = np.clip(np.rint(master / np.float32(float(found))), -1, 1)
        np.testing.assert_array_equal(tensor.codes.astype(np.int8) - 1, rounded)
        zeros = float((rounded == 0).mean())
        assert 0.29 < zeros < 0.33  # 31 % of a normal distribution


def test_mean_of_nothing_but_zeros() -> None:
    zeros = np.zeros((2, 4), dtype=np.float32)
    assert absmean_scale([zeros]) == (0, 0)
    np.testing.assert_array_equal(absmean_codes(zeros, (0, 0)), np.ones((2, 4)))


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 2.0**-126, 2.0**-149, 3.0e38, 65504.0])
def test_parts_of_a_float32_number(value: float) -> None:
    significand, exponent = float32_parts(value)
    assert math.ldexp(significand, exponent) == float(np.float32(value))
    assert 0 <= significand < 2**24


def refused(path: Path, message: str, read: str | None = None) -> None:
    def use() -> None:
        model = open_model(path)
        if read is not None:
            model.read(read)

    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        use()


UP = "model.layers.0.mlp.up_proj.weight"


def change_of(name: str, value: NDArray[Any] | None) -> Callable[[dict[str, NDArray[Any]]], None]:
    def change(tensors: dict[str, NDArray[Any]]) -> None:
        tensors.pop(name)
        if value is not None:
            tensors[name] = value

    return change


def hf_file(
    folder: Path, *, quantization: Any = AUTO, weights: Any = pack_rows, **more: Any
) -> Path:
    return write_hf(
        folder / "m", quantization=quantization, weights=weights, **{"scale": SCALE, **more}
    )


def test_code_3_in_packed_bytes(tmp_path: Path) -> None:
    packed = pack_rows(signs()["blk.0.ffn_up.weight"])
    packed[2, 5] |= 0b00110000  # of row 2 + 2 * 64
    folder = hf_file(tmp_path, change=change_of(UP, packed))
    refused(
        folder,
        f"{folder}/model.safetensors: code [130, 5] of tensor 'blk.0.ffn_up.weight' must be 0, 1 "
        "or 2 in bitnet, not 3; the file is corrupt, or packed in another way",
        "blk.0.ffn_up.weight",
    )


@pytest.mark.parametrize("type_id", [TQ2_0, I2_S])
def test_code_3_in_a_gguf_tensor(tmp_path: Path, type_id: int) -> None:
    def encode(values: NDArray[np.int8]) -> Written:
        written = i2_s(values) if type_id == I2_S else tq(values, type_id)
        raw = bytearray(written.raw)
        raw[1] |= 0b11 << (6 if type_id == I2_S else 0)  # weight 1
        return Written(written.shape, type_id, bytes(raw))

    path = write_bitnet_gguf(tmp_path / "m.gguf", encode)
    name = "i2_s" if type_id == I2_S else "tq2_0"
    refused(
        path,
        f"{path}: code [0, 1] of tensor 'blk.0.ffn_up.weight' must be 0, 1 or 2 in {name}, not 3; "
        "the file is corrupt, or packed in another way",
        "blk.0.ffn_up.weight",
    )


def test_value_that_is_not_ternary(tmp_path: Path) -> None:
    values = as_floats(signs()["blk.0.ffn_up.weight"])
    values[7, 9] = 0.5
    folder = hf_file(tmp_path, weights=as_floats, change=change_of(UP, values))
    refused(
        folder,
        f"{folder}/model.safetensors: element [7, 9] of tensor 'blk.0.ffn_up.weight' must be -1, 0 "
        "or 1 beside a weight_scale, not 0.5; the weights were not made ternary, or belong to "
        "quantization_mode 'online'",
        "blk.0.ffn_up.weight",
    )


def test_rows_that_do_not_divide_into_bytes(tmp_path: Path) -> None:
    packed = np.zeros((65, 256), dtype=np.uint8)  # as transformers packs 257 to 260 rows
    folder = hf_file(tmp_path, change=change_of(UP, packed))
    refused(
        folder,
        f"{folder}: shape of tensor '{UP}' must be [256, 256], not [260, 256]; the configuration "
        "and the weights do not belong together",
    )


@pytest.mark.parametrize(("type_id", "multiple"), [(TQ1_0, 256), (TQ2_0, 256), (I2_S, 128)])
def test_columns_that_do_not_divide_into_blocks(
    tmp_path: Path, type_id: int, multiple: int
) -> None:
    def change(tensors: dict[str, Written]) -> None:
        tensors["blk.0.ffn_up.weight"] = Written((256, 192), type_id, bytes(256 * 192))

    path = write_bitnet_gguf(tmp_path / "m.gguf", i2_s, change=change)
    name = {TQ1_0: "TQ1_0", TQ2_0: "TQ2_0", I2_S: "I2_S"}[type_id]
    refused(
        path,
        f"{path}: number of columns of tensor 'blk.0.ffn_up.weight' must be a positive multiple of "
        f"{multiple} for {name}, not 192",
    )


def test_packed_matrix_without_rows(tmp_path: Path) -> None:
    folder = hf_file(tmp_path, change=change_of(UP, np.zeros((), dtype=np.uint8)))
    refused(
        folder,
        f"{folder}: shape of tensor '{UP}' must be [256, 256], not []; the configuration and the "
        "weights do not belong together",
    )


def test_missing_sub_norm(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.attn_sub_norm.weight"
    folder = hf_file(tmp_path, change=change_of(name, None))
    refused(
        folder,
        f"{folder}: tensor '{name}' of shape [256] must be present, not missing; the file is "
        "incomplete: get or convert it again",
    )

    def change(tensors: dict[str, Written]) -> None:
        del tensors["blk.0.ffn_sub_norm.weight"]

    path = write_bitnet_gguf(tmp_path / "m.gguf", i2_s, change=change)
    refused(
        path,
        f"{path}: tensor 'blk.0.ffn_sub_norm.weight' of shape [256] must be present, not missing; "
        "the file is incomplete: get or convert it again",
    )


@pytest.mark.parametrize(
    ("linear", "mode"),
    [("bitlinear", "online"), ("bitblas", "offline"), ("autobitlinear", "x"), ("bitlinear", [1])],
)
def test_unknown_scale_convention(tmp_path: Path, linear: str, mode: object) -> None:
    folder = hf_file(tmp_path, quantization={"linear_class": linear, "quantization_mode": mode})
    refused(
        folder,
        f"{folder}/config.json: keys 'quantization_config.linear_class' and "
        "'quantization_config.quantization_mode' must be 'bitlinear' with 'offline' (weight_scale "
        "divides), 'autobitlinear' with 'offline' (it multiplies) or 'autobitlinear' with 'online' "
        f"(there is none), not '{linear}' with {mode!r}; what the scales mean is not known",
    )


def test_scale_without_a_convention(tmp_path: Path) -> None:
    folder = hf_file(tmp_path, quantization=None)
    refused(
        folder,
        f"{folder}/config.json: key 'quantization_config' must say whether tensor "
        "'model.layers.0.self_attn.q_proj.weight_scale' divides or multiplies, not be missing; "
        "take it from the model's original config.json",
    )


def test_missing_and_superfluous_scale(tmp_path: Path) -> None:
    folder = hf_file(tmp_path, change=change_of(f"{UP}_scale", None))
    refused(
        folder,
        f"{folder}/model.safetensors: tensor '{UP}_scale' must stand beside the matrix where "
        "weight_scale is one that multiplies (linear_class 'autobitlinear'), not missing; "
        "configuration and weights do not belong together",
    )
    folder = hf_file(tmp_path, quantization=ONLINE, weights=as_floats)
    refused(
        folder,
        f"{folder}/model.safetensors: tensor 'model.layers.0.self_attn.q_proj.weight_scale' must "
        "be absent where weight_scale is one that has no use (quantization_mode 'online'), not "
        "present; configuration and weights do not belong together",
    )


@pytest.mark.parametrize(("value", "quantization"), [(0.0, AUTO), (-1.0, AUTO), (0.0, BITLINEAR)])
def test_scale_that_is_not_positive(tmp_path: Path, value: float, quantization: Any) -> None:
    folder = hf_file(tmp_path, quantization=quantization, scale=value)
    refused(
        folder,
        f"{folder}/model.safetensors: tensor '{UP}_scale' must be a positive number whose "
        f"reciprocal is a float32 number, not {value!r}; the file is corrupt",
        "blk.0.ffn_up.weight",
    )


def test_scales_of_rows(tmp_path: Path) -> None:
    folder = hf_file(tmp_path, change=change_of(f"{UP}_scale", np.ones(256, dtype=np.float32)))
    refused(
        folder,
        f"{folder}/model.safetensors: tensor '{UP}_scale' must hold one number, not be of shape "
        "[256]; scales of rows or groups cannot be read",
        "blk.0.ffn_up.weight",
    )


def test_norm_before_each_matrix(tmp_path: Path) -> None:
    folder = hf_file(tmp_path, quantization={**AUTO, "use_rms_norm": True})
    refused(
        folder,
        f"{folder}/config.json: key 'quantization_config.use_rms_norm' must be false, not True; a "
        "norm before each matrix cannot be compiled",
    )


def test_i2_s_with_an_impossible_scale(tmp_path: Path) -> None:
    path = write_bitnet_gguf(tmp_path / "m.gguf", lambda values: i2_s(values, math.inf))
    refused(
        path,
        f"{path}: scale of tensor 'blk.0.ffn_up.weight' must be a finite number of at least 0, not "
        "inf; the file is corrupt, or its I2_S is of another kind",
        "blk.0.ffn_up.weight",
    )


def test_scale_beside_a_matrix_of_groups(tmp_path: Path) -> None:
    path = write_bitnet_gguf(tmp_path / "m.gguf", lambda v: tq(v, TQ2_0), scale=SCALE)
    refused(
        path,
        f"{path}: format of tensor 'blk.0.ffn_up.weight' must be I2_S or floating point where a "
        "scale stands beside it, not 'tq2_0'; convert the file again without scale tensors",
        "blk.0.ffn_up.weight",
    )


def test_two_scales_that_need_more_bits_than_one(tmp_path: Path) -> None:
    path = write_bitnet_gguf(tmp_path / "m.gguf", lambda v: i2_s(v, 0.1), scale=0.3)
    product = Fraction(float(np.float32(0.1))) * Fraction(float(np.float32(0.3)))
    exponent = -(product.denominator.bit_length() - 1)
    refused(
        path,
        f"{path}: scale of tensor 'blk.0.ffn_up.weight', its own times the one beside it, must fit "
        f"float32, not be {product.numerator} * 2^{exponent}; convert the file again",
        "blk.0.ffn_up.weight",
    )


def test_scale_of_another_shape(tmp_path: Path) -> None:
    def change(tensors: dict[str, Written]) -> None:
        tensors["blk.0.ffn_up.scale"] = Written((2,), F16, bytes(4))

    path = write_bitnet_gguf(tmp_path / "m.gguf", scaled_f16, scale=SCALE, change=change)
    refused(
        path,
        f"{path}: tensor 'blk.0.ffn_up.scale' must hold the one scale of its matrix, not be of "
        "shape [2]; convert the file again",
    )


def test_bitnet_metadata_are_named_by_their_own_keys(tmp_path: Path) -> None:
    from tests.models.gguf_files import write_gguf

    path = tmp_path / "m.gguf"
    values = metadata()
    del values["bitnet-b1.58.block_count"]
    written = {"token_embd.weight": Written((40, 256), F16, bytes(40 * 256 * 2))}
    write_gguf(path, values, written)
    refused(
        path,
        f"{path}: key 'bitnet-b1.58.block_count' must be present, not missing; get or convert the "
        "model again",
    )


def test_configuration_is_kept_as_json(tmp_path: Path) -> None:
    folder = hf_file(tmp_path, quantization={**AUTO, "surprise": 1})
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["surprise"] == 1
    notes = open_model(folder).notes
    assert "config.json: key 'quantization_config.surprise' is not used" in notes


def test_spec_of_the_test_model_is_what_the_files_say(tmp_path: Path) -> None:
    found = open_model(LAYOUTS["i2_s"](tmp_path)).spec
    assert found == SPEC
