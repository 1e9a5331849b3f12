"""A bank whose low address bits' functions are shared by all data bits before selection (B-ROM).

With ``k`` low bits there are ``2**2**k`` functions of them; each that occurs is made once, and a
data bit selects one of them by the other address bits. A function that is zero selects nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["candidate_blif"]


def candidate_blif(bits: NDArray[np.uint8], n_low: int) -> str:
    """Return BLIF of a bank, to be mapped.

    Parameters
    ----------
    bits
        uint8 [rows, width] of 0 and 1, bit 0 of each word first.
    n_low
        Address bits whose functions are shared; fewer where the address has no more.
    """
    rows, width = bits.shape
    n_bits = max(1, (rows - 1).bit_length())
    n_low = min(n_low, n_bits)
    n_words, n_blocks = 1 << n_low, 1 << (n_bits - n_low)
    padded = np.zeros((n_words * n_blocks, width), dtype=np.int64)
    padded[:rows] = bits
    weights = np.int64(1) << np.arange(n_words, dtype=np.int64)
    functions = (padded.reshape(n_blocks, n_words, width) * weights[None, :, None]).sum(axis=1)
    lines = [
        ".model rom",
        ".inputs " + " ".join(f"a{i}" for i in range(n_bits)),
        ".outputs " + " ".join(f"d{i}" for i in range(width)),
    ]

    def cover(output: str, inputs: list[str], cubes: list[str]) -> None:
        lines.append(".names " + " ".join([*inputs, output]))
        lines.extend(f"{cube} 1" for cube in cubes)

    low = [f"a{i}" for i in range(n_low)]
    for function in np.unique(functions):
        if function:
            cubes = [_cube(w, n_low) for w in range(n_words) if function >> w & 1]
            cover(f"c{function}", low, cubes)
    _decoders(lines, n_low, n_bits)
    for bit in range(width):
        terms = []
        for block in np.flatnonzero(functions[:, bit]):
            term = f"t{bit}_{block}"
            candidate = f"c{functions[block, bit]}"
            if n_low == n_bits:
                cover(term, [candidate], ["1"])
            else:
                cover(term, [f"m{block}", candidate], ["11"])
            terms.append(term)
        ones = ["-" * i + "1" + "-" * (len(terms) - 1 - i) for i in range(len(terms))]
        cover(f"d{bit}", terms, ones)
    return "\n".join([*lines, ".end", ""])


def _cube(value: int, n_bits: int) -> str:
    return "".join(str(value >> i & 1) for i in range(n_bits))


def _decoders(lines: list[str], first: int, n_bits: int) -> None:
    """Add ``m<block>``, one signal per value of the address bits from ``first`` on, by halves."""
    middle = first + (n_bits - first) // 2
    for name, start, stop in (("lo", first, middle), ("hi", middle, n_bits)):
        for value in range(1 << (stop - start)):
            inputs = " ".join(f"a{i}" for i in range(start, stop))
            lines.append(f".names {inputs} {name}{value}".replace("  ", " "))
            lines.append(f"{_cube(value, stop - start)} 1".strip())
    n_first = 1 << (middle - first)
    for block in range(1 << (n_bits - first)):
        lines += [f".names lo{block % n_first} hi{block // n_first} m{block}", "11 1"]
