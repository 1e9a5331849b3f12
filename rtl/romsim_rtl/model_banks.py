"""The ROM banks of a description: which words belong to which bank, and their bits.

A cell's words are cut into blocks of ``bank_words`` addresses, and a block between the matrices in
it: a bank holds words of one matrix only, so that it can be switched off with it. A bank decodes
the address within its block and reads 0 where the block holds other words, so that banks are joined
by OR.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.description import Description
from romsim_compiler.program import PlacedGroup
from romsim_compiler.target import Array
from romsim_models.errors import SpecError

__all__ = [
    "BANK_WORDS",
    "BankPlace",
    "bank_bits",
    "bank_places",
    "block_bits",
    "block_rows",
    "digit_bits",
    "stored_columns",
]

BANK_WORDS = 1024
"""Words of a block: TOM's bank height."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BankPlace:
    """Where a bank is: words ``first`` to ``first + rows - 1`` of a block of a cell."""

    group: str
    tile: int
    cell: int
    block: int
    first: int
    rows: int


def bank_places(
    description: Description, bank_words: int = BANK_WORDS
) -> dict[str, list[BankPlace]]:
    """Return the banks of each matrix group, tile by tile and cell by cell.

    Raises
    ------
    SpecError
        If ``bank_words`` is no power of two from 2 on.
    """
    if bank_words < 2 or bank_words & (bank_words - 1):
        raise SpecError(f"Words of a bank must be a power of two, 2 or more, not {bank_words}")
    array = description.target.array
    places: dict[str, list[BankPlace]] = {}
    for name, group in description.groups.items():
        pieces = []
        address, end = group.base, group.base + group.mapping.n_words
        while address < end:
            block, first = divmod(address, bank_words)
            rows = min(bank_words - first, end - address)
            pieces.append((block, first, rows))
            address += rows
        places[name] = [
            BankPlace(group=name, tile=tile, cell=cell, block=block, first=first, rows=rows)
            for tile in range(array.n_tiles)
            for cell in range(array.n_cells)
            for block, first, rows in pieces
        ]
    return places


def digit_bits(group: PlacedGroup, array: Array) -> int:
    """Return how many bits of a lane the group's digits use: planes on a ternary array use one."""
    return array.lane_bits if group.kind == "ternary" else array.plane_shift


def stored_columns(group: PlacedGroup, array: Array) -> NDArray[np.int64]:
    """Return the bits of a word that the group's format uses: digits, then scales and minima."""
    lanes = np.arange(array.word_codes)[:, None] * array.lane_bits
    digits = (lanes + np.arange(digit_bits(group, array))).ravel()
    n_fields = array.n_scales if group.group else 0
    n_beside = n_fields * (array.scale_bits + (array.min_bits if group.has_minimum else 0))
    return np.concatenate([digits, array.word_codes * array.lane_bits + np.arange(n_beside)])


def bank_bits(
    description: Description, place: BankPlace, bank_words: int = BANK_WORDS
) -> NDArray[np.uint8]:
    """Return a bank's words, without those before and after it in its block.

    Returns
    -------
    uint8 [rows, width]
        Bits of whole words, bit 0 of each first; `stored_columns` says which may be other than 0.

    Raises
    ------
    DescriptionError
        If the description has no images.
    """
    words = description.rom_words(place.block * bank_words + place.first, place.rows)
    mine = np.ascontiguousarray(words[:, place.tile, place.cell, :])
    return np.unpackbits(mine, axis=1, bitorder="little")


def block_rows(description: Description, bank_words: int = BANK_WORDS) -> int:
    """Return the words of a block, a power of two: fewer where no cell has ``bank_words``."""
    n_words = int(description.placement["n_words"])
    return min(bank_words, 1 << max(1, (n_words - 1).bit_length()))


def block_bits(
    description: Description, place: BankPlace, bank_words: int = BANK_WORDS
) -> NDArray[np.uint8]:
    """Return a bank's words where they are in their block, 0 where the block holds others.

    Returns
    -------
    uint8 [block_rows, width]
        As `bank_bits`, with the rows of `block_rows`.

    Raises
    ------
    DescriptionError
        As `bank_bits`.
    """
    bits = bank_bits(description, place, bank_words)
    after = block_rows(description, bank_words) - place.first - place.rows
    return np.pad(bits, ((place.first, after), (0, 0)))
