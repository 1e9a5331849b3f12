"""Resident LoRA adapters in the form that the kernels multiply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle.kernels_lora import adapter_matvec, ternary_matvec
from romsim.cycle.kernels_vector import quantise_vector
from romsim.cycle.weights import BLOCK, MatrixInput
from romsim_compiler.lora_ternary import TernaryProjection

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim_compiler.lora_image import LoraAdapterImage, LoraProjection
    from romsim_compiler.lora_ternary import TernaryFactor

__all__ = [
    "AdapterGroup",
    "AdapterMatrix",
    "Projection",
    "TernaryMatrix",
    "load_adapter",
    "z_words",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdapterMatrix:
    """One factor of a projection, MXINT8 along its input axis.

    Parameters
    ----------
    values
        int8 [n_rows, n_blocks * 32]; a shorter block is followed by zeros.
    exponents
        int64 [n_rows, n_blocks].
    grid
        Exponent of the accumulator's unit.
    """

    values: NDArray[np.int8]
    exponents: NDArray[np.int64]
    grid: int

    @classmethod
    def create(
        cls, codes: NDArray[np.int8], exponents: NDArray[np.integer], grid: int, block: int
    ) -> AdapterMatrix:
        """Return a matrix from codes [n_rows, n_cols] whose blocks have ``block`` elements."""
        values = _in_blocks(codes, block)
        shape = len(values), values.shape[1] // BLOCK
        return cls(
            values=values,
            exponents=np.ascontiguousarray(exponents, dtype=np.int64).reshape(shape),
            grid=grid,
        )

    def multiply(
        self,
        codes: NDArray[np.int16],
        shifts: NDArray[np.int64],
        shift: int,
        out: NDArray[np.int32],
    ) -> int:
        """Multiply by MXINT8 codes; return the saturations."""
        return int(
            adapter_matvec(
                self.values.reshape(-1), self.exponents, self.grid, codes, shifts, shift, out
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TernaryMatrix:
    """One factor of a projection in the adder arrays: trits, and one scale.

    Parameters
    ----------
    values
        int8 [n_rows, n_blocks * 32] of -1, 0, 1; a shorter block is followed by zeros.
    multiplier, pre_shift
        ``M``, and the shift ``a`` before it.
    grid
        Exponent of the product's unit, ``E + a``.
    """

    values: NDArray[np.int8]
    multiplier: int
    pre_shift: int
    grid: int

    @classmethod
    def create(cls, factor: TernaryFactor, block: int) -> TernaryMatrix:
        """Return a matrix from a factor whose blocks have ``block`` elements."""
        return cls(
            values=_in_blocks(factor.trits, block),
            multiplier=factor.multiplier,
            pre_shift=factor.pre_shift,
            grid=factor.exponent + factor.pre_shift,
        )

    def multiply(
        self,
        codes: NDArray[np.int16],
        shifts: NDArray[np.int64],
        shift: int,
        out: NDArray[np.int32],
    ) -> int:
        """Multiply by MXINT8 codes; return the saturations."""
        scale = self.multiplier, self.pre_shift
        return int(ternary_matvec(self.values.reshape(-1), codes, shifts, *scale, shift, out))


def _in_blocks(codes: NDArray[np.int8], block: int) -> NDArray[np.int8]:
    """Lay blocks of ``block`` columns 32 apart: int8 [n_rows, n_blocks * 32]."""
    n_rows, n_cols = codes.shape
    n_blocks = -(-n_cols // block)
    values = np.zeros((n_rows, n_blocks, BLOCK), np.int8)
    for index in range(n_blocks):
        part = codes[:, index * block : (index + 1) * block]
        values[:, index, : part.shape[1]] = part
    return values.reshape(n_rows, n_blocks * BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projection:
    """The adapter of one projection.

    Parameters
    ----------
    first_row, n_rows
        Rows of the group that the projection's output takes.
    down, up
        A [rank, K] and B [n_rows, rank]; the rank is padded to whole blocks.
    """

    first_row: int
    n_rows: int
    down: AdapterMatrix | TernaryMatrix
    up: AdapterMatrix | TernaryMatrix

    @property
    def rank(self) -> int:
        """Padded rank."""
        return int(self.down.values.shape[0])

    def apply(
        self,
        vector: MatrixInput,
        *,
        in_frac: int,
        linear_frac: int,
        out_frac: int,
        delta: NDArray[np.int32],
        coded: list[MatrixInput],
    ) -> int:
        """Write the projection's rows of ``delta``, add z to ``coded``; return the saturations."""
        rank = self.rank
        low = np.zeros(rank, np.int32)
        clipped = self.down.multiply(
            vector.codes, vector.shifts, in_frac - linear_frac - self.down.grid, low
        )
        block = min(BLOCK, rank)
        n_blocks = -(-rank // block)
        codes = np.zeros(n_blocks * BLOCK, np.int16)
        shifts, sums = np.zeros(n_blocks, np.int64), np.zeros(n_blocks, np.int64)
        # A rank above 32 is whole blocks of 32, one below is a single block: both lie in front.
        quantise_vector(low, block, codes, shifts, sums)
        coded.append(MatrixInput(codes=codes, shifts=shifts, sums=sums))
        out = delta[self.first_row : self.first_row + self.n_rows]
        return clipped + self.up.multiply(codes, shifts, linear_frac - out_frac - self.up.grid, out)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdapterGroup:
    """All projections of one group, and the ranks that its instruction's duration depends on."""

    ranks: tuple[int, ...]
    projections: tuple[Projection, ...]


def z_words(coded: Sequence[MatrixInput]) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Give the blocks of each projection's z: projection, block; codes, shift and sum."""
    for number, vector in enumerate(coded):
        for block, shift in enumerate(vector.shifts):
            codes = vector.codes[block * BLOCK : (block + 1) * BLOCK]
            yield number, block, np.append(codes, (shift, vector.sums[block]))


def load_adapter(image: LoraAdapterImage) -> dict[str, AdapterGroup]:
    """Return a resident adapter by the names of the groups that it extends."""
    return {
        name: AdapterGroup(ranks=group.ranks, projections=tuple(map(_projection, group.adapted)))
        for name, group in image.groups.items()
    }


def _projection(image: LoraProjection | TernaryProjection) -> Projection:
    block = min(BLOCK, image.padded_rank)
    down: AdapterMatrix | TernaryMatrix
    up: AdapterMatrix | TernaryMatrix
    if isinstance(image, TernaryProjection):
        down, up = TernaryMatrix.create(image.a, BLOCK), TernaryMatrix.create(image.b, block)
    else:
        down = AdapterMatrix.create(image.a_codes, image.a_exps, image.grid_a, BLOCK)
        up = AdapterMatrix.create(image.b_codes, image.b_exps, image.grid_b, block)
    return Projection(first_row=image.first_row, n_rows=image.n_rows, down=down, up=up)
