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


def _signed(word: int) -> int:
    return (word ^ 1 << 31) - (1 << 31)


@pytest.mark.parametrize(("n_lanes", "n_rounds"), [(32, 12), (64, 3)])
def test_one_bit_of_one_lane_decides_and_only_a_valid_beat_counts(
    n_lanes: int, n_rounds: int
) -> None:
    """All lanes alike but one, which is larger by one bit; noise between the beats."""
    argmax = Argmax(n_lanes=n_lanes, row_bits=20)
    rnd = random.Random(n_lanes)

    def set_beat(context: Any, row: int, mask: int, values: dict[int, int]) -> None:
        context.set(argmax.row, row)
        context.set(argmax.mask, mask)
        for lane, value in values.items():
            context.set(argmax.data[lane], value)

    async def noise(context: Any, n: int, low: int) -> None:
        context.set(argmax.valid, 0)
        for _ in range(n):
            lane = rnd.randrange(n_lanes)
            everyone = (1 << n_lanes) - 1
            row = n_lanes * rnd.choice((0, rnd.randrange(1 << 10)))
            set_beat(context, row, everyone, {lane: rnd.choice((HIGH, LOW))})
            await context.tick()
            set_beat(context, row, everyone, {lane: low})

    async def bench(context: Any) -> None:
        for number in range(n_rounds * n_lanes):
            word, bit = rnd.getrandbits(32), number % 32
            low, high = sorted((_signed(word), _signed(word ^ 1 << bit)))
            best_lane = (number + number // n_lanes) % n_lanes
            rows = [0, n_lanes * rnd.randrange(1, (1 << 20) // n_lanes)]
            wins = rnd.randrange(2)
            for port in argmax.data:
                context.set(port, low)
            for beat, row in enumerate(rows):
                value, mask = low, (1 << n_lanes) - 1
                if beat == wins:
                    value = high
                elif beat or best_lane:  # lane 0 of row 0 says that a vector begins
                    value = HIGH
                    mask ^= 1 << best_lane
                context.set(argmax.valid, 1)
                set_beat(context, row, mask, {best_lane: value})
                await context.tick()
                set_beat(context, row, mask, {best_lane: low})
                await noise(context, rnd.randrange(2), low)
            await noise(context, ARGMAX_CYCLES - 1, low)
            got = (context.get(argmax.best_row), context.get(argmax.best_value))
            assert got == (rows[wins] + best_lane, high)
        # what was found stays until the next vector's first beat
        await noise(context, 5, low)
        assert got == (context.get(argmax.best_row), context.get(argmax.best_value))

    simulate(argmax, bench)


@pytest.mark.parametrize("n_lanes", [1, 48, 1024])
def test_refuses_lanes_that_are_no_power_of_two_up_to_512(n_lanes: int) -> None:
    message = rf"^Argmax lanes must be a power of two from 2 to 512, not {n_lanes}$"
    with pytest.raises(SpecError, match=message):
        Argmax(n_lanes=n_lanes, row_bits=20)
