# amaranth: UnusedElaboratable=no
from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module, Signal, signed

from romsim_rtl.primitives import (
    add_tree,
    bit_length,
    left_shift,
    magnitude,
    popcount,
    round_shift,
    round_shift_by,
    saturate32,
    wire,
)
from tests.rtl.stepped import simulate
from tests.rtl.vector_golden import HIGH, LOW, rne


def check(m: Module, cases: list[tuple[list[tuple[Signal, int]], Signal, int]]) -> None:
    """Set inputs, compare an output, for each case."""

    async def bench(context: Any) -> None:
        for inputs, output, wanted in cases:
            for signal, value in inputs:
                context.set(signal, value)
            assert context.get(output) == wanted, (inputs, wanted)

    found: dict[int, tuple[Signal, str]] = {}
    for inputs, output, _ in cases:
        found |= {id(signal): (signal, "i") for signal, _ in inputs}
        found[id(output)] = (output, "o")
    ports = {f"{way}{number}": (port, way) for number, (port, way) in enumerate(found.values())}
    simulate(m, bench, ports=ports)


def corners(bits: int, n: int, seed: int) -> list[int]:
    rnd = random.Random(seed)
    top = 1 << (bits - 1)
    edges = [0, 1, -1, 2, -2, 3, -3, top - 1, -top, top // 2, -top // 2, 5, -5]
    return edges + [rnd.randrange(-(1 << k), 1 << k) for k in rnd.choices(range(1, bits), k=n)]


@pytest.mark.parametrize("shift", [1, 2, 7, 20])
def test_round_shift_by_a_constant_goes_to_the_nearest_even(shift: int) -> None:
    m = Module()
    value, result = Signal(signed(40)), Signal(signed(41))
    m.d.comb += result.eq(round_shift(value, shift))
    ties = [(2 * k + 1) << (shift - 1) for k in range(-4, 4)]
    values = [*corners(39, 60, shift), *ties]
    check(m, [([(value, v)], result, rne(v, shift)) for v in values])


def test_round_shift_by_a_signal_goes_to_the_nearest_even_for_every_shift() -> None:
    m = Module()
    value, shift, result = Signal(signed(40)), Signal(6), Signal(signed(40))
    m.d.comb += result.eq(round_shift_by(value, shift))
    cases = []
    for by in range(39):
        # the value must fit, and with the half that is added
        for v in [*corners(38, 8, by), *((2 * k + 1) << by >> 1 for k in range(-3, 3))]:
            if -(1 << 39) <= v < (1 << 39) - (1 << by >> 1):
                cases.append(([(value, v), (shift, by)], result, rne(v, by)))
    check(m, cases)


def test_saturate_clips_to_int32_and_says_so() -> None:
    m = Module()
    value, result, clipped = Signal(signed(50)), Signal(signed(32)), Signal()
    number, flag = saturate32(value)
    m.d.comb += [result.eq(number), clipped.eq(flag)]
    values = [*corners(50, 50, 1), HIGH, HIGH + 1, LOW, LOW - 1]
    for bit in range(50):  # each bit decides once, in a positive and in a negative number
        values += [
            (HIGH ^ 1 << bit if bit < 49 else HIGH - (1 << 49)),
            (LOW ^ 1 << bit if bit < 49 else LOW + (1 << 49)),
        ]
    cases = [([(value, v)], result, max(LOW, min(HIGH, v))) for v in values]
    cases += [([(value, v)], clipped, int(not LOW <= v <= HIGH)) for v in values]
    check(m, cases)


def test_magnitude_holds_the_most_negative_number() -> None:
    m = Module()
    value, result = Signal(signed(32)), Signal(32)
    m.d.comb += result.eq(magnitude(value))
    check(m, [([(value, v)], result, abs(v)) for v in corners(32, 50, 2)])


@pytest.mark.parametrize("bits", [8, 64])
def test_bit_length_of_every_power_of_two_and_its_neighbours(bits: int) -> None:
    m = Module()
    value, result = Signal(bits), Signal(8)
    m.d.comb += result.eq(bit_length(m, value, "length"))
    values = {0, 1, (1 << bits) - 1}
    for k in range(1, bits):
        values |= {1 << k, (1 << k) - 1, (1 << k) + 1}
    check(m, [([(value, v)], result, v.bit_length()) for v in sorted(values)])


def test_left_shift_keeps_the_sign() -> None:
    m = Module()
    value, shift, result = Signal(signed(10)), Signal(4), Signal(signed(26))
    m.d.comb += result.eq(left_shift(value, shift, 26))
    check(
        m,
        [
            ([(value, v), (shift, by)], result, v << by)
            for by in (0, 1, 15)
            for v in (0, 1, -1, 511, -512, 77)
        ],
    )


def test_sums_of_signed_terms_and_of_bits() -> None:
    m = Module()
    terms = [Signal(signed(8), name=f"term{k}") for k in range(5)]
    total, bits, ones = Signal(signed(12)), Signal(7), Signal(3)
    m.d.comb += [total.eq(wire(m, add_tree(list(terms)), "sum")), ones.eq(popcount(bits))]
    rnd = random.Random(4)
    cases = []
    for _ in range(30):
        values = [rnd.randrange(-128, 128) for _ in terms]
        cases.append((list(zip(terms, values, strict=True)), total, sum(values)))
        pattern = rnd.getrandbits(7)
        cases.append(([(bits, pattern)], ones, pattern.bit_count()))
    check(m, cases)
