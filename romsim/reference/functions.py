"""RSQRT, RECIP, EXP2N, SINQ and the sigmoid, vectorised on int64 tensors.

Every product here stays below 2^63, so that a signed word serves for the page's unsigned ones: the
Newton steps start within 0.8 % of the root, which keeps ``n a`` below 1.02 * 2^62.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from romsim.reference import tables
from romsim.reference.primitives import bitlen, rne

__all__ = ["exp2n", "recip", "rsqrt", "sigmoid", "sin_cos", "sinq"]

_TURN = 2**32
_QUARTER = 2**30


@functools.lru_cache(maxsize=64)
def _table(build: Callable[[], tuple[int, ...]], device: torch.device) -> Tensor:
    return torch.tensor(build(), dtype=torch.int64, device=device)


def rsqrt(n: Tensor) -> tuple[Tensor, Tensor]:
    """1 / sqrt(n) as ``y 2^-30 2^-h``.

    Parameters
    ----------
    n
        int64, 0 to 2^63 - 1.

    Returns
    -------
    tuple of Tensor
        ``(y, h)``, int64; (0, 0) where n is 0.
    """
    bits = bitlen(n)
    bits = bits + (bits & 1)  # up to even
    places = 32 - bits
    scaled = torch.where(places >= 0, n << places.clamp(min=0), n >> (-places).clamp(min=0))
    index = ((scaled >> 25) - 32).clamp(min=0)  # below 0 only where n is 0
    y = _table(tables.rsqrt_table, n.device)[index] << 15
    for _ in range(2):
        a = (y * y) >> 30
        p = (scaled * a) >> 32
        y = (y * (3 * 2**30 - p)) >> 31
    return torch.where(n > 0, y, 0), bits >> 1


def recip(l: Tensor) -> tuple[Tensor, Tensor]:  # noqa: E741  # the page's letter
    """1 / l as ``y 2^-30 2^-b``.

    Parameters
    ----------
    l
        int64, 0 to 2^32 - 1.

    Returns
    -------
    tuple of Tensor
        ``(y, b)``, int64; (0, 0) where l is 0.
    """
    bits = bitlen(l)
    scaled = l << (32 - bits)
    y = _table(tables.reciprocal_table, l.device)[(scaled >> 24) & 127] << 15
    for _ in range(2):
        p = (scaled * y) >> 32
        y = (y * (2**31 - p)) >> 30
    return torch.where(l > 0, y, 0), bits


def exp2n(d: Tensor) -> tuple[Tensor, Tensor]:
    """2^-d as ``v 2^-20 2^-n``.

    Parameters
    ----------
    d
        int64 of at least 0, frac 16.

    Returns
    -------
    tuple of Tensor
        ``(v, n)``, int64, ``v`` in 2^19 … 2^20.
    """
    table = _table(tables.exp2_table, d.device)
    index = (d >> 8) & 255
    here = table[index]
    return here - rne((here - table[index + 1]) * (d & 255), 8), d >> 16


def sinq(f: Tensor) -> Tensor:
    """Sine of a quarter turn's part, frac 20.

    Parameters
    ----------
    f
        int64, 0 to 2^30, in 2^-32 turns.
    """
    table = _table(tables.sine_table, f.device)
    index = f >> 22
    here = table[index]
    step = table[(index + 1).clamp(max=256)] - here  # 0 at the quarter turn itself
    return here + rne(step * (f & (2**22 - 1)), 22)


def sin_cos(position: Tensor, increment: Tensor) -> tuple[Tensor, Tensor]:
    """Sines and cosines of the rotary angles, frac 20.

    Parameters
    ----------
    position
        int64 [n_tokens].
    increment
        int64 [n_pairs], phase per position in 2^-32 turns.

    Returns
    -------
    tuple of Tensor
        (sin, cos), int64 [n_tokens, n_pairs].
    """
    phase = (position[:, None] * increment[None, :]) & (_TURN - 1)
    part = phase & (_QUARTER - 1)
    quadrant = phase >> 30
    rising = sinq(part)
    falling = sinq(_QUARTER - part)
    odd = (quadrant & 1) == 1
    sine = torch.where(odd, falling, rising)
    cosine = torch.where(odd, rising, falling)
    sine = torch.where(quadrant >= 2, -sine, sine)
    cosine = torch.where((quadrant == 1) | (quadrant == 2), -cosine, cosine)
    return sine, cosine


def sigmoid(g: Tensor) -> Tensor:
    """1 / (1 + e^-g), frac 20.

    Parameters
    ----------
    g
        float64, int32 values, frac 16.

    Returns
    -------
    Tensor
        float64, 0 … 2^20.
    """
    magnitude = g.abs()
    inside = magnitude.clamp(max=2**20 - 1).to(torch.int32)
    table = _table(tables.sigmoid_table, g.device).to(torch.int32)
    index = (inside >> 10).reshape(-1)
    here = table.index_select(0, index)
    step = (table[1:] - table[:-1]).index_select(0, index)
    inner = here + rne(step * (inside & 1023).reshape(-1), 10)  # below 2^13 * 2^10
    upper = torch.where(magnitude >= 2**20, 2**20, inner.reshape(g.shape)).to(torch.float64)
    return torch.where(g < 0, 2**20 - upper, upper)
