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


def test_reciprocals_of_sums_of_every_length() -> None:
    """One a cycle and with pauses, in which noise comes and the results stay."""
    rnd = random.Random(3)
    sums: list[int | None] = [0, 1, 2, 3, (1 << 32) - 1, 1 << 31]
    sums += [rnd.getrandbits(bits) | 1 << (bits - 1) for bits in range(1, 33) for _ in range(50)]
    for _ in range(200):
        sums.insert(rnd.randrange(60, len(sums)), None)
    recip, golden = Recip(table=TABLES["RCP"]), Golden(TABLES)

    async def bench(context: Any) -> None:
        results: list[int | None] = [None] * RECIP_CYCLES
        before: list[int | None] = [None] * RECIP_CYCLES  # what came in the cycles before
        for l in [*sums, *[None] * RECIP_CYCLES]:  # noqa: E741  the page's name
            context.set(recip.start, l is not None)
            context.set(recip.l, rnd.getrandbits(32) if l is None else l)
            assert context.get(recip.length_valid) == (before[-1] is not None)
            if before[-1] is not None:
                assert context.get(recip.length) == before[-1].bit_length()
            early = before[1 - RECIP_CYCLES]
            assert context.get(recip.next_done) == (early is not None)
            if early is not None:
                assert context.get(recip.next_y) == golden.recip(early)[0]
            assert context.get(recip.done) == (before[-RECIP_CYCLES] is not None)
            if results[-RECIP_CYCLES] is not None:
                assert context.get(recip.y) == results[-RECIP_CYCLES]
            before.append(l)
            results.append(results[-1] if l is None else golden.recip(l)[0])
            await context.tick()

    simulate(recip, bench)


def test_refuses_a_table_of_another_length() -> None:
    with pytest.raises(SpecError, match=r"^table RCP must be 128 entries, not 5$"):
        Recip(table=[0] * 5)
