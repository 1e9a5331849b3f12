from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from romsim.reference import functions, tables
from tests.romsim.reference import scalar_page as page

# Largest relative errors over SPREAD, measured -1.22e-8 … 7.3e-10 and -9.4e-10 … 9.2e-10: two
# Newton steps leave a known part of the table's error, floor the rest.
RSQRT_BOUND = Decimal("1.25e-8")
RECIP_BOUND = Decimal("1e-9")

SPREAD = sorted(
    {min(2**63 - 1, max(1, (2**k) * m // 64 + d)) for k in range(63) for m in range(64, 128, 3)
     for d in (-1, 0, 1)}
)  # fmt: skip


def words(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_tables_equal_the_second_evaluation() -> None:
    assert list(tables.sine_table()) == page.SIN
    assert list(tables.exp2_table()) == page.EXP
    assert list(tables.sigmoid_table()) == page.SIG
    assert dict(enumerate(tables.rsqrt_table(), start=32)) == page.RSQ
    assert list(tables.reciprocal_table()) == page.RCP


def test_tables_hold_their_ends() -> None:
    assert (tables.sine_table()[0], tables.sine_table()[256]) == (0, 2**20)
    assert (tables.exp2_table()[0], tables.exp2_table()[256]) == (2**20, 2**19)
    assert (tables.sigmoid_table()[0], tables.sigmoid_table()[1024]) == (2**19, 2**20)
    assert max(tables.rsqrt_table()) < 2**16
    assert max(tables.reciprocal_table()) < 2**16


def test_rsqrt_equals_the_definition() -> None:
    values = [0, *SPREAD]
    y, h = functions.rsqrt(words(values))
    assert list(zip(y.tolist(), h.tolist(), strict=True)) == [page.rsqrt(n) for n in values]


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=30))
def test_rsqrt_equals_the_definition_anywhere(values: list[int]) -> None:
    y, h = functions.rsqrt(words(values))
    assert list(zip(y.tolist(), h.tolist(), strict=True)) == [page.rsqrt(n) for n in values]


def test_rsqrt_is_close() -> None:
    y, h = functions.rsqrt(words(SPREAD))
    with localcontext() as context:
        context.prec = 40
        worst = max(
            abs(Decimal(a) * Decimal(2) ** (-30 - b) * Decimal(n).sqrt() - 1)
            for n, a, b in zip(SPREAD, y.tolist(), h.tolist(), strict=True)
        )
    assert worst < RSQRT_BOUND


def test_recip_equals_the_definition_and_is_close() -> None:
    values = [n for n in SPREAD if n < 2**32]
    y, b = functions.recip(words([0, *values]))
    found = list(zip(y.tolist(), b.tolist(), strict=True))
    assert found == [page.recip(n) for n in [0, *values]]
    with localcontext() as context:
        context.prec = 40
        worst = max(
            abs(Decimal(a) * Decimal(2) ** (-30 - places) * n - 1)
            for n, (a, places) in zip(values, found[1:], strict=True)
        )
    assert worst < RECIP_BOUND


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30))
def test_recip_equals_the_definition_anywhere(values: list[int]) -> None:
    y, b = functions.recip(words(values))
    assert list(zip(y.tolist(), b.tolist(), strict=True)) == [page.recip(n) for n in values]


def test_products_of_both_newton_steps_stay_inside_a_signed_word() -> None:
    # The extreme of each table segment is at its ends; the others lie between.
    for i in range(32, 128):
        for n in (i << 25, ((i + 1) << 25) - 1):
            y = page.RSQ[i] << 15
            for _ in range(2):
                a = (y * y) >> 30
                p = (n * a) >> 32
                assert y * y < 2**63
                assert n * a < 2**63
                assert 0 <= y * (3 * 2**30 - p) < 2**63
                y = (y * (3 * 2**30 - p)) >> 31
    for i in range(128):
        for n in ((128 + i) << 24, ((129 + i) << 24) - 1):
            y = page.RCP[i] << 15
            for _ in range(2):
                p = (n * y) >> 32
                assert n * y < 2**63
                assert 0 <= y * (2**31 - p) < 2**63
                y = (y * (2**31 - p)) >> 30


