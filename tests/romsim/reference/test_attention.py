from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from romsim.reference.attention import LayerCache, attend
from romsim.reference.config import NumericsConfig
from romsim.reference.primitives import BlockCodes, Saturation, quantise
from tests.romsim.reference import scalar_page as page


def coded(values: NDArray[np.float64], block: int) -> BlockCodes:
    return quantise(torch.from_numpy(np.rint(values)), block=block, frac=16)


def check(
    *, n_tokens: int, n_new: int, n_heads: int = 2, n_kv: int = 1, head_dim: int = 16,
    attn_block: int = 32, value_size: float = 1.0, query_size: float = 1.0, seed: int = 0,
) -> int:  # fmt: skip
    """Attention of the last tokens of a random context equals the scalar reading; clips."""
    generator = np.random.default_rng(seed)
    block = min(32, head_dim)

    def draw(heads: int, size: float) -> BlockCodes:
        values = generator.standard_normal((n_tokens, heads, head_dim)) * size * 2.0**16
        values *= 2.0 ** generator.integers(-3, 4, (n_tokens, heads, 1))
        return coded(values.clip(-(2.0**31), 2.0**31 - 1), block)

    query, keys, values = draw(n_heads, query_size), draw(n_kv, 1.0), draw(n_kv, value_size)
    cache = LayerCache.empty(
        n_heads=n_kv, head_dim=head_dim, block=block, frac=16, device=torch.device("cpu")
    )
    cache.append(keys, values)
    last = slice(n_tokens - n_new, n_tokens)
    new = BlockCodes(
        codes=query.codes[last], shifts=query.shifts[last], block=block, frac=query.frac
    )
    saturation, clips = Saturation(), page.Clips()
    config = NumericsConfig(attn_block=attn_block)
    found = attend(new, cache, config=config, saturation=saturation)

    def words(held: BlockCodes, token: int, head: int) -> page.Coded:
        return held.codes[token, head].tolist(), held.shifts[token, head].tolist()

    for row, token in enumerate(range(n_tokens)[last]):
        expected: list[int] = []
        for head in range(n_heads):
            kv = head // (n_heads // n_kv)
            seen_keys = [words(keys, t, kv) for t in range(token + 1)]
            seen_values = [words(values, t, kv) for t in range(token + 1)]
            expected += page.attend(
                words(query, token, head), seen_keys, seen_values, block, attn_block, 16, clips
            )
        assert found[row].tolist() == expected, token
    assert saturation.count == clips.count
    return saturation.count


@pytest.mark.parametrize("n_tokens", [1, 2, 31, 32, 33, 63, 64, 65, 95, 96, 97, 130, 161])
def test_context_lengths_around_block_boundaries(n_tokens: int) -> None:
    check(n_tokens=n_tokens, n_new=1)


@pytest.mark.parametrize("n_new", [1, 5, 40, 70])
def test_batches_of_queries_see_only_what_was_before_them(n_new: int) -> None:
    check(n_tokens=70, n_new=n_new, head_dim=8)


@pytest.mark.parametrize(("n_heads", "n_kv", "head_dim"), [(3, 3, 16), (4, 2, 64), (3, 1, 40)])
def test_heads_are_grouped_and_blocks_of_a_head_differ(
    n_heads: int, n_kv: int, head_dim: int
) -> None:
    check(n_tokens=34, n_new=3, n_heads=n_heads, n_kv=n_kv, head_dim=head_dim)


@pytest.mark.parametrize("attn_block", [1, 2, 8, 64, 256])
def test_every_block_length(attn_block: int) -> None:
    check(n_tokens=67, n_new=4, head_dim=8, attn_block=attn_block)


def test_numerators_vanish_far_below_the_largest_score() -> None:
    check(n_tokens=70, n_new=3, query_size=300.0)


def test_values_beyond_float64s_integers_are_summed_in_words() -> None:
    # |v| near 2^31: a block's sum passes 2^53 for long blocks, the tree's for short ones.
    check(n_tokens=140, n_new=2, value_size=30_000.0, head_dim=8)
    check(n_tokens=300, n_new=1, value_size=30_000.0, head_dim=8, attn_block=256, n_heads=1)


def test_scores_clip_and_are_counted_only_where_there_is_a_key() -> None:
    assert check(n_tokens=40, n_new=40, query_size=30_000.0, head_dim=8) > 0


def test_equal_keys_give_the_mean_of_the_values() -> None:
    cache = LayerCache.empty(n_heads=1, head_dim=8, block=8, frac=16, device=torch.device("cpu"))
    ones = coded(np.full((64, 1, 8), 2.0**16), 8)
    values = coded(np.arange(64)[:, None, None] * np.full((1, 1, 8), 2.0**10), 8)
    cache.append(ones, values)
    query = BlockCodes(codes=ones.codes[:1], shifts=ones.shifts[:1], block=8, frac=16)
    found = attend(query, cache, config=NumericsConfig(), saturation=Saturation())
    mean = values.codes[:, 0, 0].double() * 2.0 ** values.shifts[:, 0, 0].double()
    assert abs(float(found[0, 0]) - float(mean.mean())) <= 1.0
