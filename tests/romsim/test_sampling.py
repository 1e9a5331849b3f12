from __future__ import annotations

import math
import re
from collections import Counter
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim.sampling import Sampler, splitmix64
from romsim_compiler.tables import tables
from romsim_models.errors import SpecError

EXP = tables()["EXP"]
M64 = (1 << 64) - 1


def page_exp() -> list[int]:
    """The page's table: 2^20 * 2^(-i/256), to the nearest integer."""
    getcontext().prec = 60
    return [
        int((Decimal(2) ** (20 - Decimal(i) / 256)).to_integral_value("ROUND_HALF_EVEN"))
        for i in range(257)
    ]


TABLE = page_exp()


def rne(value: int, shift: int) -> int:
    """Round half to even, by exact fractions."""
    return round(Fraction(value, 1 << shift))


def exp2n(d: int) -> tuple[int, int]:
    i, r = (d >> 8) & 255, d & 255
    return TABLE[i] - rne((TABLE[i] - TABLE[i + 1]) * r, 8), d >> 16


def page_splitmix64(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def page_choice(
    logits: list[int], position: int, *, temperature: float, top_k: int, seed: int
) -> int:
    """docs/numerics.md, section 7, in Python's own integers."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        return order[0]
    candidates = sorted(order[:top_k] if top_k else order)
    kappa = round(2**16 * math.log2(math.e) / temperature)
    weights = {}
    for i in candidates:
        v, n = exp2n(((max(logits) - logits[i]) * kappa) >> 16)
        weights[i] = 0 if n >= 21 else v >> n
    state = (seed + position * 0x9E3779B97F4A7C15) & M64
    r = (page_splitmix64(state) * sum(weights.values())) >> 64
    running = 0
    for i in candidates:
        running += weights[i]
        if running > r:
            return i
    raise AssertionError("the last candidate's running sum is the total, which exceeds r")


def test_table_is_the_page_s() -> None:
    assert EXP.tolist() == TABLE


def test_generator_gives_the_published_sequence() -> None:
    # Vigna's splitmix64.c, seed 1234567: the state advances by the golden ratio each call.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = [(1234567 + n * 0x9E3779B97F4A7C15) & M64 for n in range(3)]
    assert [splitmix64(s) for s in states] == expected


logit_lists = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40) | st.lists(
    st.integers(-300000, 300000), min_size=1, max_size=60
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    logits=logit_lists,
    position=st.integers(0, 65535),
    temperature=st.sampled_from([0.0, 0.0001, 0.3, 0.8, 1.0, 2.5, 100.0]),
    top_k=st.integers(0, 70),
    seed=st.integers(-(2**70), 2**70),
)
def test_choice_is_the_page_s(
    logits: list[int], position: int, temperature: float, top_k: int, seed: int
) -> None:
    sampler = Sampler(temperature=temperature, top_k=top_k, seed=seed)
    chosen = sampler.choose(np.array(logits, np.int32), position, EXP)
    assert chosen == page_choice(logits, position, temperature=temperature, top_k=top_k, seed=seed)


def test_greedy_takes_the_lowest_id_of_the_largest() -> None:
    assert Sampler().choose(np.array([3, 9, -1, 9], np.int32), 0, EXP) == 1


def test_ties_at_the_edge_of_top_k_go_to_lower_ids() -> None:
    logits = np.array([5, 7, 5, 7, 5], np.int32)
    seen = {Sampler(temperature=100, top_k=3, seed=s).choose(logits, 0, EXP) for s in range(200)}
    assert seen == {0, 1, 3}


def test_draws_follow_the_softmax() -> None:
    temperature = 0.7
    values = np.array([0.0, 0.5, 1.0, -1.0])
    logits = (values * 65536).astype(np.int32)
    n = 4000
    counts = Counter(
        Sampler(temperature=temperature, seed=11).choose(logits, p, EXP) for p in range(n)
    )
    expected = np.exp(values / temperature)
    expected /= expected.sum()
    for token, share in enumerate(expected):
        assert counts[token] / n == pytest.approx(share, abs=4 * math.sqrt(share / n))


def test_seed_and_position_fix_the_draw() -> None:
    logits = np.arange(100, dtype=np.int32) * 100
    draws = [Sampler(temperature=1, seed=3).choose(logits, p, EXP) for p in range(50)]
    assert draws == [Sampler(temperature=1, seed=3).choose(logits, p, EXP) for p in range(50)]
    assert draws != [Sampler(temperature=1, seed=4).choose(logits, p, EXP) for p in range(50)]


@pytest.mark.parametrize("temperature", [-0.5, math.inf, math.nan, -math.inf])
def test_temperature_that_is_no_divisor_is_refused(temperature: float) -> None:
    sentence = f"Temperature must be a finite number of at least 0, not {temperature!r}"
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        Sampler(temperature=temperature)


def test_temperature_that_would_leave_64_bits_is_refused() -> None:
    sentence = "Temperature must be 0 (greedy) or at least 0.0001, not 9e-05"
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        Sampler(temperature=9e-5)


def test_negative_top_k_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^top_k must be at least 0, not -1$"):
        Sampler(temperature=1, top_k=-1)
