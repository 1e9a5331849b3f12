"""The scale tensors of GGUF's BitNet architectures: ``blk.N.attn_q.scale`` beside a matrix.

Source: llama.cpp ``build_bitnet``: the product with a matrix is multiplied by its scale.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from romsim_models.encoded import EncodedTensor, FloatTensor, Tensor
from romsim_models.errors import FormatError
from romsim_models.tensors import PROJECTIONS
from romsim_models.ternary import codes_of_values, float32_parts, ternary_tensor

__all__ = ["SCALED_FLOATS", "is_scale", "times_scale"]

SCALED_FLOATS = "bitnet"
"""Format of a matrix of floats -1, 0 and 1 that has a scale beside it."""


def is_scale(name: str, names: Container[str]) -> bool:
    """Whether a tensor is the scale of one of the projections in ``names``."""
    stem, dot, kind = name.rpartition(".")
    part = stem.rpartition(".")[2]
    return bool(dot) and kind == "scale" and part in PROJECTIONS and f"{stem}.weight" in names


def times_scale(tensor: Tensor, scale: float) -> EncodedTensor:
    """Put a matrix and the scale beside it together, exactly.

    Parameters
    ----------
    tensor
        Ternary: codes with one scale for all, or floats that are -1, 0 or 1.
    scale
        At least 0.

    Raises
    ------
    FormatError
        If the matrix is not ternary, the scale is negative, or both scales together need more than
        float32's 24 bits.
    """
    if not 0 <= scale < np.inf:
        raise FormatError(
            f"scale of tensor {tensor.name!r} must be a finite number of at least 0, not {scale!r}"
        )
    factor = float32_parts(scale)
    if isinstance(tensor, FloatTensor):
        codes = codes_of_values(tensor.values, tensor.name)
        return ternary_tensor(name=tensor.name, format=SCALED_FLOATS, codes=codes, scale=factor)
    if tensor.matrix_scale is None:
        raise FormatError(
            f"format of tensor {tensor.name!r} must be I2_S or floating point where a scale stands "
            f"beside it, not {tensor.format!r}; convert the file again without scale tensors"
        )
    significand = tensor.matrix_scale[0] * factor[0]
    exponent = tensor.matrix_scale[1] + factor[1]
    while significand and significand % 2 == 0:
        significand, exponent = significand // 2, exponent + 1
    if significand >= 1 << 24:
        raise FormatError(
            f"scale of tensor {tensor.name!r}, its own times the one beside it, must fit float32, "
            f"not be {significand} * 2^{exponent}; convert the file again"
        )
    return ternary_tensor(
        name=tensor.name, format=tensor.format, codes=tensor.codes.view(np.uint8),
        scale=(significand, exponent),
    )  # fmt: skip