def test_exp2n_equals_the_definition_for_every_fraction() -> None:
    values = list(range(2**16)) + [k * 2**16 + 12_345 for k in range(40)] + [2**33]
    v, n = functions.exp2n(words(values))
    assert list(zip(v.tolist(), n.tolist(), strict=True)) == [page.exp2n(d) for d in values]
    exact = 2.0 ** (20 - np.arange(2**16) / 2**16)
    assert np.abs(v.numpy()[: 2**16] - exact).max() < 1.83  # measured 1.82: chords lie above


def test_sinq_equals_the_definition_and_is_close() -> None:
    values = [*range(0, 2**30, 2**30 // 40_009), 2**30 - 1, 2**30]
    found = functions.sinq(words(values))
    assert found.tolist() == [page.sinq(f) for f in values]
    exact = 2**20 * np.sin(np.pi / 2 * np.array(values) / 2**30)
    assert np.abs(found.numpy() - exact).max() < 5.75  # measured 5.71: chords lie below


@given(st.lists(st.tuples(st.integers(0, 65_535), st.integers(0, 2**32 - 1)), max_size=10))
def test_angles_turn_through_all_quadrants(pairs: list[tuple[int, int]]) -> None:
    for position, increment in pairs:
        sine, cosine = functions.sin_cos(words([position]), words([increment]))
        phase = position * increment % 2**32
        a, b = page.sinq(phase % 2**30), page.sinq(2**30 - phase % 2**30)
        expected = [(a, b), (b, -a), (-a, -b), (-b, a)][phase // 2**30]
        assert (int(sine), int(cosine)) == expected
        angle = 2 * math.pi * phase / 2**32
        assert abs(int(sine) - 2**20 * math.sin(angle)) < 6.0
        assert abs(int(cosine) - 2**20 * math.cos(angle)) < 6.0


def test_sigmoid_equals_the_definition_and_is_close() -> None:
    values = [*range(-(2**20) - 5000, 2**20 + 5001, 997), -(2**31), 2**31 - 1, 0, 1, -1]
    found = functions.sigmoid(torch.tensor(values, dtype=torch.float64)).tolist()
    clips = page.Clips()
    # The page's activation with up = 2^16 is gate * sigma; sigma itself is read off beside it.
    for value, sigma in zip(values, found, strict=True):
        assert page.act("silu", value, 2**16, 16, clips) == page.rne(value * int(sigma), 20)
        exact = 2**20 / (1 + math.exp(min(-value / 2**16, 700.0)))
        assert abs(sigma - exact) < 4.0  # measured 3.97: chords of a curve


@pytest.mark.parametrize("length", [1, 2, 32, 576, 960, 2048, 16_384])
def test_root_of_a_length_is_the_nearest(length: int) -> None:
    root = tables.sqrt_length(length)
    assert (2 * root - 1) ** 2 <= 4 * (length << 32) <= (2 * root + 1) ** 2


@pytest.mark.parametrize(
    ("gain", "length", "expected"),
    [
        (1.0, 1, (22, 24)),
        (1.0, 2**14, (22, 23)),
        (1.0, 2**12, (22, 24)),
        (1.0, 2**12 + 1, (22, 23)),
        (0.999, 2**12, (23, 24)),
        (2.0, 2**12, (21, 23)),
        (2.0001, 2**12, (21, 22)),
        (0.25, 4, (24, 24)),
        (1e-6, 64, (42, 24)),
        (1000.0, 576, (13, 15)),
    ],
)
def test_fracs_of_a_norm(gain: float, length: int, expected: tuple[int, int]) -> None:
    assert tables.norm_fracs(gain, length) == expected


def test_constants_of_the_angles_and_scores() -> None:
    assert tables.rope_increment(1.0) == 683_565_276
    assert tables.rope_increment(2 * math.pi) == 0
    assert tables.rope_increment(math.pi) == 2**31
    assert tables.query_scale(64) == round(2**20 * math.log2(math.e) / 8)
    assert tables.norm_epsilon(1e-5, 576, 14) == round(1e-5 * 576 * 2**48)
    assert tables.norm_epsilon(0.5, 3, 0) == 3 * 2**19
