from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import romsim
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, RomsimError, SpecError
from romsim_models.tokenizer import Tokenizer
from tests.tiny_chips import sized_target


def refused(error: type[RomsimError], sentence: str, call: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(error, match=rf"^{re.escape(sentence)}$"):
        call(*args, **options)


def test_public_calls_are_functions_whatever_was_imported() -> None:
    import importlib

    for module in ("comparison", "simulate", "engines", "api", "commands.verify", "commands.audit"):
        importlib.import_module(f"romsim.{module}")
    for name in romsim.__all__:
        assert callable(getattr(romsim, name)), name


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match=r"^module 'romsim' has no attribute 'complie'$"):
        getattr(romsim, "complie")  # noqa: B009


def test_calls_take_a_folder_a_path_or_a_description(tiny: Description) -> None:
    for chip in (tiny, tiny.path, str(tiny.path)):
        assert romsim.audit(chip).n_differences == 0
        assert romsim.verify(chip, tokens=[40], n_new=1, level="values").passed
    assert romsim.load(str(tiny.path)).manifest == tiny.manifest


def test_comparison_takes_a_prompt_in_any_form(tiny: Description) -> None:
    tokenizer = Tokenizer.from_json((tiny.path / "tokenizer.json").read_text())
    default = "Once upon a time, there was a little girl who"
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"prompt": "Hi"}, tokenizer.encode("Hi")),
        ({"chat": "Hi"}, tokenizer.encode_chat("Hi")),
        ({"tokens": [1, 2, 3]}, [1, 2, 3]),
        ({}, tokenizer.encode(default)),
    ]
    for options, text in cases:
        done = romsim.verify(tiny, n_new=2, level="values", **options)
        assert done.reference.n_tokens == len(text) + 2


def test_comparison_that_passes_the_context_is_refused_before_it_runs(tiny: Description) -> None:
    refused(
        CapacityError,
        "Prompt of 3 tokens and 94 new ones must fit the context of 96 tokens, not 97; lower "
        "--tokens to 93, or compile with a larger --context",
        romsim.verify, tiny, tokens=[1, 2, 3], n_new=94,
    )  # fmt: skip


def test_shapes_can_be_neither_audited_nor_compared(shape: Description) -> None:
    rest = (
        f"must have ROM images, but {shape.path} has none: it was compiled from a shape without "
        f"weights; compile a model with weights, or use --engine timing"
    )
    refused(SpecError, f"Audit {rest}", romsim.audit, shape)
    refused(SpecError, f"Comparison of values {rest}", romsim.verify, shape)


def test_options_that_would_have_no_effect_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "c"
    refused(
        SpecError,
        "--weights must be used with a shape without weights, not with tiny-int4; give rules such "
        "as --quantize 'blk.*=int4g32'",
        romsim.compile, "tiny-int4", out, weights="int4g32",
    )  # fmt: skip
    refused(
        SpecError,
        "--quantize must be used with a model with weights, not with the shape llama-3-8b; give "
        "the format of all matrices with --weights",
        romsim.compile, "llama-3-8b", out, quantize=["blk.*=int4g32"],
    )  # fmt: skip
    for options in ({"rank": 4}, {"area_mm2": 3.0}):
        refused(
            SpecError,
            "--rank and --area must be used with --fit, not alone; add --fit",
            romsim.compile, "tiny-int4", out, **options,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "target", "formats"),
    [
        ("tiny-int2", "small", {"int2g32", "int8g32"}),
        ("tiny-int4", "small", {"int4g32", "int8g32"}),
        ("tiny-ternary", "small-ternary", {"ternary", "int8g32"}),
        ("tiny-ternary", "small", {"int4g32", "int8g32"}),  # it has no ternary lanes
    ],
)
def test_random_models_get_the_format_that_they_are_meant_for(
    name: str, target: str, formats: set[str], tmp_path: Path
) -> None:
    chip = romsim.compile(name, tmp_path / "c", target=target, context=32)
    assert set(chip.manifest["model"]["formats"]["weights"]) == formats


def test_rules_come_after_the_format_that_a_model_is_meant_for(tmp_path: Path) -> None:
    chip = romsim.compile(
        "tiny-int2", tmp_path / "c", target="small", context=32, quantize=["blk.0.*=int8g32"]
    )
    assert chip.groups["L0.o"].code_bits == 8
    assert chip.groups["L1.o"].code_bits == 2


def test_target_may_be_a_name_a_file_or_an_object(tmp_path: Path) -> None:
    target = sized_target("small", n_tiles=4, name="mine")
    first = romsim.compile("tiny-int4", tmp_path / "a", target=target, context=32)
    second = romsim.compile(
        "tiny-int4", tmp_path / "b", target=first.path / "target.toml", context=32
    )
    assert second.target == target
    assert second.manifest == first.manifest


def test_weights_of_a_shape(tmp_path: Path) -> None:
    chip = romsim.compile(
        "llama-3.2-1b", tmp_path / "c", target="roma-7nm-g32", fit=True, weights="int2g64"
    )
    assert chip.manifest["model"]["formats"]["weights"].keys() == {"int2g64"}


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"not 'tiny-int5'; did you mean 'tiny-int4'\?$"):
        romsim.compile("tiny-int5", tmp_path / "c")
    with pytest.raises(SpecError, match=r"not 'roma-7mn'; did you mean 'roma-7nm'\?$"):
        romsim.compile("tiny-int4", tmp_path / "c", target="roma-7mn")
