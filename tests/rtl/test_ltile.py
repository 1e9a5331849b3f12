# amaranth: UnusedElaboratable=no
"""Parts of a tile: the x buffer and the requantising of rows."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from romsim_models.errors import SpecError
from romsim_rtl.cell import CellConfig
from romsim_rtl.ltile import LTileConfig
from romsim_rtl.ltile_rows import ROW_CYCLES, Row
from romsim_rtl.xbuffer import XBuffer, XBufferSizes
from tests.rtl.stepped import simulate
from tests.rtl.test_lside import rne, sat32

CELL = CellConfig(word_codes=32, lane_bits=4, plane_shift=4, scale_group=32)
WIDE = CellConfig(word_codes=64, lane_bits=2, plane_shift=2, scale_group=64)
SIZES = {
    "a word a beat": (CELL, XBufferSizes(n_words=5, n_inflight=2, n_groups=1, word_blocks=1)),
    "words of two blocks, four groups": (
        WIDE,
        XBufferSizes(n_words=6, n_inflight=3, n_groups=4, word_blocks=2),
    ),
    "one token": (CELL, XBufferSizes(n_words=4, n_inflight=1, n_groups=2, word_blocks=1)),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("is_packed", [True, False])
def test_x_buffer_gives_what_was_broadcast_in_packed_words(name: str, is_packed: bool) -> None:
    config, sizes = SIZES[name]
    config = replace(config, is_packed=is_packed)
    rng = random.Random(3)
    dut = XBuffer(sizes=sizes, config=config)
    blocks: dict[tuple[int, int], tuple[list[int], int]] = {}

    async def beat(ctx: Any, token: int, row: int, mask: int) -> None:
        """Send a beat in which the blocks outside of the mask are noise."""
        for group in range(sizes.n_groups):
            codes = [rng.choice((-127, 127, rng.randrange(-127, 128))) for _ in range(32)]
            shift = rng.randrange(32)
            if mask >> group & 1:
                blocks[token, row * sizes.n_groups + group] = (codes, shift)
            word = sum((c & 255) << 8 * k for k, c in enumerate(codes))
            ctx.set(dut.bc_codes[group], word)
            ctx.set(dut.bc_shift[group], shift)
            ctx.set(dut.bc_sum[group], sum(codes))
        if sizes.n_inflight > 1:
            ctx.set(dut.bc_token, token)
        ctx.set(dut.bc_row, row)
        ctx.set(dut.bc_mask, mask)

    async def bench(ctx: Any) -> None:
        everyone = (1 << sizes.n_groups) - 1
        sent = []
        for token in range(sizes.n_inflight):
            n_blocks = sizes.n_words * sizes.word_blocks - (token == 1)
            for row, first in enumerate(range(0, n_blocks, sizes.n_groups)):
                sent.append((token, row, everyone >> max(0, first + sizes.n_groups - n_blocks)))
        # then some blocks anew, and beats that are none
        sent += [(*rng.choice(sent)[:2], rng.randrange(everyone + 1)) for _ in range(6)]
        for token, row, mask in sent:
            await beat(ctx, token, row, mask)
            ctx.set(dut.bc_en, 1)
            await ctx.tick()
            kept = dict(blocks)
            await beat(ctx, *rng.choice(sent))
            blocks.update(kept)
            ctx.set(dut.bc_en, 0)
            if rng.random() < 0.5:
                await ctx.tick()
        await ctx.tick()
        for token in range(sizes.n_inflight):
            for word in range(sizes.n_words):
                ctx.set(dut.r_en, 1)
                if sizes.n_inflight > 1:
                    ctx.set(dut.r_token, token)
                ctx.set(dut.r_word, word)
                await ctx.tick()
                ctx.set(dut.r_en, 0)
                if rng.random() < 0.5:  # the word stays, whatever is asked for
                    ctx.set(dut.r_word, rng.randrange(sizes.n_words))
                    await ctx.tick()
                ctx.set(dut.v_unpack, 1)
                await ctx.tick()
                ctx.set(dut.v_unpack, 0)
                ctx.set(dut.r_word, rng.randrange(sizes.n_words))
                await ctx.tick()  # the word stays
                for lane in range(sizes.word_blocks):
                    found = blocks.get((token, word * sizes.word_blocks + lane))
                    if found is None:
                        continue
                    codes, shift = found
                    assert ctx.get(dut.shift[lane]) == shift
                    assert ctx.get(dut.total[lane]) == sum(codes)
                    for k in range(config.n_packed):
                        raised = [code + (0 if is_packed else 128) for code in codes]
                        packed = sum(raised[config.lane(k, d)] << 16 * d for d in range(4))
                        got = ctx.get(dut.x[lane * config.n_packed + k])
                        assert got == packed % (1 << 64)

    simulate(dut, bench)


def test_row_is_shifted_multiplied_shifted_and_saturated() -> None:
    rng = random.Random(5)
    dut = Row(ks_logs=(0, 2))
    cases = [
        (rng.randrange(-(1 << bits), 1 << bits), 0, 1, shift)
        for bits in (8, 33, 62)
        for shift in (-128, -40, -32, -31, -3, 0, 1, 5, 20, 31, 40, 62, 63, 64, 127)
    ]
    cases += [
        (rng.randrange(-(1 << 50), 1 << 50), rng.randrange(12, 64), rng.randrange(1 << 24), shift)
        for shift in (-5, 0, 7, 24, 30, 45)
        for _ in range(4)
    ]
    # halves, to even; both ends
    cases += [(value << 9 | 256, 0, 1, 9) for value in (-3, -2, -1, 0, 1, 2, 3)]
    cases += [(value, 1, 1, 0) for value in (-3, -1, 1, 3, 5)]
    cases += [((1 << 63) - 1, 0, 1, 40), (-(1 << 63), 0, 1, 40), (-(1 << 31), 0, 1, 0)]

    for _ in range(500):  # of every size, and where a right shift makes a tie
        bits, pre, shift = rng.randrange(1, 63), rng.randrange(64), rng.randrange(-128, 128)
        room = 62 - max(1, bits - pre)
        multiplier = rng.randrange(1 << min(24, room)) if room > 0 else 0
        cases.append((rng.randrange(-(1 << bits), 1 << bits), pre, multiplier, shift))
    for bit in range(63):  # each bit decides once
        for low in (-1, 0, 1):
            cases += [((1 << bit) + low, 0, 1, 0), (low - (1 << bit), 0, 1, 0)]
    for _ in range(100):  # at the ends of 32 bits
        pre, shift = rng.randrange(30), rng.randrange(-20, 1)
        edge = rng.choice((-1, 1)) * (1 << 31 + min(shift, 0)) + rng.randrange(-2, 3)
        cases.append(((edge << pre) + rng.randrange(-2, 3), pre, 1, shift))
        shift = rng.randrange(1, 30)
        edge = rng.choice((-1, 1)) * (1 << 31 + shift) + rng.randrange(-2, 3) * (1 << shift - 1)
        cases.append((edge, 0, 1, shift))
    for _ in range(300):
        shift = rng.randrange(1, 45)
        total = rng.getrandbits(60 - shift) - (1 << 59 - shift) << shift
        total += (1 << shift - 1) + rng.choice((0, 0, 1, -1))
        cases.append((total, *rng.choice(((0, 1, shift), (shift, 1, 0)))))
    for shift in range(1, 63):  # a power of two beside a tie, of every shift
        for _ in range(6):
            kept = rng.getrandbits(min(20, 62 - shift))
            beside = rng.choice((-1, 1)) << rng.randrange(shift)
            total = (kept << shift) + (1 << shift - 1) + beside
            cases += [(total, 0, 1, shift), (total, shift, 1, 0)]
    for bit in range(31, 63):  # all bits above the result say its sign but one
        for total in (1 << bit, ~(1 << bit)):
            cases += [(total, 0, 1, 0), (total, 0, 1, -3)]

    async def bench(ctx: Any) -> None:
        for number, (total, pre, multiplier, shift) in enumerate(cases):
            choice = number % 2
            ctx.set(dut.sums[choice], total & ((1 << 64) - 1))
            ctx.set(dut.sums[1 - choice], rng.randrange(1 << 64))
            ctx.set(dut.ks_log2, 2 * choice)
            ctx.set(dut.pre_shift, pre)
            ctx.set(dut.multiplier, multiplier)
            ctx.set(dut.out_shift, shift)
            for stage in ("v_pre", "v_times", "v_round"):
                ctx.set(getattr(dut, stage), 1)
                await ctx.tick()
                ctx.set(getattr(dut, stage), 0)
                if stage == "v_pre" or number % 4 == 0:
                    for port in dut.sums:
                        ctx.set(port, rng.randrange(1 << 64))
                if number % 4 == 0:
                    await ctx.tick()
            exact = rne(rne(total, pre) * multiplier, shift)
            assert ctx.get(dut.row) == sat32(exact), (total, pre, multiplier, shift)
            assert ctx.get(dut.clipped) == (exact != sat32(exact))

    simulate(dut, bench)
    assert ROW_CYCLES == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_cells": 3}, "n_cells of the RTL must be a power of two, not 3"),
        ({"ks_logs": ()}, r"ks_logs must be ascending and not empty, not \(\)"),
        ({"ks_logs": (1, 0)}, r"ks_logs must be ascending and not empty, not \(1, 0\)"),
        ({"ks_logs": (0, 3)}, r"ks_logs must be from 0 to 2, not \(0, 3\)"),
    ],
)
def test_tiles_that_the_rtl_cannot_have_are_refused(change: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"n_cells": 4, "rom_rows": 8, "ks_logs": (0,), "cell": CELL}
    values["x"] = SIZES["one token"][1]
    with pytest.raises(SpecError, match=f"^{message}$"):
        LTileConfig(**{**values, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_words": 0}, "n_words must be at least 1, not 0"),
        ({"n_inflight": 0}, "n_inflight must be at least 1, not 0"),
        ({"n_groups": 3}, "n_groups of the RTL must be a power of two, not 3"),
        (
            {"word_blocks": 4},
            "word_codes of an RTL target must be at most its 64 vector lanes, not 128",
        ),
    ],
)
def test_x_buffers_that_the_rtl_cannot_have_are_refused(
    change: dict[str, int], message: str
) -> None:
    values = {"n_words": 4, "n_inflight": 1, "n_groups": 2, "word_blocks": 1}
    with pytest.raises(SpecError, match=f"^{message}$"):
        XBufferSizes(**{**values, **change})
