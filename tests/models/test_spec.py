from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest

from romsim_models.errors import RomsimError, SpecError
from romsim_models.shapes import SHAPES, TINY
from romsim_models.spec import ModelSpec, RopeScaling, rope_frequencies

BASE = SHAPES["llama-3.2-1b"]


def changed(**changes: Any) -> ModelSpec:
    return dataclasses.replace(BASE, **changes)


def refused(message: str, **changes: Any) -> None:
    with pytest.raises(SpecError, match=rf"^{re.escape(message)}$"):
        changed(**changes)


@pytest.mark.parametrize("spec", [*SHAPES.values(), *TINY.values()], ids=lambda spec: spec.name)
def test_json_comes_back(spec: ModelSpec) -> None:
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert ModelSpec.from_dict(spec.to_dict()) == spec


def test_json_of_rope_factors_comes_back() -> None:
    spec = changed(rope_scaling=None, rope_factors=(1.0,) * 16 + (8.0,) * 16)
    assert ModelSpec.from_json(spec.to_json()) == spec


def test_derived_sizes() -> None:
    assert (BASE.q_dim, BASE.kv_dim, BASE.n_groups) == (2048, 512, 4)
    assert BASE.kv_elements_per_token == 2 * 16 * 8 * 64


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("opt-13b-mha", 819_200),
        ("llama-3-8b", 131_072),
        ("llama-3-70b", 327_680),
        ("smollm2", 23_040),
        ("llama-3.2-3b", 114_688),
        ("llama-3.2-1b", 32_768),
        ("bitnet-2b-4t", 76_800),
    ],
)
def test_kv_cache_of_known_shapes(name: str, bytes_per_token: int) -> None:
    assert SHAPES[name].kv_elements_per_token * 2 == bytes_per_token  # two bytes an element


@pytest.mark.parametrize(
    "field",
    [
        *("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size"),
        "max_seq_len",
    ],
)
@pytest.mark.parametrize("value", [0, -1, 2**24 + 1, 2.5, True, None, "3", [1]])
def test_counts_must_be_positive_integers(field: str, value: Any) -> None:
    limit = 4096 if field == "n_layers" else 2**24
    refused(f"{field} must be an integer from 1 to {limit}, not {value!r}", **{field: value})


@pytest.mark.parametrize("value", [0.0, -1e-5, float("nan"), float("inf"), "x", None, True])
def test_epsilon_must_be_positive(value: Any) -> None:
    refused(f"norm_eps must be a finite number above 0, not {value!r}", norm_eps=value)


def test_theta_must_be_above_one() -> None:
    refused("rope_theta must be a finite number above 1, not 1.0", rope_theta=1.0)


def test_heads_must_be_a_multiple_of_kv_heads() -> None:
    refused(
        "n_heads must be a multiple of n_kv_heads=4, not 6; each key/value head serves the same "
        "number of query heads",
        n_heads=6,
        n_kv_heads=4,
    )


def test_head_dim_must_be_even() -> None:
    refused("head_dim must be even, not 33; rotary positions turn pairs of elements", head_dim=33)


def test_architecture_and_activation_must_be_known() -> None:
    refused("arch must be 'llama' or 'bitnet', not 'gpt'", arch="gpt")
    refused("activation must be 'silu' or 'relu2', not 'gelu'", activation="gelu")


@pytest.mark.parametrize("name", ["", None])
def test_name_must_be_a_text(name: Any) -> None:
    refused(f"name must be a text of at least one character, not {name!r}", name=name)


@pytest.mark.parametrize("changes", [{"bos_id": 128256}, {"eos_ids": (1, 128256)}])
def test_special_tokens_must_be_in_the_vocabulary(changes: dict[str, Any]) -> None:
    refused("bos_id and eos_ids must be tokens below vocab_size=128256, not 128256", **changes)


def test_rope_factors_exclude_rope_scaling() -> None:
    refused(
        "rope_factors must be None where rope_scaling is given, not 32 factors; keep one of the "
        "two",
        rope_factors=(1.0,) * 32,
    )


