"""Resident LoRA adapters in the form that the kernels multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from romsim.cycle.kernels_lora import adapter_matvec
from romsim.cycle.kernels_vector import quantise_vector
from romsim.cycle.weights import BLOCK, MatrixInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim_compiler.lora_image import LoraAdapterImage

__all__ = ["AdapterGroup", "AdapterMatrix", "Projection", "load_adapter"]


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
        n_rows, n_cols = codes.shape
        n_blocks = -(-n_cols // block)
        values = np.zeros((n_rows, n_blocks, BLOCK), np.int8)
        for index in range(n_blocks):
            part = codes[:, index * block : (index + 1) * block]
            values[:, index, : part.shape[1]] = part
        return cls(
            values=values.reshape(n_rows, n_blocks * BLOCK),
            exponents=np.ascontiguousarray(exponents, dtype=np.int64).reshape(n_rows, n_blocks),
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
    down: AdapterMatrix
    up: AdapterMatrix

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
    ) -> int:
        """Write the projection's rows of ``delta``; return the saturations."""
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
        out = delta[self.first_row : self.first_row + self.n_rows]
        return clipped + self.up.multiply(codes, shifts, linear_frac - out_frac - self.up.grid, out)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdapterGroup:
    """All projections of one group, and the ranks that its instruction's duration depends on."""

    ranks: tuple[int, ...]
    projections: tuple[Projection, ...]


def load_adapter(image: LoraAdapterImage) -> dict[str, AdapterGroup]:
    """Return a resident adapter by the names of the groups that it extends."""
    return {
        name: AdapterGroup(
            ranks=group.ranks,
            projections=tuple(
                Projection(
                    first_row=p.first_row,
                    n_rows=p.n_rows,
                    down=AdapterMatrix.create(p.a_codes, p.a_exps, p.grid_a, BLOCK),
                    up=AdapterMatrix.create(
                        p.b_codes, p.b_exps, p.grid_b, min(BLOCK, p.a_codes.shape[0])
                    ),
                )
                for p in group.projections
            ),
        )
        for name, group in image.groups.items()
    }
