from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim.reference.integer_matrix import IntegerMatrix, split_fp16
from romsim.reference.weights import WeightChoice, integer_matrix
from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.errors import FormatError, SpecError
from tests.romsim.reference.scalar_page import Matrix, fp16
from tests.romsim.reference.scalar_weights import scalar_matrix
from tests.romsim.reference.small_models import encode, floats


def assert_equal(found: IntegerMatrix, expected: Matrix) -> None:
    assert found.values.tolist() == expected.q
    assert found.group == expected.group
    pairs = np.stack((found.sig, found.exp), axis=-1).tolist()
    assert pairs == [[list(pair) for pair in row] for row in expected.scales]
    assert found.scale == expected.whole
    if expected.minima is None:
        assert found.minimum_sig is None
        assert found.minimum_exp is None
    else:
        assert found.minimum_sig is not None
        assert found.minimum_exp is not None
        pairs = np.stack((found.minimum_sig, found.minimum_exp), axis=-1).tolist()
        assert pairs == [[list(pair) for pair in row] for row in expected.minima]


def test_every_finite_fp16_word_is_split_exactly() -> None:
    words = np.arange(2**16, dtype=np.uint16)
    words = words[(words >> 10) & 31 != 31]
    sig, exp = split_fp16(words)
    assert list(zip(sig.tolist(), exp.tolist(), strict=True)) == [fp16(int(w)) for w in words]
    values = sig.astype(np.float64) * 2.0 ** exp.astype(np.float64)
    np.testing.assert_array_equal(values, words.view(np.float16).astype(np.float64))


