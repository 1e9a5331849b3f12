from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from romsim_models.encoded import EncodedTensor, Tensor
from romsim_models.errors import FormatError
from romsim_models.gguf_blocks import GGML_TYPE_NAMES, block_of_type, supported_types
from tests.models.gguf_files import BF16, BLOCKS, F16, F32, Q4_0, Q4_1, Q8_0, random_tensor

gguf = pytest.importorskip("gguf", reason="an independent dequantiser (extra 'oracle')")

TYPES = {F32: "f32", F16: "f16", BF16: "bf16", Q4_0: "q4_0", Q4_1: "q4_1", Q8_0: "q8_0"}


def decoded(
    type_id: int, shape: tuple[int, int], seed: int = 0
) -> tuple[Tensor, NDArray[np.uint8]]:
    written = random_tensor(shape, type_id, np.random.RandomState(seed))
    raw = np.frombuffer(written.raw, dtype=np.uint8)
    return block_of_type(type_id, tensor="w", path="f").decode("w", raw, shape), raw


@pytest.mark.parametrize("type_id", TYPES)
@pytest.mark.parametrize("shape", [(1, 32), (5, 96), (64, 64)])
def test_weights_equal_the_gguf_package_to_the_bit(type_id: int, shape: tuple[int, int]) -> None:
    tensor, raw = decoded(type_id, shape, seed=type_id)
    n_weights, n_bytes = BLOCKS[type_id]
    rows = raw.reshape(shape[0], shape[1] // n_weights * n_bytes)
    kind = gguf.GGMLQuantizationType(type_id)
    theirs = gguf.quants.dequantize(rows.view(_element(type_id)), kind)
    ours = tensor.dequantize()
    assert ours.dtype == np.float32
    assert ours.shape == tensor.shape == shape
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.astype(np.float32).view(np.uint32))


def _element(type_id: int) -> str:
    return {F32: "<f4", F16: "<f2"}.get(type_id, "u1")


@pytest.mark.parametrize(
    ("type_id", "code_bits", "offset", "dtype", "bits"),
    [
        (Q4_0, 4, 8, np.uint8, 4.5),
        (Q4_1, 4, 0, np.uint8, 5.0),
        (Q8_0, 8, 0, np.int8, 8.5),
    ],
)
def test_codes_travel_as_shipped(
    type_id: int, code_bits: int, offset: int, dtype: type, bits: float
) -> None:
    tensor, raw = decoded(type_id, (3, 64))
    assert isinstance(tensor, EncodedTensor)
    assert (tensor.format, tensor.code_bits, tensor.code_offset, tensor.group_size) == (
        *(TYPES[type_id], code_bits, offset, 32),
    )
    assert tensor.codes.dtype == dtype
    assert tensor.bits_per_weight == bits
    assert tensor.size_bits == 8 * raw.size
    # Pack the codes, scales and minima again: the file's own bytes must come out.
    blocks = np.empty((3, 2, BLOCKS[type_id][1]), dtype=np.uint8)
    words = [tensor.scale_bits]
    words += [] if tensor.minimum_bits is None else [tensor.minimum_bits]
    for index, word in enumerate(words):
        blocks[:, :, 2 * index : 2 * index + 2] = word[:, :, None].view(np.uint8)
    codes: NDArray[np.uint8] = tensor.codes.reshape(3, 2, 32).view(np.uint8)
    if code_bits == 4:
        codes = np.bitwise_or(codes[:, :, :16], codes[:, :, 16:] << 4).astype(np.uint8)
    blocks[:, :, 2 * len(words) :] = codes
    np.testing.assert_array_equal(blocks.ravel(), raw)


@pytest.mark.parametrize("type_id", TYPES)
def test_decoded_tensors_cannot_be_written_to(type_id: int) -> None:
    tensor, _ = decoded(type_id, (2, 32))
    arrays = (
        [tensor.codes, tensor.scale_bits] if isinstance(tensor, EncodedTensor) else [tensor.values]
    )
    for array in arrays:
        with pytest.raises(ValueError, match=r"^assignment destination is read-only$"):
            array[0, 0] = 1


def test_every_type_of_the_gguf_package_has_a_name() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert GGML_TYPE_NAMES[kind.value].startswith(kind.name)


def test_unknown_type_is_refused() -> None:
    assert supported_types() == "F32, F16, BF16, Q4_0, Q4_1, Q8_0, TQ1_0, TQ2_0, I2_S"
    with pytest.raises(
        FormatError,
        match=r"^m\.gguf: type of tensor 'w' must be one of F32, F16, BF16, Q4_0, Q4_1, Q8_0, "
        r"TQ1_0, TQ2_0, I2_S, not 11 \(Q3_K\); convert the file to one of these types$",
    ):
        block_of_type(11, tensor="w", path="m.gguf")
