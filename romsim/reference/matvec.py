"""Matrix times vector in exact integers, through float64 products whose sums stay below 2^53.

The page sums group terms on a grid ``2^γ``. Where no term rounds, that is one product of integers,
``Σ W_ik (c_k 2^s)`` with ``W`` in units of ``2^γ``. The input is cut into limbs so short that every
sum of a float64 product is an integer below 2^53, where float64 is exact in any order; mostly one
limb is enough. No product is in float32, so that a device's TF32 setting does not matter. Rows in
which the grid rounds a term are computed term by term.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from romsim.reference.integer_matrix import IntegerMatrix
from romsim.reference.primitives import (
    BlockCodes,
    Saturation,
    power_of_two,
    rne,
    shr,
)
from romsim_models.errors import SpecError

__all__ = ["Linear", "Resident", "derive_grid"]

Resident = Literal["float64", "int32"]

_EXACT_BITS = 53  # integers up to 2^53 are exact in float64
_INPUT_BITS = 31  # |code 2^shift| <= 2^31
_ELEMENTS = 2**22  # elements of one output chunk: 32 MiB in float64
_TERMS = 2**23  # elements of one chunk of group terms


def derive_grid(matrices: list[IntegerMatrix]) -> int:
    """Grid exponent γ of matrices fused into one instruction.

    The least exponent of a non-zero significand, raised until ``|acc|`` stays below 2^63. Matrices
    with one scale (γ = 0 by definition) take no part. 0 where all weights are zero.
    """
    grouped = [matrix for matrix in matrices if matrix.scale is None]
    exponents = [least for matrix in grouped if (least := matrix.least_exponent()) is not None]
    if not exponents:
        return 0
    grid = min(exponents)
    bound = max(_row_bound(matrix, grid) for matrix in grouped) * 2**_INPUT_BITS
    while bound >= 2**63:
        grid, bound = grid + 1, bound / 2
    return grid


def _row_bound(matrix: IntegerMatrix, grid: int) -> Fraction:
    """Largest ``Σ |w_ik| / 2^γ`` of a row, exact."""
    least = matrix.least_exponent()
    return Fraction(matrix.largest_row_sum()) * Fraction(2) ** ((least or 0) - grid)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Terms:
    """Rows whose group terms round on the grid, kept as they are."""

    rows: Tensor  # int64 [R]
    values: Tensor  # float64 [n_blocks, R, block]
    sig: Tensor  # int64 [R, n_blocks]
    exp: Tensor  # int64 [R, n_blocks]
    minimum_sig: Tensor | None
    minimum_exp: Tensor | None


class Linear:
    """One matrix, ready to be multiplied.

    Parameters
    ----------
    matrix
        Its integers.
    grid
        Grid exponent γ; ignored for a matrix with one scale, where it is 0.
    block
        Activations that share one shift.
    resident
        How the weights are held between calls: ``"float64"`` (8 bytes each, fastest) or
        ``"int32"`` (4 bytes, converted at each call).
    device
        Where they are held.

    Attributes
    ----------
    row_bound : int
        Largest ``Σ |W_ik|`` of a row in units of ``2^γ``.
    n_rounded_rows : int
        Rows in which the grid may round a term.

    Raises
    ------
    SpecError
        If the grid lets a sum pass 2^63.
    """

    def __init__(
        self,
        matrix: IntegerMatrix,
        *,
        grid: int,
        block: int,
        resident: Resident = "float64",
        device: torch.device | str = "cpu",
    ) -> None:
        self.shape = matrix.shape
        self.grid = 0 if matrix.scale is not None else grid
        self.block = block
        self._scale = matrix.scale
        rounded = _rounded_rows(matrix, self.grid)
        self.n_rounded_rows = len(rounded)
        self._terms = _terms(matrix, rounded, block, device) if len(rounded) else None
        self.row_bound = 0
        if len(rounded):  # their sums are not among those looked at below
            self._check_bound(_row_bound(matrix, self.grid), matrix.name)
        kind = torch.float64 if resident == "float64" else torch.int32
        self._weights = torch.empty(self.shape, dtype=kind, device=device)
        for first in range(0, self.shape[0], 2048):
            rows = matrix.scaled_rows(first, first + 2048, self.grid)
            rows[rounded[(rounded >= first) & (rounded < first + 2048)] - first] = 0
            self.row_bound = max(self.row_bound, int(np.abs(rows).sum(axis=1).max()))
            self._check_bound(self.row_bound, matrix.name)
            if kind is torch.int32 and np.abs(rows).max() >= 2**31:
                kind = torch.float64
                self._weights = self._weights.to(kind)
            self._weights[first : first + 2048] = torch.from_numpy(rows).to(kind)
        # Places by which a sum is shortened before the 24-bit scale: |SHR(acc, a)| < 2^38.
        self._places = 0
        while (self.row_bound << _INPUT_BITS) >> self._places >= 2**38:
            self._places += 1

    def __call__(self, x: BlockCodes, *, frac: int, saturation: Saturation) -> Tensor:
        """Multiply a batch of vectors.

        Parameters
        ----------
        x
            Codes int8 [T, n_cols].
        frac
            Fraction bits of the result.
        saturation
            Counts the clips.

        Returns
        -------
        Tensor
            float64 [T, n_rows], int32 values.
        """
        n_tokens, n_rows = x.codes.shape[0], self.shape[0]
        out = torch.empty((n_tokens, n_rows), dtype=torch.float64, device=x.codes.device)
        inputs, least = _aligned(x)
        largest = int(inputs.abs().max()) if inputs.numel() else 0
        chunk = max(64, _ELEMENTS // max(n_tokens, 1))
        shift = x.frac - frac - self.grid
        for first in range(0, n_rows, chunk):
            weights = self._weights[first : first + chunk].to(torch.float64)
            if largest * self.row_bound < 2**_EXACT_BITS and self._scale is None:
                # One product is exact; scaling by a power of two is exact; round is ties-to-even.
                sums = (inputs @ weights.T).mul_(power_of_two(least - shift)).round_()
                out[:, first : first + chunk] = saturation.sat32(sums)
            else:
                sums = self._limb_sums(inputs, weights, largest) << least
                out[:, first : first + chunk] = self._finish(sums, x.frac - frac, saturation)
        if self._terms is not None:
            sums = _term_sums(x, self._terms, self.grid)
            out[:, self._terms.rows] = self._finish(sums, x.frac - frac, saturation).to(out.dtype)
        return out

    def _check_bound(self, row_bound: int | Fraction, name: str) -> None:
        if row_bound * 2**_INPUT_BITS >= 2**63:
            raise SpecError(
                f"grid of tensor {name!r} must keep its sums below 2^63, not {self.grid!r}; "
                "raise it"
            )

    def _finish(self, sums: Tensor, places: int, saturation: Saturation) -> Tensor:
        """Bring exact sums (int64) to the output's frac."""
        if self._scale is None:
            return saturation.shr_sat32(sums, places - self.grid)
        significand, exponent = self._scale
        product = rne(sums, self._places) * significand
        return saturation.shr_sat32(product, places - exponent - self._places)

    def _limb_sums(self, inputs: Tensor, weights: Tensor, largest: int) -> Tensor:
        """Give ``inputs @ weights.T`` in int64, by as many float64 products as its bound needs."""
        bits = _EXACT_BITS - 1 - self.row_bound.bit_length()  # >= 20, since row_bound < 2^32
        if largest.bit_length() <= bits + 1:
            return (inputs @ weights.T).to(torch.int64)
        rest = inputs.to(torch.int64)
        shape = (inputs.shape[0], weights.shape[0])
        total = torch.zeros(shape, dtype=torch.int64, device=rest.device)
        place = 0
        for remaining in range(largest.bit_length() + 1, 0, -bits):
            # The highest limb keeps the sign, the others are 0 … 2^bits - 1.
            limb = rest & (2**bits - 1) if remaining > bits else rest
            total += (limb.to(torch.float64) @ weights.T).to(torch.int64) << place
            rest = rest >> bits
            place += bits
        return total


