from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim.reference.primitives import (
    INT32_MAX,
    INT32_MIN,
    Saturation,
    bitlen,
    bitlen_float,
    power_of_two,
    quantise,
    rne,
    rne_product,
    shr,
    shr_float,
)
from tests.romsim.reference import scalar_page as page

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(INT32_MIN, INT32_MAX)
CORNERS = sorted(
    {sign * (2**k + d) for k in range(63) for d in (-1, 0, 1) for sign in (-1, 1)}
    | {0, 2**63 - 1, -(2**63), 3 << 61, -(3 << 61), 5 << 60}
)
SHIFTS = [*range(70), 100, 1000, 2**20]


def words(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_rne_equals_the_definition_on_corner_values() -> None:
    v = words(CORNERS)
    for s in SHIFTS:
        expected = [page.rne(value, s) for value in CORNERS]
        assert rne(v, s).tolist() == expected, s
        assert rne(v, torch.full_like(v, s)).tolist() == expected, s


def test_rne_equals_the_definition_on_every_small_value() -> None:
    values = list(range(-600, 601))
    for s in range(12):
        assert rne(words(values), s).tolist() == [page.rne(value, s) for value in values]


@given(st.lists(st.tuples(INT64, st.integers(0, 80)), min_size=1, max_size=20))
def test_rne_takes_a_shift_for_each_value(pairs: list[tuple[int, int]]) -> None:
    v, s = words([v for v, _ in pairs]), words([s for _, s in pairs])
    assert rne(v, s).tolist() == [page.rne(value, places) for value, places in pairs]


@given(st.lists(st.tuples(INT64, st.integers(-63, 80)), min_size=1, max_size=20))
def test_shr_shifts_left_for_negative_places(pairs: list[tuple[int, int]]) -> None:
    v, s = words([v for v, _ in pairs]), words([s for _, s in pairs])
    expected = [page.wrap64(page.shr(value, places)) for value, places in pairs]
    assert shr(v, s).tolist() == expected
    for value, places, result in zip(v, s.tolist(), expected, strict=True):
        assert int(shr(value, places)) == result


@given(st.lists(st.tuples(st.integers(-(2**53), 2**53), st.integers(-40, 1100)), max_size=20))
def test_shr_in_float64_equals_the_definition(pairs: list[tuple[int, int]]) -> None:
    v = torch.tensor([float(v) for v, _ in pairs], dtype=torch.float64)
    found = shr_float(v, words([s for _, s in pairs])).tolist()
    assert [int(f) for f in found] == [page.shr(value, places) for value, places in pairs]


def test_shr_in_float64_equals_the_definition_on_corner_values() -> None:
    values = [value for value in CORNERS if abs(value) <= 2**53]
    v = torch.tensor([float(value) for value in values], dtype=torch.float64)
    for s in (*range(-5, 64), 100, 1000):
        assert [int(f) for f in shr_float(v, s).tolist()] == [page.shr(c, s) for c in values], s


@given(st.lists(st.tuples(INT32, INT32), min_size=1, max_size=10), st.integers(0, 40))
def test_products_round_alike_below_and_above_float64s_integers(
    pairs: list[tuple[int, int]], s: int
) -> None:
    a = torch.tensor([float(a) for a, _ in pairs], dtype=torch.float64)
    b = torch.tensor([float(b) for _, b in pairs], dtype=torch.float64)
    expected = [float(page.rne(x * y, s)) for x, y in pairs]
    assert rne_product(a, b, s).tolist() == expected


def test_power_of_two_is_exact() -> None:
    exponents = list(range(-1022, 1024))
    assert power_of_two(words(exponents)).tolist() == [2.0**e for e in exponents]


def test_bitlen_equals_the_definition() -> None:
    values = [value for value in CORNERS if value >= 0]
    assert bitlen(words(values)).tolist() == [value.bit_length() for value in values]
    small = [value for value in values if value <= 2**53]
    floats = torch.tensor([float(value) for value in small], dtype=torch.float64)
    assert bitlen_float(floats).tolist() == [value.bit_length() for value in small]


@given(st.lists(INT64, min_size=1, max_size=20))
def test_sat32_clips_and_counts(values: list[int]) -> None:
    saturation, clips = Saturation(), page.Clips()
    found = saturation.sat32(words(values)).tolist()
    assert found == [clips.sat32(value) for value in values]
    assert saturation.count == clips.count


def test_sat32_does_not_count_what_does_not_exist() -> None:
    saturation = Saturation()
    v = torch.tensor([[2.0**40, 1.0], [2.0**40, -(2.0**40)]], dtype=torch.float64)
    found = saturation.sat32(v, where=torch.tensor([[True, True], [False, True]]))
    assert saturation.count == 2
    assert found.tolist() == [[INT32_MAX, 1.0], [INT32_MAX, INT32_MIN]]


@given(st.lists(INT64, min_size=1, max_size=20), st.integers(-200, 70))
@settings(max_examples=300)
def test_shr_sat32_clips_the_exact_value_of_any_shift(values: list[int], s: int) -> None:
    saturation, clips = Saturation(), page.Clips()
    found = saturation.shr_sat32(words(values), s).tolist()
    assert found == [clips.sat32(page.shr(value, s)) for value in values]
    assert saturation.count == clips.count


def test_shr_sat32_is_exact_where_a_left_shift_just_fits() -> None:
    for s in range(-40, 0):
        for value in (1, -1, 2 ** max(31 + s, 0), -(2 ** max(31 + s, 0)), 2 ** max(31 + s, 0) - 1):
            saturation, clips = Saturation(), page.Clips()
            found = int(saturation.shr_sat32(torch.tensor(value), s))
            assert (found, saturation.count) == (clips.sat32(page.shr(value, s)), clips.count)


def coded(values: list[int], block: int) -> tuple[list[int], list[int]]:
    v = torch.tensor([float(value) for value in values], dtype=torch.float64)
    found = quantise(v, block=block, frac=0)
    return found.codes.tolist(), found.shifts.tolist()


@given(
    st.lists(
        st.one_of(INT32, st.integers(-300, 300), st.sampled_from([0, INT32_MIN, INT32_MAX])),
        min_size=1,
        max_size=70,
    ),
    st.sampled_from([1, 8, 16, 32]),
)
@settings(max_examples=300)
def test_mxint8_equals_the_definition(values: list[int], block: int) -> None:
    assert coded(values, block) == page.mxint8(values, block)


def test_mxint8_equals_the_definition_for_every_leading_value() -> None:
    # One element alone: every 16-bit value, and its neighbours of all lengths.
    values = [v << k for v in range(2**9) for k in range(22)]
    values = [sign * value for value in values for sign in (1, -1) if value <= INT32_MAX]
    assert coded(values, 1) == page.mxint8(values, 1)


def test_mxint8_of_the_extremes() -> None:
    assert coded([INT32_MIN], 32) == ([-64], [25])
    assert coded([INT32_MAX], 32) == ([64], [25])  # 128 at shift 24: once more, from the value
    assert coded([127, -127], 32) == ([127, -127], [0])
    assert coded([128, 1], 32) == ([64, 0], [1])  # 1/2 ties to 0
    assert coded([255, 3], 32) == ([64, 1], [2])  # 127.5 would be 128; 3/4 from 3, not from 2
    assert coded([0] * 33, 32) == ([0] * 33, [0, 0])


def test_codes_give_each_element_its_shift() -> None:
    v = torch.zeros(2, 40, dtype=torch.float64)
    v[:, 39] = 1000.0
    found = quantise(v, block=32, frac=3)
    assert found.frac == 3
    assert found.element_shifts().tolist() == [[0] * 32 + [3] * 8] * 2
