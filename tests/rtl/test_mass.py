# amaranth: UnusedElaboratable=no
"""Attention mass in RTL, alone, against docs/kv.md, section 3, by Python integers."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from amaranth.hdl import Module

from romsim_compiler.kv_cycles import _UPDATE
from romsim_compiler.kv_sram import MASS_BITS
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.htile_mass import MASS_CYCLES, TileMass
from romsim_rtl.htile_softmax import P_BITS
from romsim_rtl.mass_command import SHARE_SHIFT
from romsim_rtl.mass_side import LEAST_CYCLES, MassSide, build_mass
from romsim_rtl.memory import address_bits
from tests.rtl.attention_golden import rne
from tests.rtl.stepped import simulate
from tests.rtl.vector_bench import TABLES
from tests.rtl.vector_golden import Golden

FULL = (1 << MASS_BITS) - 1
SIZES = AttentionSizes(
    n_tiles=4,
    n_lanes=32,
    word_elems=32,
    heads_parallel=2,
    attn_block=8,
    n_heads=6,
    n_kv_heads=2,
    head_dim=32,
    n_layers=2,
    context=11,
    n_inflight=1,
    broadcast_cycles=1,
    collect_cycles=2,
    heavy=7,
    window=3,
)
"""Passes of two heads and of one, blocks of eight slots."""


def test_a_tile_adds_shares_until_the_mass_is_full_and_finds_the_least() -> None:
    """Ties, full masses, rows that the tile has not, newest tokens; a slot a cycle."""
    sizes = replace(SIZES, n_tiles=2)
    rng = random.Random(8)
    tile, bits = TileMass(sizes=sizes), SHARE_SHIFT.bit_length()
    words: dict[int, tuple[int, bool]] = {}  # by address: mass, whether one of the newest
    masses: list[int] = []

    def lane(number: int) -> tuple[int, int, int]:
        """A numerator, a reciprocal and a shift."""
        if number % 20 == 19:  # the largest there can be
            return 65535, 1 << 31, 15
        if number % 3:  # of two of three KV heads masses are often equal
            return rng.choice((0, 1 << 15)), 1 << 30, rng.choice((29, SHARE_SHIFT))
        return rng.getrandbits(16), rng.getrandbits(32), rng.randrange(15, SHARE_SHIFT + 1)

    async def bench(ctx: Any) -> None:
        command, best = tile.command, tile.best
        ctx.set(tile.tile, 1)
        now = 0
        expected: dict[int, tuple[int, int] | None] = {}
        numerators: dict[int, int] = {}  # by the cycle in which they come

        async def tick() -> None:
            nonlocal now
            await ctx.tick()
            now += 1
            ctx.set(tile.p, numerators.pop(now, rng.getrandbits(2 * P_BITS)))
            ctx.set(command.en, 0)
            if now in expected:
                least = expected.pop(now)
                assert ctx.get(best.valid) == (least is not None)
                if least is not None:
                    assert (ctx.get(best.mass), ctx.get(best.row)) == least

        for number in range(60):
            kv, n_rows = number % 3, rng.randrange(1, 6)
            n_there = n_rows - (rng.random() < 0.4)
            least = None
            for row in range(n_rows):
                address, is_last = 8 * kv + row, row == n_rows - 1
                is_new = address not in words or rng.random() < 0.1
                leaves = not is_new and rng.random() < 0.4
                mass, is_newest = words.get(address, (0, True))
                mass, is_newest = 0 if is_new else mass, is_new or (is_newest and not leaves)
                n_passes = 200 if number % 20 == 19 and row == 0 else rng.choice((1, 1, 2, 3))
                for number_of_pass in range(n_passes):
                    elsewhere = rng.random() < 0.3
                    lanes = [lane(number) for _ in range(2)]
                    mass = min(FULL, mass + sum(rne(p * y, shift) for p, y, shift in lanes))
                    fields = {
                        "en": 1,
                        "p_slot": rng.randrange(32),
                        "addr": address,
                        "row": row,
                        "first_pass": number_of_pass == 0,
                        "last_pass": number_of_pass == n_passes - 1,
                        "first_row": row == 0,
                        "last_row": is_last,
                        "last_valid": row < n_there if is_last else rng.randrange(2),
                        "is_new": is_new or elsewhere,
                        "new_tile": is_new,
                        "leaves": leaves or elsewhere,
                        "left_tile": leaves,
                        "y": lanes[0][1] | lanes[1][1] << 32,
                        "shift": lanes[0][2] | lanes[1][2] << bits,
                    }
                    for name, value in fields.items():
                        ctx.set(getattr(command, name), int(value))
                    assert ctx.get(tile.p_en)
                    assert ctx.get(tile.p_slot) == fields["p_slot"]
                    numerators[now + 1] = lanes[0][0] | lanes[1][0] << P_BITS
                    await tick()
                if row < n_there:
                    words[address] = mass, is_newest
                    masses.append(mass)
                    if not is_newest and (least is None or mass < least[0]):
                        least = mass, row
            expected[now - 1 + MASS_CYCLES] = least
            for _ in range(rng.choice((0, 0, 3))):
                await tick()
        for _ in range(MASS_CYCLES):
            await tick()
        assert not expected

    simulate(tile, bench)
    assert FULL in masses


class Slots:
    """H2O's slots of one layer, as the page has them."""

    def __init__(self, sizes: AttentionSizes) -> None:
        self.sizes = sizes
        self.mass: list[dict[int, int]] = [{} for _ in range(sizes.n_kv_heads)]
        self.tokens: list[dict[int, int]] = [{} for _ in range(sizes.n_kv_heads)]  # by slot
        self.free: list[int] = []

    def step(self, token: int, shares: list[list[int]]) -> None:
        """Add each head's shares by slot; drop what is dropped."""
        sizes = self.sizes
        budget = sizes.heavy + sizes.window
        slots = [token] * sizes.n_kv_heads if token <= budget else self.free
        freed = []
        for kv, slot in enumerate(slots):
            self.tokens[kv][slot], self.mass[kv][slot] = token, 0
            for head in range(kv * sizes.heads_per_kv, (kv + 1) * sizes.heads_per_kv):
                for held in self.tokens[kv]:
                    self.mass[kv][held] += shares[head][held]
            old = [s for s, t in self.tokens[kv].items() if t <= token - sizes.window]
            if len(self.tokens[kv]) > budget:
                freed.append(min(old, key=lambda s: (self.mass[kv][s], s)))
                del self.tokens[kv][freed[-1]]
        self.free = freed


