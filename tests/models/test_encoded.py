from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.errors import FormatError


def encoded(**changes: Any) -> EncodedTensor:
    values: dict[str, Any] = {
        "name": "w",
        "shape": (2, 64),
        "format": "q4_1",
        "code_bits": 4,
        "code_offset": 0,
        "group_size": 32,
        "codes": np.arange(128, dtype=np.uint8).reshape(2, 64) % 16,
        "scale_bits": np.array([[0.5, 1.0], [2.0, 0.25]], dtype=np.float16).view(np.uint16),
        "minimum_bits": np.array([[-1, 0], [3, -0.5]], dtype=np.float16).view(np.uint16),
    }
    return EncodedTensor(**{**values, **changes})


def test_weight_is_scale_times_code_plus_minimum() -> None:
    tensor = encoded()
    weights = tensor.dequantize()
    assert weights[0, 3] == 0.5 * 3 - 1
    assert weights[0, 35] == 1.0 * 3 + 0
    assert weights[1, 15] == 2.0 * 15 + 3
    assert weights[1, 63] == 0.25 * 15 - 0.5


def test_offset_is_taken_from_the_code() -> None:
    weights = encoded(code_offset=8, minimum_bits=None).dequantize()
    assert weights[1, 0] == 2.0 * -8
    assert weights[0, 63] == 1.0 * 7


def test_effective_bits_count_scales_and_minima() -> None:
    assert encoded().bits_per_weight == 5.0
    assert encoded(minimum_bits=None).bits_per_weight == 4.5
    assert encoded().size_bits == 640


def test_scales_and_minima_as_floats() -> None:
    tensor = encoded()
    assert tensor.n_groups == 2
    np.testing.assert_array_equal(tensor.scales, [[0.5, 1.0], [2.0, 0.25]])
    minima = tensor.minima
    assert minima is not None
    np.testing.assert_array_equal(minima, [[-1, 0], [3, -0.5]])
    assert encoded(minimum_bits=None).minima is None


def test_rows_are_a_part_without_a_copy() -> None:
    tensor = encoded()
    part = tensor.rows(1, 2)
    assert part.shape == (1, 64)
    assert part.codes.base is not None
    np.testing.assert_array_equal(part.dequantize(), tensor.dequantize()[1:])


def test_group_must_divide_the_columns() -> None:
    with pytest.raises(
        FormatError,
        match=r"^number of columns of tensor 'w' must be a multiple of the group size 48 of q4_1, "
        r"not 64$",
    ):
        encoded(group_size=48)


def test_codes_must_have_the_shape() -> None:
    with pytest.raises(
        FormatError,
        match=r"^codes of tensor 'w' must be 8-bit integers of shape \[2, 64\], not int16 of "
        r"\[2, 32\]$",
    ):
        encoded(codes=np.zeros((2, 32), dtype=np.int16))


def test_scales_must_have_the_shape() -> None:
    with pytest.raises(
        FormatError,
        match=r"^scale words of tensor 'w' must be uint16 of shape \[2, 2\], not float16 of "
        r"\[2, 1\]$",
    ):
        encoded(scale_bits=np.zeros((2, 1), dtype=np.float16))


@pytest.mark.parametrize(("key", "what"), [("scale_bits", "scale"), ("minimum_bits", "minimum")])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scale_and_minimum_must_be_finite(key: str, what: str, value: float) -> None:
    words = np.ones((2, 2), dtype=np.float16)
    words[1, 0] = value
    with pytest.raises(
        FormatError,
        match=rf"^{what} of row 1, group 0 of tensor 'w' must be a finite number, not {value}$",
    ):
        encoded(**{key: words.view(np.uint16)})


def float_tensor(values: Any, **changes: Any) -> FloatTensor:
    array = np.array(values, dtype=np.float32)
    return FloatTensor(
        **{"name": "w", "shape": array.shape, "format": "bf16", "values": array, **changes}
    )


def test_float_tensor_counts_the_bits_of_its_file() -> None:
    tensor = float_tensor([[1, 2], [3, 4], [5, 6]])
    assert (tensor.bits_per_weight, tensor.size_bits) == (16.0, 96)
    assert float_tensor([1.0], format="f32").bits_per_weight == 32.0
    np.testing.assert_array_equal(tensor.dequantize(), tensor.values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_float_values_must_be_finite(value: float) -> None:
    values = np.ones((3, 4), dtype=np.float32)
    values[2, 1] = value
    with pytest.raises(
        FormatError,
        match=rf"^element \[2, 1\] of tensor 'w' must be a finite number, not {value}$",
    ):
        float_tensor(values)
    with pytest.raises(
        FormatError, match=rf"^element \[1\] of tensor 'w' must be a finite number, not {value}$"
    ):
        float_tensor([0, value, value])


def test_values_whose_sum_overflows_are_finite() -> None:
    float_tensor([[3e38, 3e38, -3e38]])


def test_float_format_must_be_known() -> None:
    with pytest.raises(
        FormatError, match=r"^format of tensor 'w' must be one of f32, f16, bf16, not 'f8'$"
    ):
        float_tensor([1.0], format="f8")


def test_float_values_must_have_the_shape() -> None:
    with pytest.raises(
        FormatError,
        match=r"^values of tensor 'w' must be float32 of shape \[3\], not float32 of \[2\]$",
    ):
        float_tensor([1.0, 2.0], shape=(3,))
