"""Matrices that are ternary already: their one scale found and checked, nothing rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.encoded import BLOCK_WEIGHTS, RomTensor
from romsim_compiler.formats import WeightFormat
from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import EncodedTensor, Tensor
from romsim_models.errors import FormatError

__all__ = ["ExactTernary"]


class ExactTernary:
    """A matrix whose weights are -s, 0 or +s, whatever its file has them in.

    Codes with scales by group (TQ1_0, TQ2_0) are taken if all groups agree on the scale; floats are
    taken if they have one magnitude beside 0. Rows are read again at each use.

    Parameters
    ----------
    checkpoint
        The model.
    name
        Canonical tensor name.
    fmt
        ``ternary-exact``.

    Raises
    ------
    FormatError
        If a weight is another one, with its place and value.
    """

    error = None

    def __init__(self, checkpoint: Checkpoint, name: str, fmt: WeightFormat) -> None:
        self.name = name
        self.fmt = fmt
        self.n_rows, self.n_cols = checkpoint.shape(name)
        self._checkpoint = checkpoint
        self._scale = np.float32(0)
        for first, tensor in self._blocks():
            self._scale = self._check(tensor, first, self._scale)
        fraction, exponent = math.frexp(float(self._scale))
        self.multiplier = int(fraction * (1 << 24))
        self.exponent = exponent - 24 if self.multiplier else 0

    def rows(self, first: int, last: int) -> RomTensor:
        """Return rows ``first`` to ``last`` (not included)."""
        weights = self._checkpoint.read_rows(self.name, first, last).dequantize()
        codes = np.zeros(weights.shape, dtype=np.uint8)
        codes[weights > 0] = 1
        codes[weights < 0] = 2
        return RomTensor(
            name=self.name,
            fmt=self.fmt,
            codes=codes,
            scale_bits=np.empty((len(codes), 0), dtype=np.uint16),
            multiplier=self.multiplier,
            exponent=self.exponent,
        )

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        step = max(1, BLOCK_WEIGHTS // self.n_cols)
        for first in range(0, self.n_rows, step):
            last = min(first + step, self.n_rows)
            yield first, self._checkpoint.read_rows(self.name, first, last)

    def _check(self, tensor: Tensor, first: int, scale: np.float32) -> np.float32:
        """Return the one magnitude beside 0; ``scale`` is that of the rows before (0: none yet)."""
        weights = tensor.dequantize()
        magnitudes = np.abs(weights)
        if scale == 0:
            used = magnitudes[magnitudes != 0]
            if not used.size:
                return scale
            scale = np.float32(used[0])
        wrong = (magnitudes != 0) & (magnitudes != scale)
        if wrong.any():
            row, column = (int(index) for index in np.argwhere(wrong)[0])
            raise FormatError(self._refusal(tensor, weights, first, row, column, scale))
        if float(scale) < 2.0**-126:
            raise FormatError(
                f"Scale of tensor {self.name!r} must be at least 2^-126 to be a ternary scale, "
                f"not {float(scale)!r}"
            )
        return scale

    def _refusal(
        self,
        tensor: Tensor,
        weights: NDArray[np.float32],
        first: int,
        row: int,
        column: int,
        scale: np.float32,
    ) -> str:
        value = float(weights[row, column])
        if isinstance(tensor, EncodedTensor) and tensor.format in ("tq1_0", "tq2_0"):
            return (
                f"Element [{first + row}, {column}] of tensor {self.name!r} must be 0 or "
                f"{float(scale)!r} in magnitude, as those before it, to have one scale for the "
                f"whole matrix, not {value!r}; its {tensor.format} groups differ in scale: use a "
                "target whose words hold scales and unsigned codes, such as 'small'"
            )
        return (
            f"Element [{first + row}, {column}] of tensor {self.name!r} must be 0 or "
            f"{float(scale)!r} in magnitude, as those before it, to be taken as ternary, not "
            f"{value!r}; give a rule such as --quantize 'blk.*=ternary' to make it ternary"
        )
