from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from romsim_compiler.choices import choose_formats, parse_rules, shape_formats
from romsim_compiler.formats import parse_format
from romsim_compiler.groups import tensor_shapes
from romsim_compiler.target_file import load_target
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES, TINY
from tests.tiny_chips import sized_target

SPEC = TINY["tiny-int4"]
SMALL = load_target("small")


def shipped(default: str, **others: str) -> Mapping[str, str]:
    formats = dict.fromkeys(tensor_shapes(SPEC), default)
    return {**formats, **{name.replace("__", "."): fmt for name, fmt in others.items()}}


def refused(sentence: str, *rules: str, target: str = "small", held: str = "f32") -> None:
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        choose_formats(SPEC, shipped(held), load_target(target), parse_rules(rules))


def test_what_is_shipped_is_kept() -> None:
    formats = shipped("q4_1", token_embd__weight="q8_0")
    choices = choose_formats(SPEC, formats, SMALL)
    assert list(choices) == list(tensor_shapes(SPEC))
    assert {c.fmt.name for c in choices.values()} == {"q4_1", "q8_0"}
    assert not any(c.requantised for c in choices.values())
    assert choices["token_embd.weight"].shipped == "q8_0"


def test_last_rule_that_matches_wins() -> None:
    rules = parse_rules(["blk.*=int2", "blk.0.ffn_*.weight=int4g64", "blk.0.ffn_up.weight=int8"])
    choices = choose_formats(SPEC, shipped("q4_1"), SMALL, rules)
    assert choices["blk.1.ffn_up.weight"].fmt.name == "int2g32"
    assert choices["blk.0.ffn_gate.weight"].fmt.name == "int4g64"
    assert choices["blk.0.ffn_up.weight"].fmt.name == "int8g32"
    assert choices["blk.0.ffn_up.weight"].requantised
    assert not choices["token_embd.weight"].requantised


def test_a_pattern_may_hold_the_sign_that_ends_it() -> None:
    assert parse_rules(["a=b=int4"]) == (("a=b", parse_format("int4g32")),)


@pytest.mark.parametrize(
    ("target", "embedding", "matrix"),
    [
        ("small", "int8g32", "int4g32"),
        ("small-ternary", "int8g32", "ternary"),
        ("roma-7nm-g32", "int8g32", "int4g32"),
    ],
)
def test_floats_get_the_target_s_own_format(target: str, embedding: str, matrix: str) -> None:
    choices = choose_formats(SPEC, shipped("bf16"), load_target(target))
    assert choices["token_embd.weight"].fmt.name == embedding
    assert choices["blk.0.attn_q.weight"].fmt.name == matrix
    assert all(c.requantised for c in choices.values())


def test_target_without_minima_gets_symmetric_codes() -> None:
    target = sized_target("small", min_bits=0)
    choices = shape_formats(SPEC, target, None)
    assert choices["blk.0.attn_q.weight"].fmt.name == "sym4g32"


@pytest.mark.parametrize("text", ["int4", "=int4", "blk.*"])
def test_rule_without_pattern_or_format_is_refused(text: str) -> None:
    sentence = (
        f"Quantisation rule must be PATTERN=FORMAT such as 'blk.*.ffn_down.weight=int4g32', not "
        f"{text!r}"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        parse_rules([text])


def test_rule_that_matches_nothing_is_refused() -> None:
    refused(
        "Quantisation rule 'blk.7.*' must match a matrix of the model, not none; names are such as "
        "'token_embd.weight' and 'blk.0.attn_q.weight'",
        "blk.7.*=int4",
    )
    refused(
        "Quantisation rule 'output_norm.weight' must match a matrix of the model, not none; names "
        "are such as 'token_embd.weight' and 'blk.0.attn_q.weight'",
        "output_norm.weight=int4",
    )


def test_group_that_does_not_divide_the_axis_is_refused() -> None:
    refused(
        "Group of format 'int4g128' must divide the 64 columns of tensor 'blk.0.attn_q.weight', "
        "not leave 64; legal groups: 32, 64",
        "blk.0.attn_q.weight=int4g128",
    )
    narrow = replace(SPEC, hidden_dim=80)
    sentence = (
        "Group of format 'int4g32' must divide the 80 columns of tensor 'blk.0.ffn_down.weight', "
        "not leave 16; legal groups: none"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        choose_formats(narrow, shipped("f32"), SMALL)


def test_shipped_format_that_the_target_cannot_hold_is_refused_with_the_remedy() -> None:
    refused(
        "Weight group of tensor 'token_embd.weight' must be a multiple of 128 codes on target "
        "'roma-7nm', not 32 (format 'q4_1'); use a target with smaller sub-sums such as "
        "'roma-7nm-g32', or re-quantise the tensor with a group of 128",
        target="roma-7nm",
        held="q4_1",
    )


def test_shapes_take_one_format_or_the_target_s() -> None:
    spec, target = SHAPES["llama-3-8b"], load_target("roma-7nm")
    given = shape_formats(spec, target, parse_format("sym4g128"))
    assert {c.fmt.name for c in given.values()} == {"sym4g128"}
    assert {c.shipped for c in given.values()} == {"shape"}
    own = shape_formats(spec, target, None)
    assert own["blk.31.ffn_down.weight"].fmt.code_bits == 2
    assert not any(c.requantised for c in own.values())


def test_group_of_a_shape_that_does_not_divide_is_refused() -> None:
    sentence = (
        "Group of format 'int4g128' must divide the 64 columns of tensor 'token_embd.weight', not "
        "leave 64; use a smaller group"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        shape_formats(SPEC, SMALL, parse_format("int4g128"))


def test_what_is_not_in_rom_need_not_fit_its_words() -> None:
    spec = replace(SPEC, tie_embeddings=False)
    target = sized_target("small-ternary", scale_bits=0, input="off-chip", head="off-chip")
    choices = shape_formats(spec, target, None)
    assert choices["token_embd.weight"].fmt.name == "int8g32"
    tied = replace(spec, tie_embeddings=True)
    assert shape_formats(tied, target, None).keys() == tensor_shapes(tied).keys()
    inside = sized_target("small-ternary", scale_bits=0, input="off-chip")
    with pytest.raises(SpecError, match=r"^Format 'int8g32' of tensor 'token_embd\.weight' must"):
        shape_formats(tied, inside, None)
    with pytest.raises(SpecError, match=r"^Format 'int8g32' of tensor 'output\.weight' must have"):
        shape_formats(spec, inside, None)
