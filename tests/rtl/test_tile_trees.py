# amaranth: UnusedElaboratable=no
"""The maximum over the tiles: its value, and the cycles that the compiler counts for it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from romsim_compiler.durations import maximum_cycles
from romsim_rtl.tile_trees import TileMaxima, maximum_stages
from tests.rtl.stepped import simulate

LOW, HIGH = -(2**31), 2**31 - 1


@pytest.mark.parametrize("n_tiles", [1, 2, 3, 5, 8, 33, 64])
def test_the_largest_score_is_rounded_up_and_in_time(n_tiles: int) -> None:
    top = TileMaxima(n_tiles=n_tiles)
    rng = random.Random(n_tiles)
    depth = 1 + 2 + maximum_cycles(n_tiles)
    drawn = []
    for _ in range(40):
        some = (LOW, HIGH, 0, -1, 65536, -65536, rng.randrange(LOW, HIGH))
        drawn.append([rng.choice((*some, rng.randrange(LOW, HIGH))) for _ in range(n_tiles)])
    # each tile has the largest score once
    drawn += [[LOW if tile != winner else 65537 for tile in range(n_tiles)]
              for winner in range(n_tiles)]  # fmt: skip

    async def bench(ctx: Any) -> None:
        ctx.set(top.valid, 1)
        for cycle in range(len(drawn) + depth):
            if cycle >= depth:
                wanted = -(-max(drawn[cycle - depth]) // 65536)
                assert ctx.get(top.maximum) == wanted, drawn[cycle - depth]
            scores = drawn[min(cycle, len(drawn) - 1)]
            for name, score in zip(top.names, scores, strict=True):
                ctx.set(getattr(top, name), score)
            await ctx.tick()

    simulate(top, bench)


def test_the_compiler_and_the_rtl_count_the_same_registers() -> None:
    for n_tiles in range(1, 2049):
        assert maximum_stages(n_tiles) == 2 + maximum_cycles(n_tiles), n_tiles


def test_three_comparisons_stand_between_two_registers() -> None:
    tiles = (2, 8, 16, 32, 64, 256, 512)
    assert [maximum_cycles(n) for n in tiles] == [0, 0, 0, 0, 1, 1, 2]
