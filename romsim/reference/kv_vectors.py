"""CommVQ of the integer reference: keys and values as sums of codebook vectors (docs/kv.md, 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from romsim.reference.functions import rsqrt
from romsim.reference.kv_codes import fp16
from romsim.reference.primitives import INT32_MAX, bitlen, bitlen_float, rne, shr_float

__all__ = ["Codebooks", "VectorCodes", "encode_keys", "encode_values"]

_FRAC = 14


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Codebooks:
    """Of one layer, frac 14.

    Parameters
    ----------
    keys
        int16 [n_heads, stages, entries, head_dim].
    values
        int16 [n_heads, rows + 1, head_dim]; the last row is always in.
    """

    keys: NDArray[np.int16]
    values: NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VectorCodes:
    """Vectors in codes.

    Parameters
    ----------
    codes
        int64 [n_heads, T, n]: entries of stage after stage, or a value's bits.
    norms
        Words, int64 [n_heads, T].
    decoded
        float64 [n_heads, T, head_dim], int32 values.
    """

    codes: Tensor
    norms: Tensor
    decoded: Tensor


def encode_keys(v: Tensor, book: NDArray[np.int16]) -> VectorCodes:
    """Encode keys that are not rotated: float64 [n_heads, T, head_dim], integers of frac 16."""
    rest, norms, length = _unit(v)
    start = rest
    entries = torch.from_numpy(book.astype(np.float64)).to(v.device)
    codes = []
    for stage in range(entries.shape[1]):
        one = entries[:, stage]  # [n_heads, entries, head_dim]
        other = torch.stack((-one[..., 1::2], one[..., ::2]), dim=-1).reshape(one.shape)
        centres = one[:, :, None] + other[:, None]
        squares = (centres * centres).sum(dim=-1)  # [n_heads, entries, entries]
        a = rest @ one.transpose(1, 2)
        b = rest @ other.transpose(1, 2)
        cost = squares[:, None] - 2 * (a[..., None] + b[:, :, None])
        best = torch.from_numpy(cost.flatten(2).numpy(force=True).argmin(axis=-1)).to(v.device)
        first, second = best // one.shape[1], best % one.shape[1]
        rest = rest - _rows(one, first) - _rows(other, second)
        codes += [first, second]
    return VectorCodes(
        codes=torch.stack(codes, dim=-1), norms=norms, decoded=_scaled(start - rest, length)
    )


def encode_values(v: Tensor, book: NDArray[np.int16]) -> VectorCodes:
    """Encode values: float64 [n_heads, T, head_dim], integers of frac 16."""
    start, norms, length = _unit(v)
    rows = torch.from_numpy(book.astype(np.float64)).to(v.device)
    rest = start - rows[:, -1:]
    n_heads, head_dim = rows.shape[0], rows.shape[2]
    n_rows = rows.shape[1] - 1
    pairs = rows[:, :-1].reshape(n_heads, n_rows // 2, 2, head_dim)
    zero = torch.zeros_like(pairs[:, :, 0])
    # Symbol 0 … 3: bit 0 is the first row's, bit 1 the second's.
    sums = torch.stack((zero, pairs[:, :, 0], pairs[:, :, 1], pairs.sum(dim=2)), dim=2)
    chosen = torch.zeros((*v.shape[:2], n_rows // 2), dtype=torch.int64, device=v.device)
    for _ in range(2):
        for group in range(n_rows // 2):
            candidates = sums[:, group]  # [n_heads, 4, head_dim]
            rest = rest + _rows(candidates, chosen[..., group])
            cost = (candidates**2).sum(dim=-1)[:, None] - 2 * (rest @ candidates.transpose(1, 2))
            best = torch.from_numpy(cost.numpy(force=True).argmin(axis=-1)).to(v.device)
            rest = rest - _rows(candidates, best)
            chosen[..., group] = best
    return VectorCodes(codes=chosen, norms=norms, decoded=_scaled(start - rest, length))


def _rows(book: Tensor, index: Tensor) -> Tensor:
    """Pick a row for each vector: [n_heads, E, D] by [n_heads, T]."""
    return book.gather(1, index[..., None].expand(-1, -1, book.shape[-1]))


def _unit(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors of length 1, frac 14, the words of their lengths, and those as integers."""
    largest = v.abs().amax(dim=-1, keepdim=True)
    t = (bitlen_float(largest) - 24).clamp(min=0)
    u = shr_float(v, t).to(torch.int64)
    square = (u * u).sum(dim=-1, keepdim=True)
    y, b = rsqrt(square)
    unit = rne(u * y, 16 + b).to(torch.float64)
    e = (bitlen(square) - 31).clamp(min=0)
    norm = rne(rne(square, e) * y, 30 + b - e - t).clamp(max=INT32_MAX)
    words, length = fp16(norm[..., 0].to(torch.float64))
    return unit, words, length


def _scaled(unit: Tensor, length: Tensor) -> Tensor:
    """Give vectors their lengths, clipped to int32 values."""
    product = rne(unit.to(torch.int64) * length[..., None].to(torch.int64), _FRAC)
    return product.clamp(-(2**31), INT32_MAX).to(torch.float64)
