"""Sixteen-bit words and affine codes of the KV cache, on tensors (docs/kv.md, sections 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from romsim.reference.functions import recip
from romsim.reference.primitives import bitlen_float, rne, shr_float

__all__ = ["AffineCodes", "affine", "fp16"]

_SIGNIFICAND_BITS = 11


def fp16(v: Tensor) -> tuple[Tensor, Tensor]:
    """Round to sixteen-bit words.

    Parameters
    ----------
    v
        float64 of any shape, integers below 2^32 in magnitude, frac 16.

    Returns
    -------
    tuple of Tensor
        Words, int64, and the integers that they stand for, float64.
    """
    places = (bitlen_float(v.abs()) - _SIGNIFICAND_BITS).clamp(min=0)
    kept = torch.ldexp(shr_float(v, places), places.to(torch.float64))
    magnitude = kept.abs().to(torch.int64)
    length = bitlen_float(kept.abs())
    # The leading bit of a normal word adds one to the exponent field: L' - 3 and all eleven bits.
    top = _SIGNIFICAND_BITS - length
    aligned = torch.where(top >= 0, magnitude << top.clamp(min=0), magnitude >> (-top).clamp(min=0))
    normal = ((length - 3) << 10) + aligned
    bits = torch.where(length >= 3, normal, magnitude << 8)
    return torch.where(kept < 0, bits + 0x8000, bits), kept


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AffineCodes:
    """Groups in affine codes.

    Parameters
    ----------
    codes
        int64 [..., group], 0 to 2^bits - 1.
    scale, zero
        Words, int64 [...].
    seen
        float64 [..., group], the integers that attention sees.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor
    seen: Tensor


def affine(v: Tensor, bits: int) -> AffineCodes:
    """Encode groups along the last axis.

    Parameters
    ----------
    v
        float64 [..., group], integers below 2^32 in magnitude.
    bits
        Width of a code.
    """
    largest_code = 2**bits - 1
    low, high = torch.aminmax(v, dim=-1)
    third = (2 * 2**32 // largest_code + 1) // 2  # 2^32 / largest code, to the nearest
    span = (high - low).to(torch.int64)
    scale_word, scale = fp16(rne(span * third, 32).to(torch.float64))
    zero_word, zero = fp16(low)
    exponent = (bitlen_float(scale) - _SIGNIFICAND_BITS).clamp(min=0)
    y, places = recip(scale.to(torch.int64) >> exponent)
    inverse = rne(y, 8)
    difference = (v - zero[..., None]).to(torch.int64)
    codes = rne(difference * inverse[..., None], (22 + places + exponent)[..., None])
    codes = torch.where(scale[..., None] == 0, 0, codes.clamp(0, largest_code))
    seen = zero[..., None] + codes.to(torch.float64) * scale[..., None]
    return AffineCodes(codes=codes, scale=scale_word, zero=zero_word, seen=seen)
