from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim_compiler.encoded import RomTensor
from romsim_compiler.grid import choose_grid
from tests.compiler.rom_arrays import make_format, random_tensor

FORMATS = ("q4_0", "q4_1", "q8_0", "int2g64", "int8g128")


def by_the_page(tensors: list[RomTensor]) -> tuple[int, int, int]:
    """Derive (γ, bits, rounded terms) from docs/numerics.md, section 4, in fractions."""
    exponents = []
    widest = Fraction(0)
    for tensor in tensors:
        parts = [(tensor.scale_sig, tensor.scale_exp)]
        if tensor.minimum_sig is not None and tensor.minimum_exp is not None:
            parts.append((tensor.minimum_sig, tensor.minimum_exp))
        blocks = tensor.fmt.group // 32
        for sig, exp in parts:
            exponents += [int(e) for s, e in zip(sig.flat, exp.flat, strict=True) if s] * blocks
        for row in tensor.dequantize():
            widest = max(widest, sum((abs(Fraction(float(w))) for w in row), Fraction(0)))
    grid = min(exponents, default=0)
    while 2**31 * widest / Fraction(2) ** grid >= 2**63:
        grid += 1
    bound = 2**31 * widest / Fraction(2) ** grid
    return grid, int(bound).bit_length(), sum(e < grid for e in exponents)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(0, 30),
    st.integers(0, 2**32),
)
def test_the_grid_is_the_page_s(
    name: str, sizes: list[int], n_groups: int, lowest: int, seed: int
) -> None:
    """Words of every exponent raise the grid; words of the upper ones alone do not."""
    fmt = make_format(name)
    rng = np.random.default_rng(seed)
    tensors = []
    for n, size in enumerate(sizes):
        tensor = random_tensor(rng, f"t{n}", size, n_groups * fmt.group, fmt)
        scales = np.where(tensor.scale_bits & 0x7C00 < lowest << 10, 0, tensor.scale_bits)
        tensors.append(replace(tensor, scale_bits=scales.astype(np.uint16)))
    result = choose_grid(tensors)
    assert (result.grid, result.max_abs_bits, result.n_rounded_terms) == by_the_page(tensors)
    assert result.max_abs_bits <= 63
    assert result.pre_shift == 0


def uniform(name: str, n_rows: int, n_cols: int, code: int, word: int) -> RomTensor:
    fmt = make_format(name)
    tensor = random_tensor(np.random.default_rng(0), "t", n_rows, n_cols, fmt)
    return replace(
        tensor,
        codes=np.full((n_rows, n_cols), code, dtype=np.uint8),
        scale_bits=np.full((n_rows, tensor.n_groups), word, dtype=np.uint16),
    )


def test_a_bound_of_exactly_63_bits_raises_the_grid() -> None:
    # Scale 1.0 = 1024 * 2^-10: a row of 32 codes of 8 sums to 2^8 = 2^18 * 2^-10.
    narrow = choose_grid([uniform("q4_0", 2, 32, 0, 0x3C00)])
    assert (narrow.grid, narrow.max_abs_bits, narrow.n_rounded_terms) == (-10, 31 + 18 + 1, 0)
    # Beside it, 2^-24 as the least exponent: 2^(31 + 8 + 24) = 2^63 is one too much.
    fmt = make_format("q4_0")
    pair = random_tensor(np.random.default_rng(0), "t", 2, 32, fmt)
    pair = replace(
        pair,
        codes=np.zeros((2, 32), dtype=np.uint8),
        scale_bits=np.array([[0x3C00], [0x0001]], dtype=np.uint16),
    )
    wide = choose_grid([pair])
    assert (wide.grid, wide.max_abs_bits, wide.n_rounded_terms) == (-23, 63, 1)
    fits = choose_grid([replace(pair, scale_bits=np.array([[0x3BFF], [1]], dtype=np.uint16))])
    assert (fits.grid, fits.max_abs_bits, fits.n_rounded_terms) == (-24, 63, 0)


def test_scales_of_zero_do_not_count() -> None:
    zeros = choose_grid([uniform("q4_0", 2, 64, 3, 0x8000)])
    assert (zeros.grid, zeros.max_abs_bits, zeros.n_rounded_terms) == (0, 0, 0)


def test_members_share_the_least_exponent() -> None:
    large = uniform("q4_0", 2, 64, 3, 0x3C00)
    small = uniform("q4_0", 2, 64, 3, 0x2C00)
    assert [choose_grid(t).grid for t in ([large], [small], [large, small])] == [-10, -14, -14]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2000), st.integers(0, 2**32))
def test_the_whole_matrix_shift_is_the_least_that_fits(n_rows: int, n_cols: int, seed: int) -> None:
    tensor = random_tensor(np.random.default_rng(seed), "t", n_rows, n_cols, make_format("ternary"))
    result = choose_grid([tensor])
    widest = int(np.abs(tensor.values()).astype(np.int64).sum(axis=1).max())

    def largest(shift: int) -> int:
        return round(Fraction(2**31 * widest, 2**shift))

    assert largest(result.pre_shift) < 2**38
    assert result.pre_shift == 0 or largest(result.pre_shift - 1) >= 2**38
    assert (result.grid, result.n_rounded_terms) == (0, 0)
    assert result.max_abs_bits == (2**31 * widest).bit_length()


@pytest.mark.parametrize(("n_cols", "shift"), [(127, 0), (128, 1), (255, 1), (256, 2)])
def test_the_whole_matrix_shift_at_its_steps(n_cols: int, shift: int) -> None:
    tensor = random_tensor(np.random.default_rng(0), "t", 1, n_cols, make_format("ternary"))
    tensor = replace(tensor, codes=np.ones((1, n_cols), dtype=np.uint8))
    assert choose_grid([tensor]).pre_shift == shift


def test_signed_codes_of_eight_bits_count_their_offset() -> None:
    # Code 0 of q8_0 is -128: 2^31 * 32 * 128 * 1024 in units of 2^-10.
    assert choose_grid([uniform("q8_0", 1, 32, 0, 0x3C00)]).max_abs_bits == 31 + 5 + 7 + 10 + 1
