from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from romsim_models.errors import FormatError, SpecError
from romsim_models.lora import LoraAdapter, read_adapter
from romsim_models.reference import FloatDecoder
from romsim_models.registry import open_model
from romsim_models.safetensors_reader import open_huggingface
from tests.models.gguf_files import SPEC
from tests.models.hf_files import write_safetensors
from tests.models.hf_oracle import TOKENS, save_llama

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "somebody/model",
    "r": 4,
    "lora_alpha": 32,
    "use_rslora": False,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
    "lora_dropout": 0.1,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}
LAYER = "base_model.model.model.layers.0."


def factors(
    changes: Mapping[str, Any] | None = None, *, rank: int = 4
) -> dict[str, NDArray[np.float32]]:
    """Factors of q and v of the test model, with changes (``None`` takes one out)."""
    generator = np.random.RandomState(0)
    tensors: dict[str, Any] = {}
    for part, n_rows in (("q", 64), ("v", 32)):
        name = f"{LAYER}self_attn.{part}_proj"
        tensors[f"{name}.lora_A.weight"] = generator.standard_normal((rank, 64)).astype("f4")
        tensors[f"{name}.lora_B.weight"] = generator.standard_normal((n_rows, rank)).astype("f4")
    tensors.update(changes or {})
    return {name: each for name, each in tensors.items() if each is not None}


def write(directory: Path, tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    write_safetensors(
        directory / "adapter_model.safetensors", factors() if tensors is None else tensors
    )
    return directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "adapter"


def refused(directory: Path, message: str, error: type[Exception] = FormatError) -> None:
    with pytest.raises(error, match=rf"^{re.escape(message)}$"):
        read_adapter(directory, SPEC)


def test_factors_are_kept_beside_their_scaling(directory: Path) -> None:
    adapter = read_adapter(write(directory), SPEC)
    tensors = factors()
    assert (adapter.name, adapter.base_name, adapter.max_rank) == ("adapter", "somebody/model", 4)
    assert list(adapter.targets) == ["blk.0.attn_q.weight", "blk.0.attn_v.weight"]
    assert adapter.notes == ("adapter: adapter says that it was trained on 'somebody/model'",)
    value = adapter.targets["blk.0.attn_v.weight"]
    assert (value.rank, value.alpha, value.scaling) == (4, 32.0, 8.0)
    np.testing.assert_array_equal(value.a, tensors[f"{LAYER}self_attn.v_proj.lora_A.weight"])
    np.testing.assert_array_equal(value.b, tensors[f"{LAYER}self_attn.v_proj.lora_B.weight"])
    expected = 8.0 * value.b.astype(np.float64) @ value.a.astype(np.float64)
    np.testing.assert_allclose(value.delta(), expected, rtol=1e-12)


def test_digest_is_of_factors_and_scaling_not_of_the_folder(tmp_path: Path) -> None:
    first = read_adapter(write(tmp_path / "a"), SPEC)
    assert read_adapter(write(tmp_path / "b"), SPEC).sha256 == first.sha256
    assert read_adapter(write(tmp_path / "c", lora_alpha=16), SPEC).sha256 != first.sha256
    changed = factors()
    changed[f"{LAYER}self_attn.v_proj.lora_A.weight"][0, 0] += 1
    assert read_adapter(write(tmp_path / "d", changed), SPEC).sha256 != first.sha256


def test_query_rows_are_interleaved(directory: Path) -> None:
    query = read_adapter(write(directory), SPEC).targets["blk.0.attn_q.weight"]
    theirs = factors()[f"{LAYER}self_attn.q_proj.lora_B.weight"]
    np.testing.assert_array_equal(query.b[1], theirs[16])  # pair 0, side 1 of head 0
    np.testing.assert_array_equal(query.b[32 + 6], theirs[32 + 3])  # pair 3, side 0 of head 1


def test_scaling_of_rslora_divides_by_the_root(directory: Path) -> None:
    adapter = read_adapter(write(directory, use_rslora=True), SPEC)
    assert adapter.targets["blk.0.attn_q.weight"].scaling == 32 / math.sqrt(4)


def test_patterns_change_rank_and_alpha_of_some_modules(directory: Path) -> None:
    name = f"{LAYER}self_attn.v_proj"
    changes = {
        f"{name}.lora_A.weight": np.ones((2, 64), np.float32),
        f"{name}.lora_B.weight": np.ones((32, 2), np.float32),
    }
    adapter = read_adapter(
        write(
            directory,
            factors(changes),
            rank_pattern={"v_proj": 2},
            alpha_pattern={r".*\.0\.self_attn\.v_proj": 10},
        ),
        SPEC,
    )
    value, query = (adapter.targets[f"blk.0.attn_{part}.weight"] for part in "vq")
    assert (value.rank, value.alpha, value.scaling) == (2, 10.0, 5.0)
    assert (query.rank, query.alpha, query.scaling) == (4, 32.0, 8.0)


def test_bf16_factors_and_a_bare_decoder_s_names_are_read(directory: Path) -> None:
    tensors = {
        name.replace("model.model.", "model."): (each.view(np.uint32) >> 16).astype(np.uint16)
        for name, each in factors().items()
    }
    adapter = read_adapter(write(directory, tensors), SPEC)
    exact = factors()[f"{LAYER}self_attn.v_proj.lora_A.weight"]
    np.testing.assert_allclose(adapter.targets["blk.0.attn_v.weight"].a, exact, rtol=2**-7)


def test_unused_keys_and_zero_factors_are_noted(directory: Path) -> None:
    tensors = {
        name: np.zeros_like(each) if "lora_B" in name else each for name, each in factors().items()
    }
    adapter = read_adapter(write(directory, tensors, novel=1), SPEC)
    assert adapter.notes == (
        "adapter_config.json: key 'novel' is not used",
        f"{directory.name}: adapter says that it was trained on 'somebody/model'",
        f"{directory.name}: every B is zero; the adapter changes nothing",
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "key 'peft_type' must be 'LORA', not 'IA3'"),
        ({"peft_type": None}, "key 'peft_type' must be present, not missing; get or convert the "
         "model again"),
        ({"r": None}, "key 'r' must be present, not missing; get or convert the model again"),
        ({"r": 0}, "key 'r' must be at least 1, not 0"),
        ({"r": 2.5}, "key 'r' must be at least 1, not 2.5"),
        ({"lora_alpha": "x"}, "key 'lora_alpha' must be a positive number, not 'x'"),
        ({"rank_pattern": {"q": 0}}, "key 'rank_pattern.q' must be at least 1, not 0"),
    ],
)  # fmt: skip
def test_config_is_checked(directory: Path, config: dict[str, Any], message: str) -> None:
    write(directory, **config)
    refused(directory, f"{directory / 'adapter_config.json'}: {message}")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("use_dora", True, "false"),
        ("use_qalora", True, "false"),
        ("lora_bias", True, "false"),
        ("fan_in_fan_out", True, "false"),
        ("bias", "all", '"none"'),
        ("modules_to_save", ["lm_head"], "null"),
        ("layer_replication", [[0, 1]], "null"),
        ("target_parameters", ["x"], "null"),
        ("alora_invocation_tokens", [1], "null"),
        ("trainable_token_indices", [1], "null"),
        (
            "init_lora_weights",
            "pissa",
            'true or false or "gaussian" or "eva" or "orthogonal"',
        ),
    ],
)
def test_other_kinds_of_adapter_are_refused_by_name(
    directory: Path, key: str, value: Any, allowed: str
) -> None:
    write(directory, **{key: value})
    refused(
        directory,
        f"{directory / 'adapter_config.json'}: key {key!r} must be {allowed}, not {value!r}; such "
        "an adapter cannot be applied; merge it into its base",
    )


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        f"{LAYER}self_attn.qkv_proj.lora_A.weight",
        f"{LAYER}self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.lm_head.modules_to_save.weight",
    ],
)
def test_unknown_target_is_refused(directory: Path, name: str) -> None:
    write(directory, factors({name: np.ones((4, 64), np.float32)}))
    refused(
        directory,
        f"{directory / 'adapter_model.safetensors'}: tensor {name!r} must be a LoRA factor of one "
        "of self_attn.q_proj, self_attn.k_proj, self_attn.v_proj, self_attn.o_proj, mlp.gate_proj, "
        "mlp.up_proj, mlp.down_proj, not of something else; train the adapter on these modules "
        "only",
    )


