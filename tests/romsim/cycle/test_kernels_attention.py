"""Attention against the page in unbounded integers: blocks, merge tree, division."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from romsim.cycle.kernels_attention import attention, attention_output
from romsim.cycle.workers import Workers
from tests.romsim.cycle import page

TABLES = {name: np.array(values, np.int64) for name, values in page.tables().items()}
REPEATABLE = settings(deadline=None, derandomize=True, max_examples=40)


def random_heads(
    rng: np.random.Generator, n: int, head_dim: int, bits: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[list[page.Block]]]:
    """Codes [n, width], shifts [n, blocks], and the same as blocks."""
    n_blocks = -(-head_dim // 32)
    codes = np.zeros((n, n_blocks * 32), np.int64)
    shifts = np.zeros((n, n_blocks), np.int64)
    heads = []
    for head in range(n):
        values = rng.integers(-(2**bits), 2**bits, head_dim)
        blocks = page.quantise(values.tolist(), min(32, head_dim))
        codes[head, :head_dim] = page.codes_of(blocks)
        shifts[head] = page.shifts_of(blocks)
        heads.append(blocks)
    return codes, shifts, heads


def run(
    *,
    seed: int,
    n_tokens: int,
    attn_block: int,
    head_dim: int = 32,
    n_heads: int = 2,
    n_kv_heads: int = 1,
    bits: int = 17,
    context: int | None = None,
) -> tuple[list[page.Node], list[page.Node], int]:
    """Return the kernel's nodes, the page's, and the difference of their saturations."""
    rng = np.random.default_rng(seed)
    context = context or n_tokens
    q_codes, q_shifts, q = random_heads(rng, n_heads, head_dim, bits)
    cached = [random_heads(rng, n_kv_heads * context, head_dim, bits) for _ in range(2)]
    n_blocks = -(-n_tokens // attn_block)
    depth = n_blocks.bit_length() + 1
    width = q_codes.shape[1]
    maxima, weights = np.zeros(n_heads * depth, np.int64), np.zeros(n_heads * depth, np.int64)
    sums = np.full(n_heads * depth * width, 99, np.int64)  # of an earlier token
    before = page.clips[0]
    expected = []
    for head in range(n_heads):
        first = head // (n_heads // n_kv_heads) * context
        keys, values = (part[2][first : first + n_tokens] for part in cached)
        expected.append(page.attend(q[head], keys, values, attn_block))
    clips = page.clips[0] - before
    (k_codes, k_shifts), (v_codes, v_shifts) = (
        (codes.astype(np.int8).reshape(-1), shifts.astype(np.int8).reshape(-1))
        for codes, shifts, _ in cached
    )
    arguments = (
        q_codes.astype(np.int16).reshape(-1), q_shifts.reshape(-1), k_codes, k_shifts,
        v_codes, v_shifts, context, n_tokens, attn_block, n_heads // n_kv_heads, 16,
        TABLES["EXP"], np.zeros((n_heads, attn_block), np.int64), maxima, weights, sums,
    )  # fmt: skip
    clipped = Workers(2).run(attention, arguments, n_pieces=n_heads)
    found = []
    for head in range(n_heads):
        o = sums.reshape(n_heads, depth, width)[head, 0]
        assert not o[head_dim:].any()
        found.append((int(maxima[head * depth]), int(weights[head * depth]), o[:head_dim].tolist()))
    return found, expected, clipped - clips


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 28, 31, 32, 33, 61])
@pytest.mark.parametrize("attn_block", [1, 4, 16])
def test_every_shape_of_the_merge_tree_is_the_pages(n_tokens: int, attn_block: int) -> None:
    found, expected, difference = run(seed=n_tokens, n_tokens=n_tokens, attn_block=attn_block)
    assert found == expected
    assert difference == 0


@pytest.mark.parametrize("head_dim", [16, 32, 48, 64, 128])
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(4, 4), (4, 2), (9, 3), (4, 1)])
def test_heads_share_keys_as_the_page_says(head_dim: int, n_heads: int, n_kv_heads: int) -> None:
    found, expected, difference = run(
        seed=head_dim, n_tokens=11, attn_block=4, head_dim=head_dim, n_heads=n_heads,
        n_kv_heads=n_kv_heads, context=15,
    )  # fmt: skip
    assert found == expected
    assert difference == 0


@REPEATABLE
@given(seed=st.integers(0, 2**32 - 1), bits=st.integers(1, 31), n_tokens=st.integers(1, 24))
def test_attention_is_the_pages_at_any_magnitude(seed: int, bits: int, n_tokens: int) -> None:
    found, expected, difference = run(seed=seed, n_tokens=n_tokens, attn_block=8, bits=bits)
    assert found == expected
    assert difference == 0


def test_scores_that_saturate_are_counted() -> None:
    before = page.clips[0]
    found, expected, difference = run(seed=1, n_tokens=6, attn_block=4, bits=31)
    assert found == expected
    assert difference == 0
    assert page.clips[0] > before


@REPEATABLE
@given(
    weights=st.lists(st.integers(0, 2**31), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1)
)
def test_division_is_the_pages(weights: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    limit = 127 << 25  # of a sum, over its weight
    sums = [[int(rng.integers(-limit, limit)) * (w >> 1) for _ in range(5)] for w in weights]
    before = page.clips[0]
    expected = [a for w, o in zip(weights, sums, strict=True) for a in page.attention_output(w, o)]
    out = np.zeros(5 * len(weights), np.int32)
    padded = np.zeros((len(weights), 32), np.int64)
    padded[:, :5] = sums
    clipped = attention_output(np.array(weights, np.int64), padded, 5, TABLES["RCP"], out)
    assert out.tolist() == expected
    assert clipped == page.clips[0] - before
