from __future__ import annotations

import itertools

import numpy as np
import pytest

from romsim_compiler.rom_encodings import ENCODINGS, Encoding, encode


def find(name: str, kind: str) -> Encoding:
    return next(e for e in ENCODINGS if (e.name, e.kind) == (name, kind))


def words(bits: np.ndarray, field_bits: int) -> list[int]:
    fields = bits.reshape(-1, field_bits)
    return [sum(int(b) << i for i, b in enumerate(field)) for field in fields]


def test_ternary_codes_as_written() -> None:
    codes = np.array([[0, 1, 2]], dtype=np.uint8)
    assert words(encode(codes, find("sign-one-hot", "ternary")), 2) == [0b00, 0b01, 0b10]
    assert words(encode(codes, find("two's complement", "ternary")), 2) == [0b00, 0b01, 0b11]


def test_base_3_fills_up_with_zeros() -> None:
    codes = np.array([[2, 1, 0, 0, 2, 1, 2]], dtype=np.uint8)
    assert words(encode(codes, find("base 3", "ternary")), 8) == [2 + 3 + 2 * 81, 1 + 2 * 3]


def test_four_bit_codes_stand_for_their_weights() -> None:
    codes = np.arange(16, dtype=np.uint8)[None]
    twos = words(encode(codes, find("two's complement", "unsigned")), 4)
    assert [w - 16 * (w >> 3) for w in twos] == list(range(-8, 8))
    magnitude = words(encode(codes, find("sign-magnitude", "unsigned")), 4)
    assert [(w & 7) * (1 - 2 * (w >> 3)) for w in magnitude[1:]] == list(range(-7, 8))
    assert magnitude[0] == 0b1000  # -0


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: f"{e.kind}-{e.name}")
def test_encodings_are_one_to_one(encoding: Encoding) -> None:
    n_codes = 3 if encoding.kind == "ternary" else 16
    fields = itertools.product(range(n_codes), repeat=encoding.codes_per_field)
    codes = np.array(list(fields), dtype=np.uint8)
    bits = encode(codes, encoding)
    assert bits.shape == (len(codes), encoding.field_bits)
    assert len(np.unique(bits, axis=0)) == len(codes)
    assert encoding.bits_per_code == encoding.field_bits / encoding.codes_per_field
