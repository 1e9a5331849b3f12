"""Rounding, shifting, saturation and the MXINT8 quantiser, on tensors of any device.

Values between operators are integers in float64 tensors: every int32 is exact there, scaling by a
power of two is exact, and IEEE 754's round-half-even *is* the page's rounding, so that below 2^53
float64 arithmetic is integer arithmetic, at vector speed. int64 tensors serve where a value may
pass 2^53. Functions named ``..._float`` are for the former, and their callers keep the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "INT32_MAX",
    "INT32_MIN",
    "BlockCodes",
    "Saturation",
    "bitlen",
    "bitlen_float",
    "power_of_two",
    "quantise",
    "rne",
    "rne_product",
    "shr",
    "shr_float",
]

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1

_CODE_MAX = 127
_EXACT = 2.0**53  # integers up to here are exact in float64
_FLOAT64_BIAS = 1023
_FLOAT64_FRACTION_BITS = 52


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockCodes:
    """A batch of vectors in MXINT8.

    Parameters
    ----------
    codes
        int8 [..., n], -127 to 127.
    shifts
        int8 [..., ceil(n / block)], 0 to 25; value = code * 2^shift.
    block
        Elements that share one shift.
    frac
        Fraction bits of the values.
    """

    codes: Tensor
    shifts: Tensor
    block: int
    frac: int

    @property
    def length(self) -> int:
        """Elements of one vector."""
        return int(self.codes.shape[-1])

    def element_shifts(self) -> Tensor:
        """Give every element its shift, int8 [..., n]."""
        return self.shifts.repeat_interleave(self.block, dim=-1)[..., : self.length]


class Saturation:
    """Clips to int32 and counts the clips.

    Attributes
    ----------
    count : int
        Elements clipped so far.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def sat32(self, v: Tensor, *, where: Tensor | None = None) -> Tensor:
        """Clip to int32.

        Parameters
        ----------
        v
            int64 or float64 of any shape, integers.
        where
            bool, broadcastable to ``v``; elements outside do not exist and are not counted.

        Returns
        -------
        Tensor
            Clipped values, of the type of ``v``.
        """
        if v.numel() == 0:
            return v
        least, largest = torch.aminmax(v)
        if bool(least >= INT32_MIN) and bool(largest <= INT32_MAX):
            return v
        clipped = (v < INT32_MIN) | (v > INT32_MAX)
        if where is not None:
            clipped &= where
        self.count += int(clipped.sum())
        return v.clamp(INT32_MIN, INT32_MAX)

    def shr_sat32(self, v: Tensor, s: int) -> Tensor:
        """Shift right with rounding (left, exactly, if ``s < 0``), then clip to int32.

        A left shift is clipped by its exact value, also where that passes 63 bits.
        """
        if s >= 0:
            return self.sat32(rne(v, s))
        # Beyond +-(2^30 + 1), or beyond 32 places, a non-zero value clips whatever it is; the bound
        # keeps the shifted word inside int64.
        bound = 2**30 + 1
        return self.sat32(v.clamp(-bound, bound) << min(-s, 32))


def rne(v: Tensor, s: int | Tensor) -> Tensor:
    """``v / 2^s`` to the nearest integer, ties to even; 0 for ``s >= 63``.

    Parameters
    ----------
    v
        int64.
    s
        Shift of at least 0, a number or an integer tensor broadcastable to ``v``.
    """
    if isinstance(s, int):
        if s == 0:
            return v
        if s >= 63:
            return torch.zeros_like(v)
        quotient = v >> s
        rest = v - (quotient << s)  # 0 .. 2^s - 1: no carry can leave the word
        half = 1 << (s - 1)
        return quotient + ((rest + (quotient & 1)) > half)
    wide = s.to(torch.int64)
    shift = wide.clamp(max=62)
    quotient = v >> shift
    rest = v - (quotient << shift)
    halves = torch.ones_like(shift) << (shift - 1).clamp(min=0)
    up = ((rest + (quotient & 1)) > halves) & (wide > 0)
    return torch.where(wide >= 63, torch.zeros_like(quotient), quotient + up)


def shr(v: Tensor, s: int | Tensor) -> Tensor:
    """`rne` for ``s >= 0``, an exact left shift (modulo 2^64) for ``s < 0``."""
    if isinstance(s, int):
        return rne(v, s) if s >= 0 else v << min(-s, 63)
    wide = s.to(torch.int64)
    left = v << (-wide).clamp(0, 63)
    return torch.where(wide < 0, left, rne(v, wide.clamp(min=0)))


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float64, exact, for exponents -1022 to 1023 (others are brought to those)."""
    biased = exponent.to(torch.int64).clamp(1 - _FLOAT64_BIAS, _FLOAT64_BIAS) + _FLOAT64_BIAS
    return (biased << _FLOAT64_FRACTION_BITS).view(torch.float64)


def shr_float(v: Tensor, s: int | Tensor) -> Tensor:
    """`shr` on integers below 2^53 in float64 (a left shift may pass that: it stays exact)."""
    factor = 2.0**-s if isinstance(s, int) else power_of_two(-s.to(torch.int64))
    return (v * factor).round_()


def rne_product(a: Tensor, b: Tensor, s: int) -> Tensor:
    """`rne` of the product of int32 values, all in float64."""
    if a.numel() and float(a.abs().max()) * float(b.abs().max()) >= _EXACT:
        return rne(a.to(torch.int64) * b.to(torch.int64), s).to(torch.float64)
    return shr_float(a * b, s)


def bitlen(v: Tensor) -> Tensor:
    """Count the bits of ``v >= 0``, int64: the least n with v < 2^n."""
    # frexp's exponent is the bit length of an exact float64; a word goes in two exact halves.
    high = bitlen_float((v >> 32).to(torch.float64))
    low = bitlen_float((v & 0xFFFF_FFFF).to(torch.float64))
    return torch.where(high > 0, high + 32, low)


def bitlen_float(v: Tensor) -> Tensor:
    """`bitlen`, as int64, of integers from 0 to 2^53 in float64."""
    return torch.frexp(v).exponent.to(torch.int64)


def quantise(v: Tensor, *, block: int, frac: int) -> BlockCodes:
    """Code vectors of int32 values in blocks that share one power of two (MXINT8).

    Parameters
    ----------
    v
        float64 [..., n], integers in the int32 range.
    block
        Elements that share one shift; the last block may be shorter.
    frac
        Fraction bits of ``v``, kept with the codes.

    Source
    ------
    Form after OCP Microscaling Formats v1.0, MXINT8.
    """
    n = v.shape[-1]
    n_blocks = -(-n // block)
    padded = torch.nn.functional.pad(v, (0, n_blocks * block - n))
    blocks = padded.reshape(*v.shape[:-1], n_blocks, block)
    # The bits of an OR of magnitudes are those of the largest.
    shift = (bitlen_float(blocks.abs().amax(dim=-1)) - 7).clamp(min=0)
    codes = shr_float(blocks, shift[..., None])
    over = codes.abs().amax(dim=-1) > _CODE_MAX
    if bool(over.any()):
        shift = shift + over
        codes = shr_float(blocks, shift[..., None])  # anew from v: no second rounding
    flat = codes.reshape(*v.shape[:-1], n_blocks * block)[..., :n]
    return BlockCodes(
        codes=flat.to(torch.int8), shifts=shift.to(torch.int8), block=block, frac=frac
    )
