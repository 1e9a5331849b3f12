"""BitNet matrices in safetensors: packed or unpacked beside a scale, or floats made ternary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from romsim_models.encoded import EncodedTensor
from romsim_models.errors import FormatError
from romsim_models.hf_names import HF_PROJECTIONS, huggingface_name
from romsim_models.hf_quantization import BitNetQuantization
from romsim_models.safetensors_file import SafetensorsFile
from romsim_models.ternary import (
    absmean_codes,
    absmean_scale,
    codes_of_values,
    float32_parts,
    ternary_tensor,
    unpack_rows,
)

__all__ = ["TernaryMatrices"]

_PACKED_ROWS = 4  # matrix rows in one row of bytes
_ROWS = 4096  # read at a time
_FORMAT = "bitnet"

Located = Mapping[str, tuple[SafetensorsFile, str]]


class TernaryMatrices:
    """The ternary matrices of a directory, whole, in the file's own order of rows.

    Parameters
    ----------
    quantization
        What the configuration says.
    tensors
        Canonical name to file and the file's name, of all tensors that are no scale.
    scales
        The same for the ``weight_scale`` of each matrix, by the matrix's canonical name.

    Raises
    ------
    FormatError
        If a matrix has no scale where it must have one, or has one where it must not.
    """

    def __init__(
        self, quantization: BitNetQuantization, *, tensors: Located, scales: Located
    ) -> None:
        self._quantization = quantization
        self._scales = scales
        self._tensors = {
            name: located
            for name, located in tensors.items()
            if _is_projection(name)
            and not quantization.keeps(huggingface_name(name).removesuffix(".weight"))
        }
        is_absent = quantization.scale == "absent"
        for name, (file, theirs) in self._tensors.items():
            if (name in scales) == is_absent:
                stated = "be absent" if is_absent else "stand beside the matrix"
                found = "present" if is_absent else "missing"
                raise FormatError(
                    f"{file.path}: tensor {theirs + '_scale'!r} must {stated} where weight_scale "
                    f"is one that {_MEANINGS[quantization.scale]}, not {found}; configuration and "
                    "weights do not belong together"
                )
        for name, (file, theirs) in scales.items():
            if name not in self._tensors:
                raise FormatError(
                    f"{file.path}: tensor {theirs!r} must stand beside a ternary matrix, not "
                    "beside one in floating point; configuration and weights do not belong together"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> tuple[str, ...]:
        """Canonical names of the ternary matrices."""
        return tuple(self._tensors)

    def format(self, name: str) -> str:
        """Name of a matrix's format; refuses a type of the file that cannot be read.

        Raises
        ------
        FormatError
            If the type is neither a byte nor floating point.
        """
        if not self._is_packed(name):
            file, theirs = self._tensors[name]
            file.format(theirs)
        return _FORMAT

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the matrix that is held, not of its bytes."""
        file, theirs = self._tensors[name]
        shape = file.entries[theirs].shape
        if not self._is_packed(name) or not shape:
            return shape
        return (_PACKED_ROWS * shape[0], *shape[1:])

    def read(self, name: str) -> EncodedTensor:
        """Read one matrix.

        Raises
        ------
        FormatError
            If the data are unreadable, a code is 3, a value is not ternary, or the scale is not a
            positive number.
        """
        file, theirs = self._tensors[name]
        try:
            if self._quantization.scale == "absent":
                scale = absmean_scale(values for _, values in _blocks(file, theirs))
                parts = [absmean_codes(values, scale) for _, values in _blocks(file, theirs)]
                codes = np.concatenate(parts)
            else:
                scale = self._scale(name)
                if self._is_packed(name):
                    codes = unpack_rows(file.read_bytes(theirs))
                else:
                    blocks = _blocks(file, theirs)
                    codes = np.concatenate([codes_of_values(v, name, r) for r, v in blocks])
            return ternary_tensor(name=name, format=_FORMAT, codes=codes, scale=scale)
        except FormatError as error:
            message = str(error)
            path = str(file.path)
            raise FormatError(message if message.startswith(path) else f"{path}: {error}") from None

    def _is_packed(self, name: str) -> bool:
        file, theirs = self._tensors[name]
        return file.entries[theirs].dtype == "U8"

    def _scale(self, name: str) -> tuple[int, int]:
        file, theirs = self._scales[name]
        shape = file.entries[theirs].shape
        if shape not in ((), (1,)):
            raise FormatError(
                f"{file.path}: tensor {theirs!r} must hold one number, not be of shape "
                f"{list(shape)!r}; scales of rows or groups cannot be read"
            )
        value = np.float32(file.read(theirs).reshape(-1)[0])
        with np.errstate(all="ignore"):
            scale = value if self._quantization.scale == "multiplies" else np.float32(1) / value
        if not 0 < scale < np.inf:
            raise FormatError(
                f"{file.path}: tensor {theirs!r} must be a positive number whose reciprocal is a "
                f"float32 number, not {float(value)!r}; the file is corrupt"
            )
        return float32_parts(float(scale))


_MEANINGS = {
    "divides": "divides (linear_class 'bitlinear')",
    "multiplies": "multiplies (linear_class 'autobitlinear')",
    "absent": "has no use (quantization_mode 'online')",
}


def _is_projection(name: str) -> bool:
    return any(name.endswith(f".{part}.weight") for part in HF_PROJECTIONS)


def _blocks(file: SafetensorsFile, name: str) -> Iterator[tuple[int, NDArray[np.float32]]]:
    n_rows = file.entries[name].shape[0]
    for first in range(0, n_rows, _ROWS):
        yield first, file.read(name, first, min(first + _ROWS, n_rows))
