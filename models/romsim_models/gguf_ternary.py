"""GGUF's ternary formats: TQ1_0 (base 3), TQ2_0 (2 bits), and bitnet.cpp's I2_S.

Source: ggml ``ggml-common.h`` (``block_tq1_0``, ``block_tq2_0``) and ``ggml-quants.c``
(``dequantize_row_tq1_0``, ``dequantize_row_tq2_0``); microsoft/BitNet
``src/ggml-bitnet-mad.cpp::quantize_i2_s`` as it is built for AVX2 (blocks of 128), which is what
the published files hold. I2_S keeps one float32 scale behind all codes of the tensor, in the first
4 of 32 further bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from romsim_models.encoded import EncodedTensor
from romsim_models.errors import FormatError
from romsim_models.gguf_block import GgufBlock
from romsim_models.ternary import check_codes, float32_parts, ternary_tensor

__all__ = ["BLOCKS"]

_GROUP = 256  # weights of a TQ block
_I2_S_BLOCK = 128
_I2_S_TRAILER_BYTES = 32
_PLACES = np.array([1, 3, 9, 27, 81], dtype=np.uint8)  # powers of three modulo 256


def _trits(packed: NDArray[np.uint8], n_trits: int) -> NDArray[np.uint8]:
    """Digits of bytes that hold a fraction of 3^5: [..., bytes] -> [..., n_trits * bytes].

    A byte is ``ceil(v * 256 / 243)`` of the number ``v`` with five digits to base 3, highest first;
    multiplied by 3^n modulo 256 its digit n is on top.
    """
    rotated = packed[..., None, :] * _PLACES[:n_trits, None]  # wraps, which is meant
    digits = ((rotated.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)).astype(np.uint8)
    return digits.reshape(*packed.shape[:-1], n_trits * packed.shape[-1])


def _decode_tq1_0(name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> EncodedTensor:
    blocks = raw.reshape(shape[0], -1, 54)
    parts = ((0, 32, 5), (32, 48, 5), (48, 52, 4))  # bytes, and digits of each
    codes = np.concatenate([_trits(blocks[:, :, a:b], n) for a, b, n in parts], axis=2)
    return _grouped(name, "tq1_0", codes, blocks[:, :, 52:])


def _decode_tq2_0(name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> EncodedTensor:
    blocks = raw.reshape(shape[0], -1, 66)
    halves = blocks[:, :, :64].reshape(shape[0], -1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
    codes = (halves >> shifts) & np.uint8(3)
    return _grouped(name, "tq2_0", codes, blocks[:, :, 64:])


def _grouped(
    name: str, format: str, codes: NDArray[np.uint8], words: NDArray[np.uint8]
) -> EncodedTensor:
    n_rows, n_groups = words.shape[:2]
    matrix = codes.reshape(n_rows, n_groups * _GROUP)
    check_codes(matrix, name, format)
    return EncodedTensor(
        name=name,
        shape=(n_rows, n_groups * _GROUP),
        format=format,
        code_bits=2,
        code_offset=1,
        group_size=_GROUP,
        codes=matrix,
        scale_bits=np.ascontiguousarray(words).view("<u2")[:, :, 0].copy(),
    )


def _decode_i2_s(name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> EncodedTensor:
    packed, trailer = raw[:-_I2_S_TRAILER_BYTES], raw[-_I2_S_TRAILER_BYTES:]
    scale = float(trailer[:4].view("<f4")[0])
    if not 0 <= scale < np.inf:
        raise FormatError(
            f"scale of tensor {name!r} must be a finite number of at least 0, not {scale!r}; the "
            "file is corrupt, or its I2_S is of another kind"
        )
    # Byte j of a block of 32 holds the weights j, j + 32, j + 64, j + 96, the first on top.
    shifts = np.array([6, 4, 2, 0], dtype=np.uint8).reshape(4, 1)
    codes = (packed.reshape(-1, 1, _I2_S_BLOCK // 4) >> shifts) & np.uint8(3)
    return ternary_tensor(
        name=name, format="i2_s", codes=codes.reshape(shape), scale=float32_parts(scale)
    )


BLOCKS = (
    GgufBlock(type_id=34, name="tq1_0", n_weights=_GROUP, n_bytes=54, decode=_decode_tq1_0),
    GgufBlock(type_id=35, name="tq2_0", n_weights=_GROUP, n_bytes=66, decode=_decode_tq2_0),
    GgufBlock(
        type_id=36, name="i2_s", n_weights=_I2_S_BLOCK, n_bytes=32, decode=_decode_i2_s,
        trailer_bytes=_I2_S_TRAILER_BYTES,
    ),
)  # fmt: skip
