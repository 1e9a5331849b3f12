"""Cell area of a bank of logic ROM against its share of zero bits: the table of a technology.

`python -m benchmarks.logic_rom_density` prints the rows of `um2_per_bit` for one style: random bits
at 50 % zeros, ternary weights above, in words of 128 bits.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.technology_file import load_technology
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_rom import STYLES, synthesise

__all__ = ["area_table", "main"]

ZERO_WEIGHTS = (0.3, 0.4, 0.42, 0.6, 0.8, 0.876)
"""Shares of ternary weights that are zero; a weight of +1 or -1 has one zero bit, 0 has two."""


def area_table(
    style: str, library: CellLibrary, *, rows: int = 1024, width: int = 128, seed: int = 1
) -> list[tuple[float, float]]:
    """Return (share of zero bits, um2 of cells a bit), ascending.

    Parameters
    ----------
    rows, width
        Words, and bits of a word, an even number.
    """
    random = np.random.default_rng(seed)
    tables = [(1, random.integers(0, 2, (rows, width)).astype(np.uint8))]
    for zeros in ZERO_WEIGHTS:
        ones = (1 - zeros) / 2
        weights = random.choice(3, p=[zeros, ones, ones], size=(rows, width // 2))
        tables.append((2, _sign_one_hot(weights)))
    banks = [synthesise(bits, style, library, field_bits=n) for n, bits in tables]
    return [(bank.zero_bits, bank.um2_per_bit) for bank in banks]


def _sign_one_hot(weights: NDArray[np.int64]) -> NDArray[np.uint8]:
    bits = np.zeros((len(weights), 2 * weights.shape[1]), dtype=np.uint8)
    bits[:, 0::2] = weights == 1
    bits[:, 1::2] = weights == 2
    return bits


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--style", choices=sorted(STYLES), default="patterns")
    parser.add_argument("--words", type=int, default=1024)
    parser.add_argument("--technology", default="asap7")
    given = parser.parse_args()
    library = CellLibrary.of(load_technology(given.technology))
    for share, area in area_table(given.style, library, rows=given.words):
        print(f"[{share:.3f}, {area:.5f}]")


if __name__ == "__main__":
    main()
