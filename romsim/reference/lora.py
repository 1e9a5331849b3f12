"""Low-rank adapters in integers: MXINT8, or trits with one scale; the scaling folded into B."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from romsim.reference.integer_matrix import IntegerMatrix, whole_matrix
from romsim.reference.matvec import Linear, derive_grid
from romsim.reference.primitives import BlockCodes, Saturation, quantise
from romsim.reference.ternary_weights import absmean, exact_floats
from romsim_models.encoded import FloatTensor
from romsim_models.errors import SpecError
from romsim_models.lora import LoraAdapter

__all__ = ["LowRank", "adapter_matrix", "low_ranks"]

_LEAST_EXPONENT = -40
_CODE_MAX = 127


def adapter_matrix(name: str, weights: NDArray[np.float64], *, block: int) -> IntegerMatrix:
    """Code a matrix in MXINT8 along its input axis.

    Parameters
    ----------
    name
        For messages.
    weights
        float64 [n_rows, n_cols].
    block
        Columns that share one power of two; the last block may be shorter.

    Raises
    ------
    SpecError
        If a weight is not finite.
    """
    if not np.isfinite(weights).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(weights))[0])
        value = float(weights[row, column])
        raise SpecError(f"element [{row}, {column}] of {name} must be a finite number, not {value}")
    n_rows, n_cols = weights.shape
    n_blocks = -(-n_cols // block)
    padded = np.zeros((n_rows, n_blocks * block))
    padded[:, :n_cols] = weights
    blocks = padded.reshape(n_rows, n_blocks, block)
    largest = np.abs(blocks).max(axis=2)
    # largest / 2^e < 128 for this e; one more where it still rounds to 128, one less never fits
    # (then largest / 2^e >= 128).
    exponent = np.maximum(np.frexp(largest)[1] - 7, _LEAST_EXPONENT)
    exponent += np.rint(np.ldexp(largest, -exponent)) > _CODE_MAX
    exponent = np.where(largest == 0.0, _LEAST_EXPONENT, exponent)
    codes = np.rint(np.ldexp(blocks, -exponent[:, :, None])).astype(np.int16)
    # A block of zeros takes no part in γ: significand 0, as the page's rule for γ reads it.
    significand = np.asarray(codes.any(axis=2), dtype=np.int16)
    return IntegerMatrix(
        name=name,
        values=codes.reshape(n_rows, n_blocks * block)[:, :n_cols],
        group=block,
        sig=significand,
        exp=exponent.astype(np.int16),
    )


class LowRank:
    """One projection's adapter.

    Parameters
    ----------
    name
        Canonical name of the projection.
    a
        float [rank, n_inputs].
    b
        float [n_outputs, rank].
    scaling
        Factor of the update (alpha/r or alpha/sqrt(r)).
    block
        Activations that share one shift.
    device
        Where the codes are held.
    is_ternary
        Whether the factors are trits with one scale each: as they are if they have one magnitude
        beside 0, else by their mean magnitude.

    Attributes
    ----------
    n_rounded_rows : int
        Rows of both matrices whose terms the grid may round (0 for trained adapters).

    Raises
    ------
    SpecError
        If a weight is not finite, or the ranks of A and B differ.
    """

    def __init__(
        self,
        name: str,
        a: NDArray[np.float32],
        b: NDArray[np.float32],
        *,
        scaling: float,
        block: int,
        device: torch.device | str,
        is_ternary: bool = False,
    ) -> None:
        rank = a.shape[0]
        if b.shape[1] != rank:
            raise SpecError(
                f"LoRA B of {name!r} must have the {rank} columns of A's rank, not {b.shape[1]!r}"
            )
        self._block = min(block, rank)
        padded = -(-rank // self._block) * self._block
        if is_ternary:
            down = _trits(f"LoRA A of {name!r}", a, (padded, a.shape[1]), 1.0)
            up = _trits(f"LoRA B of {name!r}", b, (b.shape[0], padded), scaling)
            self._a = Linear(down, grid=0, block=block, device=device)
            self._b = Linear(up, grid=0, block=self._block, device=device)
            self.n_rounded_rows = 0
            return
        rows = np.zeros((padded, a.shape[1]))
        rows[:rank] = a
        columns = np.zeros((b.shape[0], padded))
        columns[:, :rank] = b.astype(np.float64) * scaling
        self._a = _linear(adapter_matrix(f"LoRA A of {name!r}", rows, block=block), block, device)
        self._b = _linear(
            adapter_matrix(f"LoRA B of {name!r}", columns, block=self._block), self._block, device
        )
        self.n_rounded_rows = self._a.n_rounded_rows + self._b.n_rounded_rows

    def __call__(
        self, x: BlockCodes, y: Tensor, *, inner_frac: int, frac: int, saturation: Saturation
    ) -> Tensor:
        """Add the update to a projection's output.

        Parameters
        ----------
        x
            Input of the projection, codes int8 [T, n_inputs].
        y
            Its output, float64 [T, n_outputs], int32 values.
        inner_frac
            Fraction bits between the two matrices.
        frac
            Fraction bits of ``y``.
        saturation
            Counts the clips.
        """
        z = self._a(x, frac=inner_frac, saturation=saturation)
        inner = quantise(z, block=self._block, frac=inner_frac)
        return saturation.sat32(y + self._b(inner, frac=frac, saturation=saturation))


def low_ranks(
    adapter: LoraAdapter, *, block: int, device: torch.device | str, is_ternary: bool
) -> dict[str, LowRank]:
    """Return an adapter's `LowRank` of each matrix by canonical name, parameters as there."""
    return {
        name: LowRank(
            name,
            pair.a,
            pair.b,
            scaling=pair.scaling,
            block=block,
            device=device,
            is_ternary=is_ternary,
        )
        for name, pair in adapter.targets.items()
    }


def _trits(
    name: str, factor: NDArray[np.float32], shape: tuple[int, int], scaling: float
) -> IntegerMatrix:
    """Give a factor as trits, padded with zeros, its one scale times the adapter's scaling."""
    tensor = FloatTensor(
        name=name, shape=(len(factor), factor.shape[1]), format="f32", values=factor
    )
    magnitudes = np.unique(np.abs(factor))
    is_exact = np.count_nonzero(magnitudes) <= 1
    found = (exact_floats if is_exact else absmean)(tensor)
    assert found.scale is not None  # both give a whole-matrix scale
    mantissa, exponent = math.frexp(math.ldexp(*found.scale) * scaling)
    significand = int(mantissa * 2**24)
    values = np.zeros(shape, dtype=np.int16)
    values[: factor.shape[0], : factor.shape[1]] = found.values
    return whole_matrix(name, values, significand, exponent - 24 if significand else 0)


def _linear(matrix: IntegerMatrix, block: int, device: torch.device | str) -> Linear:
    return Linear(matrix, grid=derive_grid([matrix]), block=block, device=device)
