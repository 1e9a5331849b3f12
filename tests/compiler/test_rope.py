from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim_compiler import rope
from romsim_compiler.rope import phase_increments, query_scale
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec, RopeScaling, rope_frequencies

LLAMA3 = RopeScaling(
    factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
)


def make_spec(head_dim: int = 64, theta: float = 100000.0) -> ModelSpec:
    return ModelSpec(
        name="tiny", arch="llama", dim=64, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=head_dim,
        hidden_dim=64, vocab_size=32, norm_eps=1e-5, rope_theta=theta, max_seq_len=64,
        tie_embeddings=True,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from((32, 64, 80, 96, 128)),
    st.sampled_from((10000.0, 100000.0, 500000.0, 1234.5)),
    st.sampled_from(("plain", "llama3", "factors")),
)
def test_increments_are_the_frequencies_of_the_model(
    head_dim: int, theta: float, kind: str
) -> None:
    spec = make_spec(head_dim, theta)
    if kind == "llama3":
        spec = replace(spec, rope_scaling=LLAMA3)
    elif kind == "factors":
        spec = replace(spec, rope_factors=tuple(1.0 + j / 7 for j in range(head_dim // 2)))
    increments = phase_increments(spec)
    assert increments.dtype == np.uint32
    in_turns = rope_frequencies(spec) / (2 * math.pi) * 2**32
    # A float64 of this size is off by less than 1e-5.
    assert np.abs(increments.astype(np.float64) - in_turns).max() < 0.5 + 1e-5


def test_pairs_that_are_known_exactly() -> None:
    # theta = 2^16, head_dim = 32: pair j turns by 2^-j radians.
    increments = phase_increments(make_spec(32, 65536.0))
    # 2^32 / 2π by Fraction bounds of π (Archimedes' way, to 20 digits).
    low = Fraction(314159265358979323846, 10**20)
    high = Fraction(314159265358979323847, 10**20)
    for j, increment in enumerate(increments.tolist()):
        bounds = {round(Fraction(2) ** (31 - j) / pi) for pi in (low, high)}
        assert bounds == {increment}


def test_a_whole_turn_wraps_to_zero() -> None:
    spec = replace(make_spec(2, 10000.0), rope_factors=(float(1 / (2 * math.pi)),))
    # One position turns pair 0 by about 2π: within 2^-50 of a whole turn.
    assert phase_increments(spec).tolist() == [0]


def test_a_value_at_a_tie_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope, "_turns", lambda spec: [Decimal(0), Decimal(5) / 2**33])
    with pytest.raises(
        SpecError,
        match=r"^Rotary frequency of pair 1 of model 'tiny' must not lie at a tie between two "
        r"phase increments, not 2\.50* of 2\^-32 turns; change rope_theta$",
    ):
        phase_increments(make_spec())


def test_query_scale_is_the_nearest_integer() -> None:
    assert query_scale(64) == 189097
    for head_dim in (16, 32, 48, 64, 80, 96, 128, 256):
        value = 2**20 * math.log2(math.e) / math.sqrt(head_dim)
        assert abs(query_scale(head_dim) - value) < 0.5 - 1e-9
