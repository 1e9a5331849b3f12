"""The primitives and functions against the page in unbounded integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim.cycle.kernels_primitives import (
    bitlen,
    exp2n,
    reciprocal,
    rne,
    rsqrt,
    saturate,
    shr,
    shr_saturate,
    sine_quarter,
)
from tests.romsim.cycle import page

WORDS = st.integers(-(2**63), 2**63 - 1)
TABLES = {name: np.array(values, np.int64) for name, values in page.tables().items()}
REPEATABLE = settings(deadline=None, derandomize=True)


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def test_rne_is_exact_for_every_small_word_and_shift() -> None:
    for shift in range(8):
        for value in range(-300, 301):
            assert rne(np.int64(value), np.int64(shift)) == page.rne(value, shift)


@REPEATABLE
@given(WORDS, st.integers(0, 70))
def test_rne_is_exact_for_every_word(value: int, shift: int) -> None:
    assert rne(np.int64(value), np.int64(shift)) == page.rne(value, shift)


@REPEATABLE
@given(WORDS, st.integers(-70, 70))
def test_shr_is_exact_modulo_the_word(value: int, shift: int) -> None:
    assert shr(np.int64(value), np.int64(shift)) == wrapped(page.shr(value, shift))


@REPEATABLE
@given(
    st.one_of(
        WORDS,
        st.integers(-(2**33), 2**33),
        st.sampled_from([2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 0, 1, -1]),
    ),
    st.integers(-70, 70),
)
def test_saturated_shift_clips_the_unbounded_integer(value: int, shift: int) -> None:
    before = page.clips[0]
    expected = page.sat32(page.shr(value, shift))
    assert shr_saturate(np.int64(value), np.int64(shift)) == (expected, page.clips[0] - before)


@REPEATABLE
@given(WORDS)
def test_saturate_clips_and_counts(value: int) -> None:
    before = page.clips[0]
    expected = page.sat32(value)
    assert saturate(np.int64(value)) == (expected, page.clips[0] - before)


def test_bitlen_at_every_power_of_two() -> None:
    for n in range(63):
        for value in {max(2**n - 1, 0), 2**n, min(2**n + 1, 2**63 - 1)}:
            assert bitlen(np.int64(value)) == value.bit_length()


@REPEATABLE
@given(st.integers(0, 2**63 - 1))
def test_rsqrt_is_the_pages(value: int) -> None:
    assert rsqrt(np.int64(value), TABLES["RSQ"]) == page.rsqrt(value)


@pytest.mark.parametrize("bits", range(63))
def test_rsqrt_is_the_pages_at_the_ends_of_its_segments(bits: int) -> None:
    for value in {2**bits, 2 ** (bits + 1) - 1, 2**bits + 2**bits // 3}:
        assert rsqrt(np.int64(value), TABLES["RSQ"]) == page.rsqrt(value)


@REPEATABLE
@given(st.integers(0, 2**32 - 1))
def test_reciprocal_is_the_pages(value: int) -> None:
    assert reciprocal(np.int64(value), TABLES["RCP"]) == page.recip(value)


def test_reciprocal_is_the_pages_for_every_small_weight() -> None:
    for value in [*range(1 << 12), 2**32 - 1, 2**31, 2**31 - 1]:
        assert reciprocal(np.int64(value), TABLES["RCP"]) == page.recip(value)


@REPEATABLE
@given(st.integers(0, 2**33))
def test_exp2n_is_the_pages(distance: int) -> None:
    assert exp2n(np.int64(distance), TABLES["EXP"]) == page.exp2n(distance)


def test_exp2n_is_the_pages_over_one_halving() -> None:
    for distance in range(1 << 16):
        if exp2n(np.int64(distance), TABLES["EXP"]) != page.exp2n(distance):
            pytest.fail(f"EXP2N({distance})")


@REPEATABLE
@given(st.integers(0, 2**30))
def test_sine_is_the_pages(phase: int) -> None:
    assert sine_quarter(np.int64(phase), TABLES["SIN"]) == page.sinq(phase)


def test_sine_is_the_pages_at_every_table_entry() -> None:
    for i in range(257):
        for phase in {max(0, (i << 22) - 1), i << 22, min(2**30, (i << 22) + 1)}:
            assert sine_quarter(np.int64(phase), TABLES["SIN"]) == page.sinq(phase)