def _aligned(x: BlockCodes) -> tuple[Tensor, Tensor]:
    """Express inputs as integers (float64 [T, n]) over each vector's least shift (int64 [T, 1])."""
    n_blocks = x.shifts.shape[-1]
    codes = torch.nn.functional.pad(x.codes, (0, n_blocks * x.block - x.length))
    blocks = codes.reshape(-1, n_blocks, x.block)
    shifts = x.shifts.to(torch.int64)
    empty = ~blocks.any(dim=-1)
    least = shifts.masked_fill(empty, 127).amin(dim=-1, keepdim=True)
    relative = (shifts - least).clamp(min=0)  # below 0 only for empty blocks
    values = blocks.to(torch.float64) * power_of_two(relative)[..., None]
    least = least.masked_fill(least == 127, 0)  # a vector of zeros
    return values.reshape(-1, n_blocks * x.block)[:, : x.length], least


def _rounded_rows(matrix: IntegerMatrix, grid: int) -> NDArray[np.int64]:
    """Rows with a non-zero significand whose exponent is below the grid."""
    below = ((matrix.exp < grid) & (matrix.sig != 0)).any(axis=1)
    if matrix.minimum_sig is not None and matrix.minimum_exp is not None:
        below |= ((matrix.minimum_exp < grid) & (matrix.minimum_sig != 0)).any(axis=1)
    return np.flatnonzero(below)


