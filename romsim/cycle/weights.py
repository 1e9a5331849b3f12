"""Matrices in the form that the kernels multiply, read back from a description's ROM images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from romsim.cycle.kernels_matvec import embed_row, matvec_exact, matvec_rounded
from romsim_compiler.formats import WeightFormat
from romsim_compiler.rom_image import unpack_group
from romsim_models.errors import DescriptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.workers import Workers
    from romsim_compiler.program import PlacedGroup
    from romsim_compiler.target import Target

__all__ = ["BLOCK", "Matrix", "MatrixInput", "Scales", "decode_scales", "load_matrix"]

BLOCK = 32
"""Elements that share one shift in a matrix's input."""

_EXPONENT_FIELD = 31
_PIECE = 1 << 16  # weights that a thread claims at once: about 10 us of work
_SCALE_LIMIT = 1 << 31  # of a significand on the grid: the kernel holds it as int32


class _RomWords(Protocol):
    def __call__(self, base: int, n_words: int) -> NDArray[np.uint8]:
        """Return ROM words [n_words, n_tiles, n_cells, word_bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixInput:
    """An MXINT8 vector: views of a token's x buffer, as long as one matrix's input.

    Parameters
    ----------
    codes
        int16 [n_blocks * 32]; past the last element anything, since weights are zero there.
    shifts, sums
        int64 [n_blocks]: each block's shift, and the sum of its codes.
    """

    codes: NDArray[np.int16]
    shifts: NDArray[np.int64]
    sums: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scales:
    """Binary16 words taken apart: ``value = significand * 2^exponent``, [n_rows, n_groups] each."""

    significands: NDArray[np.int16]
    exponents: NDArray[np.int8]


_NONE = Scales(significands=np.zeros((0, 0), np.int16), exponents=np.zeros((0, 0), np.int8))


def decode_scales(words: NDArray[np.uint16], what: str) -> Scales:
    """Take binary16 words apart.

    Parameters
    ----------
    words
        uint16, any shape.
    what
        Name of the words in a message.

    Raises
    ------
    DescriptionError
        If a word is infinite or no number, which no compiled image holds.
    """
    field = (words >> np.uint16(10)) & np.uint16(31)
    if np.any(field == _EXPONENT_FIELD):
        raise DescriptionError(
            f"{what} must be finite binary16 words, not "
            f"{int(words[field == _EXPONENT_FIELD][0]):#06x}; compile again"
        )
    magnitude = (words & np.uint16(1023)).astype(np.int16)
    magnitude += np.where(field > 0, 1024, 0).astype(np.int16)
    return Scales(
        significands=np.where(words >> np.uint16(15), -magnitude, magnitude),
        exponents=(np.maximum(field, 1).astype(np.int16) - 25).astype(np.int8),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix:
    """One group of fused matrices.

    Parameters
    ----------
    group
        Where and how the group is burnt.
    values
        Signed code values, int8 [n_rows, n_blocks * 32]; zeros after the last column.
    scales, minima
        Taken-apart words of each group of columns; empty where there are none, and where
        ``on_grid`` stands for them.
    on_grid
        int32 [n_rows, n_groups] pair: significands of scales and of minima shifted to the grid;
        ``None`` where a term may round or does not fit.
    """

    group: PlacedGroup
    values: NDArray[np.int8]
    scales: Scales
    minima: Scales
    on_grid: tuple[NDArray[np.int32], NDArray[np.int32]] | None

    @property
    def n_bytes(self) -> int:
        """Memory that the arrays take, in bytes."""
        arrays = [self.values, *(self.on_grid or ())]
        for part in (self.scales, self.minima):
            arrays += [part.significands, part.exponents]
        return sum(array.nbytes for array in arrays)

    def multiply(self, vector: MatrixInput, out: NDArray[np.int32], workers: Workers) -> int:
        """Multiply by a vector.

        Parameters
        ----------
        vector
            The input, as many blocks as the matrix has.
        out
            int32 [n_rows], overwritten.
        workers
            Threads to share the rows.

        Returns
        -------
        int
            Number of saturated outputs.
        """
        group = self.group
        shift = group.in_frac - group.out_frac - group.grid - group.multiplier_exp
        n_blocks = len(vector.shifts)
        per_group = group.group // BLOCK if group.group else n_blocks
        rows = max(1, _PIECE // self.values.shape[1])
        n_pieces = -(-len(out) // rows)
        if self.on_grid is not None:
            scales, minima = self.on_grid
            arguments = (
                rows,
                self.values.reshape(-1),
                scales.reshape(-1),
                minima.reshape(-1),
                scales.shape[1],
                per_group,
                vector.codes,
                vector.shifts,
                vector.sums,
                group.multiplier,
                group.pre_shift,
                shift - group.pre_shift,
                out,
            )
            return workers.run(matvec_exact, arguments, n_pieces=n_pieces)
        rounded = (
            rows,
            self.values.reshape(-1),
            self.scales.significands.reshape(-1),
            self.scales.exponents.reshape(-1),
            self.minima.significands.reshape(-1),
            self.minima.exponents.reshape(-1),
            group.grid,
            self.scales.significands.shape[1],
            per_group,
            vector.codes,
            vector.shifts,
            vector.sums,
            shift,
            out,
        )
        return workers.run(matvec_rounded, rounded, n_pieces=n_pieces)

    def embed(self, token: int, residual_frac: int, out: NDArray[np.int32]) -> int:
        """Write the token's row as residual stream, int32 [dim]; return the saturations."""
        group = self.group
        if group.group:
            parts = [
                self.scales.significands[token],
                self.scales.exponents[token],
                self.minima.significands[token] if group.has_minimum else np.zeros(0),
                self.minima.exponents[token] if group.has_minimum else np.zeros(0),
            ]
        else:
            one = [group.multiplier], [group.multiplier_exp]
            parts = [np.array(one[0]), np.array(one[1]), np.zeros(0), np.zeros(0)]
        sig, exp, min_sig, min_exp = (part.astype(np.int64) for part in parts)
        row = self.values[token]
        return int(embed_row(row, sig, exp, min_sig, min_exp, group.group, residual_frac, out))


