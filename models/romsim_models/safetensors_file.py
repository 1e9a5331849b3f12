"""One safetensors file: its table of tensors, and blocks of their rows in float32.

Read here rather than by the ``safetensors`` package so that a refusal names file, tensor and
missing bytes, so that bfloat16 needs no other package, and so that a large tensor never exists
twice in memory.

Source: huggingface/safetensors README, section "Format".
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_models.errors import FormatError
from romsim_models.floats import FLOAT_BYTES, widen

__all__ = ["SafetensorsEntry", "SafetensorsFile"]

_FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_ELEMENT_BYTES = {"U8": 1, **{dtype: FLOAT_BYTES[format] for dtype, format in _FORMATS.items()}}
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors package
_PIECE_BYTES = 16 * 2**20  # of raw words that are converted at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsEntry:
    """One tensor of the table.

    Parameters
    ----------
    dtype
        Type as the file names it.
    shape
        Lengths of the axes.
    offset
        Where the data start, in bytes from the start of the file.
    size_bytes
        Bytes of the data.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class SafetensorsFile:
    """A safetensors file whose header has been read and checked.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    FormatError
        If the file is unreadable, truncated (with the missing bytes) or corrupt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                length = int.from_bytes(file.read(8), "little")
                header = file.read(min(length, _MAX_HEADER_BYTES))
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise FormatError(
                f"{path}: safetensors file must be readable, not {reason!r}; "
                "check that the directory is complete"
            ) from error
        if size < 8 or length > size - 8 or length > _MAX_HEADER_BYTES:
            raise FormatError(
                f"{path}: header of a safetensors file must fit into the file, not be {length!r} "
                f"bytes long in a file of {size}; the file is truncated or of another format"
            )
        self.entries: Mapping[str, SafetensorsEntry] = self._parse(header, 8 + length, size)

    def format(self, name: str) -> str:
        """Our name of a tensor's type: ``"f32"``, ``"f16"`` or ``"bf16"``.

        Raises
        ------
        FormatError
            If it is of another type.
        """
        dtype = self.entries[name].dtype
        if dtype not in _FORMATS:
            raise FormatError(
                f"{self.path}: type of tensor {name!r} must be one of {', '.join(_FORMATS)}, "
                f"not {dtype!r}; save the model in one of these types"
            )
        return _FORMATS[dtype]

    def read(self, name: str, first: int = 0, last: int | None = None) -> NDArray[np.float32]:
        """Read rows ``first`` to ``last`` (not included) of a tensor, exactly, as float32.

        Raises
        ------
        FormatError
            If the data cannot be read, or are not floating point.
        """
        entry = self.entries[name]
        format = self.format(name)
        n_rows = entry.shape[0] if entry.shape else 1
        last = n_rows if last is None else last
        row_bytes = entry.size_bytes // n_rows if n_rows else 0
        values = np.empty((last - first, *entry.shape[1:]), dtype=np.float32)
        out = values.reshape(-1)
        piece = _PIECE_BYTES // FLOAT_BYTES[format]
        try:
            with self.path.open("rb") as file:
                file.seek(entry.offset + first * row_bytes)
                for start in range(0, out.size, piece):
                    part = out[start : start + piece]
                    raw = np.fromfile(file, dtype=np.uint8, count=part.size * FLOAT_BYTES[format])
                    if raw.size != part.size * FLOAT_BYTES[format]:
                        raise FormatError(
                            f"{self.path}: data of tensor {name!r} must be complete, not end "
                            "early; the file was changed while it was open"
                        )
                    widen(raw, format, out=part)
        except OSError as error:
            raise FormatError(
                f"{self.path}: data of tensor {name!r} must be readable, not {error.strerror!r}"
            ) from error
        return values

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read a whole tensor of bytes.

        Raises
        ------
        FormatError
            If the data cannot be read, or are not bytes.
        """
        entry = self.entries[name]
        if entry.dtype != "U8":
            raise FormatError(
                f"{self.path}: type of tensor {name!r} must be U8, not {entry.dtype!r}"
            )
        try:
            raw = np.fromfile(
                self.path, dtype=np.uint8, count=entry.size_bytes, offset=entry.offset
            )
        except OSError as error:
            raise FormatError(
                f"{self.path}: data of tensor {name!r} must be readable, not {error.strerror!r}"
            ) from error
        if raw.size != entry.size_bytes:
            raise FormatError(
                f"{self.path}: data of tensor {name!r} must be complete, not end early; the file "
                "was changed while it was open"
            )
        return raw.reshape(entry.shape)

    def _parse(self, header: bytes, data_start: int, size: int) -> dict[str, SafetensorsEntry]:
        try:
            table: Any = json.loads(header)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise FormatError(
                f"{self.path}: header must be JSON, not text with an error: {error}; "
                "the file is corrupt"
            ) from None
        except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
            raise FormatError(
                f"{self.path}: header must be JSON of sane depth and numbers, not brackets within "
                "thousands of brackets or a number of thousands of digits; the file is corrupt"
            ) from None
        if not isinstance(table, dict):
            raise FormatError(
                f"{self.path}: header must be a JSON object, not {type(table).__name__!r}"
            )
        table.pop("__metadata__", None)
        entries = {
            name: self._entry(name, fields, data_start, size) for name, fields in table.items()
        }
        in_order = sorted(entries.items(), key=lambda item: item[1].offset)
        for (before, first), (after, second) in itertools.pairwise(in_order):
            if first.offset + first.size_bytes > second.offset:
                raise FormatError(
                    f"{self.path}: data of tensor {after!r} must start behind those of {before!r}, "
                    "not overlap with them; the file is corrupt"
                )
        used = sum(entry.size_bytes for entry in entries.values())
        if used != size - data_start:
            raise FormatError(
                f"{self.path}: data must be those of the tensors, {used} bytes, not "
                f"{size - data_start!r}; the file is corrupt, or was written over by another"
            )
        return entries

    def _entry(self, name: str, fields: Any, data_start: int, size: int) -> SafetensorsEntry:
        try:
            dtype = str(fields["dtype"])
            shape = tuple(_count(length) for length in fields["shape"])
            begin, end = (_count(offset) for offset in fields["data_offsets"])
        except (TypeError, KeyError, ValueError):
            raise FormatError(
                f"{self.path}: header entry of tensor {name!r} must have dtype, shape and two "
                f"data_offsets, not {fields!r}; the file is corrupt"
            ) from None
        n_elements = 1
        for length in shape:
            n_elements *= length
        if dtype in _ELEMENT_BYTES:
            expected = n_elements * _ELEMENT_BYTES[dtype]
            if end - begin != expected:
                raise FormatError(
                    f"{self.path}: tensor {name!r} of shape {list(shape)} in {dtype} must have "
                    f"{expected} bytes, not {end - begin!r}; the file is corrupt"
                )
        if data_start + end > size:
            raise FormatError(
                f"{self.path}: tensor {name!r} must have {end - begin} bytes, "
                f"not {max(size - data_start - begin, 0)!r}; the file is truncated, "
                f"{data_start + end - size} bytes are missing: get the file again"
            )
        if begin > end:
            raise FormatError(
                f"{self.path}: data of tensor {name!r} must end at {begin} or later, not "
                f"{end!r}; the file is corrupt"
            )
        return SafetensorsEntry(
            dtype=dtype, shape=shape, offset=data_start + begin, size_bytes=end - begin
        )


def _count(value: Any) -> int:
    """Return a whole number from 0; a fraction, a text or a negative one is no length."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value