def test_adapter_that_applies_to_nothing_is_refused(directory: Path) -> None:
    write(directory, {})
    refused(
        directory,
        f"{directory / 'adapter_model.safetensors'}: adapter must have factors to apply, not 0 "
        "tensors; it was saved before it was trained, or by another program",
    )


def test_target_module_without_factors_is_refused(directory: Path) -> None:
    write(directory, target_modules=["q_proj", "v_proj", "lm_head"])
    refused(
        directory,
        f"{directory / 'adapter_config.json'}: each of target_modules must have factors in "
        "adapter_model.safetensors, not 'lm_head' without any",
    )


def test_factor_without_its_other_is_refused(directory: Path) -> None:
    write(directory, factors({f"{LAYER}self_attn.v_proj.lora_B.weight": None}))
    refused(
        directory,
        f"{directory / 'adapter_model.safetensors'}: module 'model.layers.0.self_attn.v_proj' must "
        "have lora_A and lora_B, not only lora_A",
    )


def test_rank_must_be_that_of_the_configuration(directory: Path) -> None:
    write(directory, factors(rank=8))
    refused(
        directory,
        f"{directory / 'adapter_model.safetensors'}: rank of 'model.layers.0.self_attn.q_proj' "
        "must be 4 as in adapter_config.json, not 8 (A) and 8 (B)",
    )


