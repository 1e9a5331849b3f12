"""RMSNorm with integer gains: `Norm`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from romsim.reference import tables
from romsim.reference.functions import rsqrt
from romsim.reference.primitives import (
    BlockCodes,
    Saturation,
    bitlen_float,
    quantise,
    rne,
    shr,
    shr_float,
)
from romsim_models.errors import SpecError

__all__ = ["Norm"]

_MAX_LENGTH = 16_384  # sums of squares stay below 2^63
_NORM_FRAC = 22


class Norm:
    """One normalisation: attention's, the feed-forward's, the output's, or a sub-norm.

    Parameters
    ----------
    name
        Canonical tensor name.
    gains
        float32 [K].
    epsilon
        Added to the mean square.
    input_frac
        Fraction bits of the input.
    block
        Outputs that share one shift.
    device
        Where the gains are held.

    Attributes
    ----------
    frac : int
        Fraction bits of the output, ``F_y`` of the page.

    Raises
    ------
    SpecError
        If the vector is too long, all gains are 0, or epsilon leaves 63 bits.
    """

    def __init__(
        self,
        name: str,
        gains: NDArray[np.float32],
        *,
        epsilon: float,
        input_frac: int,
        block: int,
        device: torch.device | str,
    ) -> None:
        length = len(gains)
        if length > _MAX_LENGTH:
            raise SpecError(
                f"norm {name!r} must have at most {_MAX_LENGTH} elements, not {length!r}"
            )
        largest = float(np.abs(gains).max())
        if largest == 0.0:
            raise SpecError(f"largest gain of norm {name!r} must be above 0, not {largest!r}")
        gain_frac, self.frac = tables.norm_fracs(largest, length)
        # Scaling by a power of two and rint (ties to even) are exact in float64.
        exact = np.rint(np.ldexp(gains.astype(np.float64), gain_frac)).astype(np.int64)
        self._gains = torch.from_numpy(exact.astype(np.float64)).to(device)
        self._places = _NORM_FRAC + gain_frac - self.frac
        self._epsilon = tables.norm_epsilon(epsilon, length, input_frac)
        if self._epsilon >= 2**62:
            raise SpecError(
                f"epsilon of norm {name!r} must stay below 2^62 in its integer form, "
                f"not {epsilon!r}"
            )
        self._root = tables.sqrt_length(length)
        self._block = block

    def __call__(self, x: Tensor, saturation: Saturation) -> BlockCodes:
        """Normalise and code vectors.

        Parameters
        ----------
        x
            float64 [T, K], int32 values.
        saturation
            Counts the clips.
        """
        largest = x.abs().amax(dim=-1, keepdim=True)
        t = (bitlen_float(largest) - 24).clamp(min=-10)  # [T, 1]
        u = shr_float(x, t).to(torch.int64)  # |u| <= 2^24, but the sum of squares passes 2^53
        square = (u * u).sum(dim=-1, keepdim=True)
        epsilon = torch.full_like(square, self._epsilon)
        y, h = rsqrt(square + rne(epsilon, 2 * (t + 10)))
        ratio = rne(y * self._root, 26)
        if bool((largest * ratio).max() < 2.0**53):
            n = shr_float(x * ratio, h + t - 2)
        else:
            n = shr(x.to(torch.int64) * ratio, h + t - 2).to(torch.float64)
        # |n| <= sqrt(K) 2^22 <= 2^29 and |W| <= 2^23
        out = saturation.sat32(shr_float(n * self._gains, self._places))
        return quantise(out, block=self._block, frac=self.frac)
