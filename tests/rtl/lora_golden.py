"""Adapters by docs/numerics.md, section 6, one Python integer at a time."""

from __future__ import annotations

from romsim_compiler.lora_image import LoraProjection
from tests.rtl.attention_golden import Block, rne, sat32, shr


def quantise(values: list[int]) -> Block:
    largest = 0
    for value in values:
        largest |= abs(value)
    shift = max(0, largest.bit_length() - 7)
    codes = [rne(value, shift) for value in values]
    if any(abs(code) == 128 for code in codes):
        shift += 1
        codes = [rne(value, shift) for value in values]
    return codes, shift


def rows(
    codes: list[list[int]], exps: list[list[int]], block: int, x: list[Block], grid: int, last: int
) -> list[tuple[int, int]]:
    """Multiply rows of MXINT8 blocks by blocks of x."""
    result = []
    for row, exponents in zip(codes, exps, strict=True):
        total = 0
        for index, (x_codes, x_shift) in enumerate(x):
            part = row[index * block : (index + 1) * block]
            p = sum(a * b for a, b in zip(part, x_codes, strict=False))
            total += shr(p, grid - exponents[index] - x_shift)
        result.append(sat32(shr(total, last)))
    return result


def apply(
    p: LoraProjection, x: list[Block], in_frac: int, out_frac: int, frac: int = 16
) -> tuple[list[int], int]:
    """Return the rows' additions and the number of clips."""
    z = rows(p.a_codes.tolist(), p.a_exps.tolist(), 32, x, p.grid_a, in_frac - frac - p.grid_a)
    values = [value for value, _ in z]
    block = min(32, p.padded_rank)
    quantised = [quantise(values[at : at + block]) for at in range(0, len(values), block)]
    d = rows(
        p.b_codes.tolist(),
        p.b_exps.tolist(),
        block,
        quantised,
        p.grid_b,
        frac - out_frac - p.grid_b,
    )
    return [value for value, _ in d], sum(clip for _, clip in z + d)
