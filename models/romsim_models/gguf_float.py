"""GGUF's floating-point types: F32, F16, BF16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from romsim_models.encoded import FloatTensor
from romsim_models.floats import widen
from romsim_models.gguf_block import GgufBlock

__all__ = ["BLOCKS"]


def _decode_f32(name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> FloatTensor:
    return _float_tensor("f32", name, raw, shape)


def _decode_f16(name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> FloatTensor:
    return _float_tensor("f16", name, raw, shape)


def _decode_bf16(name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> FloatTensor:
    return _float_tensor("bf16", name, raw, shape)


def _float_tensor(
    format: str, name: str, raw: NDArray[np.uint8], shape: tuple[int, ...]
) -> FloatTensor:
    values = np.empty(shape, dtype=np.float32)
    widen(raw, format, out=values.reshape(-1))
    return FloatTensor(name=name, shape=shape, format=format, values=values)


BLOCKS = (
    GgufBlock(type_id=0, name="f32", n_weights=1, n_bytes=4, decode=_decode_f32),
    GgufBlock(type_id=1, name="f16", n_weights=1, n_bytes=2, decode=_decode_f16),
    GgufBlock(type_id=30, name="bf16", n_weights=1, n_bytes=2, decode=_decode_bf16),
)
