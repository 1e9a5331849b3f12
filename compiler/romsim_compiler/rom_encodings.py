"""Bit encodings of weight codes for logic ROM, where each bit that is 0 may cost nothing.

Ternary codes are 0, +1 and -1 as 0, 1, 2; four-bit codes stand for ``code - 8``. Every encoding is
one to one, so any of them can be undone in the lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ENCODINGS", "Encoding", "encode"]

Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way to write codes as bits.

    Parameters
    ----------
    name
        Name in tables.
    kind, code_bits
        Of the codes: ``ternary`` and 2, or ``unsigned`` and 4.
    codes_per_field, field_bits
        Codes that are written together, and the bits they take.
    summary
        What it is.
    """

    name: str
    kind: str
    code_bits: int
    codes_per_field: int
    field_bits: int
    summary: str

    @property
    def bits_per_code(self) -> float:
        """Bits of a code."""
        return self.field_bits / self.codes_per_field


ENCODINGS = (
    Encoding("sign-one-hot", "ternary", 2, 1, 2, "0 = 00, +1 = 01, -1 = 10; as burnt"),
    Encoding("two's complement", "ternary", 2, 1, 2, "0 = 00, +1 = 01, -1 = 11"),
    Encoding("base 3", "ternary", 2, 5, 8, "five weights in 8 bits; decoders in the cell"),
    Encoding("offset", "unsigned", 4, 1, 4, "weight + 8; as burnt"),
    Encoding("two's complement", "unsigned", 4, 1, 4, "the weight"),
    Encoding("sign-magnitude", "unsigned", 4, 1, 4, "sign and magnitude; -0 stands for -8"),
)
"""The encodings, that of the ROM image first for each kind."""


def encode(codes: Codes, encoding: Encoding) -> NDArray[np.uint8]:
    """Return rows of codes as rows of bits, lowest bit of the first code first.

    Parameters
    ----------
    codes
        uint8 [rows, n_codes], ternary codes 0 to 2 or unsigned codes 0 to 15.

    Returns
    -------
    uint8 [rows, n_fields * field_bits]
        The last field is filled up with code 0.
    """
    function = _FUNCTIONS[encoding.kind, encoding.name]
    n = encoding.codes_per_field
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % n)))
    fields = function(padded.reshape(codes.shape[0], -1, n))
    bits = (fields[..., None] >> np.arange(encoding.field_bits, dtype=np.uint8)) & np.uint8(1)
    return np.asarray(bits.reshape(codes.shape[0], -1), dtype=np.uint8)


def _table(*words: int) -> Callable[[Codes], Codes]:
    table = np.array(words, dtype=np.uint8)

    def look_up(fields: Codes) -> Codes:
        return np.asarray(table[fields[..., 0]])

    return look_up


def _base_3(fields: Codes) -> Codes:
    powers = np.array([1, 3, 9, 27, 81], dtype=np.uint8)
    return np.asarray((fields * powers).sum(axis=-1, dtype=np.uint8))


_FUNCTIONS: dict[tuple[str, str], Callable[[Codes], Codes]] = {
    ("ternary", "sign-one-hot"): _table(0b00, 0b01, 0b10),
    ("ternary", "two's complement"): _table(0b00, 0b01, 0b11),
    ("ternary", "base 3"): _base_3,
    ("unsigned", "offset"): _table(*range(16)),
    ("unsigned", "two's complement"): _table(*((code - 8) % 16 for code in range(16))),
    ("unsigned", "sign-magnitude"): _table(
        8, *(8 + 8 - code if code < 8 else code - 8 for code in range(1, 16))
    ),
}
