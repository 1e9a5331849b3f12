# amaranth: UnusedElaboratable=no
from __future__ import annotations

import random
from typing import Any

import pytest

from romsim_models.errors import SpecError
from romsim_rtl.recip import RECIP_CYCLES, Recip
from tests.rtl.stepped import simulate
from tests.rtl.vector_bench import TABLES
from tests.rtl.vector_golden import Golden


def test_reciprocals_of_sums_of_every_length_one_a_cycle() -> None:
    rnd = random.Random(3)
    sums = [0, 1, 2, 3, (1 << 32) - 1, 1 << 31]
    sums += [rnd.getrandbits(bits) | 1 << (bits - 1) for bits in range(1, 33) for _ in range(3)]
    recip, golden = Recip(table=TABLES["RCP"]), Golden(TABLES)

    async def bench(context: Any) -> None:
        for cycle in range(len(sums) + RECIP_CYCLES):
            context.set(recip.start, cycle < len(sums))
            if cycle < len(sums):
                context.set(recip.l, sums[cycle])
            assert context.get(recip.length_valid) == (1 <= cycle <= len(sums))
            if 1 <= cycle <= len(sums):
                assert context.get(recip.length) == sums[cycle - 1].bit_length()
            early = cycle - (RECIP_CYCLES - 1)
            assert context.get(recip.next_done) == (0 <= early < len(sums))
            if 0 <= early < len(sums):
                assert context.get(recip.next_y) == golden.recip(sums[early])[0]
            assert context.get(recip.done) == (cycle >= RECIP_CYCLES)
            if cycle >= RECIP_CYCLES:
                assert context.get(recip.y) == golden.recip(sums[cycle - RECIP_CYCLES])[0]
            await context.tick()

    simulate(recip, bench)


def test_refuses_a_table_of_another_length() -> None:
    with pytest.raises(SpecError, match=r"^table RCP must be 128 entries, not 5$"):
        Recip(table=[0] * 5)
