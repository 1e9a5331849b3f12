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
    for _ in range(60):
        bits = rnd.randrange(1, 32)
        found.append([rnd.randrange(-(1 << bits), 1 << bits) for _ in range(32)])
    for lane in range(32):
        for _ in range(3):  # a value of every size, once alone in a lane, once rounded up there
            bits = rnd.randrange(1, 32)
            one = rnd.choice((1, -1)) * rnd.choice((rnd.randrange(1 << bits), (255 << bits >> 8)))
            others = [rnd.randrange(-(1 << bits), 1 << bits) >> rnd.randrange(3, 9)] * 32
            found.append([*others[:lane], one, *others[lane + 1 :]])
    for _ in range(150):  # all lanes a power of two beside a tie of the rounding, or at it
        shift = rnd.randrange(1, 25)
        block = []
        for _ in range(32):
            beside = rnd.choice((-1, 0, 1, 1)) << rnd.randrange(shift)
            code = rnd.choice((rnd.randrange(127), rnd.randrange(4)))
            block.append(rnd.choice((-1, 1)) * ((code << shift) + (1 << shift - 1) + beside))
        block[rnd.randrange(32)] = 100 << shift  # so that this is the block's shift
        found.append(block)
    return found


def test_blocks_come_out_four_cycles_later_and_stay_until_the_next() -> None:
    """One a cycle and with pauses, in which noise comes."""
    rnd = random.Random(2)
    quantizer = MxQuantizer()
    given: list[list[int] | None] = list(blocks())
    for _ in range(40):
        given.insert(rnd.randrange(30, len(given)), None)

    async def bench(context: Any) -> None:
        started: list[bool] = [False] * QUANTIZER_CYCLES
        results: list[Any] = [None] * QUANTIZER_CYCLES
        largest: int | None = None
        for block in [*given, *[None] * QUANTIZER_CYCLES]:
            context.set(quantizer.start, block is not None)
            context.set(quantizer.measure, block is not None)
            values = block or [rnd.getrandbits(32) - (1 << 31) for _ in range(32)]
            for port, value in zip(quantizer.values, values, strict=True):
                context.set(port, value)
            if largest is not None:
                assert context.get(quantizer.magnitude) == largest
            assert context.get(quantizer.done) == started[-QUANTIZER_CYCLES]
            if results[-QUANTIZER_CYCLES] is not None:
                word = context.get(quantizer.codes)
                codes = tuple(((word >> 8 * k & 255) ^ 128) - 128 for k in range(32))
                got = (codes, context.get(quantizer.shift), context.get(quantizer.total))
                assert [got] == results[-QUANTIZER_CYCLES]
            started.append(block is not None)
            results.append(results[-1] if block is None else mx_blocks(block))
            largest = largest if block is None else or_magnitudes(block)
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
