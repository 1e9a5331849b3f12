# amaranth: UnusedElaboratable=no
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from romsim_models.errors import SpecError
from romsim_rtl.sincos import SINCOS_CYCLES, SinCos
from tests.rtl.stepped import simulate
from tests.rtl.vector_bench import TABLES
from tests.rtl.vector_golden import Golden


def near_ties(increments: list[int], n: int) -> list[int]:
    """Positions at which some interpolated step is nearly half a unit, where one bit decides."""
    table = np.array([*TABLES["SIN"], TABLES["SIN"][-1]], np.int64)
    positions = np.arange(1, 65536, dtype=np.int64)
    found: list[tuple[int, int]] = []
    for increment in increments:
        forward = increment * positions & (1 << 30) - 1
        for angle in (forward, (1 << 30) - forward):
            at, rest = angle >> 22, angle & (1 << 22) - 1
            distance = np.abs(((table[at + 1] - table[at]) * rest & (1 << 22) - 1) - (1 << 21))
            for index in np.argsort(distance, kind="stable")[:n]:
                found.append((int(distance[index]), int(positions[index])))
    return [position for _, position in sorted(found)]


@pytest.mark.parametrize("n_parallel", [1, 4])
def test_all_pairs_at_first_and_last_positions(n_parallel: int) -> None:
    rnd = random.Random(2)
    # whole quarter turns first: there the table's last entry counts
    increments = [1 << 30, 1 << 31, 3 << 30, 0] + [rnd.getrandbits(32) for _ in range(8)]
    # halfway between entries that differ by an odd number: a tie, forward or backward
    steep = [at for at in range(256) if TABLES["SIN"][at + 1] - TABLES["SIN"][at] & 1]
    for number in range(8):
        half = rnd.choice(steep) << 22 | 1 << 21
        increments.append(rnd.randrange(4) << 30 | (half if number % 4 < 2 else (1 << 30) - half))
    sincos = SinCos(table=TABLES["SIN"], increments=increments, n_parallel=n_parallel)
    golden = Golden(TABLES)
    n_words = len(increments) // n_parallel

    async def bench(context: Any) -> None:
        later = [1 << bit for bit in range(4, 16)] + [rnd.randrange(65536) for _ in range(28)]
        later += near_ties(increments[4:12], 6)[:60]
        for pos in (0, 1, 2, 3, 777, 65535, *later):
            context.set(sincos.pos, pos)
            for cycle in range(n_words + SINCOS_CYCLES):
                context.set(sincos.start, cycle < n_words)
                context.set(sincos.index, cycle % n_words)
                assert context.get(sincos.done) == (cycle >= SINCOS_CYCLES)
                for k in range(n_parallel if cycle >= SINCOS_CYCLES else 0):
                    increment = increments[(cycle - SINCOS_CYCLES) * n_parallel + k]
                    got = (context.get(sincos.sin[k]), context.get(sincos.cos[k]))
                    assert got == golden.sincos(increment, pos)
                await context.tick()

    simulate(sincos, bench)


def test_refuses_a_table_of_another_length() -> None:
    with pytest.raises(SpecError, match=r"^table SIN must be 257 entries, not 256$"):
        SinCos(table=[0] * 256, increments=[0], n_parallel=1)
