# amaranth: UnusedElaboratable=no
"""Multiply lanes for affine codes and for words against the page, in Amaranth's simulator."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Cat, Module, Signal

from romsim_rtl.half_words import WORD_FRAC
from romsim_rtl.htile_affine import affine_term, affine_value
from romsim_rtl.htile_kivi import decode_kivi
from romsim_rtl.htile_words import decode_half, words_term, words_value
from tests.rtl.attention_golden import rne, shr
from tests.rtl.stepped import simulate

LARGEST = 30 << 10  # the word of 2^31


def integer(word: int) -> int:
    """What a 16-bit word stands for."""
    exponent, fraction = word >> 10 & 31, word & 1023
    size = (fraction + (1024 if exponent else 0) << max(exponent, 1)) >> WORD_FRAC
    return -size if word >> 15 else size


def random_word(rng: random.Random, largest: int) -> int:
    """A magnitude's word; subnormal ones stand for 1, 2 and 3."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice((0, 1 << 8, 2 << 8, 3 << 8, 1 << 10, largest))
    exponent = rng.randrange(1, largest >> 10)
    kept = min(10, exponent - 1)  # an integer: no bits below one
    return exponent << 10 | rng.randrange(1 << kept) << 10 - kept


def groups(rng: random.Random, bits: int, n: int) -> list[tuple[list[int], int, int]]:
    """Codes, zero and scale: extremes first; values stay below 2^31 in magnitude as keys do."""
    top = (1 << bits) - 1
    scales = {4: 27 << 10 | 136, 2: 29 << 10 | 341}  # the largest range: 2^32 / 15, 2^32 / 3
    found = [
        ([top] * 32, LARGEST | 1 << 15, scales[bits]),
        ([0] * 32, LARGEST | 1 << 15, scales[bits]),
        ([0] * 32, LARGEST, 0),
        ([top] * 32, 0, 1 << 8),
    ]
    for _ in range(n):
        zero = random_word(rng, LARGEST) | rng.randrange(2) << 15
        codes = [rng.randrange(top + 1) for _ in range(32)]
        found.append((codes, zero, random_word(rng, scales[bits])))
    return found


def run(top: Any, inputs: dict[str, tuple[Any, list[int]]], output: Any, wanted: list[int]) -> None:
    """Give one of each a cycle and compare the output, which begins some cycles later."""
    delay = len(wanted) - len(next(iter(inputs.values()))[1])

    async def bench(context: Any) -> None:
        for cycle, value in enumerate(wanted):
            for port, values in inputs.values():
                if cycle < len(values):
                    context.set(port, values[cycle])
            if cycle >= delay:
                assert context.get(output) == value, cycle
            await context.tick()

    ports = {name: (port, "i") for name, (port, _) in inputs.items()}
    simulate(top, bench, ports=ports | {"out": (output, "o")})


def pack(values: list[int], bits: int) -> int:
    mask = (1 << bits) - 1
    return sum((value & mask) << bits * index for index, value in enumerate(values))


@pytest.mark.parametrize("bits", [2, 4])
def test_a_term_is_the_rounded_product_of_query_and_decoded_key(bits: int) -> None:
    rng = random.Random(1)
    keys = groups(rng, bits, 150)
    queries = [[127] * 32, [-127] * 32, [-127, 127] * 16, [1] + [0] * 31]
    queries += [[rng.randrange(-127, 128) for _ in range(32)] for _ in keys[4:]]
    shifts = [25, 25, 25, 0] + [rng.randrange(26) for _ in keys[4:]]
    absent = [0, 0, 0, 0] + [int(rng.random() < 0.1) for _ in keys[4:]]
    wanted = [0] * 4
    n_rounded = 0
    for (codes, zero, scale), query, shift, is_absent in zip(
        keys, queries, shifts, absent, strict=True
    ):
        seen = [integer(zero) + code * integer(scale) for code in codes]
        product = sum(q * k for q, k in zip(query, seen, strict=True))
        n_rounded += shift < 16 and product % (1 << 16 - shift) != 0
        wanted.append(0 if is_absent else shr(product, 16 - shift))
    assert n_rounded > 20

    m = Module()
    ports = {
        "codes": (Signal(32 * bits), [pack(codes, bits) for codes, _, _ in keys]),
        "block": (Signal(32), [zero | scale << 16 for _, zero, scale in keys]),
        "query": (Signal(256), [pack(query, 8) for query in queries]),
        "query_shift": (Signal(5), shifts),
        "is_absent": (Signal(), absent),
    }
    ones = [Signal(init=1, name=f"one{index}") for index in range(4)]
    term = affine_term(m, ones, "0", **{name: port for name, (port, _) in ports.items()})
    out = Signal(64, name="out")
    m.d.comb += out.eq(term)
    run(m, ports, out, [value & (1 << 64) - 1 for value in wanted])


