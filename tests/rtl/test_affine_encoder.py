# amaranth: UnusedElaboratable=no
from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from amaranth.hdl import Module, Signal

from romsim.reference.kv_codes import affine, fp16
from romsim_compiler.tables import tables
from romsim_models.errors import SpecError
from romsim_rtl.affine_encoder import (
    ENCODER_CYCLES,
    AffineEncoder,
    share_bounds,
    significand_inverses,
)
from romsim_rtl.half_words import split_word, to_word
from romsim_rtl.mx_quantizer import QUANTIZER_CYCLES
from romsim_rtl.word_encoder import WordEncoder
from tests.rtl.stepped import simulate
from tests.rtl.vector_golden import HIGH, LOW

RCP = [int(value) for value in tables()["RCP"]]


def groups() -> list[list[int]]:
    """Constant groups, the extremes, ties of every rounding, and values of all sizes."""
    rnd = random.Random(3)
    found = [[value] * 32 for value in (0, 5, -5, LOW, HIGH, 1 << 20, -(1 << 20) - 1)]
    found += [[LOW, HIGH] * 16, [LOW] * 31 + [HIGH], [HIGH] * 31 + [LOW], [0] * 31 + [1]]
    found += [[-1, 0] * 16, [0, 1, 2, 3] * 8, list(range(32)), list(range(-16, 16))]
    for bits in (12, 13, 20, 31):  # zeros and scales half way between two words
        unit = 1 << bits - 12
        for odd in (2049, 2051, 4095):
            low = -odd * unit
            found += [[low] + [low + 15 * k * unit for k in range(31)]]
            found += [[low, min(HIGH, low + 15 * odd * unit // 2)] * 16]
    for step in (1, 2, 6, 1 << 12):  # values half way between two codes
        found.append([step * k for k in range(31)] + [30 * step])
        found.append([LOW + step * k for k in range(31)] + [LOW + 30 * step])
    for _ in range(60):
        bits, at = rnd.randrange(1, 32), rnd.randrange(LOW, HIGH) >> rnd.randrange(32)
        values = [at + rnd.randrange(-(1 << bits), 1 << bits) for _ in range(32)]
        found.append([min(HIGH, max(LOW, value)) for value in values])
    return found


@pytest.mark.parametrize("code_bits", [2, 4])
def test_groups_come_out_seven_cycles_later(code_bits: int) -> None:
    """One a cycle and with pauses, in which noise comes."""
    rnd = random.Random(2)
    encoder = AffineEncoder(code_bits=code_bits, table=RCP)
    given: list[list[int] | None] = list(groups())
    wanted = affine(torch.tensor(given, dtype=torch.float64), code_bits)
    for _ in range(30):
        given.insert(rnd.randrange(len(given)), None)
    results: list[tuple[Any, ...] | None] = [None] * ENCODER_CYCLES
    number = 0
    for group in given:
        if group is None:
            results.append(None)
            continue
        codes = [int(code) for code in wanted.codes[number]]
        results.append((codes, int(wanted.zero[number]), int(wanted.scale[number])))
        number += 1
    seen = {tuple(codes) for one in results if one for codes in [one[0]]}
    assert len(seen) > 50

    async def bench(context: Any) -> None:
        for cycle, result in enumerate(results):
            group = given[cycle] if cycle < len(given) else None
            context.set(encoder.start, group is not None)
            values = group or [rnd.getrandbits(32) - (1 << 31) for _ in range(32)]
            for port, value in zip(encoder.values, values, strict=True):
                context.set(port, value)
            assert context.get(encoder.done) == (result is not None)
            if result is not None:
                word = context.get(encoder.codes)
                mask = (1 << code_bits) - 1
                codes = [word >> code_bits * lane & mask for lane in range(32)]
                got = (codes, context.get(encoder.zero), context.get(encoder.scale))
                assert got == result, (cycle, given[cycle - ENCODER_CYCLES])
            await context.tick()

    simulate(encoder, bench)


def test_encoders_of_one_group_share_its_bounds() -> None:
    """Two of 32 values each give the codes of 64, with one zero and scale."""
    rnd = random.Random(6)
    halves = groups()
    given = [a + b for a, b in zip(halves, rnd.sample(halves, len(halves)), strict=True)]
    wanted = affine(torch.tensor(given, dtype=torch.float64), 4)
    encoders = [AffineEncoder(code_bits=4, table=RCP, n_others=1) for _ in range(2)]
    m = Module()
    m.submodules += encoders
    share_bounds(m, encoders)

    async def bench(context: Any) -> None:
        for cycle in range(len(given) + ENCODER_CYCLES):
            values = given[cycle] if cycle < len(given) else [rnd.getrandbits(31)] * 64
            for number, encoder in enumerate(encoders):
                context.set(encoder.start, cycle < len(given))
                part = values[32 * number : 32 * number + 32]
                for port, value in zip(encoder.values, part, strict=True):
                    context.set(port, value)
            at = cycle - ENCODER_CYCLES
            if at >= 0:
                codes = []
                for encoder in encoders:
                    word = context.get(encoder.codes)
                    codes += [word >> 4 * lane & 15 for lane in range(32)]
                    assert context.get(encoder.zero) == int(wanted.zero[at])
                    assert context.get(encoder.scale) == int(wanted.scale[at])
                assert codes == [int(code) for code in wanted.codes[at]]
            await context.tick()

    simulate(m, bench)


def test_words_are_those_of_the_page() -> None:
    """Every length, ties to even and up, and the words' parts give the integer back."""
    rnd = random.Random(4)
    values = [0, 1, 2, 3, 4, 1 << 31, (1 << 31) - 1]
    for length in range(1, 32):
        top = 1 << length - 1
        values += [top, 2 * top - 1, *(top + rnd.randrange(top) for _ in range(6))]
        if length > 12:
            half = 1 << length - 12
            values += [top | half, top | 3 * half, 2 * top - half, top | half | 1, top | half - 1]
    words, integers = fp16(torch.tensor(values, dtype=torch.float64))

    m = Module()
    magnitude, parts = Signal(32), Signal(16)
    word = to_word(m, magnitude, "of")
    significand, exponent = split_word(parts)
    outs = {name: Signal(range(1 << 34), name=name) for name in ("value", "significand", "length")}
    outs |= {name: Signal(16, name=name) for name in ("word", "fraction", "exponent", "zero")}
    m.d.comb += [
        parts.eq(word.word),
        outs["word"].eq(word.word),
        outs["value"].eq(word.value),
        outs["fraction"].eq(word.fraction),
        outs["length"].eq(word.length),
        outs["zero"].eq(word.is_zero),
        outs["significand"].eq(significand),
        outs["exponent"].eq(exponent),
    ]

    async def bench(context: Any) -> None:
        for value, stored, integer in zip(values, words.tolist(), integers.tolist(), strict=True):
            context.set(magnitude, value)
            got = {name: context.get(one) for name, one in outs.items()}
            assert got["word"] == stored == int(np.float16(integer * 2.0**-16).view(np.uint16))
            assert got["value"] == integer
            assert got["length"] == int(integer).bit_length()
            assert got["zero"] == (integer == 0)
            assert got["significand"] << got["exponent"] == int(integer) << 9
            if value:
                assert (1024 + got["fraction"]) / 2048 == integer / 2 ** got["length"]

    ports = {"magnitude": (magnitude, "i")} | {name: (one, "o") for name, one in outs.items()}
    simulate(m, bench, ports=ports)


def test_words_of_a_block_come_out_with_its_codes() -> None:
    """As late as the MXINT8 quantiser's, one block a cycle and with pauses."""
    rnd = random.Random(5)
    encoder = WordEncoder()
    given: list[list[int] | None] = list(groups())
    for _ in range(20):
        given.insert(rnd.randrange(len(given)), None)

    async def bench(context: Any) -> None:
        for cycle in range(len(given) + QUANTIZER_CYCLES):
            block = given[cycle] if cycle < len(given) else None
            context.set(encoder.start, block is not None)
            values = block or [rnd.getrandbits(32) - (1 << 31) for _ in range(32)]
            for port, value in zip(encoder.values, values, strict=True):
                context.set(port, value)
            before = given[cycle - QUANTIZER_CYCLES] if cycle >= QUANTIZER_CYCLES else None
            if before is not None:
                words = context.get(encoder.words)
                got = [words >> 16 * lane & 0xFFFF for lane in range(32)]
                assert got == fp16(torch.tensor(before, dtype=torch.float64))[0].tolist()
            await context.tick()

    simulate(encoder, bench)


def test_inverses_are_of_every_significand() -> None:
    inverses = significand_inverses(RCP)
    assert (len(inverses), max(inverses)) == (1024, inverses[0])
    for index, inverse in enumerate(inverses):
        assert abs(inverse * (1024 + index) / 2**33 - 1) < 2**-20
    sentence = "table RCP must be 128 entries, not 127"
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        significand_inverses(RCP[1:])
