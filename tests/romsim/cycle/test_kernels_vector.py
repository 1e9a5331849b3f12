"""The vector unit's kernels against the page in unbounded integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from romsim.cycle.kernels_attention import quantise_heads
from romsim.cycle.kernels_matvec import add_saturated
from romsim.cycle.kernels_vector import (
    gated_activation,
    quantise_vector,
    rms_norm,
    rotate,
    scale_query,
    sine_cosine,
)
from tests.romsim.cycle import page

TABLES = {name: np.array(values, np.int64) for name, values in page.tables().items()}
REPEATABLE = settings(deadline=None, derandomize=True)
INT32 = st.integers(-(2**31), 2**31 - 1)
CORNERS = [0, 1, -1, 127, 128, 255, 2**31 - 1, -(2**31), -(2**31) + 1, 2**20, 2**20 - 1]


@st.composite
def vectors(draw: st.DrawFn, max_size: int = 70) -> list[int]:
    bits = draw(st.integers(1, 31))
    near = st.integers(-(2**bits), 2**bits - 1)
    return draw(st.lists(st.one_of(near, st.sampled_from(CORNERS)), min_size=1, max_size=max_size))


def int32(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def quantised(values: list[int]) -> tuple[list[int], list[int], list[int]]:
    n_blocks = -(-len(values) // 32)
    codes, shifts = np.zeros(len(values), np.int16), np.zeros(n_blocks, np.int64)
    sums = np.zeros(n_blocks, np.int64)
    quantise_vector(int32(values), 32, codes, shifts, sums)
    return codes.tolist(), shifts.tolist(), sums.tolist()


@REPEATABLE
@given(vectors())
def test_quantiser_is_the_pages(values: list[int]) -> None:
    codes, shifts, sums = quantised(values)
    blocks = page.quantise(values, 32)
    assert codes == page.codes_of(blocks)
    assert shifts == page.shifts_of(blocks)
    assert sums == [sum(block) for block, _ in blocks]


def test_quantiser_is_the_pages_for_every_value_of_18_bits() -> None:
    for first in range(0, 1 << 18, 1 << 12):
        for value in range(first, first + (1 << 12), 7):
            codes, shifts, _ = quantised([value, -value])
            assert (codes, shifts) == (
                page.codes_of(page.quantise([value, -value], 32)),
                page.shifts_of(page.quantise([value, -value], 32)),
            )


@pytest.mark.parametrize(
    ("value", "code", "shift"),
    [
        (0, 0, 0),
        (127, 127, 0),
        (128, 64, 1),
        (254, 127, 1),
        (255, 64, 2),  # 127.5 would round to 128
        (-(2**31), -64, 25),
        (2**31 - 1, 64, 25),
        (-(2**31) + 1, -64, 25),
    ],
)
def test_quantiser_by_hand(value: int, code: int, shift: int) -> None:
    assert quantised([value]) == ([code], [shift], [code])


@pytest.mark.parametrize("head_dim", [16, 32, 48, 64])
def test_heads_are_quantised_one_by_one(head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    values = rng.integers(-(2**20), 2**20, 3 * head_dim)
    n_blocks = -(-head_dim // 32)
    codes = np.zeros((3, 32 * n_blocks), np.int16)
    shifts = np.zeros((3, n_blocks), np.int64)
    quantise_heads(values.astype(np.int32), head_dim, codes, shifts)
    for head in range(3):
        inside = values[head * head_dim : (head + 1) * head_dim].tolist()
        blocks = page.quantise(inside, min(32, head_dim))
        assert codes[head, :head_dim].tolist() == page.codes_of(blocks)
        assert not codes[head, head_dim:].any()
        assert shifts[head].tolist() == page.shifts_of(blocks)


@REPEATABLE
@given(
    vectors(),
    st.integers(0, 2**32 - 1),
    st.floats(2.0**-12, 2.0**12),
    st.sampled_from([1e-6, 1e-5, 1e-2]),
    st.sampled_from([14, 16]),
)
def test_norm_is_the_pages(x: list[int], seed: int, top: float, eps: float, in_frac: int) -> None:
    weights = np.random.default_rng(seed).uniform(-top, top, len(x)).tolist()
    gains, g, e0, sk, out_frac = page.gain_words(weights, eps, in_frac)
    out = np.zeros(len(x), np.int32)
    before = page.clips[0]
    expected = page.norm(x, gains, g=g, e0=e0, sk=sk, out_frac=out_frac)
    clipped = rms_norm(int32(x), int32(gains), g, e0, sk, out_frac, TABLES["RSQ"], out)
    assert out.tolist() == expected
    assert clipped == page.clips[0] - before == 0  # the page proves that it never saturates


def test_norm_of_zeros_without_epsilon_is_zero() -> None:
    out = np.ones(32, np.int32)
    zeros, gains = np.zeros(32, np.int32), np.full(32, 1 << 22, np.int32)
    rms_norm(zeros, gains, 22, 0, round(32**0.5 * 65536), 24, TABLES["RSQ"], out)
    assert not out.any()


@REPEATABLE
@given(st.integers(0, 65535), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8))
def test_sine_and_cosine_are_the_pages(position: int, increments: list[int]) -> None:
    n = len(increments)
    sines, cosines = np.zeros(n, np.int64), np.zeros(n, np.int64)
    sine_cosine(np.array(increments, np.int64), position, TABLES["SIN"], sines, cosines)
    expected = [page.sine_cosine(position, increment) for increment in increments]
    assert list(zip(sines.tolist(), cosines.tolist(), strict=True)) == expected


@pytest.mark.parametrize("turn", range(4))
def test_sine_and_cosine_at_every_quarter_turn(turn: int) -> None:
    for phase in ((turn << 30) + step for step in (-1, 0, 1)):
        sines, cosines = np.zeros(1, np.int64), np.zeros(1, np.int64)
        sine_cosine(np.array([phase % 2**32], np.int64), 1, TABLES["SIN"], sines, cosines)
        assert (sines[0], cosines[0]) == page.sine_cosine(1, phase % 2**32)


@REPEATABLE
@given(
    st.lists(st.one_of(INT32, st.sampled_from(CORNERS)), min_size=16, max_size=16),
    st.integers(0, 65535),
    st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4),
)
def test_rotation_is_the_pages(x: list[int], position: int, increments: list[int]) -> None:
    sines, cosines = np.zeros(4, np.int64), np.zeros(4, np.int64)
    sine_cosine(np.array(increments, np.int64), position, TABLES["SIN"], sines, cosines)
    before = page.clips[0]
    expected = page.rope(x, position, increments)
    vector = int32(x)
    assert rotate(vector, sines, cosines) == page.clips[0] - before
    assert vector.tolist() == expected


@REPEATABLE
@given(st.lists(INT32, min_size=1, max_size=40), st.integers(1, 2**22))
def test_query_scale_is_the_pages(x: list[int], scale: int) -> None:
    before = page.clips[0]
    expected = page.scale_query(x, scale)
    vector = int32(x)
    assert scale_query(vector, scale) == page.clips[0] - before
    assert vector.tolist() == expected


@pytest.mark.parametrize("activation", ["silu", "relu2"])
@REPEATABLE
@given(pairs=st.lists(st.tuples(INT32, INT32), min_size=1, max_size=40), bits=st.integers(0, 16))
def test_activation_is_the_pages(activation: str, pairs: list[tuple[int, int]], bits: int) -> None:
    gate, up = [g >> bits for g, _ in pairs], [u >> bits for _, u in pairs]
    before = page.clips[0]
    expected = page.gated(gate, up, activation)
    out = np.zeros(len(pairs), np.int32)
    clipped = gated_activation(int32(gate), int32(up), activation == "silu", 16, TABLES["SIG"], out)
    assert out.tolist() == expected
    assert clipped == page.clips[0] - before


def test_activation_at_every_table_entry() -> None:
    gate = [
        sign * ((i << 10) + step) for i in range(1025) for step in (-1, 0, 1) for sign in (-1, 1)
    ]
    out = np.zeros(len(gate), np.int32)
    gated_activation(int32(gate), int32([65536] * len(gate)), True, 16, TABLES["SIG"], out)
    assert out.tolist() == page.gated(gate, [65536] * len(gate), "silu")


@REPEATABLE
@given(st.lists(st.tuples(INT32, INT32), min_size=1, max_size=40))
def test_sum_saturates_and_counts(pairs: list[tuple[int, int]]) -> None:
    before = page.clips[0]
    expected = [page.sat32(a + b) for a, b in pairs]
    left = int32([a for a, _ in pairs])
    assert add_saturated(left, int32([b for _, b in pairs]), left) == page.clips[0] - before
    assert left.tolist() == expected