def _terms(
    matrix: IntegerMatrix, rows: NDArray[np.int64], block: int, device: torch.device | str
) -> _Terms:
    n_cols = matrix.shape[1]
    n_blocks = -(-n_cols // block)
    values = np.zeros((len(rows), n_blocks * block))
    values[:, :n_cols] = matrix.values[rows]
    blocks = values.reshape(len(rows), n_blocks, block).transpose(1, 0, 2)
    # A group is a whole number of blocks, or one short block.
    group_of_block = np.arange(n_blocks) * block // matrix.group

    def per_block(words: NDArray[np.int16] | None) -> Tensor | None:
        if words is None:
            return None
        return torch.from_numpy(words[rows][:, group_of_block].astype(np.int64)).to(device)

    sig, exp = per_block(matrix.sig), per_block(matrix.exp)
    assert sig is not None
    assert exp is not None
    return _Terms(
        rows=torch.from_numpy(rows).to(device),
        values=torch.from_numpy(np.ascontiguousarray(blocks)).to(device),
        sig=sig,
        exp=exp,
        minimum_sig=per_block(matrix.minimum_sig),
        minimum_exp=per_block(matrix.minimum_exp),
    )


def _term_sums(x: BlockCodes, terms: _Terms, grid: int) -> Tensor:
    """Sum group terms one by one, each rounded on the grid as the page says; int64 [T, R]."""
    n_blocks = x.shifts.shape[-1]
    codes = torch.nn.functional.pad(x.codes, (0, n_blocks * x.block - x.length))
    blocks = codes.reshape(-1, n_blocks, x.block).to(torch.float64)
    shifts = x.shifts.to(torch.int64)
    n_tokens, n_rows = blocks.shape[0], terms.rows.shape[0]
    out = torch.empty((n_tokens, n_rows), dtype=torch.int64, device=x.codes.device)
    step = max(1, _TERMS // max(1, n_rows * n_blocks))
    for first in range(0, n_tokens, step):
        part = blocks[first : first + step]
        # [n_blocks, T, R] -> [T, R, n_blocks]; |P| <= 32 * 255 * 127 < 2^53
        products = (part.transpose(0, 1) @ terms.values.transpose(1, 2)).permute(1, 2, 0)
        places = grid - shifts[first : first + step, None, :]
        total = shr(products.to(torch.int64) * terms.sig, places - terms.exp)
        if terms.minimum_sig is not None and terms.minimum_exp is not None:
            sums = part.sum(dim=-1).to(torch.int64)[:, None, :]
            total = total + shr(sums * terms.minimum_sig, places - terms.minimum_exp)
        out[first : first + step] = total.sum(dim=-1)
    return out
