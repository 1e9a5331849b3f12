# amaranth: UnusedElaboratable=no
from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Module, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.exact_shift import round_shift_exact, shift_either, shift_to_saturate
from tests.rtl.attention_golden import rne, sat32, shr
from tests.rtl.stepped import simulate


class Shifts(wiring.Component):
    def __init__(self) -> None:
        super().__init__(
            {
                "value": In(signed(64)),
                "small": In(signed(21)),
                "amount": In(signed(9)),
                "rounded": Out(signed(64)),
                "either": Out(signed(64)),
                "saturating": Out(signed(64)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        right = round_shift_exact(m, "r", self.value, self.amount[:6], self.amount >= 63)
        m.d.comb += [
            self.rounded.eq(right),
            self.either.eq(shift_either(m, "e", self.small, self.amount)),
            self.saturating.eq(shift_to_saturate(m, "s", self.value, self.amount)),
        ]
        return m


def cases() -> Iterator[tuple[int, int, int]]:
    rng = random.Random(1)
    edges = [0, 1, -1, 2**62, -(2**62), 2**63 - 1, -(2**63), 2**31, 2**31 - 1, -(2**31), 3, -3]
    for amount in [*range(-43, 80), 96, 127, 128, 160, 192, 255]:
        for value in edges:
            yield value, max(-(2**20), min(2**20 - 1, value)), amount
        for _ in range(6):
            value = rng.getrandbits(rng.randrange(1, 64)) * rng.choice((-1, 1))
            if 0 < amount < 63 and rng.random() < 0.5:  # a tie
                value = (value >> amount << amount) + (1 << amount - 1)
                value = max(-(2**63), min(2**63 - 1, value))
            yield value, rng.randrange(-(2**20), 2**20), amount
    # a tie that one bit breaks, and one that bits beyond it leave alone
    for amount in range(1, 63):
        for bit in {*range(amount - 1), *range(amount, 62)}:
            value = (1 << amount - 1) + (1 << bit)
            for sign in (1, -1):
                small = sign * ((1 << min(amount, 20) - 1) + (1 << bit % 20))
                yield sign * value, max(-(2**20), min(2**20 - 1, small)), amount


def test_shifts_are_the_pages() -> None:
    top = Shifts()
    n_clipped = 0

    async def bench(ctx: Any) -> None:
        nonlocal n_clipped
        for value, small, amount in cases():
            ctx.set(top.value, value)
            ctx.set(top.small, small)
            ctx.set(top.amount, amount)
            if amount >= 0:
                assert ctx.get(top.rounded) == rne(value, amount), (value, amount)
            if amount > -43:  # to the left, a result fits 64 bits by the compiler's bound
                assert ctx.get(top.either) == shr(small, amount), (small, amount)
            expected = sat32(shr(value, amount))
            assert sat32(ctx.get(top.saturating)) == expected, (value, amount)
            n_clipped += expected[1]

    simulate(top, bench)
    assert n_clipped > 100
