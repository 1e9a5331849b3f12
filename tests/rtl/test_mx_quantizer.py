# amaranth: UnusedElaboratable=no
from __future__ import annotations

import random
from typing import Any

from romsim_rtl.mx_quantizer import QUANTIZER_CYCLES, MxQuantizer
from tests.rtl.stepped import simulate
from tests.rtl.vector_golden import HIGH, LOW, mx_blocks, or_magnitudes


def blocks() -> list[list[int]]:
    rnd = random.Random(1)
    found = [[0] * 32, [LOW] * 32, [HIGH] * 32, [0] * 31 + [-1], [LOW] + [0] * 31]
    # 127.5 codes round to 128 (tie to even), which takes one more shift; one less does not
    for bits in (1, 5, 24):
        tie = 255 << bits >> 1
        found += [[tie] + [0] * 31, [-tie] + [3] * 31, [tie - 1] + [0] * 31, [1 - tie] * 32]
    for _ in range(25):
        bits = rnd.randrange(1, 31)
        found.append([rnd.randrange(-(1 << bits), 1 << bits) for _ in range(32)])
    return found


def test_blocks_follow_each_other_every_cycle_and_come_out_four_later() -> None:
    quantizer = MxQuantizer()
    given = blocks()

    async def bench(context: Any) -> None:
        for cycle in range(len(given) + QUANTIZER_CYCLES):
            is_input = cycle < len(given)
            context.set(quantizer.start, is_input)
            context.set(quantizer.measure, is_input)
            if is_input:
                for port, value in zip(quantizer.values, given[cycle], strict=True):
                    context.set(port, value)
            if 1 <= cycle <= len(given):
                assert context.get(quantizer.magnitude) == or_magnitudes(given[cycle - 1])
            assert context.get(quantizer.done) == (cycle >= QUANTIZER_CYCLES)
            if cycle >= QUANTIZER_CYCLES:
                word = context.get(quantizer.codes)
                codes = tuple(((word >> 8 * k & 255) ^ 128) - 128 for k in range(32))
                got = (codes, context.get(quantizer.shift), context.get(quantizer.total))
                assert [got] == mx_blocks(given[cycle - QUANTIZER_CYCLES])
            await context.tick()

    simulate(quantizer, bench)


def test_a_block_that_is_only_measured_is_not_quantised() -> None:
    quantizer = MxQuantizer()

    async def bench(context: Any) -> None:
        context.set(quantizer.measure, 1)
        context.set(quantizer.values[5], -77)
        await context.tick()
        context.set(quantizer.measure, 0)
        assert context.get(quantizer.magnitude) == 77
        for _ in range(6):
            assert not context.get(quantizer.done)
            await context.tick()

    simulate(quantizer, bench)