@pytest.mark.parametrize("bits", [2, 4])
def test_sums_are_of_numerators_times_decoded_values(bits: int) -> None:
    rng = random.Random(2)
    values = groups(rng, bits, 150)
    numerators = [1 << 15, 1 << 15, 1 << 15, 1] + [
        rng.choice((0, 1 << 15, rng.randrange(1 << 15))) for _ in values[4:]
    ]
    first = [1, 0, 0, 0] + [int(rng.random() < 0.1) for _ in values[4:]]
    sums, wanted = [0] * 32, [0] * 3
    for (codes, zero, scale), p, is_first in zip(values, numerators, first, strict=True):
        seen = [integer(zero) + code * integer(scale) for code in codes]
        sums = [(0 if is_first else s) + p * v for s, v in zip(sums, seen, strict=True)]
        assert max(map(abs, sums)) < 1 << 63
        wanted.append(pack(sums, 64))

    m = Module()
    ports = {
        "codes": (Signal(32 * bits), [pack(codes, bits) for codes, _, _ in values]),
        "block": (Signal(32), [zero | scale << 16 for _, zero, scale in values]),
        "p": (Signal(16), numerators),
    }
    begins = (Signal(), first)
    late = [Signal(name=f"first{index}") for index in range(2)]
    m.d.sync += [late[0].eq(begins[0]), late[1].eq(late[0])]
    ones = [Signal(init=1, name=f"one{index}") for index in range(3)]
    made = affine_value(m, ones, late[1], "0", **{name: port for name, (port, _) in ports.items()})
    out = Signal(64 * 32, name="out")
    m.d.comb += out.eq(Cat(made))
    run(m, {**ports, "first": begins}, out, wanted)


def test_a_tie_goes_to_the_even_score() -> None:
    assert [rne(value, 1) for value in (1, 3, -1, -3)] == [0, 2, 0, -2]
    m = Module()
    codes, block, query = Signal(64), Signal(32), Signal(256)
    ones = [Signal(init=1, name=f"one{index}") for index in range(4)]
    term = affine_term(
        m, ones, "0", codes=codes, block=block, query=query, query_shift=Signal(5, init=15)
    )
    out = Signal(64, name="out")
    m.d.comb += out.eq(term)
    # a code of 1 with a scale of 1, times the query, times 2^15, is half of it
    queries = [1, 3, -1, -3, 5, -5]
    inputs = {
        "codes": (codes, [1] * 6),
        "block": (block, [1 << 24] * 6),
        "query": (query, [value & 255 for value in queries]),
    }
    wanted = [rne(value, 1) & (1 << 64) - 1 for value in queries]
    run(m, inputs, out, [0] * 4 + wanted)


def halves(rng: random.Random, n: int) -> list[list[int]]:
    """Blocks of 32 words: the largest of both signs, the smallest, and others."""
    found = [[LARGEST] * 32, [LARGEST | 1 << 15] * 32, [0] * 32, [1 << 8, 1 << 15 | 3 << 8] * 16]
    for _ in range(n):
        found.append([random_word(rng, LARGEST) | rng.randrange(2) << 15 for _ in range(32)])
    return found


def by_half(blocks: list[list[int]]) -> list[int]:
    return [pack(block[at : at + 16], 16) for block in blocks for at in (0, 16)]


def test_a_term_of_words_is_rounded_when_both_halves_are_there() -> None:
    rng = random.Random(3)
    keys = halves(rng, 80)
    queries = [[127] * 32, [-127] * 32, [127] * 32, [1] + [0] * 31]
    queries += [[rng.randrange(-127, 128) for _ in range(32)] for _ in keys[4:]]
    shifts = [25, 25, 0, 0] + [rng.randrange(26) for _ in keys[4:]]
    absent = [0, 0, 0, 0] + [int(rng.random() < 0.1) for _ in keys[4:]]
    wanted: list[int] = []
    for words, query, shift, is_absent in zip(keys, queries, shifts, absent, strict=True):
        product = sum(q * integer(word) for q, word in zip(query, words, strict=True))
        wanted.append(0 if is_absent else shr(product, 16 - shift) & (1 << 64) - 1)

    m = Module()
    ports = {
        "words": (Signal(256), by_half(keys)),
        "query": (Signal(256), [pack(query, 8) for query in queries for _ in range(2)]),
        "query_shift": (Signal(5), [shift for shift in shifts for _ in range(2)]),
        "is_absent": (Signal(), [one for one in absent for _ in range(2)]),
        "is_second": (Signal(), [0, 1] * len(keys)),
    }
    of = {name: port for name, (port, _) in ports.items()}
    ones = [Signal(init=1, name=f"one{index}") for index in range(3)]
    first_half = Signal()
    m.d.sync += first_half.eq(~of["is_second"])
    seen = decode_half(
        m, ones[0], "", words=of["words"], is_second=of["is_second"], is_absent=of["is_absent"]
    )
    term = words_term(
        m,
        ones,
        "",
        seen=seen,
        query=of["query"],
        query_shift=of["query_shift"],
        first_half=first_half,
    )
    # in the cycle after a second half's term, that of the next first half stands there
    out, is_out = Signal(64, name="out"), [Signal(name=f"out{index}") for index in range(3)]
    m.d.sync += [
        is_out[0].eq(of["is_second"]),
        is_out[1].eq(is_out[0]),
        is_out[2].eq(is_out[1]),
    ]
    with m.If(is_out[2]):
        m.d.comb += out.eq(term)
    run(m, ports, out, [0] * 3 + [value for one in wanted for value in (0, one)])


