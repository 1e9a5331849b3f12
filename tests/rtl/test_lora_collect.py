# amaranth: UnusedElaboratable=no
"""Exponents of z: of the largest magnitude, and one more where its code would round to 128."""

from __future__ import annotations

import random
from typing import Any

from romsim_rtl.lora_collect import LoraCollect
from romsim_rtl.lora_sizes import LoraSizes
from tests.rtl.attention_golden import rne
from tests.rtl.stepped import simulate
from tests.rtl.test_hside import make_sizes

TILES = 4
LORA = LoraSizes(max_rank=32, n_entries=2, a_words=8, b_words=8, n_cols=32, n_rows=32)


def shift_of(largest: int) -> int:
    """The rule of docs/numerics.md, section 2, by trying."""
    shift = max(0, largest.bit_length() - 7)
    return shift + (rne(largest, shift) > 127)


def test_exponents_of_magnitudes_at_every_length_and_rounding() -> None:
    top = LoraCollect(sizes=make_sizes(TILES, 32, 32, 1, 16, "2/1", 32), lora=LORA)
    rng = random.Random(1)
    largest = set(range(260)) | {1 << 31, (1 << 31) - 1}
    for length in range(8, 32):
        half = (255 << length - 8) - 1  # the last one that rounds to 127
        largest |= {half, half + 1, (1 << length) - 1, 1 << length - 1, 127 << length - 7}
    cases = sorted(value for value in largest if value <= 1 << 31)

    async def bench(ctx: Any) -> None:
        ctx.set(top.offset1, 2 * TILES)
        ctx.set(top.offset2, 2 * TILES)
        for value in cases:
            ctx.set(top.clear, 1)
            await ctx.tick()
            ctx.set(top.clear, 0)
            winner = rng.randrange(2 * TILES)
            rows = [rng.randrange(-value, max(1, value)) for _ in range(2 * TILES)]
            rows[winner] = -value if value == 1 << 31 or rng.random() < 0.5 else value
            for row in range(2):
                for tile in range(TILES):
                    ctx.set(top.rows[tile], rows[row * TILES + tile])
                ctx.set(top.row, row)
                ctx.set(top.is_end, row)
                ctx.set(top.valid, 1)
                await ctx.tick()
            ctx.set(top.valid, 0)
            await ctx.tick().repeat(3)
            assert ctx.get(top.z_shift[0][0]) == shift_of(max(map(abs, rows))), rows
            assert [ctx.get(top.z_shift[p][0]) for p in (1, 2)] == [0, 0]

    simulate(top, bench)