def test_factor_must_be_a_matrix(directory: Path) -> None:
    name = f"{LAYER}self_attn.v_proj.lora_B.weight"
    write(directory, factors({name: np.ones(4, np.float32)}))
    refused(
        directory,
        f"{directory / 'adapter_model.safetensors'}: tensor {name!r} must be a matrix, not of "
        "shape [4]",
    )


def test_factor_must_be_finite(directory: Path) -> None:
    tensors = factors()
    name = f"{LAYER}self_attn.v_proj.lora_B.weight"
    tensors[name][3, 2] = np.nan
    write(directory, tensors)
    refused(
        directory,
        f"{directory / 'adapter_model.safetensors'}: element [3, 2] of tensor {name!r} must be a "
        "finite number, not nan",
    )


def test_adapter_of_a_wider_base_is_refused(directory: Path) -> None:
    name = f"{LAYER}self_attn.v_proj.lora_A.weight"
    write(directory, factors({name: np.ones((4, 96), np.float32)}))
    refused(
        directory,
        "matrix 'blk.0.attn_v.weight' of model 'test' must have the shape [32, 96] of adapter "
        "'adapter', not [32, 64]; the adapter was made for another base",
        SpecError,
    )


def test_adapter_of_a_deeper_base_is_refused(directory: Path) -> None:
    tensors = {name.replace("layers.0", "layers.7"): each for name, each in factors().items()}
    write(directory, tensors)
    refused(
        directory,
        "matrix 'blk.7.attn_q.weight' of model 'test' must have the shape [64, 64] of adapter "
        "'adapter', not 'absent'; the adapter was made for another base",
        SpecError,
    )


def test_directory_without_safetensors_is_refused(directory: Path) -> None:
    write(directory)
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    refused(
        directory,
        f"{directory}: adapter directory must hold adapter_model.safetensors, not only "
        "adapter_config.json, adapter_model.bin; save the adapter with save_pretrained(..., "
        "safe_serialization=True)",
    )


def test_directory_without_configuration_is_refused(tmp_path: Path) -> None:
    refused(
        tmp_path,
        f"{tmp_path / 'adapter_config.json'}: file must be readable, not 'No such file or "
        "directory'; check that the directory is complete",
    )


def test_decoder_refuses_an_adapter_of_another_base(directory: Path) -> None:
    adapter: LoraAdapter = read_adapter(write(directory), SPEC)
    with pytest.raises(
        SpecError,
        match=r"^matrix 'blk\.0\.attn_q\.weight' of model 'tiny-int4' must have the shape "
        r"\[64, 64\] of adapter 'adapter', not \[128, 64\]; the adapter was made for another "
        r"base$",
    ):
        FloatDecoder(open_model("tiny-int4"), lora=adapter)


# peft 0.21 asks transformers for an attribute that transformers 5 deprecates.
OLD_NAME = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
ALL_SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.filterwarnings(OLD_NAME)
@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"r": 4, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}, id="qv"),
        pytest.param({"r": 4, "lora_alpha": 8, "target_modules": ALL_SEVEN}, id="seven"),
        pytest.param(
            {"r": 9, "lora_alpha": 6, "use_rslora": True, "target_modules": ALL_SEVEN}, id="rslora"
        ),
        pytest.param(
            {
                "r": 4,
                "lora_alpha": 8,
                "target_modules": ALL_SEVEN,
                "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.down_proj": 7},
                "alpha_pattern": {"up_proj": 24, r"model\.layers\.0\.self_attn\.k_proj": 1},
            },
            id="patterns",
        ),
        pytest.param(
            {"r": 4, "lora_alpha": 32, "target_modules": "all-linear", "bf16": True}, id="bf16"
        ),
    ],
)
def test_logits_equal_peft_merged_and_not(tmp_path: Path, config: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft", reason="oracle (extra 'oracle')")
    base = save_llama(tmp_path / "base")
    is_bf16 = config.pop("bf16", False)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **config))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                noise = 0.2 * torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise.bfloat16().float() if is_bf16 else noise)
    model.save_pretrained(tmp_path / "adapter")
    if is_bf16:
        from safetensors.torch import load_file, save_file

        path = tmp_path / "adapter" / "adapter_model.safetensors"
        save_file({name: each.bfloat16() for name, each in load_file(path).items()}, path)
    checkpoint = open_huggingface(tmp_path / "base")
    adapter = read_adapter(tmp_path / "adapter", checkpoint.spec)
    ours = FloatDecoder(checkpoint, lora=adapter).forward(TOKENS).numpy()
    plain = FloatDecoder(checkpoint).forward(TOKENS).numpy()
    model.eval()
    with torch.no_grad():
        unmerged = model(torch.tensor(TOKENS)).logits.numpy()
        merged = model.merge_and_unload()(torch.tensor(TOKENS)).logits.numpy()
    assert np.abs(ours - unmerged).max() <= 1e-4
    assert np.abs(ours - merged).max() <= 1e-4
    assert np.abs(ours - plain).max() > 0.1  # the adapter must show, or this could not fail
