"""Images of the mask ROMs as a simulation reads them: hexadecimal text, or the words as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.description import Description
from romsim_compiler.program import Program
from romsim_models.errors import SpecError
from romsim_rtl.encoding import WORD_BITS, encode_program

__all__ = [
    "IMAGE_FORMATS",
    "PROGRAMS",
    "check_image_format",
    "program_sizes",
    "program_words",
    "write_gain_image",
    "write_images",
    "write_program_image",
    "write_weight_images",
]

IMAGE_FORMATS = ("hex", "bin")
"""``hex`` is what ``$readmemh`` reads; ``bin`` is read with ``+rombin``, most significant first."""

PROGRAMS = ("decode", "prefill_1", "prefill_n", "prefill_n_head")
"""Programs in the order of their numbers in a host command."""

_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_AT_A_TIME = 1 << 26  # bytes of ROM held in memory


def check_image_format(image_format: str) -> None:
    """Refuse an unknown format.

    Raises
    ------
    SpecError
        With those that there are.
    """
    if image_format not in IMAGE_FORMATS:
        raise SpecError(
            f"ROM image format must be one of {', '.join(IMAGE_FORMATS)}, not {image_format!r}"
        )


def write_images(
    description: Description,
    folder: Path,
    *,
    image_format: str = "hex",
    sizes: Sequence[int] = (),
) -> list[str]:
    """Write the images of all ROMs of a chip.

    Parameters
    ----------
    image_format
        One of `IMAGE_FORMATS`.
    sizes
        Room for each program, where it is more than the description's own.

    Returns
    -------
    list[str]
        Names of the files.

    Raises
    ------
    SpecError
        If the format is unknown.
    """
    check_image_format(image_format)
    return [
        *write_weight_images(description, folder, image_format=image_format),
        write_gain_image(description, folder, image_format=image_format),
        write_program_image(description, folder, image_format=image_format, sizes=sizes),
    ]


def write_weight_images(
    description: Description, folder: Path, *, image_format: str = "hex"
) -> list[str]:
    """Write ``t<tile>_c<cell>``: the words of every cell, in order of addresses."""
    array = description.target.array
    n_words = int(description.placement["n_words"])
    per_address = array.n_tiles * array.n_cells * array.word_bytes
    piece = max(1, _AT_A_TIME // per_address)
    cells = [(tile, cell) for tile in range(array.n_tiles) for cell in range(array.n_cells)]
    names = [f"t{tile}_c{cell}.{image_format}" for tile, cell in cells]
    for first in range(0, n_words, piece):
        words = description.rom_words(first, min(piece, n_words - first))
        for (tile, cell), name in zip(cells, names, strict=True):
            _append(folder / name, words[:, tile, cell], image_format, begin=first == 0)
    return names


def write_gain_image(description: Description, folder: Path, *, image_format: str = "hex") -> str:
    """Write ``gains``: words of ``n_lanes`` gains, lane 0 in the least significant bits."""
    lanes = description.target.vector.n_lanes
    words = []
    for gain in description.gains.values():
        padded = np.zeros(-(-gain.values.size // lanes) * lanes, dtype="<i4")
        padded[: gain.values.size] = gain.values
        words.append(padded.view(np.uint8).reshape(-1, 4 * lanes))
    name = f"gains.{image_format}"
    _append(folder / name, np.concatenate(words), image_format, begin=True)
    return name


def write_program_image(
    description: Description,
    folder: Path,
    *,
    image_format: str = "hex",
    sizes: Sequence[int] = (),
) -> str:
    """Write ``program``: the words of all programs, one after the other."""
    _, words = program_words(description, sizes)
    size = -(-WORD_BITS // 8)
    raw = b"".join(word.to_bytes(size, "little") for word in words)
    name = f"program.{image_format}"
    _append(folder / name, np.frombuffer(raw, np.uint8).reshape(-1, size), image_format, begin=True)
    return name


def program_words(
    description: Description, sizes: Sequence[int] = ()
) -> tuple[list[int], list[int]]:
    """Return each program's first address, by number, and the words of the program ROM.

    Programs with some of a chip's instructions begin where its whole ones do.

    Parameters
    ----------
    sizes
        Room for each program, where it is more than the description's own.
    """
    starts: list[int] = []
    words: list[int] = []
    rooms = sizes or program_sizes(description)
    for program, room in zip(_programs(description), rooms, strict=True):
        starts.append(len(words))
        encoded = encode_program(program, description)
        words += encoded + encoded[-1:] * (room - len(encoded))
    return starts, words


def program_sizes(description: Description) -> list[int]:
    """Return the words of each program of the whole chip, by number."""
    return [len(program.instructions) + 1 for program in _programs(description.whole)]


def _programs(description: Description) -> list[Program]:
    n_inflight = description.target.schedule.n_inflight
    return [
        description.decode,
        description.prefill(1, False),
        description.prefill(n_inflight, False),
        description.prefill(n_inflight, True),
    ]


def _append(path: Path, words: NDArray[np.uint8], image_format: str, *, begin: bool) -> None:
    """Write words, given least significant byte first, as lines or as bytes."""
    swapped = np.ascontiguousarray(words[:, ::-1])
    with path.open("wb" if begin else "ab") as file:
        if image_format == "bin":
            file.write(swapped.tobytes())
            return
        lines = np.empty((len(swapped), 2 * swapped.shape[1] + 1), dtype=np.uint8)
        lines[:, :-1:2] = _DIGITS[swapped >> 4]
        lines[:, 1:-1:2] = _DIGITS[swapped & 15]
        lines[:, -1] = ord("\n")
        file.write(lines.tobytes())
