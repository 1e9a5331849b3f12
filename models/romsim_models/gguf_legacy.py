"""GGUF's plain block formats: Q4_0, Q4_1, Q8_0, 32 weights a block.

Source: ggml ``ggml-common.h`` (``block_q4_0``, ``block_q4_1``, ``block_q8_0``) and
``ggml-quants.c`` (``dequantize_row_*``): the low nibble of byte j is weight j, the high one weight
j + 16.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from romsim_models.encoded import EncodedTensor
from romsim_models.gguf_block import GgufBlock

__all__ = ["BLOCKS"]

_GROUP = 32


def _words(blocks: NDArray[np.uint8], start: int) -> NDArray[np.uint16]:
    """One 16-bit word of each block: [n_rows, n_groups, bytes] -> [n_rows, n_groups]."""
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view("<u2")[:, :, 0].copy()


def _nibbles(blocks: NDArray[np.uint8], start: int) -> NDArray[np.uint8]:
    """4-bit codes of each block: [n_rows, n_groups, bytes] -> [n_rows, n_cols]."""
    packed = blocks[:, :, start:]  # [n_rows, n_groups, 16]
    codes = np.empty((*packed.shape[:2], _GROUP), dtype=np.uint8)
    np.bitwise_and(packed, 0x0F, out=codes[:, :, : _GROUP // 2])
    np.right_shift(packed, 4, out=codes[:, :, _GROUP // 2 :])
    return codes.reshape(packed.shape[0], -1)


def _split(
    raw: NDArray[np.uint8], shape: tuple[int, ...], n_bytes: int
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Bytes of a tensor as blocks [n_rows, n_groups, n_bytes], and its shape as a matrix."""
    n_rows, n_cols = shape
    return raw.reshape(n_rows, n_cols // _GROUP, n_bytes), (n_rows, n_cols)


def _decode_q4_0(name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> EncodedTensor:
    blocks, matrix_shape = _split(raw, shape, 18)
    return EncodedTensor(
        name=name, shape=matrix_shape, format="q4_0", code_bits=4, code_offset=8,
        group_size=_GROUP, codes=_nibbles(blocks, 2), scale_bits=_words(blocks, 0),
    )  # fmt: skip


def _decode_q4_1(name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> EncodedTensor:
    blocks, matrix_shape = _split(raw, shape, 20)
    return EncodedTensor(
        name=name, shape=matrix_shape, format="q4_1", code_bits=4, code_offset=0,
        group_size=_GROUP, codes=_nibbles(blocks, 4), scale_bits=_words(blocks, 0),
        minimum_bits=_words(blocks, 2),
    )  # fmt: skip


def _decode_q8_0(name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> EncodedTensor:
    blocks, matrix_shape = _split(raw, shape, 34)
    codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(matrix_shape)
    return EncodedTensor(
        name=name, shape=matrix_shape, format="q8_0", code_bits=8, code_offset=0,
        group_size=_GROUP, codes=codes, scale_bits=_words(blocks, 0),
    )  # fmt: skip


BLOCKS = (
    GgufBlock(type_id=2, name="q4_0", n_weights=_GROUP, n_bytes=18, decode=_decode_q4_0),
    GgufBlock(type_id=3, name="q4_1", n_weights=_GROUP, n_bytes=20, decode=_decode_q4_1),
    GgufBlock(type_id=8, name="q8_0", n_weights=_GROUP, n_bytes=34, decode=_decode_q8_0),
)
