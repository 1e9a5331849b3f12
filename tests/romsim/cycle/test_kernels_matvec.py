"""Matrix kernels, embedding and adapters against the page in unbounded integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from romsim.cycle.adapters import AdapterMatrix, Projection
from romsim.cycle.kernels_matvec import embed_row
from romsim.cycle.weights import Matrix, MatrixInput, Scales, decode_scales
from romsim.cycle.workers import Workers
from romsim_compiler.mapping import Mapping
from romsim_compiler.program import PlacedGroup
from romsim_models.errors import DescriptionError
from tests.romsim.cycle import page

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=60)
WORKERS = Workers(2)
EMPTY = Scales(significands=np.zeros((0, 0), np.int16), exponents=np.zeros((0, 0), np.int8))


def vector_of(blocks: list[page.Block]) -> MatrixInput:
    codes = np.zeros((len(blocks), 32), np.int16)
    for index, (block, _) in enumerate(blocks):
        codes[index, : len(block)] = block
    return MatrixInput(
        codes=codes.reshape(-1),
        shifts=np.array(page.shifts_of(blocks), np.int64),
        sums=np.array([sum(block) for block, _ in blocks], np.int64),
    )


def random_input(rng: np.random.Generator, n_cols: int) -> list[page.Block]:
    """Blocks of very different magnitude, small enough for 63 bits of accumulator."""
    down = np.repeat(rng.integers(0, 24, -(-n_cols // 32)), 32)[:n_cols]
    values = rng.integers(-(2**24), 2**24, n_cols) >> down
    return page.quantise(values.tolist(), 32)


@dataclass
class Case:
    """A random matrix, as the machine has it and as the page has it."""

    matrix: Matrix
    scales: list[list[tuple[int, int]]]
    minima: list[list[tuple[int, int]]]
    values: NDArray[np.int64]


def placed(n_rows: int, n_cols: int, **fields: int | bool | str) -> PlacedGroup:
    mapping = Mapping(
        n_rows=n_rows, n_cols=n_cols, planes=1, ks=1, wpc=1, rows_per_step=1, steps=n_rows
    )
    values = {
        "name": "L0.o", "layer": 0, "mapping": mapping, "base": 0, "code_bits": 4,
        "kind": "unsigned", "offset": 0, "group": 32, "has_minimum": True, "grid": -24,
        "in_frac": 20, "out_frac": 16, "multiplier": 1, "multiplier_exp": 0, "pre_shift": 0,
        "members": (("t", "o", 0, n_rows),),
    }  # fmt: skip
    return PlacedGroup(**{**values, **fields})  # type: ignore[arg-type]  # mixed fields


def make_case(
    rng: np.random.Generator,
    *,
    n_rows: int,
    n_cols: int,
    group: int,
    low: int,
    high: int,
    has_minimum: bool,
    exact: bool,
) -> Case:
    n_groups = -(-n_cols // group)
    # exponents -19 to -10, a zero and a subnormal word among them
    words = rng.integers(6 << 10, 16 << 10, (2, n_rows, n_groups)).astype(np.uint16)
    words |= (rng.integers(0, 2, words.shape) << 15).astype(np.uint16)
    words[0, 0, 0], words[1, 0, 0] = 0, 0x8003
    parts = [decode_scales(w, "Words") for w in words]
    pairs = [[[page.fp16(int(x)) for x in row] for row in w] for w in words]
    if not has_minimum:
        pairs[1] = [[] for _ in range(n_rows)]
    grid = min((e for p in pairs for r in p for s, e in r if s), default=0)
    values = rng.integers(low, high + 1, (n_rows, n_cols))
    padded = np.zeros((n_rows, -(-n_cols // 32) * 32), np.int8)
    padded[:, :n_cols] = values
    on_grid = None
    if exact:
        shifted = [
            np.array([[s << (e - grid) if s else 0 for s, e in r] for r in p], np.int32)
            for p in pairs
        ]
        on_grid = shifted[0], shifted[1] if has_minimum else np.zeros((0, 0), np.int32)
    else:
        grid += int(rng.integers(1, 12))
    matrix = Matrix(
        group=placed(n_rows, n_cols, group=group, has_minimum=has_minimum, grid=grid),
        values=padded,
        scales=parts[0],
        minima=parts[1] if has_minimum else EMPTY,
        on_grid=on_grid,
    )
    return Case(matrix=matrix, scales=pairs[0], minima=pairs[1], values=values)


@pytest.mark.parametrize("exact", [True, False], ids=["on grid", "grid raised"])
@pytest.mark.parametrize(
    ("low", "high", "has_minimum"), [(0, 15, True), (-8, 7, False), (-128, 127, False)]
)
@REPEATABLE
@given(
    seed=st.integers(0, 2**32 - 1),
    n_blocks=st.integers(1, 5),
    n_rows=st.integers(1, 9),
    blocks_per_group=st.sampled_from([1, 2, 4]),
)
def test_matrix_times_vector_is_the_pages(
    exact: bool,
    low: int,
    high: int,
    has_minimum: bool,
    seed: int,
    n_blocks: int,
    n_rows: int,
    blocks_per_group: int,
) -> None:
    rng = np.random.default_rng(seed)
    n_cols = 32 * n_blocks * blocks_per_group
    case = make_case(
        rng, n_rows=n_rows, n_cols=n_cols, group=32 * blocks_per_group, low=low, high=high,
        has_minimum=has_minimum, exact=exact,
    )  # fmt: skip
    blocks = random_input(rng, n_cols)
    group = case.matrix.group
    before = page.clips[0]
    expected = [
        page.matvec_row(
            case.values[i].tolist(), case.scales[i], case.minima[i], group.group, blocks,
            grid=group.grid, shift=group.in_frac - group.out_frac - group.grid,
        )
        for i in range(n_rows)
    ]  # fmt: skip
    out = np.zeros(n_rows, np.int32)
    clipped = case.matrix.multiply(vector_of(blocks), out, WORKERS)
    assert out.tolist() == expected
    assert clipped == page.clips[0] - before


@pytest.mark.parametrize("n_cols", [32, 40, 160])
@REPEATABLE
@given(seed=st.integers(0, 2**32 - 1), pre_shift=st.integers(0, 20), exponent=st.integers(-40, -20))
def test_one_scale_for_the_whole_matrix_is_the_pages(
    n_cols: int, seed: int, pre_shift: int, exponent: int
) -> None:
    rng = np.random.default_rng(seed)
    multiplier = int(rng.integers(2**23, 2**24))
    values = rng.integers(-1, 2, (7, n_cols))
    padded = np.zeros((7, -(-n_cols // 32) * 32), np.int8)
    padded[:, :n_cols] = values
    matrix = Matrix(
        group=placed(
            7, n_cols, kind="ternary", group=0, has_minimum=False, grid=0, multiplier=multiplier,
            multiplier_exp=exponent, pre_shift=pre_shift,
        ),
        values=padded,
        scales=EMPTY,
        minima=EMPTY,
        on_grid=(np.ones((7, 1), np.int32), np.zeros((0, 0), np.int32)),
    )  # fmt: skip
    blocks = random_input(rng, n_cols)
    before = page.clips[0]
    expected = [
        page.matvec_whole_row(row, blocks, m=multiplier, e=exponent, a=pre_shift, frac=4)
        for row in values.tolist()
    ]
    out = np.zeros(7, np.int32)
    assert matrix.multiply(vector_of(blocks), out, WORKERS) == page.clips[0] - before
    assert out.tolist() == expected


def test_a_left_shift_past_the_word_saturates() -> None:
    values = np.ones((1, 32), np.int8)
    matrix = Matrix(
        group=placed(1, 32, kind="ternary", group=0, has_minimum=False, multiplier_exp=40),
        values=values,
        scales=EMPTY,
        minima=EMPTY,
        on_grid=(np.ones((1, 1), np.int32), np.zeros((0, 0), np.int32)),
    )
    out = np.zeros(1, np.int32)
    assert matrix.multiply(vector_of([([1] * 32, 20)]), out, WORKERS) == 1
    assert out[0] == 2**31 - 1


@REPEATABLE
@given(
    seed=st.integers(0, 2**32 - 1),
    group=st.sampled_from([32, 64]),
    has_minimum=st.booleans(),
    residual_frac=st.integers(8, 26),
)
def test_embedding_is_the_pages(
    seed: int, group: int, has_minimum: bool, residual_frac: int
) -> None:
    rng = np.random.default_rng(seed)
    case = make_case(
        rng, n_rows=3, n_cols=128, group=group, low=-128, high=127, has_minimum=has_minimum,
        exact=True,
    )  # fmt: skip
    for token in range(3):
        before = page.clips[0]
        expected = page.embed(
            case.values[token].tolist(),
            case.scales[token],
            case.minima[token],
            group,
            residual_frac,
        )
        out = np.zeros(128, np.int32)
        assert case.matrix.embed(token, residual_frac, out) == page.clips[0] - before
        assert out.tolist() == expected


def test_embedding_with_one_scale_is_the_pages() -> None:
    rng = np.random.default_rng(5)
    values, multiplier, exponent = rng.integers(-1, 2, 64), 12345677, -28
    out = np.zeros(64, np.int32)
    none = np.zeros(0, np.int64)
    words = np.array([multiplier]), np.array([exponent]), none, none
    assert embed_row(values.astype(np.int8), *words, 0, 14, out) == 0
    assert out.tolist() == [page.sat32(page.shr(int(v) * multiplier, 28 - 14)) for v in values]


def test_scales_are_taken_apart_for_every_finite_word() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    words = words[(words >> 10) & 31 != 31]
    parts = decode_scales(words, "Words")
    values = parts.significands.astype(np.float64) * 2.0 ** parts.exponents.astype(np.float64)
    assert np.array_equal(values, words.view(np.float16).astype(np.float64))
    assert parts.exponents.min() == -24
    assert np.abs(parts.significands).max() == 2047


def test_an_infinite_scale_is_refused() -> None:
    with pytest.raises(
        DescriptionError,
        match=r"^Scales of group 'head' must be finite binary16 words, not 0xfc00; compile again$",
    ):
        decode_scales(np.array([[0x3C00, 0xFC00]], np.uint16), "Scales of group 'head'")


@pytest.mark.parametrize("rank", [4, 8, 32, 64])
@REPEATABLE
@given(seed=st.integers(0, 2**32 - 1))
def test_adapter_is_the_pages(rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_cols, n_rows, size = 96, 5, min(32, rank)
    a, b = rng.integers(-127, 128, (rank, n_cols)), rng.integers(-127, 128, (n_rows, rank))
    a_exponents = rng.integers(-14, -5, (rank, n_cols // 32))
    b_exponents = rng.integers(-14, -5, (n_rows, rank // size))
    a[0, :32], a_exponents[0, 0] = 0, -40  # an all-zero block
    a_grid, b_grid = int(rng.integers(-14, -9)), int(rng.integers(-14, -9))
    blocks = random_input(rng, n_cols)
    before = page.clips[0]
    z = [
        page.adapter_row(
            a[j].tolist(), a_exponents[j].tolist(), 32, blocks, grid=a_grid, shift=18 - 16 - a_grid
        )
        for j in range(rank)
    ]
    inner = page.quantise(z, size)
    expected = [
        page.adapter_row(
            b[i].tolist(), b_exponents[i].tolist(), size, inner, grid=b_grid, shift=16 - 14 - b_grid
        )
        for i in range(n_rows)
    ]
    projection = Projection(
        first_row=2,
        n_rows=n_rows,
        down=AdapterMatrix.create(a.astype(np.int8), a_exponents, a_grid, 32),
        up=AdapterMatrix.create(b.astype(np.int8), b_exponents, b_grid, size),
    )
    delta = np.full(9, 77, np.int32)
    coded: list[MatrixInput] = []
    clipped = projection.apply(
        vector_of(blocks), in_frac=18, linear_frac=16, out_frac=14, delta=delta, coded=coded
    )
    assert len(coded) == 1
    assert delta.tolist() == [77, 77, *expected, 77, 77]
    assert clipped == page.clips[0] - before
    assert projection.rank == rank
