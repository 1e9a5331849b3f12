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


def sums_of_every_length(rnd: random.Random, n_each: int) -> list[int]:
    sums = [0, 1, 2, 3, 4, 5, (1 << 63) - 1, 1 << 62, (1 << 62) - 1]
    for _ in range(n_each):
        sums += [rnd.getrandbits(bits) | 1 << (bits - 1) for bits in range(1, 64)]
    return sums


def test_scale_of_sums_of_every_length() -> None:
    """One a cycle and with pauses, in which noise comes and the results stay."""
    rnd = random.Random(3)
    rsqrt, golden = Rsqrt(table=TABLES["RSQ"]), Golden(TABLES)

    async def bench(context: Any) -> None:
        # the longest vector, the shortest, and others
        for length in (16384, 1, 64, 2048, 576, 8960, 3, 12345):
            root = round(math.sqrt(length) * 2**16)
            context.set(rsqrt.root, root)
            given: list[int | None] = list(sums_of_every_length(rnd, 3))
            for _ in range(60):
                given.insert(rnd.randrange(40, len(given)), None)
            halves: list[int | None] = [None]
            scales: list[int | None] = [None] * RSQRT_CYCLES
            for n in [*given, *[None] * RSQRT_CYCLES]:
                context.set(rsqrt.start, n is not None)
                context.set(rsqrt.n, rnd.getrandbits(63) if n is None else n)
                if halves[-1] is not None:
                    assert context.get(rsqrt.half_length) == halves[-1]
                if scales[-RSQRT_CYCLES] is not None:
                    assert context.get(rsqrt.scale) == scales[-RSQRT_CYCLES]
                if n is None:
                    halves.append(halves[-1])
                    scales.append(scales[-1])
                else:
                    y, half = golden.rsqrt(n)
                    halves.append(half)
                    scales.append(rne(y * root, 26))
                await context.tick()
            context.set(rsqrt.root, rnd.getrandbits(24))  # the result stays all the same
            await context.tick().repeat(2)
            assert context.get(rsqrt.scale) == scales[-1]

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
