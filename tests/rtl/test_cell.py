# amaranth: UnusedElaboratable=no
"""A cell against sums of products in Python integers (docs/numerics.md, section 4)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from romsim_models.errors import SpecError
from romsim_rtl.cell import Cell, CellConfig
from tests.rtl.stepped import simulate
from tests.rtl.test_lside import half_parts, rne

CONFIGS = {
    "4 bits": CellConfig(word_codes=32, lane_bits=4, plane_shift=4, scale_group=32),
    "2 bits in 4 planes": CellConfig(
        word_codes=32, lane_bits=2, plane_shift=2, max_planes=4, scale_group=32, has_minima=False
    ),
    "ternary without scales": CellConfig(
        word_codes=64,
        lane_bits=2,
        is_ternary=True,
        plane_shift=1,
        scale_group=32,
        has_minima=False,
        has_plain=True,
    ),
    "terms that round": CellConfig(
        word_codes=64, lane_bits=4, plane_shift=4, scale_group=64, may_round=True
    ),
    "8 bits": CellConfig(word_codes=32, lane_bits=8, plane_shift=8, scale_group=32),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_lane_has_one_digit_of_one_packed_word(name: str) -> None:
    config = CONFIGS[name]
    places = [config.lane(k, digit) for k in range(config.n_packed) for digit in range(4)]
    assert sorted(places) == list(range(32))


def digit_value(config: CellConfig, digit: int) -> int:
    return (0, 1, -1, 0)[digit] if config.is_ternary else digit


def random_half(rng: random.Random) -> int:
    return rng.choice((0, 0x8001, 0x7BFF, 0xFBFF, rng.randrange(1 << 15) % 0x7C00))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("is_packed", [True, False])
def test_row_is_the_sum_of_its_terms(name: str, extreme: bool, is_packed: bool) -> None:
    config = replace(CONFIGS[name], is_packed=is_packed)
    rng = random.Random(len(name) + extreme)
    dut = Cell(config=config)
    blocks, planes = config.n_blocks, config.max_planes
    top = (1 << config.lane_bits) - 1
    n_words, offset = 3, 5

    def code() -> int:
        if config.is_ternary:
            return rng.choice((1, 2)) if extreme else rng.randrange(4)
        return top if extreme else rng.randrange(top + 1)

    rows = []
    for _ in range(16):
        sign = rng.choice((-1, 1))
        x = [
            [127 * sign if extreme else rng.randrange(-127, 128) for _ in range(32 * blocks)]
            for _ in range(n_words)
        ]
        digits = [
            [[code() for _ in range(32 * blocks)] for _ in range(planes)] for _ in range(n_words)
        ]
        halves = [[random_half(rng) for _ in range(2 * config.n_scales)] for _ in range(n_words)]
        plain = config.has_plain and rng.random() < 0.5
        rows.append((x, digits, halves, [rng.randrange(3) for _ in range(n_words * blocks)], plain))
    grid = rng.randrange(-20, 3) if config.may_round else -24

    def expected(row: Any) -> int:
        x, digits, halves, shifts, plain = row
        total = 0
        for w in range(n_words):
            for b in range(blocks):
                lanes = range(32 * b, 32 * b + 32)
                p = sum(
                    (
                        sum(
                            digit_value(config, digits[w][plane][k]) << plane * config.plane_shift
                            for plane in range(planes)
                        )
                        - offset
                    )
                    * x[w][k]
                    for k in lanes
                )
                s = sum(x[w][k] for k in lanes)
                field = 32 * b // config.scale_group
                sig, exp = (1, 0) if plain else half_parts(halves[w][field])
                low, low_exp = half_parts(halves[w][config.n_scales + field])
                shift = shifts[w * blocks + b]
                total += rne(p * sig, grid - exp - shift)
                if config.has_minima:
                    total += rne(s * low, grid - low_exp - shift)
        return total

    def feed(ctx: Any, cycle: int, row: Any) -> None:
        """Set what the stages need in a cycle counted from that of the first word."""
        x, digits, halves, shifts, plain = row
        n = n_words * planes

        def at(stage: int) -> int | None:
            return cycle - stage if 0 <= cycle - stage < n else None

        read, dot, total, times, moved, added = (at(stage) for stage in range(6))

        def ends_word(place: int | None) -> bool:
            return place is not None and place % planes == planes - 1

        ctx.set(dut.v_read, read is not None)
        ctx.set(dut.v_dot, dot is not None)
        ctx.set(dut.v_sum, total is not None)
        ctx.set(dut.v_mul, ends_word(times))
        ctx.set(dut.v_shift, ends_word(moved))
        ctx.set(dut.v_acc, ends_word(added))
        ctx.set(dut.first_word, added is not None and added < planes)
        if config.has_plain:
            ctx.set(dut.plain, plain)
        if read is not None:
            w, plane = divmod(read, planes)
            word = sum(d << config.lane_bits * k for k, d in enumerate(digits[w][plane]))
            kept = halves[w] if config.has_minima else halves[w][: config.n_scales]
            if plane:  # scales stand in a word's first plane; noise in the others must not matter
                kept = [rng.getrandbits(16) for _ in kept]
            word |= sum(h << config.code_bits + 16 * k for k, h in enumerate(kept))
            ctx.set(dut.word, word)
        else:
            ctx.set(dut.word, rng.getrandbits(len(dut.word)))
        if dot is not None:
            w, plane = divmod(dot, planes)
            ctx.set(dut.first_plane, plane == 0)
            for b in range(blocks):
                for k in range(config.n_packed):
                    lanes = [32 * b + config.lane(k, digit) for digit in range(4)]
                    raised = 0 if is_packed else 128
                    packed = sum((x[w][lane] + raised) << 16 * d for d, lane in enumerate(lanes))
                    ctx.set(dut.x[b * config.n_packed + k], packed & ((1 << 64) - 1))
        else:
            ctx.set(dut.first_plane, rng.randrange(2))
            ctx.set(dut.x[rng.randrange(len(dut.x))], rng.getrandbits(64))
        for b in range(blocks if total is None else 0):
            ctx.set(dut.less[b], rng.randrange(1 << 12))
        for b in range(blocks if times is None else 0):
            ctx.set(dut.total[b], rng.randrange(1 << 12))
            ctx.set(dut.place[b], rng.randrange(1 << 5))
        if total is not None:
            w, plane = divmod(total, planes)
            if planes > 1:
                ctx.set(dut.first_sum, plane == 0)
                ctx.set(dut.plane_place, plane * config.plane_shift)
            for b in range(blocks):
                ctx.set(dut.less[b], offset * sum(x[w][32 * b : 32 * b + 32]))
        if times is not None:
            w = times // planes
            for b in range(blocks):
                ctx.set(dut.total[b], sum(x[w][32 * b : 32 * b + 32]))
                ctx.set(dut.place[b], shifts[w * blocks + b] - grid - 25)

    async def bench(ctx: Any) -> None:
        for row in rows:
            for cycle in range(n_words * planes + 6):
                feed(ctx, cycle, row)
                await ctx.tick()
            assert ctx.get(dut.acc) == expected(row) % (1 << 64)

    simulate(dut, bench)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"word_codes": 48}, "word_codes of the RTL must be a multiple of 32, not 48"),
        ({"lane_bits": 3}, "lane_bits of the RTL must be 2, 4 or 8, not 3"),
        ({"is_ternary": True}, "lane_bits of ternary lanes must be 2, not 4"),
        (
            {"scale_group": 16},
            "scale_group of the RTL must be a multiple of 32 that divides the word's 32 codes, "
            "not 16",
        ),
        ({"max_planes": 9}, "max_planes must be from 1 to 8, not 9"),
    ],
)
def test_lanes_that_the_rtl_cannot_have_are_refused(change: dict[str, Any], message: str) -> None:
    values = {"word_codes": 32, "lane_bits": 4, "plane_shift": 4, "scale_group": 32}
    with pytest.raises(SpecError, match=f"^{message}$"):
        CellConfig(**{**values, **change})
