"""ROM words of a group: packing and reading back (docs/machine.md, section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.encoded import BLOCK_WEIGHTS, RomTensor, RowSource
from romsim_compiler.formats import WeightFormat
from romsim_compiler.mapping import Mapping
from romsim_compiler.rom_kernels import pack_words, unpack_words
from romsim_compiler.target import Array
from romsim_models.errors import DescriptionError, SpecError

__all__ = ["RomFields", "iter_packed", "pack_group", "unpack_fields", "unpack_group"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RomFields:
    """What ROM words hold, field by field.

    Parameters
    ----------
    codes
        uint8 [n_rows, n_cols].
    scales, minima
        uint16 [n_rows, n_fields], the words of each scale field of each row; a group wider than a
        field stands in several of them. ``[n_rows, 0]`` where the format has none.
    n_stray
        Words in which a bit is set that must be 0: rows and words that are absent, lanes past the
        last column, digits past a plane's width, scales in planes above the lowest, padding.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint16]
    minima: NDArray[np.uint16]
    n_stray: int


def pack_group(tensors: Sequence[RowSource], mapping: Mapping, array: Array) -> NDArray[np.uint8]:
    """Pack a whole group.

    Parameters
    ----------
    tensors
        Members in row order, all of one format.
    mapping
        How the group lies on the array.
    array
        Geometry of the ROM cells.

    Returns
    -------
    uint8 [n_words, n_tiles, n_cells, word_bytes]
        Addresses ``base`` to ``base + n_words - 1`` of every cell.

    Raises
    ------
    SpecError
        If the members, the mapping and the array do not belong together.
    """
    return next(iter_packed(tensors, mapping, array, rows_at_a_time=mapping.n_rows))


