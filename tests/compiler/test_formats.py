from __future__ import annotations

import re

import pytest

from romsim_compiler.formats import SHIPPED_FORMATS, WeightFormat, check_format, parse_format
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_models.errors import SpecError
from tests.tiny_chips import sized_target


@pytest.mark.parametrize(
    ("text", "name", "code_bits", "offset", "group", "has_minimum", "bits"),
    [
        ("int4", "int4g32", 4, 0, 32, True, 5.0),
        ("int4g64", "int4g64", 4, 0, 64, True, 4.5),
        ("int4g128", "int4g128", 4, 0, 128, True, 4.25),
        ("int2g32", "int2g32", 2, 0, 32, True, 3.0),
        ("int2g128", "int2g128", 2, 0, 128, True, 2.25),
        ("int8", "int8g32", 8, 128, 32, False, 8.5),
        ("sym4g128", "sym4g128", 4, 8, 128, False, 4.125),
        ("sym2g128", "sym2g128", 2, 2, 128, False, 2.125),
        ("ternary", "ternary", 2, 0, 0, False, 2.0),
        ("ternary-exact", "ternary-exact", 2, 0, 0, False, 2.0),
    ],
)
def test_names_of_formats(
    text: str, name: str, code_bits: int, offset: int, group: int, has_minimum: bool, bits: float
) -> None:
    fmt = parse_format(text)
    assert (fmt.name, fmt.code_bits, fmt.offset) == (name, code_bits, offset)
    assert (fmt.group, fmt.has_minimum) == (group, has_minimum)
    assert fmt.bits_per_weight() == bits
    assert parse_format(fmt.name) == fmt


def test_shipped_formats_count_their_scales() -> None:
    bits = {name: fmt.bits_per_weight() for name, fmt in SHIPPED_FORMATS.items()}
    assert bits == {
        **{"q4_0": 4.5, "q4_1": 5.0, "q8_0": 8.5, "tq1_0": 2.0625, "tq2_0": 2.0625},
        **{"i2_s": 2.0, "bitnet": 2.0},
    }


@pytest.mark.parametrize(
    "text", ["int3", "", "INT4", "int4g", "ternaryg32", "ternary-exact2", "int4g32 ", "q4_1"]
)
def test_unknown_name_is_refused(text: str) -> None:
    sentence = (
        f"Weight format must be int2, int4 or int8 with an optional group such as int4g64, "
        f"ternary or ternary-exact, not {text!r}"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        parse_format(text)


@pytest.mark.parametrize("group", [0, 16, 48, 256])
def test_group_is_refused_unless_it_is_one_of_three(group: int) -> None:
    sentence = f"Weight format group must be 32, 64 or 128, not {group} in 'int4g{group}'"
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        parse_format(f"int4g{group}")


@pytest.mark.parametrize(
    ("lane_bits", "text", "planes"),
    [
        (4, "int4", 1),
        (2, "int4", 2),
        (4, "int8", 2),
        (2, "int8", 4),
        (8, "int4", 1),
        (4, "int2", 1),
    ],
)
def test_codes_are_cut_into_planes(lane_bits: int, text: str, planes: int) -> None:
    array = sized_target("small", lane_bits=lane_bits).array
    assert parse_format(text).planes(array) == planes


def test_ternary_lanes_hold_one_bit_of_other_codes() -> None:
    array = load_target("small-ternary").array
    planes = [parse_format(text).planes(array) for text in ("ternary", "int2", "int4", "int8")]
    assert planes == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("target", "text", "sentence"),
    [
        (
            load_target("roma-7nm-int8"),
            "int4g64",
            "Weight group of tensor 'w' must be a multiple of 128 codes on target "
            "'roma-7nm-int8', not 64 (format 'int4g64'); use a target with smaller sub-sums such "
            "as 'roma-7nm-g32', or re-quantise the tensor with a group of 128",
        ),
        (
            sized_target("small-ternary", scale_bits=0),
            "int8",
            "Format 'int8g32' of tensor 'w' must have one scale for the whole matrix on target "
            "'small-ternary', whose ROM words hold no scales; use 'ternary' or a target with "
            "scale_bits = 16",
        ),
        (
            sized_target("small", min_bits=0),
            "int4",
            "Format 'int4g32' of tensor 'w' must have no minimum on target 'small', whose ROM "
            "words hold scales only; use a target with minima such as 'roma-7nm-g32'",
        ),
        (
            load_target("small"),
            "ternary",
            "Target 'small' must have array.encoding 'ternary' for the ternary tensor 'w', not "
            "'unsigned'; use a target such as 'tom-7nm-int8' or 'small-ternary', or int2 codes",
        ),
    ],
)
def test_format_that_the_words_cannot_hold_is_refused(
    target: Target, text: str, sentence: str
) -> None:
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        check_format(parse_format(text), target, "w")


def test_format_that_the_words_can_hold_is_let_through() -> None:
    check_format(parse_format("int4g128"), load_target("small"), "w")
    check_format(parse_format("ternary"), load_target("small-ternary"), "w")
    check_format(SHIPPED_FORMATS["q8_0"], sized_target("small", min_bits=0), "w")


def test_offset_with_one_scale_for_the_matrix_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        WeightFormat(
            name="flat", code_bits=4, kind="unsigned", offset=8, group=0, has_minimum=False
        )
    assert str(caught.value) == (
        "Offset of format 'flat' must be 0 with one scale for the whole matrix, not 8; give its "
        "codes groups"
    )