def test_a_word_that_is_no_number_is_refused() -> None:
    with pytest.raises(FormatError, match=r"^fp16 word must be a finite number, not 0x7c00$"):
        split_fp16(np.array([0x3C00, 0x7C00], dtype=np.uint16))


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_shipped_codes_are_taken_as_they_are(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    tensor = encode("w", values, kind)
    matrix = integer_matrix(tensor, None, block=32)
    assert_equal(matrix, scalar_matrix(tensor))
    grid = matrix.least_exponent()
    assert grid is not None
    rows = matrix.scaled_rows(1, 4, grid) * 2.0**grid
    np.testing.assert_allclose(rows, tensor.dequantize()[1:4], rtol=0, atol=1e-6)


def float_groups(draw: st.DrawFn) -> FloatTensor:
    exponent = draw(st.integers(-30, 15))
    values = draw(
        st.lists(st.integers(-(2**12), 2**12), min_size=3 * 64, max_size=3 * 64).map(np.array)
    )
    wide = np.ldexp(values.astype(np.float32), exponent - 12)
    return floats("w", wide.reshape(3, 64).astype(np.float32))


@settings(max_examples=40)
@given(
    st.composite(float_groups)(),
    st.sampled_from([("int4", 32), ("int2", 64), ("int8", 32), ("int4", 64), ("ternary", None)]),
)
def test_floats_are_quantised_as_the_scalar_reading_does(
    tensor: FloatTensor, choice: tuple[str, int | None]
) -> None:
    kind, group = choice
    found = integer_matrix(tensor, WeightChoice(kind=kind, group=group), block=32)
    assert_equal(found, scalar_matrix(tensor, kind, group))


@pytest.mark.parametrize("kind", ["int4", "int8", "ternary"])
def test_rounding_ties_go_to_even(kind: str) -> None:
    # Scales of exactly 1, so that halves are ties; both parities.
    row = np.array([15.0, 0.5, 1.5, 2.5, -0.5, 3.5, 0.0, 7.5], dtype=np.float32)
    if kind == "int8":
        row[0] = 127.0
    if kind == "ternary":
        row = np.array([0.5, -0.5, 1.5, -1.5, 1.0, 1.0, 1.0, 1.0], dtype=np.float32)
    tensor = floats("w", row[None])
    group = None if kind == "ternary" else 8
    found = integer_matrix(tensor, WeightChoice(kind=kind, group=group), block=32)
    assert_equal(found, scalar_matrix(tensor, kind, group))


def test_zeros_have_zero_codes() -> None:
    tensor = floats("w", np.zeros((2, 32), dtype=np.float32))
    for kind in ("int4", "int2", "int8", "ternary"):
        group = None if kind == "ternary" else 32
        found = integer_matrix(tensor, WeightChoice(kind=kind, group=group), block=32)
        assert not found.values.any()
        assert_equal(found, scalar_matrix(tensor, kind, group))
        if kind != "ternary":
            assert found.least_exponent() is None
            assert found.largest_row_sum() == 0


def test_the_ternary_scale_is_truncated_to_24_bits() -> None:
    # The mean of 1 and 1 + 2^-23 is half a step above 1: truncation gives 1, rounding as well;
    # three quarters of a step above would round up.
    step = np.float32(2.0**-23)
    row = np.array([1, 1 + step, 1 + step, 1 + step], dtype=np.float32)
    found = integer_matrix(floats("w", row[None]), WeightChoice(kind="ternary"), block=32)
    assert found.scale == (2**23, -23)


def test_row_sums_are_exact() -> None:
    values = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    values[2] *= 50
    for kind in ("q4_0", "q4_1", "q8_0"):
        tensor = encode("w", values, kind)
        found = integer_matrix(tensor, None, block=32)
        expected = scalar_matrix(tensor)
        least = found.least_exponent()
        assert least == min(exp for _, exp in expected.pairs())
        largest = max(expected.row_sum(i) for i in range(4))
        assert Fraction(found.largest_row_sum()) * Fraction(2) ** least == largest


def test_row_sums_of_far_apart_exponents_are_exact() -> None:
    matrix = IntegerMatrix(
        name="w", values=np.array([[3, -4, 5, 6]], dtype=np.int16), group=2,
        sig=np.array([[1, 1]], dtype=np.int16), exp=np.array([[-40, 60]], dtype=np.int16),
    )  # fmt: skip
    assert matrix.largest_row_sum() == 7 + (11 << 100)


def refused(tensor: EncodedTensor | FloatTensor, choice: WeightChoice | None, text: str) -> None:
    with pytest.raises((SpecError, FormatError), match=f"^{re.escape(text)}$"):
        integer_matrix(tensor, choice, block=32)


def test_choices_that_do_not_go_with_the_file_are_refused() -> None:
    values = np.ones((2, 64), dtype=np.float32)
    for choice in (None, WeightChoice(kind="shipped")):
        refused(
            floats("w", values),
            choice,
            "choice of tensor 'w' must be one of int4, int2, int8, ternary, ternary-exact because "
            "its file holds f32 values, not 'shipped'",
        )
    for group in (48, 16):
        refused(
            floats("w", values),
            WeightChoice(kind="int4", group=group),
            "group of tensor 'w' must be the row of 64 or a multiple of 32 that divides it, "
            f"not {group}",
        )
    refused(
        encode("w", values, "q4_0", group=16),
        None,
        "group of tensor 'w' must be the row of 64 or a multiple of 32 that divides it, not 16",
    )
    refused(
        floats("w", np.ones(3, dtype=np.float32)),
        WeightChoice(kind="ternary"),
        "tensor 'w' must be a matrix, not of shape [3]",
    )


def test_a_scale_that_overflows_is_refused_with_its_place() -> None:
    values = np.zeros((3, 64), dtype=np.float32)
    values[2, 40] = 1e7
    refused(
        floats("w", values),
        WeightChoice(kind="int4", group=32),
        "scale of row 2, group 1 of tensor 'w' must fit binary16, whose largest number is 65504, "
        "not overflow it",
    )
    values = np.where(values > 0, np.float32(-7e4), np.float32(0))
    refused(
        floats("w", values),
        WeightChoice(kind="int4", group=32),
        "minimum of row 2, group 1 of tensor 'w' must fit binary16, whose largest number is "
        "65504, not overflow it",
    )


@pytest.mark.parametrize(
    ("kind", "group", "text"),
    [
        (
            "fp4",
            32,
            "kind must be one of shipped, int4, int2, int8, ternary, ternary-exact, not 'fp4'",
        ),
        ("int4", None, "group of kind int4 must be at least 1, not None"),
        ("int8", 0, "group of kind int8 must be at least 1, not 0"),
        ("ternary", 32, "group of kind ternary must be None, not 32"),
    ],
)
def test_impossible_choices_are_refused(kind: str, group: int | None, text: str) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(text)}$"):
        WeightChoice(kind=kind, group=group)


def test_a_group_of_none_or_zero_is_no_group() -> None:
    for group in (None, 0):
        assert WeightChoice(kind="ternary", group=group).group == group