def iter_packed(
    tensors: Sequence[RowSource],
    mapping: Mapping,
    array: Array,
    *,
    rows_at_a_time: int | None = None,
) -> Iterator[NDArray[np.uint8]]:
    """Pack a group piece by piece, in order of the addresses.

    Parameters
    ----------
    tensors, mapping, array
        As `pack_group`.
    rows_at_a_time
        Rows of one piece, rounded up to whole steps of the chip; by default about 2^23 weights.

    Yields
    ------
    uint8 [addresses, n_tiles, n_cells, word_bytes]
        Consecutive address ranges; together what `pack_group` returns.

    Raises
    ------
    SpecError
        As `pack_group`.
    """
    fmt = tensors[0].fmt
    _check_members(tensors, mapping)
    _check_layout(fmt, mapping, array, tensors[0].name)
    if rows_at_a_time is None:
        rows_at_a_time = max(1, BLOCK_WEIGHTS // mapping.n_cols)
    steps = -(-rows_at_a_time // mapping.rows_per_step)
    for first_step in range(0, mapping.steps, steps):
        n_steps = min(steps, mapping.steps - first_step)
        words = np.zeros(
            (
                n_steps * mapping.wpc * mapping.planes,
                array.n_tiles,
                array.n_cells,
                array.word_bytes,
            ),
            dtype=np.uint8,
        )
        wanted = range(
            first_step * mapping.rows_per_step, (first_step + n_steps) * mapping.rows_per_step
        )
        first_row = 0
        for source in tensors:
            first = max(wanted.start, first_row)
            last = min(wanted.stop, first_row + source.n_rows)
            if first < last:
                block = source.rows(first - first_row, last - first_row)
                _pack(block, words, first - wanted.start, mapping, array)
            first_row += source.n_rows
        yield words


def unpack_group(
    words: NDArray[np.uint8],
    mapping: Mapping,
    array: Array,
    fmt: WeightFormat,
    n_rows: int,
    n_cols: int,
) -> tuple[NDArray[np.uint8], NDArray[np.uint16], NDArray[np.uint16] | None]:
    """Read a group, or the rows of some whole steps of it, back from its ROM words.

    Parameters
    ----------
    words
        uint8 [addresses, n_tiles, n_cells, word_bytes], a whole number of steps.
    mapping, array, fmt
        As the group was packed.
    n_rows, n_cols
        Rows in ``words``, and columns.

    Returns
    -------
    codes
        uint8 [n_rows, n_cols].
    scale_bits
        uint16 [n_rows, n_groups].
    minimum_bits
        uint16 [n_rows, n_groups], or ``None`` where the format has no minimum.

    Raises
    ------
    SpecError
        If the words, the mapping and the array do not belong together.
    DescriptionError
        If fields that repeat one group's scale or minimum differ, or a bit is set that must be 0.
    """
    fields = unpack_fields(words, mapping, array, fmt, n_rows, n_cols)
    if fields.n_stray:
        raise DescriptionError(
            f"Padding of ROM words must be 0, not set in {fields.n_stray} words; "
            "the image was changed or belongs to another placement"
        )
    scale_bits = _one_per_group(fields.scales, "Scale", array, fmt, n_cols)
    if not fmt.has_minimum:
        return fields.codes, scale_bits, None
    return fields.codes, scale_bits, _one_per_group(fields.minima, "Minimum", array, fmt, n_cols)


def unpack_fields(
    words: NDArray[np.uint8],
    mapping: Mapping,
    array: Array,
    fmt: WeightFormat,
    n_rows: int,
    n_cols: int,
) -> RomFields:
    """Read ROM words back field by field; parameters as `unpack_group`.

    Raises
    ------
    SpecError
        If the words, the mapping and the array do not belong together.
    """
    _check_layout(fmt, mapping, array, "")
    step_words = mapping.wpc * mapping.planes
    shape = (words.shape[0], array.n_tiles, array.n_cells, array.word_bytes)
    if words.shape != shape or words.shape[0] % step_words:
        raise SpecError(
            f"ROM words to read back must be whole steps of {step_words} addresses of "
            f"{list(shape[1:])} bytes, not of shape {list(words.shape)}"
        )
    capacity = words.shape[0] // step_words * mapping.rows_per_step
    if not 0 < n_rows <= capacity:
        raise SpecError(
            f"Rows to read back must be 1 to {capacity} in {words.shape[0]} addresses, not {n_rows}"
        )
    n_fields = -(-n_cols // array.scale_group) if fmt.group else 0
    codes = np.zeros((n_rows, n_cols), dtype=np.uint8)
    scales = np.zeros((n_rows, n_fields), dtype=np.uint16)
    minima = np.zeros((n_rows, n_fields if fmt.has_minimum else 0), dtype=np.uint16)
    n_stray = unpack_words(
        words, codes, scales, minima, mapping.wpc, mapping.planes, mapping.ks,
        array.word_codes, array.lane_bits, array.scale_group, *_digits(fmt, array),
    )  # fmt: skip
    return RomFields(codes=codes, scales=scales, minima=minima, n_stray=int(n_stray))


def _digits(fmt: WeightFormat, array: Array) -> tuple[int, int]:
    """Return (shift from one plane to the next, mask of one plane's digit)."""
    if fmt.kind == "ternary":
        return 0, 3
    return array.plane_shift, (1 << array.plane_shift) - 1


def _check_members(tensors: Sequence[RowSource], mapping: Mapping) -> None:
    fmt = tensors[0].fmt
    for source in tensors:
        if source.fmt != fmt:
            raise SpecError(
                f"Format of tensor {source.name!r} must be {fmt.name!r} like the rest of its "
                f"group, not {source.fmt.name!r}"
            )
        if source.n_cols != mapping.n_cols:
            raise SpecError(
                f"Columns of tensor {source.name!r} must be {mapping.n_cols} as mapped, "
                f"not {source.n_cols}"
            )
    n_rows = sum(source.n_rows for source in tensors)
    if n_rows != mapping.n_rows:
        raise SpecError(
            f"Rows of the group of tensor {tensors[0].name!r} must be {mapping.n_rows} as mapped, "
            f"not {n_rows}"
        )


def _check_layout(fmt: WeightFormat, mapping: Mapping, array: Array, tensor: str) -> None:
    """Refuse what the words of this array cannot hold."""
    of = f" of tensor {tensor!r}" if tensor else ""
    if mapping.planes != fmt.planes(array):
        raise SpecError(
            f"Planes{of} must be {fmt.planes(array)} for format {fmt.name!r} on this array, "
            f"not {mapping.planes}"
        )
    if array.lane_bits not in (2, 4, 8) or array.word_codes * array.lane_bits % 8:
        raise SpecError(
            f"Lanes of a ROM word must be 2, 4 or 8 bits and fill whole bytes, "
            f"not {array.word_codes} lanes of {array.lane_bits} bits"
        )
    if not fmt.group:
        return
    if fmt.group % array.scale_group or array.word_codes % array.scale_group:
        raise SpecError(
            f"Codes of a scale field must divide the word's {array.word_codes} codes and the "
            f"group of {fmt.group}{of}, not be {array.scale_group}"
        )
    if array.scale_bits != 16 or (fmt.has_minimum and array.min_bits != 16):
        raise SpecError(
            f"ROM words must hold 16-bit scales{' and minima' if fmt.has_minimum else ''} for "
            f"format {fmt.name!r}{of}, not {array.scale_bits} bits of scale and "
            f"{array.min_bits} of minimum"
        )


def _one_per_group(
    fields: NDArray[np.uint16], what: str, array: Array, fmt: WeightFormat, n_cols: int
) -> NDArray[np.uint16]:
    if not fmt.group:
        return fields
    repeats = fmt.group // array.scale_group
    by_group = fields.reshape(fields.shape[0], n_cols // fmt.group, repeats)
    differ = np.argwhere((by_group != by_group[:, :, :1]).any(axis=2))
    if len(differ):
        row, group = (int(i) for i in differ[0])
        raise DescriptionError(
            f"{what} of row {row}, group {group} must be the same in the {repeats} ROM fields "
            f"that repeat it, not {[f'{int(word):#06x}' for word in by_group[row, group]]}; "
            "the image was changed or belongs to another placement"
        )
    return np.ascontiguousarray(by_group[:, :, 0])


def _pack(
    block: RomTensor, words: NDArray[np.uint8], first_row: int, mapping: Mapping, array: Array
) -> None:
    fmt = block.fmt
    minimum_bits = block.minimum_bits
    if minimum_bits is None:
        minimum_bits = block.scale_bits[:0, :0]  # none; read-only, or the loop is compiled twice
    pack_words(
        words, block.codes, block.scale_bits, minimum_bits, first_row,
        mapping.wpc, mapping.planes, mapping.ks,
        array.word_codes, array.lane_bits, array.scale_group, fmt.group, *_digits(fmt, array),
    )  # fmt: skip