def load_matrix(
    group: PlacedGroup, target: Target, rom_words: _RomWords, *, is_embedding: bool
) -> Matrix:
    """Read a group back from its ROM words.

    Parameters
    ----------
    rom_words
        The description's function of that name.
    is_embedding
        Whether single rows are read too, which needs the scales as they are.

    Raises
    ------
    DescriptionError
        If the words hold what no compiled image does.
    """
    mapping = group.mapping
    fmt = WeightFormat(
        name=group.name,
        code_bits=group.code_bits,
        kind=group.kind,
        offset=group.offset,
        group=group.group,
        has_minimum=group.has_minimum,
    )
    words = rom_words(group.base, mapping.n_words)
    codes, scale_words, minimum_words = unpack_group(
        words, mapping, target.array, fmt, mapping.n_rows, mapping.n_cols
    )
    n_blocks = -(-mapping.n_cols // BLOCK)
    values = np.zeros((mapping.n_rows, n_blocks * BLOCK), dtype=np.int8)
    values[:, : mapping.n_cols] = _signed_values(codes, group)
    if not group.group:
        ones = np.ones((mapping.n_rows, 1), dtype=np.int32)
        return Matrix(
            group=group,
            values=values,
            scales=_NONE,
            minima=_NONE,
            on_grid=(ones, np.zeros((0, 0), np.int32)),
        )
    scales = decode_scales(scale_words, f"Scales of group {group.name!r}")
    minima = _NONE
    if minimum_words is not None:
        minima = decode_scales(minimum_words, f"Minima of group {group.name!r}")
    on_grid = _shift_to_grid(scales, minima, group.grid)
    keep_words = on_grid is None or is_embedding
    return Matrix(
        group=group,
        values=values,
        scales=scales if keep_words else _NONE,
        minima=minima if keep_words else _NONE,
        on_grid=on_grid,
    )


def _signed_values(codes: NDArray[np.uint8], group: PlacedGroup) -> NDArray[np.int8]:
    if group.kind == "ternary":
        if int(codes.max()) > 2:
            raise DescriptionError(
                f"Ternary codes of group {group.name!r} must be 0, 1 or 2, not "
                f"{int(codes.max())}; compile again"
            )
        return np.array([0, 1, -1], dtype=np.int8)[codes]
    return (codes - np.uint8(group.offset)).view(np.int8)  # modulo 256: -128 … 127


def _shift_to_grid(
    scales: Scales, minima: Scales, grid: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Return both kinds of significands on the grid, unless one may round or is too wide."""
    shifted = []
    for part in (scales, minima):
        used = part.significands != 0
        up = np.where(used, part.exponents.astype(np.int16) - grid, 0)
        if np.any(up < 0) or np.any(up > 40):
            return None
        wide = part.significands.astype(np.int64) << up
        if np.any(np.abs(wide) >= _SCALE_LIMIT):
            return None
        shifted.append(wide.astype(np.int32))
    return shifted[0], shifted[1]