SHAPES = {
    "four tiles": SIZES,
    "slots that fill no block": replace(SIZES, attn_block=32),
    "one tile and head": replace(
        SIZES, n_tiles=1, n_heads=1, n_kv_heads=1, heads_parallel=1, heavy=5, window=6, context=12,
        broadcast_cycles=0, collect_cycles=0,
    ),
    "as many newest as may be": replace(SIZES, n_tiles=2, heavy=0, window=10, broadcast_cycles=3),
    "pages": replace(SIZES, block=2, n_heads=2, n_layers=2),
    "a tile a slot": replace(SIZES, n_tiles=8, n_heads=2, heavy=9, window=1, heads_parallel=1),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (n > 1)) for n, name in enumerate(SHAPES)],
)
def test_each_kv_head_frees_the_slot_of_least_mass(name: str) -> None:
    """Two layers in turn, a sequence of four times the budget, and another from position 0."""
    sizes = SHAPES[name]
    golden, rng = Golden(TABLES), random.Random(name)
    m = Module()
    m.submodules.side = side = MassSide(sizes=sizes)
    tiles = [TileMass(sizes=sizes) for _ in range(sizes.n_tiles)]
    for index, tile in enumerate(tiles):
        m.submodules[f"tile{index}"] = tile
    faces = [SimpleNamespace(mass=tile.command, best=tile.best) for tile in tiles]
    build_mass(m, sizes, side, faces)
    slot_bits, lanes = address_bits(sizes.context), sizes.heads_parallel
    word_bits = address_bits(sizes.n_entries * sizes.block_slots)
    freed: list[list[int]] = []
    rows = [rng.randrange(sizes.tile_tokens) for _ in range(sizes.context)]  # of pages

    async def attend(ctx: Any, layer: int, token: int, slots: Slots) -> None:
        """One ``attn``: maxima of blocks, then sums, then the pass over the slots."""
        n_held = min(token + 1, sizes.context)
        n_blocks = -(-n_held // sizes.attn_block)
        ctx.set(side.begins, 1)
        ctx.set(side.pos, token)
        ctx.set(side.layer, layer)
        await ctx.tick()
        ctx.set(side.begins, 0)
        ctx.set(side.pos, rng.getrandbits(16))
        tops = [[rng.randrange(-3, 3) for _ in range(n_blocks)] for _ in range(sizes.n_heads)]
        p = [[rng.choice((0, 1 << 14, 65535)) for _ in range(n_held)] for _ in tops]
        sums = [rng.choice((1 << 15, 1 << 16, 100_000, 1)) for _ in tops]
        if layer:  # of few values, so that masses are often equal
            tops = [[0] * n_blocks for _ in tops]
            p = [[(rng.random() < 0.1) << 15 for _ in range(n_held)] for _ in tops]
            sums = [1 << 16 for _ in tops]
        elif rng.random() < 0.2:
            tops[0][0] = rng.choice((-(1 << 15), 1 << 15))
        for head, row in enumerate(tops):
            entry, lane = sizes.place_head(head)
            for block, value in enumerate(row):
                ctx.set(side.max_en, 1)
                ctx.set(side.max_block, block)
                ctx.set(side.max_entry, entry)
                ctx.set(side.max_lane, lane)
                ctx.set(side.max_value, value & (1 << 17) - 1)
                await ctx.tick()
        ctx.set(side.max_en, 0)
        ctx.set(side.ends, 1)
        await ctx.tick()
        ctx.set(side.ends, 0)
        n_cycles = 0
        while ctx.get(side.busy):
            answers = {}
            for index, tile in enumerate(tiles):
                if ctx.get(tile.p_en):
                    block, word = divmod(ctx.get(tile.p_slot), 1 << word_bits)
                    entry, row = divmod(word, sizes.block_slots)
                    slot = block * sizes.attn_block + row * sizes.n_tiles + index
                    value = 0
                    for lane in range(lanes):
                        kv, in_pass = divmod(entry, sizes.n_passes)
                        inside = in_pass * lanes + lane
                        numerator = rng.getrandbits(P_BITS)  # where no head is
                        if inside < sizes.heads_per_kv and slot < n_held:
                            numerator = p[kv * sizes.heads_per_kv + inside][slot]
                        value |= numerator << P_BITS * lane
                    answers[index] = value
            read = ctx.get(side.head) if ctx.get(side.head_en) else None
            page = ctx.get(side.r_page) if sizes.block and ctx.get(side.r_en) else None
            await ctx.tick()
            n_cycles += 1
            if sizes.block:
                wrong = rng.randrange(sizes.tile_tokens)
                ctx.set(side.r_row, wrong if page is None else rows[page])
            for index, value in answers.items():
                ctx.set(tiles[index].p, value)
            ctx.set(side.l, rng.getrandbits(32) if read is None else sums[read])
            ctx.set(side.m, rng.getrandbits(16) if read is None else max(tops[read]))
        hop = sizes.broadcast_cycles + sizes.collect_cycles
        n_rows = -(-n_held // sizes.n_tiles)
        last = LEAST_CYCLES + (sizes.block > 0)
        assert n_cycles == sizes.n_entries * n_rows + sizes.n_heads + hop + last
        shares = []
        for head, row in enumerate(tops):
            y, length = golden.recip(sums[head])
            shares.append([
                rne(p[head][slot] * y, 14 + length + max(row) - row[slot // sizes.attn_block])
                for slot in range(n_held)
            ])  # fmt: skip
        slots.step(token, shares)
        ctx.set(side.looked_layer, layer)
        ctx.set(side.looks, 1)
        await ctx.tick()
        ctx.set(side.looks, 0)
        found = ctx.get(side.free)
        width = len(side.free) // sizes.n_kv_heads
        for kv, slot in enumerate(slots.free):
            word = found >> width * kv & (1 << width) - 1
            assert word & (1 << slot_bits) - 1 == slot
            if sizes.block:  # pages of one row in a tile
                assert word >> slot_bits == rows[slot // sizes.block]
        freed.append(slots.free)

    async def bench(ctx: Any) -> None:
        for index, tile in enumerate(tiles):
            if sizes.n_tiles > 1:
                ctx.set(tile.tile, index)
        for n_tokens in (4 * (sizes.heavy + sizes.window), sizes.heavy + sizes.window + 3):
            layers = [Slots(sizes) for _ in range(sizes.n_layers)]
            for token in range(n_tokens):
                for layer, slots in enumerate(layers):
                    # the slots that ``rope`` looked up stand while the layer attends
                    ctx.set(side.looked_layer, layer)
                    ctx.set(side.looks, 1)
                    await ctx.tick()
                    ctx.set(side.looks, 0)
                    await attend(ctx, layer, token, slots)

    simulate(m, bench)
    assert len({tuple(slots) for slots in freed}) > (2 if sizes.heavy else 1)


def test_the_pass_takes_what_the_closed_form_says() -> None:
    assert LEAST_CYCLES == _UPDATE
