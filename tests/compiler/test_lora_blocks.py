from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim_compiler.lora_blocks import (
    block_grid,
    block_values,
    product_squares,
    quantize_blocks,
    relative_error,
)
from romsim_models.errors import FormatError


def rows(seed: int, n_rows: int, n_cols: int, spread: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n_rows, n_cols))
    values *= 2.0 ** rng.integers(-spread, spread + 1, (n_rows, n_cols))
    values[rng.random((n_rows, n_cols)) < 0.3] = 0
    return values


def power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 80),
    st.sampled_from((1, 4, 8, 12, 32)),
    st.sampled_from((0, 4, 30, 60)),
    st.integers(0, 2**32),
)
def test_blocks_are_the_page_s(
    n_rows: int, n_cols: int, block: int, spread: int, seed: int
) -> None:
    values = rows(seed, n_rows, n_cols, spread)
    codes, exps = quantize_blocks(values, block, "t")
    assert codes.shape == (n_rows, n_cols)
    assert exps.shape == (n_rows, -(-n_cols // block))
    for i in range(n_rows):
        for b in range(exps.shape[1]):
            part = [Fraction(float(v)) for v in values[i, b * block : (b + 1) * block]]
            e = -40
            while any(abs(round(v / power(e))) > 127 for v in part):
                e += 1
            assert exps[i, b] == e
            expected = [round(v / power(e)) for v in part]  # Python rounds ties to even
            assert codes[i, b * block : (b + 1) * block].tolist() == expected


@pytest.mark.parametrize(
    ("value", "exponent", "code"),
    [(127.0, 0, 127), (127.49, 0, 127), (127.5, 1, 64), (128.0, 1, 64), (255.0, 2, 64),
     (254.99, 1, 127), (-127.5, 1, -64), (0.0, -40, 0), (2.0**-41, -40, 0), (1.5 * 2**-40, -40, 2)],
)  # fmt: skip
def test_the_exponent_steps_where_a_code_would_be_128(
    value: float, exponent: int, code: int
) -> None:
    codes, exps = quantize_blocks(np.array([[value]]), 32, "t")
    assert (int(exps[0, 0]), int(codes[0, 0])) == (exponent, code)


def test_a_value_out_of_range_is_named() -> None:
    values = np.ones((3, 40))
    for bad, text in ((2.0**134, "2.1778071482940062e\\+40"), (math.inf, "inf"), (math.nan, "nan")):
        values[2, 35] = bad
        with pytest.raises(
            FormatError,
            match=rf"^Factor A of 't', element \[2, 35\], must be a finite number below 2\^134, "
            rf"not {text}$",
        ):
            quantize_blocks(values, 32, "Factor A of 't'")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 80),
    st.sampled_from((4, 32)),
    st.sampled_from((0, 4, 30, 60)),
    st.integers(0, 2**32),
)
def test_the_grid_is_the_least_exponent_whose_sums_fit(
    n_rows: int, n_cols: int, block: int, spread: int, seed: int
) -> None:
    codes, exps = quantize_blocks(rows(seed, n_rows, n_cols, spread), block, "t")
    grid = block_grid(codes, exps, block)
    used = [
        int(exps[i, b])
        for i in range(n_rows)
        for b in range(exps.shape[1])
        if codes[i, b * block : (b + 1) * block].any()
    ]
    if not used:
        assert grid == 0
        return
    widest = max(
        sum(abs(int(codes[i, k])) * power(int(exps[i, k // block])) for k in range(n_cols))
        for i in range(n_rows)
    )
    expected = min(used)
    while 2**31 * widest / power(expected) >= 2**63:
        expected += 1
    assert grid == expected


def test_far_exponents_raise_the_grid() -> None:
    codes = np.full((1, 64), 127, dtype=np.int8)
    assert block_grid(codes, np.array([[-40, -20]], dtype=np.int8), 32) == -40
    # 2^31 * 127 * 32 * (1 + 2^-39) * 2^-1 is just below 2^42.
    assert block_grid(codes, np.array([[-40, -1]], dtype=np.int8), 32) == 42 - 63
    assert block_grid(np.zeros((1, 64), np.int8), np.full((1, 2), -40, np.int8), 32) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32))
def test_errors_are_those_of_the_whole_product(
    n_rows: int, n_cols: int, rank: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((rank, n_cols)) * 1e-3, rng.standard_normal((n_rows, rank)) * 1e6
    a_held = block_values(*quantize_blocks(a, 32, "a"), 32)
    b_held = block_values(*quantize_blocks(b, min(32, rank), "b"), min(32, rank))
    error, whole = product_squares(a, b, a_held, b_held)
    assert whole == pytest.approx(((b @ a) ** 2).sum(), rel=1e-9)
    assert error == pytest.approx(((b_held @ a_held - b @ a) ** 2).sum(), rel=1e-6)


def test_a_relative_error_has_six_digits() -> None:
    assert relative_error([(2.0, 1.0), (0.0, 5.0)]) == 0.57735
    assert relative_error([(0.0, 0.0)]) == 0.0
