# amaranth: UnusedElaboratable=no
from __future__ import annotations

import math
import random
from typing import Any

import pytest

from romsim_models.errors import SpecError
from romsim_rtl.rsqrt import RSQRT_CYCLES, Rsqrt
from tests.rtl.stepped import simulate
from tests.rtl.vector_bench import TABLES
from tests.rtl.vector_golden import Golden, rne


def test_scale_of_sums_of_every_length() -> None:
    rnd = random.Random(3)
    sums = [0, 1, 2, 3, 4, 5, (1 << 63) - 1, 1 << 62, (1 << 62) - 1]
    sums += [rnd.getrandbits(bits) | 1 << (bits - 1) for bits in range(1, 64)]
    root = round(math.sqrt(16384) * 2**16)  # the longest vector
    rsqrt, golden = Rsqrt(table=TABLES["RSQ"]), Golden(TABLES)

    async def bench(context: Any) -> None:
        context.set(rsqrt.root, root)
        for cycle in range(len(sums) + RSQRT_CYCLES):
            context.set(rsqrt.start, cycle < len(sums))
            if cycle < len(sums):
                context.set(rsqrt.n, sums[cycle])
            if 1 <= cycle <= len(sums):
                _, half = golden.rsqrt(sums[cycle - 1])
                assert context.get(rsqrt.half_length) == half
            if cycle >= RSQRT_CYCLES:
                y, _ = golden.rsqrt(sums[cycle - RSQRT_CYCLES])
                assert context.get(rsqrt.scale) == rne(y * root, 26)
            await context.tick()

    simulate(rsqrt, bench)


def test_result_is_the_reciprocal_root_to_25_bits() -> None:
    golden = Golden(TABLES)
    rnd = random.Random(5)
    for _ in range(500):
        n = rnd.getrandbits(rnd.randrange(1, 63)) + 1
        y, half = golden.rsqrt(n)
        assert abs(y * 2.0**-30 * 2.0**-half * math.sqrt(n) - 1) < 2**-25


def test_refuses_a_table_of_another_length() -> None:
    with pytest.raises(SpecError, match=r"^table RSQ must be 96 entries, not 128$"):
        Rsqrt(table=[0] * 128)
