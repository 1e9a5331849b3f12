# amaranth: UnusedElaboratable=no
from __future__ import annotations

import random
from typing import Any

from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.htile_softmax import NUMERATOR_CYCLES, P_BITS, TileSoftmax
from tests.rtl.attention_golden import exp2n, rne
from tests.rtl.stepped import simulate

SIZES = AttentionSizes(
    n_tiles=1,
    n_lanes=32,
    word_elems=32,
    heads_parallel=2,
    attn_block=64,
    n_heads=2,
    n_kv_heads=1,
    head_dim=32,
    n_layers=1,
    context=64,
    n_inflight=1,
    broadcast_cycles=1,
    collect_cycles=1,
)


def numerator(m: int, z: int) -> int:
    v, n = exp2n((m << 16) - z)
    return 0 if n >= 16 else rne(v, 5 + n)


def scores_below(rng: random.Random, m: int) -> list[int]:
    """Scores from equal to the maximum to 2^32 below it."""
    scores = []
    for _ in range(64):
        span = rng.choice((0, 255, 256, 65535, 65536, 15 << 16, 16 << 16, 20 << 16, 1 << 24, 2**32))
        z = (m << 16) - rng.randrange(span + 1)
        scores.append(max(-(2**31), min(2**31 - 1, z)))
    for bit in range(16, 33):  # this bit alone says that it vanishes, or how often it is halved
        z = (m << 16) - (1 << bit) - rng.randrange(256)
        if -(2**31) <= z < 2**31:
            scores[rng.randrange(64)] = z
    if (m << 16) == 2**31:
        scores[rng.randrange(64)] = -(2**31)
    return scores


def test_numerators_and_sums_are_the_pages() -> None:
    top = TileSoftmax(sizes=SIZES)
    rng = random.Random(4)
    rounds = [
        (m, scores_below(rng, m), [rng.random() < 0.9 for _ in range(64)])
        for m in (
            0,
            3,
            -7,
            2**15,
            -(2**15) + 1,
            *(rng.randrange(-(2**15), 2**15) for _ in range(20)),
        )
    ]

    idle = random.Random(5)

    async def bench(ctx: Any) -> None:
        sums: list[int] = []
        for m, scores, present in rounds:
            for lane in range(2):
                ctx.set(top.maximum.valid, 1)
                ctx.set(top.maximum.lane, lane)
                ctx.set(top.maximum.value, m & 0x1FFFF)
                await ctx.tick()
            ctx.set(top.maximum.valid, 0)
            for slot in range(64):
                # nobody is there: nothing may be written
                ctx.set(top.maximum.lane, idle.randrange(2))
                ctx.set(top.maximum.value, idle.getrandbits(17))
                ctx.set(top.en, 1)
                ctx.set(top.slot, slot)
                ctx.set(top.first_tok, slot == 0)
                ctx.set(top.last_tok, slot == 63)
                ctx.set(top.present, present[slot])
                ctx.set(top.l_en, slot == 40)
                ctx.set(top.l_lane[0], m & 1)
                await ctx.tick()
                if sums and slot == 42:  # the sum stands until the last token has been added
                    assert ctx.get(top.l[0]) == sums[m & 1]
                # the other lane has the scores in the other order
                word = scores[slot] & (2**32 - 1) | (scores[63 - slot] & (2**32 - 1)) << 32
                ctx.set(top.scores, word)
            ctx.set(top.en, 0)
            await ctx.tick().repeat(NUMERATOR_CYCLES - 1)
            expected = [[0] * 64, [0] * 64]
            for slot in range(64):
                if present[slot]:
                    expected[0][slot] = numerator(m, scores[slot])
                    expected[1][slot] = numerator(m, scores[63 - slot])
            # the last numerator first: it can be read NUMERATOR_CYCLES after its score's address
            for slot in [63, *range(63)]:
                ctx.set(top.p_en, 1)
                ctx.set(top.p_slot, slot)
                await ctx.tick()
                word = ctx.get(top.p)
                got = [word & 0xFFFF, word >> P_BITS]
                assert got == [lane[slot] for lane in expected], (m, slot)
            ctx.set(top.p_en, 0)
            ctx.set(top.p_slot, 5)
            await ctx.tick()
            assert ctx.get(top.p) == word  # it stays
            sums = [sum(lane) for lane in expected]
            for lane in range(2):
                ctx.set(top.l_en, 1)
                ctx.set(top.l_lane[0], lane)
                await ctx.tick().repeat(2)
                assert ctx.get(top.l[0]) == sum(expected[lane])
            ctx.set(top.l_en, 0)
        # a sum of as many tokens as there may be in a block, all of them the largest
        m = rounds[-1][0]
        for token in range(1100):
            ctx.set(top.en, 1)
            ctx.set(top.first_tok, token == 0)
            ctx.set(top.last_tok, token == 1099)
            ctx.set(top.present, 1)
            await ctx.tick()
            ctx.set(top.scores, ((m << 16) & (2**32 - 1)) * (1 + (1 << 32)))
        ctx.set(top.en, 0)
        await ctx.tick().repeat(NUMERATOR_CYCLES)
        ctx.set(top.l_en, 1)
        await ctx.tick().repeat(2)
        assert ctx.get(top.l[0]) == 1100 * numerator(m, m << 16)

    simulate(top, bench)
