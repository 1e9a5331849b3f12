from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from romsim_compiler.encoded import fp16_parts, from_encoded, row_blocks
from romsim_models.encoded import EncodedTensor
from romsim_models.errors import FormatError
from tests.compiler.rom_arrays import make_format, random_tensor, random_words


def shipped(fmt: str, n_rows: int = 6, n_cols: int = 64) -> EncodedTensor:
    rng = np.random.default_rng(5)
    is_wide = fmt == "q8_0"
    low, high = (-128, 128) if is_wide else (0, 16)
    codes = rng.integers(low, high, (n_rows, n_cols))
    words = (n_rows, n_cols // 32)
    return EncodedTensor(
        name="blk.0.attn_q.weight",
        shape=(n_rows, n_cols),
        format=fmt,
        code_bits=8 if is_wide else 4,
        code_offset=8 if fmt == "q4_0" else 0,
        group_size=32,
        codes=codes.astype(np.int8) if is_wide else codes.astype(np.uint8),
        scale_bits=random_words(rng, words),
        minimum_bits=random_words(rng, words) if fmt == "q4_1" else None,
    )


def test_every_finite_binary16_word_is_significand_and_exponent() -> None:
    words = np.array([w for w in range(1 << 16) if w & 0x7C00 != 0x7C00], dtype=np.uint16)
    sig, exp = fp16_parts(words)
    assert sig.dtype == np.int16
    assert exp.dtype == np.int8
    values = words.view(np.float16)
    assert np.array_equal(np.ldexp(sig.astype(np.float64), exp), values.astype(np.float64))
    assert (np.abs(sig).max(), exp.min(), exp.max()) == (2047, -24, 5)
    one = fp16_parts(np.array([0x3C00], dtype=np.uint16))
    assert (int(one[0][0]), int(one[1][0])) == (1024, -10)


@pytest.mark.parametrize("fmt", ["q4_0", "q4_1", "q8_0"])
def test_shipped_weights_keep_their_values_and_words(fmt: str) -> None:
    tensor = shipped(fmt)
    burnt = from_encoded(tensor)
    assert np.array_equal(
        burnt.values(), tensor.codes.astype(np.int16) - np.int16(tensor.code_offset)
    )
    assert np.array_equal(burnt.scale_bits, tensor.scale_bits)
    assert np.array_equal(burnt.dequantize().astype(np.float32), tensor.dequantize())
    assert burnt.error is None
    if fmt == "q4_1":
        assert burnt.minimum_bits is tensor.minimum_bits
        assert burnt.minimum_sig is not None
        assert burnt.minimum_exp is not None
    else:
        assert burnt.minimum_bits is None
        assert burnt.minimum_sig is None
        assert burnt.minimum_exp is None


def test_a_weight_is_its_fields() -> None:
    burnt = from_encoded(shipped("q4_1"))
    assert burnt.minimum_sig is not None
    assert burnt.minimum_exp is not None
    for i, k in ((0, 0), (3, 31), (5, 63)):
        g = k // 32
        scale = int(burnt.scale_sig[i, g]) * Fraction(2) ** int(burnt.scale_exp[i, g])
        minimum = int(burnt.minimum_sig[i, g]) * Fraction(2) ** int(burnt.minimum_exp[i, g])
        assert Fraction(burnt.dequantize()[i, k]) == scale * int(burnt.codes[i, k]) + minimum


def test_ternary_codes_stand_for_zero_plus_and_minus() -> None:
    tensor = random_tensor(np.random.default_rng(0), "t", 1, 3, make_format("ternary"))
    tensor = replace(
        tensor,
        codes=np.array([[0, 1, 2]], dtype=np.uint8),
        multiplier=3,
        exponent=-2,
    )
    assert tensor.values().tolist() == [[0, 1, -1]]
    assert tensor.dequantize().tolist() == [[0.0, 0.75, -0.75]]
    assert tensor.n_groups == 0


def test_row_blocks_cover_all_rows_in_order() -> None:
    burnt = from_encoded(shipped("q4_1", n_rows=7))
    blocks = list(row_blocks(burnt, block_weights=128))
    assert [b.n_rows for b in blocks] == [2, 2, 2, 1]
    assert np.array_equal(np.concatenate([b.codes for b in blocks]), burnt.codes)
    assert np.array_equal(np.concatenate([b.scale_bits for b in blocks]), burnt.scale_bits)
    assert [b.n_rows for b in row_blocks(burnt)] == [7]


def test_a_format_that_no_rom_form_holds_is_refused() -> None:
    with pytest.raises(
        FormatError,
        match=r"^Format of tensor 'blk\.0\.attn_q\.weight' must be one of q4_0, q4_1, q8_0, tq1_0, "
        r"tq2_0, i2_s, bitnet to be burnt as shipped, not 'q3_k'; choose a format to "
        r"quantise it to, such as int4g32$",
    ):
        from_encoded(replace(shipped("q4_0"), format="q3_k"))


def test_an_encoding_that_contradicts_its_format_is_refused() -> None:
    with pytest.raises(
        FormatError,
        match=r"^Code offset of tensor 'blk\.0\.attn_q\.weight' must be 8 in format 'q4_0', not 7$",
    ):
        from_encoded(replace(shipped("q4_0"), code_offset=7))
    tensor = shipped("q4_0")
    wide = replace(tensor, group_size=64, scale_bits=tensor.scale_bits[:, :1].copy())
    with pytest.raises(
        FormatError,
        match=r"^Group of tensor 'blk\.0\.attn_q\.weight' must be 32 in format 'q4_0', not 64$",
    ):
        from_encoded(wide)


def test_rom_tensors_are_checked() -> None:
    fmt = make_format("q4_1")
    tensor = random_tensor(np.random.default_rng(0), "t", 2, 64, fmt)
    codes = tensor.codes.copy()
    codes[1, 40] = 16
    cases = {
        r"^ROM code \[1, 40\] of tensor 't' must be at most 15 in format 'q4_1', not 16$": {
            "codes": codes
        },
        r"^ROM codes of tensor 't' must be a uint8 matrix with elements, not int8 of \[2, 64\]$": {
            "codes": codes.view(np.int8)
        },
        r"^Number of columns of tensor 't' must be a multiple of the group 32 of format 'q4_1', "
        r"not 33$": {"codes": tensor.codes[:, :33]},
        r"^ROM scale words of tensor 't' must be uint16 of shape \[2, 2\], not uint16 of "
        r"\[2, 1\]$": {"scale_bits": tensor.scale_bits[:, :1]},
        r"^Tensor 't' must have minima in format 'q4_1'$": {"minimum_bits": None},
        r"^ROM minimum of row 1, group 0 of tensor 't' must be a finite number, not -inf$": {
            "minimum_bits": np.array([[0, 0], [0xFC00, 0]], dtype=np.uint16)
        },
        r"^Multiplier of tensor 't' must have at most 24 bits, not 16777216$": {
            "multiplier": 1 << 24
        },
    }
    for message, change in cases.items():
        with pytest.raises(FormatError, match=message):
            replace(tensor, **change)  # type: ignore[arg-type]  # each of its own type
    plain = random_tensor(np.random.default_rng(0), "t", 2, 64, make_format("q4_0"))
    with pytest.raises(FormatError, match=r"^Tensor 't' must not have minima in format 'q4_0'$"):
        replace(plain, minimum_bits=plain.scale_bits)