def test_sums_of_words_begin_with_a_first_half() -> None:
    rng = random.Random(4)
    values = halves(rng, 80)
    numerators = [1 << 15] * 4 + [rng.choice((0, rng.randrange(1 << 15))) for _ in values[4:]]
    first = [1, 0, 0, 0] + [int(rng.random() < 0.1) for _ in values[4:]]
    sums, wanted = [0] * 32, [0] * 3
    for words, p, is_first in zip(values, numerators, first, strict=True):
        sums = [0 if is_first else s for s in sums]
        for half in (0, 16):
            for lane in range(half, half + 16):
                sums[lane] += p * integer(words[lane])
            wanted.append(pack(sums, 64))

    m = Module()
    begins = [one and not half for one in first for half in (0, 1)]
    ports = {
        "words": (Signal(256), by_half(values)),
        "p": (Signal(16), [p for p in numerators for _ in range(2)]),
        "is_second": (Signal(), [0, 1] * len(values)),
        "first": (Signal(), [int(one) for one in begins]),
    }
    of = {name: port for name, (port, _) in ports.items()}
    late = [Signal(name=f"late{index}") for index in range(2)]
    m.d.sync += [late[0].eq(of["first"]), late[1].eq(late[0])]
    ones = [Signal(init=1, name=f"one{index}") for index in range(3)]
    seen = decode_half(m, ones[0], "", words=of["words"], is_second=of["is_second"])
    made = words_value(m, ones, late[1], "", seen=seen, p=of["p"])
    out = Signal(64 * 32, name="out")
    m.d.comb += out.eq(Cat(made))
    run(m, ports, out, wanted)


@pytest.mark.parametrize(("bits", "n_affine"), [(4, 32), (2, 1)])
def test_words_and_codes_become_the_integers_that_attention_sees(bits: int, n_affine: int) -> None:
    """Keys with zero and scale of each channel, values with one pair for all; 33 bits suffice."""
    rng = random.Random(5)
    inputs: dict[str, list[int]] = {
        name: [] for name in ("words", "codes", "affine", "is_code", "is_second", "is_absent")
    }
    wanted = [0, 0]
    for codes, zero, scale in groups(rng, bits, 120):
        others = groups(rng, bits, n_affine)[: n_affine - 1]
        pairs = [(zero, scale), *((z, s) for _, z, s in others)]
        words = halves(rng, 1)[rng.randrange(5)][:16]
        is_code, is_second, is_absent = (rng.random() < share for share in (0.5, 0.4, 0.1))
        seen = [0] * 32
        if is_code and not is_second:
            of = [pairs[lane % len(pairs)] for lane in range(32)]
            seen = [integer(z) + c * integer(s) for c, (z, s) in zip(codes, of, strict=True)]
        elif not is_code:
            seen[16 * is_second : 16 * is_second + 16] = [integer(word) for word in words]
        wanted.append(0 if is_absent else pack(seen, 33))
        inputs["words"].append(pack(words, 16))
        inputs["codes"].append(pack(codes, bits))
        inputs["affine"].append(pack([z | s << 16 for z, s in pairs], 32))
        for name, value in (("code", is_code), ("second", is_second), ("absent", is_absent)):
            inputs[f"is_{name}"].append(int(value))

    m = Module()
    widths = {"words": 256, "codes": 32 * bits, "affine": 32 * n_affine}
    ports = {name: (Signal(widths.get(name, 1), name=name), v) for name, v in inputs.items()}
    of_ports = {name: port for name, (port, _) in ports.items()}
    affine = of_ports.pop("affine")
    pairs_of = [affine.word_select(index, 32) for index in range(n_affine)]
    ones = [Signal(init=1, name=f"one{index}") for index in range(2)]
    out = Signal(33 * 32, name="out")
    m.d.comb += out.eq(Cat(decode_kivi(m, ones, "", affine=pairs_of, **of_ports)))
    run(m, ports, out, wanted)
