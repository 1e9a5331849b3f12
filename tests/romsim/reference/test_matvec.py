from __future__ import annotations

import numpy as np
import pytest
import torch

from romsim.reference.integer_matrix import IntegerMatrix
from romsim.reference.lora import LowRank, adapter_matrix
from romsim.reference.matvec import Linear, derive_grid
from romsim.reference.primitives import BlockCodes, Saturation, quantise
from romsim.reference.weights import WeightChoice, integer_matrix
from romsim_models.errors import SpecError
from tests.romsim.reference import scalar_page as page
from tests.romsim.reference.scalar_decoder import Adapter, code_adapter
from tests.romsim.reference.scalar_weights import scalar_matrix
from tests.romsim.reference.small_models import encode, floats


def inputs(n_tokens: int, n_cols: int, *, spread: float = 8.0, seed: int = 0) -> torch.Tensor:
    """Vectors whose blocks differ in size by up to ``2^spread``, with some empty blocks."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((n_tokens, n_cols)) * 2.0**12
    sizes = 2.0 ** generator.uniform(0, spread, (n_tokens, -(-n_cols // 32)))
    sizes[generator.random(sizes.shape) < 0.1] = 0.0
    values *= np.repeat(sizes, 32, axis=1)[:, :n_cols]
    return torch.from_numpy(np.rint(values).clip(-(2.0**31), 2.0**31 - 1))


def scalar_codes(x: BlockCodes, token: int) -> page.Coded:
    return x.codes[token].tolist(), x.shifts[token].tolist()


def random_matrix(kind: str, shape: tuple[int, int] = (6, 96)) -> tuple[IntegerMatrix, page.Matrix]:
    values = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    if kind == "ternary":
        tensor = floats("w", values)
        choice = WeightChoice(kind="ternary")
        return integer_matrix(tensor, choice, block=32), scalar_matrix(tensor, "ternary")
    encoded = encode("w", values, kind)
    return integer_matrix(encoded, None, block=32), scalar_matrix(encoded)


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "ternary"])
@pytest.mark.parametrize("spread", [0.0, 18.0, 23.0])
@pytest.mark.parametrize("raised", [0, 9, 20])
def test_products_equal_the_scalar_reading(kind: str, spread: float, raised: int) -> None:
    matrix, scalar = random_matrix(kind)
    grid = derive_grid([matrix]) + raised
    assert derive_grid([matrix]) == page.grid_of([scalar])
    x = quantise(inputs(4, 96, spread=spread), block=32, frac=22)
    linear = Linear(matrix, grid=grid, block=32)
    saturation, clips = Saturation(), page.Clips()
    for frac in (14, 16):
        found = linear(x, frac=frac, saturation=saturation)
        for token in range(4):
            codes = scalar_codes(x, token)
            expected = page.matvec(scalar, codes, 22, frac, grid, clips)
            assert found[token].tolist() == expected
    assert saturation.count == clips.count


def test_grids_raise_with_the_bound_and_rows_then_round() -> None:
    # One huge and one tiny scale in a matrix: the grid cannot reach down to the tiny one.
    generator = np.random.default_rng(2)
    values = generator.standard_normal((4, 64)).astype(np.float32)
    values[1, :32] *= np.float32(2.0**14)
    values[2, 32:] *= np.float32(2.0**-15)
    tensor = encode("w", values, "q4_1")
    matrix, scalar = integer_matrix(tensor, None, block=32), scalar_matrix(tensor)
    grid = derive_grid([matrix])
    least = matrix.least_exponent()
    assert least is not None
    assert grid > least
    assert grid == page.grid_of([scalar])
    linear = Linear(matrix, grid=grid, block=32)
    assert linear.n_rounded_rows == 1
    x = quantise(inputs(6, 64, spread=0.0) / 2.0**10, block=32, frac=16)
    saturation, clips = Saturation(), page.Clips()
    found = linear(x, frac=30, saturation=saturation)
    for token in range(6):
        expected = page.matvec(scalar, scalar_codes(x, token), 16, 30, grid, clips)
        assert found[token].tolist() == expected
    assert saturation.count == clips.count


def test_several_limbs_are_summed_exactly() -> None:
    matrix, scalar = random_matrix("q8_0", (3, 512))
    # The finest grid of all is exact too, and asks for the most limbs.
    grid = derive_grid([matrix]) - (32 - matrix.largest_row_sum().bit_length())
    linear = Linear(matrix, grid=grid, block=32)
    assert 2**31 <= linear.row_bound < 2**32
    x = quantise(inputs(3, 512, spread=19.0), block=32, frac=24)
    found = linear(x, frac=3, saturation=Saturation())
    for token in range(3):
        expected = page.matvec(scalar, scalar_codes(x, token), 24, 3, grid, page.Clips())
        assert found[token].tolist() == expected


def test_extreme_inputs_stay_exact() -> None:
    matrix, scalar = random_matrix("q4_1", (5, 64))
    grid = derive_grid([matrix])
    v = torch.full((2, 64), 2.0**31 - 1, dtype=torch.float64)
    v[1] = -(2.0**31)
    x = quantise(v, block=32, frac=24)
    saturation, clips = Saturation(), page.Clips()
    found = Linear(matrix, grid=grid, block=32)(x, frac=16, saturation=saturation)
    for token in range(2):
        expected = page.matvec(scalar, scalar_codes(x, token), 24, 16, grid, clips)
        assert found[token].tolist() == expected
    assert saturation.count == clips.count


def test_fused_matrices_share_the_least_exponent() -> None:
    wide, fine = random_matrix("q4_1")[0], random_matrix("q8_0")[0]
    exponents = [wide.least_exponent(), fine.least_exponent()]
    assert derive_grid([wide, fine]) == min(e for e in exponents if e is not None)
    ternary = random_matrix("ternary")[0]
    assert derive_grid([wide, ternary]) == wide.least_exponent()
    assert derive_grid([ternary]) == 0


def test_a_grid_that_lets_sums_pass_63_bits_is_refused() -> None:
    matrix, _ = random_matrix("q4_1")
    with pytest.raises(
        SpecError, match=r"^grid of tensor 'w' must keep its sums below 2\^63, not -60; raise it$"
    ):
        Linear(matrix, grid=-60, block=32)


def test_a_grid_that_rounds_some_rows_and_lets_others_pass_63_bits_is_refused() -> None:
    matrix = IntegerMatrix(
        name="w", values=np.full((1, 64), 100, dtype=np.int16), group=32,
        sig=np.full((1, 2), 1024, dtype=np.int16), exp=np.array([[-24, 5]], dtype=np.int16),
    )  # fmt: skip
    Linear(matrix, grid=-4, block=32)
    with pytest.raises(
        SpecError, match=r"^grid of tensor 'w' must keep its sums below 2\^63, not -6; raise it$"
    ):
        Linear(matrix, grid=-6, block=32)


def test_int32_residence_holds_wide_weights_in_float64() -> None:
    values = np.zeros((3, 32), dtype=np.int16)
    values[:, 5] = (1, -64, 3)
    matrix = IntegerMatrix(
        name="w", values=values, group=32, sig=np.full((3, 1), 2047, dtype=np.int16),
        exp=np.zeros((3, 1), dtype=np.int16),
    )  # fmt: skip
    linear = Linear(matrix, grid=-15, block=32, resident="int32")
    assert linear.row_bound == 64 * 2047 * 2**15 > 2**31
    x = quantise(inputs(2, 32), block=32, frac=22)
    found = linear(x, frac=0, saturation=Saturation())
    scalar = page.Matrix(q=values.tolist(), group=32, scales=[[(2047, 0)]] * 3)
    for token in range(2):
        expected = page.matvec(scalar, scalar_codes(x, token), 22, 0, -15, page.Clips())
        assert found[token].tolist() == expected


@pytest.mark.parametrize("size", [1.0, 2.0**-44, 1e6, 255.0, 254.0, 127.5, 0.0])
def test_adapter_codes_equal_the_scalar_reading(size: float) -> None:
    generator = np.random.default_rng(3)
    weights = generator.standard_normal((3, 40)) * size
    weights[0, 0] = size  # an exact value, near a rounding to 128
    weights[1, 32:] = 0.0
    found = adapter_matrix("A", weights, block=32)
    expected = code_adapter(weights.tolist(), 32)
    assert found.values.tolist() == expected.q
    assert np.stack((found.sig, found.exp), axis=-1).tolist() == [
        [list(pair) for pair in row] for row in expected.scales
    ]
    assert derive_grid([found]) == page.grid_of([expected])


def test_adapters_of_far_apart_sizes_round_as_the_scalar_reading() -> None:
    generator = np.random.default_rng(4)
    a = generator.standard_normal((2, 64)).astype(np.float32)
    a[0, :32] *= np.float32(1e-12)
    a[1, 32:] *= np.float32(1e6)
    b = generator.standard_normal((5, 2)).astype(np.float32)
    low_rank = LowRank("w", a, b, scaling=0.5, block=32, device="cpu")
    assert low_rank.n_rounded_rows == 1
    scalar = Adapter.of(a.tolist(), b.tolist(), 0.5)
    x = quantise(inputs(3, 64, spread=0.0) / 2**8, block=32, frac=24)
    y = torch.zeros((3, 5), dtype=torch.float64)
    saturation, clips = Saturation(), page.Clips()
    found = low_rank(x, y, inner_frac=16, frac=14, saturation=saturation)
    for token in range(3):
        expected = scalar.add([0] * 5, scalar_codes(x, token), 24, 16, 14, clips)
        assert found[token].tolist() == expected
    assert saturation.count == clips.count


def test_faulty_adapters_are_refused() -> None:
    a, b = np.ones((2, 32), dtype=np.float32), np.ones((4, 3), dtype=np.float32)
    with pytest.raises(
        SpecError, match=r"^LoRA B of 'w' must have the 2 columns of A's rank, not 3$"
    ):
        LowRank("w", a, b, scaling=1.0, block=32, device="cpu")
    a[1, 7] = np.nan
    with pytest.raises(
        SpecError, match=r"^element \[1, 7\] of LoRA A of 'w' must be a finite number, not nan$"
    ):
        LowRank("w", a, b[:, :2], scaling=1.0, block=32, device="cpu")
