# amaranth: UnusedElaboratable=no
from __future__ import annotations

import random
from typing import Any

import pytest

from romsim_models.errors import SpecError
from romsim_rtl.argmax import ARGMAX_CYCLES, Argmax
from tests.rtl.stepped import simulate
from tests.rtl.vector_golden import HIGH, LOW


@pytest.mark.parametrize(("n_lanes", "step"), [(32, 32), (32, 4), (64, 64)])
def test_lowest_row_among_the_largest_four_cycles_after_the_last_beat(
    n_lanes: int, step: int
) -> None:
    """``step`` rows a beat: fewer than lanes where the array is smaller than the unit."""
    argmax = Argmax(n_lanes=n_lanes, row_bits=20)
    rnd = random.Random(n_lanes + step)

    async def bench(context: Any) -> None:
        for n_rows in (1, 7, 64, 100, 203):
            low = rnd.choice([0, -2, LOW])  # few different values, so that there are ties
            rows = [rnd.randrange(low, low + 3) for _ in range(n_rows)]
            if n_rows == 7:
                rows = [LOW] * 7
            for at in range(0, n_rows, step):
                lane = at % n_lanes
                part = rows[at : at + step]
                context.set(argmax.valid, 1)
                context.set(argmax.row, at - lane)
                context.set(argmax.mask, ((1 << len(part)) - 1) << lane)
                for k in range(n_lanes):  # lanes that do not count carry the largest value
                    inside = lane <= k < lane + len(part)
                    context.set(argmax.data[k], part[k - lane] if inside else HIGH)
                await context.tick()
            context.set(argmax.valid, 0)
            for _ in range(ARGMAX_CYCLES - 1):
                await context.tick()
            got = (context.get(argmax.best_row), context.get(argmax.best_value))
            assert got == (rows.index(max(rows)), max(rows))

    simulate(argmax, bench)


@pytest.mark.parametrize("n_lanes", [1, 48, 1024])
def test_refuses_lanes_that_are_no_power_of_two_up_to_512(n_lanes: int) -> None:
    message = rf"^Argmax lanes must be a power of two from 2 to 512, not {n_lanes}$"
    with pytest.raises(SpecError, match=message):
        Argmax(n_lanes=n_lanes, row_bits=20)