def test_rope_factors_must_be_one_for_each_pair() -> None:
    refused(
        "rope_factors must be head_dim/2=32 numbers, not 31",
        rope_scaling=None,
        rope_factors=(1.0,) * 31,
    )
    refused(
        "each of rope_factors must be a finite number above 0, not 0.0",
        rope_scaling=None,
        rope_factors=(1.0,) * 31 + (0.0,),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0.5}, "factor must be a finite number of at least 1, not 0.5"),
        ({"low_freq_factor": 0}, "low_freq_factor must be a finite number above 0, not 0"),
        (
            {"high_freq_factor": 1.0},
            "high_freq_factor must be a finite number above 1, not 1.0",
        ),
        (
            {"original_max_position": 0},
            "original_max_position must be an integer from 1 to 16777216, not 0",
        ),
    ],
)
def test_rope_scaling_is_checked(changes: dict[str, Any], message: str) -> None:
    assert BASE.rope_scaling is not None
    with pytest.raises(SpecError, match=rf"^{re.escape(f'rope_scaling.{message}')}$"):
        dataclasses.replace(BASE.rope_scaling, **changes)


def test_specification_must_be_json() -> None:
    with pytest.raises(
        SpecError,
        match=r"^model specification must be a JSON object, not text with an error in line 2, "
        r"column 1: Expecting value$",
    ):
        ModelSpec.from_json('{"name":\n}')
    with pytest.raises(SpecError, match=r"^model specification must be a JSON object, not 'list'$"):
        ModelSpec.from_json("[]")


def test_specification_must_have_every_key_and_no_other() -> None:
    values = json.loads(BASE.to_json())
    fields = ", ".join(field.name for field in dataclasses.fields(ModelSpec))
    with pytest.raises(
        SpecError,
        match=rf"^key of a model specification must be one of {fields}, not 'n_head'$",
    ):
        ModelSpec.from_dict({**values, "n_head": 3})
    del values["dim"]
    with pytest.raises(
        SpecError,
        match=rf"^model specification must have the key 'dim', not only {', '.join(values)}$",
    ):
        ModelSpec.from_dict(values)


def test_rope_scaling_must_have_its_keys() -> None:
    values = json.loads(BASE.to_json())
    values["rope_scaling"] = {"factor": 8.0}
    with pytest.raises(
        SpecError,
        match=r"^rope_scaling must have exactly the keys factor, low_freq_factor, "
        r"high_freq_factor, original_max_position, not factor$",
    ):
        ModelSpec.from_dict(values)


def test_every_error_has_one_root() -> None:
    assert issubclass(SpecError, RomsimError)


def test_plain_frequencies_are_powers_of_theta() -> None:
    frequencies = rope_frequencies(SHAPES["smollm2"])
    assert frequencies.shape == (32,)
    assert frequencies.dtype == np.float64
    expected = [100000.0 ** (-2 * i / 64) for i in range(32)]
    np.testing.assert_allclose(frequencies, expected, rtol=1e-14)


def test_rope_factors_divide_the_frequencies() -> None:
    plain = changed(rope_scaling=None)
    factors = tuple(1.0 + 0.25 * i for i in range(32))
    scaled = changed(rope_scaling=None, rope_factors=factors)
    np.testing.assert_allclose(
        rope_frequencies(scaled) * np.array(factors), rope_frequencies(plain), rtol=1e-14
    )


def test_llama3_scaling_keeps_short_waves_and_divides_long_ones() -> None:
    plain, scaled = rope_frequencies(changed(rope_scaling=None)), rope_frequencies(BASE)
    wavelengths = 2 * np.pi / plain
    short, long = wavelengths < 8192 / 4, wavelengths > 8192 / 1
    assert short.any()
    assert long.any()
    assert (~short & ~long).any()
    np.testing.assert_allclose(scaled[short], plain[short], rtol=1e-14)
    np.testing.assert_allclose(scaled[long], plain[long] / 32, rtol=1e-14)
    between = ~short & ~long
    assert (scaled[between] < plain[between]).all()
    assert (scaled[between] > plain[between] / 32).all()


def test_llama3_scaling_equals_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="oracle (extra 'oracle')")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert isinstance(BASE.rope_scaling, RopeScaling)
    config = transformers.LlamaConfig(
        hidden_size=2048,
        num_attention_heads=32,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    np.testing.assert_allclose(rope_frequencies(BASE), theirs.numpy(), rtol=1e-6)
