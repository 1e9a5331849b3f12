from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim_compiler.gains import gain_vector
from romsim_models.errors import FormatError, SpecError


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300),
    st.sampled_from((1e-6, 1e-5, 9.999999747378752e-06)),
    st.sampled_from((14, 16)),
    st.floats(1e-3, 1e3),
    st.integers(0, 2**32),
)
def test_gains_are_the_page_s(length: int, eps: float, frac: int, size: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(length) * size).astype(np.float32)
    gain = gain_vector("blk.0.attn_norm", values, eps=eps, in_frac=frac)
    largest = Fraction(float(np.abs(values).max()))
    # floor(log2 max|w|) by comparison, in fractions.
    exponent = max(e for e in range(-160, 160) if Fraction(2) ** e <= largest)
    assert gain.shift == 22 - exponent
    assert gain.values.dtype == np.int32
    assert gain.values.tolist() == [
        round(Fraction(float(w)) * Fraction(2) ** gain.shift) for w in values
    ]
    assert 1 << 22 <= np.abs(gain.values).max() <= 1 << 23
    bound = min(n for n in range(-160, 160) if largest**2 * length <= Fraction(4) ** n)
    assert gain.out_frac == min(24, 30 - bound)
    assert gain.eps_term == round(Fraction(eps) * length * 2 ** (20 + 2 * frac))
    assert abs(Fraction(gain.root, 2**16) ** 2 - length) <= Fraction(gain.root, 2**32) + 1
    assert gain.root == round(math.sqrt(length) * 2**16)
    assert gain.in_frac == frac


@pytest.mark.parametrize(
    ("largest", "shift", "out_frac"),
    [(1.0, 22, 24), (2.0, 21, 24), (1.9999999, 22, 24), (64.0, 16, 21), (0.75, 23, 24)],
)
def test_the_exponent_of_the_largest_gain(largest: float, shift: int, out_frac: int) -> None:
    values = np.array([-largest] + [0.0] * 63, dtype=np.float32)
    gain = gain_vector("output_norm", values, eps=1e-5)
    assert (gain.shift, gain.out_frac) == (shift, out_frac)


def test_ties_of_a_gain_go_to_even() -> None:
    # shift is 22: halves of 2^-22.
    values = np.array([1.0, 2.5 * 2**-22, 3.5 * 2**-22, -2.5 * 2**-22], dtype=np.float32)
    assert gain_vector("n", values, eps=1e-5).values.tolist() == [1 << 22, 2, 4, -2]


def test_the_scalars_of_a_vector_of_576() -> None:
    gain = gain_vector("output_norm", np.ones(576, dtype=np.float32), eps=1e-5)
    assert gain.scalars() == {
        "shift": 22,
        "out_frac": 24,
        "eps_term": round(Fraction(1e-5) * 576 * 2**48),
        "root": 24 * 65536,
        "in_frac": 14,
    }
    assert not gain.values.flags.writeable


def test_gains_that_make_no_norm_are_refused() -> None:
    with pytest.raises(
        FormatError,
        match=r"^Gains of norm 'output_norm' must not all be 0: nothing would pass; check the "
        r"model file$",
    ):
        gain_vector("output_norm", np.zeros(4, dtype=np.float32), eps=1e-5)
    with pytest.raises(
        FormatError,
        match=r"^Gain 2 of norm 'output_norm' must be a finite number, not nan$",
    ):
        gain_vector("output_norm", np.array([1, 1, np.nan], dtype=np.float32), eps=1e-5)
    with pytest.raises(
        SpecError,
        match=r"^Length of norm 'output_norm' must be 1 to 16384, not 16385: the sum of squares "
        r"must fit 63 bits$",
    ):
        gain_vector("output_norm", np.ones(16385, dtype=np.float32), eps=1e-5)
    with pytest.raises(
        SpecError,
        match=r"^Epsilon of norm 'output_norm' must be below 16 for 1024 elements, not 16\.0: the "
        r"sum of squares must fit 63 bits$",
    ):
        gain_vector("output_norm", np.ones(1024, dtype=np.float32), eps=16.0)
