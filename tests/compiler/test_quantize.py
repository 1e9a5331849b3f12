from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim_compiler import quantize
from romsim_compiler.encoded import RomTensor
from romsim_compiler.grid import choose_grid
from romsim_compiler.quantize import open_tensor, quantize_tensor
from romsim_models.errors import FormatError, SpecError
from romsim_models.spec import ModelSpec
from romsim_models.synthetic import synthetic_checkpoint
from tests.compiler.rom_arrays import make_format


def random_weights(seed: int, n_rows: int, n_cols: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n_rows, n_cols)).astype(np.float32)
    values *= rng.choice([1e-6, 0.02, 1.0, 100.0], (n_rows, 1)).astype(np.float32)
    values[rng.random((n_rows, n_cols)) < 0.1] = 0
    return values


def by_the_page(values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Read docs/numerics.md, section 8 once more, one group at a time in NumPy scalars."""
    fmt = make_format(name)
    n_rows, n_cols = values.shape
    codes = np.zeros((n_rows, n_cols), dtype=np.int64)
    scales = np.zeros((n_rows, n_cols // fmt.group), dtype=np.float16)
    minima = np.zeros_like(scales)
    for i in range(n_rows):
        for g in range(n_cols // fmt.group):
            w = values[i, g * fmt.group : (g + 1) * fmt.group]
            if fmt.has_minimum:
                top = np.float32(2**fmt.code_bits - 1)
                low, high = np.float32(min(0, w.min())), np.float32(max(0, w.max()))
                d, m = np.float16((high - low) / top), np.float16(low)
            else:
                top, m = np.float32(127), np.float16(0)
                d = np.float16(np.abs(w).max() / np.float32(127))
            scales[i, g], minima[i, g] = d, m
            if d == 0:
                continue
            quotient = np.rint((w - np.float32(m)) / np.float32(d))
            codes[i, g * fmt.group : (g + 1) * fmt.group] = np.clip(
                quotient, 0 if fmt.has_minimum else -127, top
            )
    return codes + fmt.offset, scales, minima if fmt.has_minimum else None


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(("int4g32", "int4g64", "int2g32", "int2g128", "int8g32", "int8g64")),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_groups_are_quantised_as_the_page_says(
    name: str, n_rows: int, n_groups: int, seed: int
) -> None:
    fmt = make_format(name)
    values = random_weights(seed, n_rows, n_groups * fmt.group)
    tensor = quantize_tensor("t", values, fmt)
    codes, scales, minima = by_the_page(values, name)
    assert np.array_equal(tensor.codes, codes)
    assert np.array_equal(tensor.scale_bits, scales.view(np.uint16))
    if minima is None:
        assert tensor.minimum_bits is None
    else:
        assert tensor.minimum_bits is not None
        assert np.array_equal(tensor.minimum_bits.view(np.float16), minima)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(1, 99), st.integers(0, 2**32))
def test_ternary_scale_is_the_truncated_mean_magnitude(n_rows: int, n_cols: int, seed: int) -> None:
    values = random_weights(seed, n_rows, n_cols)
    tensor = quantize_tensor("t", values, make_format("ternary"))
    total = sum((abs(Fraction(float(w))) for w in values.reshape(-1)), Fraction(0))
    mean = Fraction(math.fsum(np.abs(values.astype(np.float64)).sum(axis=1))) / values.size
    assert abs(mean - total / values.size) <= total * Fraction(1, 2**50)
    scale = Fraction(math.ldexp(tensor.multiplier, tensor.exponent))
    if total == 0:
        assert tensor.multiplier == 0
        assert not tensor.codes.any()
        return
    assert 1 << 23 <= tensor.multiplier < 1 << 24
    assert scale <= mean * (1 + Fraction(1, 2**50))
    assert mean < scale * (1 + Fraction(1, 2**22))
    d = np.float32(float(scale))
    assert np.array_equal(tensor.values(), np.clip(np.rint(values / d), -1, 1))


@pytest.mark.parametrize("name", ["int4g32", "int2g64", "int8g32", "ternary"])
def test_the_error_is_that_of_the_dequantised_weights(name: str) -> None:
    values = random_weights(7, 40, 128)
    tensor = quantize_tensor("t", values, make_format(name))
    difference = values.astype(np.float64) - tensor.dequantize()
    expected = math.sqrt((difference**2).sum() / (values.astype(np.float64) ** 2).sum())
    assert tensor.error == pytest.approx(expected, rel=1e-12)
    assert 0 < expected < 1


def test_errors_grow_as_bits_shrink() -> None:
    values = np.random.default_rng(8).standard_normal((64, 128)).astype(np.float32)
    errors = [
        quantize_tensor("t", values, make_format(name)).error or 0.0
        for name in ("int8g32", "int4g32", "int4g128", "int2g32")
    ]
    assert errors == sorted(errors)
    assert errors[0] < 0.01 < errors[1] < 0.1 < errors[3] < 0.5


@pytest.mark.parametrize("name", ["int4g32", "int8g32", "ternary"])
def test_a_matrix_of_zeros_is_zeros(name: str) -> None:
    fmt = make_format(name)
    tensor = quantize_tensor("t", np.zeros((2, 32), dtype=np.float32), fmt)
    assert np.array_equal(tensor.values(), np.zeros((2, 32)))
    assert not tensor.scale_bits.any()
    assert tensor.error == 0.0


def test_a_weight_that_is_not_finite_is_named() -> None:
    for value, text in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")):
        values = np.ones((5, 64), dtype=np.float32)
        values[3, 17] = value
        values[4, 0] = np.nan
        with pytest.raises(
            FormatError,
            match=rf"^Element \[3, 17\] of tensor 't' must be a finite number, not {text}$",
        ):
            quantize_tensor("t", values, make_format("int4g32"))


def test_a_group_that_does_not_divide_the_columns_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"^Group of format 'int4g128' must divide the 576 columns of tensor 'blk\.0\.attn_q"
        r"\.weight', not be 128; use a group of 32 or 64$",
    ):
        quantize_tensor(
            "blk.0.attn_q.weight", np.ones((1, 576), dtype=np.float32), make_format("int4g128")
        )
    with pytest.raises(
        SpecError,
        match=r"^Group of format 'int2g32' must divide the 40 columns of tensor 't', not be 32; "
        r"no group of 32, 64 or 128 does, so use ternary$",
    ):
        quantize_tensor("t", np.ones((1, 40), dtype=np.float32), make_format("int2g32"))


def test_formats_without_a_quantiser_are_refused() -> None:
    for name, meaning in (("q4_1", "one that files ship"), ("sym4g32", "one without a quantiser")):
        with pytest.raises(
            SpecError,
            match=rf"^Format of tensor 't' must be int2, int4 or int8 with a group, or ternary, to "
            rf"quantise it, not '{name}' \({meaning}\); choose for example int4g32$",
        ):
            quantize_tensor("t", np.ones((1, 32), dtype=np.float32), make_format(name))


def test_a_scale_beyond_binary16_is_refused() -> None:
    values = np.zeros((2, 64), dtype=np.float32)
    values[1, 40] = 1e6
    with pytest.raises(
        FormatError,
        match=r"^Scale of row 1, group 1 of tensor 't' must be at most 65504, the largest binary16 "
        r"number, not 66666\.6640625; scale the weights down$",
    ):
        quantize_tensor("t", values, make_format("int4g32"))
    with pytest.raises(
        FormatError,
        match=r"^Minimum of row 1, group 1 of tensor 't' must be at most 65504, the largest "
        r"binary16 number, not -1000000\.0; scale the weights down$",
    ):
        quantize_tensor("t", -values, make_format("int4g32"))


def test_a_ternary_scale_below_binary32_is_refused() -> None:
    values = np.full((1, 32), 1e-39, dtype=np.float32)
    with pytest.raises(
        FormatError,
        match=r"^Mean magnitude of tensor 't' must be at least 2\^-126 to be a ternary scale, "
        r"not 1\.0000002153053333e-39$",
    ):
        quantize_tensor("t", values, make_format("ternary"))


def tiny_spec() -> ModelSpec:
    return ModelSpec(
        name="tiny", arch="llama", dim=64, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=32,
        hidden_dim=96, vocab_size=300, norm_eps=1e-5, rope_theta=10000.0, max_seq_len=64,
        tie_embeddings=True,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["int4g32", "int8g64", "ternary"])
def test_a_streamed_matrix_equals_a_whole_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = synthetic_checkpoint(tiny_spec())
    fmt = make_format(name)
    whole = open_tensor(checkpoint, "token_embd.weight", fmt)
    assert isinstance(whole, RomTensor)
    monkeypatch.setattr(quantize, "WHOLE_WEIGHTS", 1000)
    monkeypatch.setattr(quantize, "BLOCK_WEIGHTS", 64 * 7)
    streamed = open_tensor(checkpoint, "token_embd.weight", fmt)
    assert not isinstance(streamed, RomTensor)
    assert streamed.error == whole.error
    assert (streamed.multiplier, streamed.exponent) == (
        whole.multiplier,
        whole.exponent,
    )
    assert choose_grid([streamed]) == choose_grid([whole])
    part = streamed.rows(100, 205)
    assert np.array_equal(part.codes, whole.codes[100:205])
    assert np.array_equal(part.scale_bits, whole.scale_bits[100:205])
    assert part.error == whole.error
