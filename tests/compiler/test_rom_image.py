from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim_compiler.encoded import RomTensor
from romsim_compiler.mapping import Mapping, map_group
from romsim_compiler.rom_image import iter_packed, pack_group, unpack_fields, unpack_group
from romsim_compiler.target import Array
from romsim_models.errors import DescriptionError, SpecError
from tests.compiler.rom_arrays import make_array, make_format, make_mapping, random_tensor

FORMATS = (
    "q4_0", "q4_1", "q8_0", "int4g32", "int4g64", "int4g128", "int2g32", "int2g128", "int8g64",
    "ternary",
)  # fmt: skip


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[RomTensor], Mapping, Array]:
    fmt = make_format(draw(st.sampled_from(FORMATS)))
    word_codes = draw(st.sampled_from((32, 64, 128)))
    encoding = draw(st.sampled_from(("unsigned", "ternary")))
    groups = [g for g in (32, 64, 128) if g <= word_codes and (not fmt.group or fmt.group % g == 0)]
    array = make_array(
        n_tiles=draw(st.integers(1, 3)),
        n_cells=draw(st.sampled_from((1, 2, 4, 8))),
        word_codes=word_codes,
        lane_bits=2 if encoding == "ternary" else draw(st.sampled_from((2, 4, 8))),
        encoding=encoding,
        scale_group=draw(st.sampled_from(groups)),
        scale_bits=16 if fmt.group else draw(st.sampled_from((0, 16))),
        min_bits=16 if fmt.has_minimum else draw(st.sampled_from((0, 16))),
        zero_bits=draw(st.sampled_from((0, 3))),
    )
    n_cols = draw(st.integers(1, 5)) * (fmt.group or 1)
    if not fmt.group:
        n_cols += draw(st.integers(0, 200))
    sizes = draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    ks = draw(st.sampled_from([k for k in (1, 2, 4, 8) if k <= array.n_cells]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tensors = [
        random_tensor(rng, f"blk.0.part{n}.weight", size, n_cols, fmt)
        for n, size in enumerate(sizes)
    ]
    return tensors, make_mapping(sum(sizes), n_cols, fmt, array, ks), array


@settings(max_examples=150, deadline=None)
@given(packings())
def test_unpacking_gives_back_what_was_packed(case: tuple[list[RomTensor], Mapping, Array]) -> None:
    tensors, mapping, array = case
    fmt = tensors[0].fmt
    words = pack_group(tensors, mapping, array)
    assert words.shape == (mapping.n_words, array.n_tiles, array.n_cells, array.word_bytes)
    codes, scale_bits, minimum_bits = unpack_group(
        words, mapping, array, fmt, mapping.n_rows, mapping.n_cols
    )
    assert np.array_equal(codes, np.concatenate([t.codes for t in tensors]))
    assert np.array_equal(scale_bits, np.concatenate([t.scale_bits for t in tensors]))
    if fmt.has_minimum:
        assert minimum_bits is not None
        expected = np.concatenate([t.minimum_bits for t in tensors if t.minimum_bits is not None])
        assert np.array_equal(minimum_bits, expected)
    else:
        assert minimum_bits is None


@settings(max_examples=60, deadline=None)
@given(packings(), st.integers(1, 30))
def test_pieces_together_are_the_whole(
    case: tuple[list[RomTensor], Mapping, Array], rows_at_a_time: int
) -> None:
    tensors, mapping, array = case
    pieces = list(iter_packed(tensors, mapping, array, rows_at_a_time=rows_at_a_time))
    assert np.array_equal(np.concatenate(pieces), pack_group(tensors, mapping, array))


def bit_field(word: np.ndarray, first: int, n_bits: int) -> int:
    number = int.from_bytes(word.tobytes(), "little")
    return (number >> first) & ((1 << n_bits) - 1)


@settings(max_examples=60, deadline=None)
@given(packings())
def test_each_bit_stands_where_the_machine_page_says(
    case: tuple[list[RomTensor], Mapping, Array],
) -> None:
    """Walks rows, words, planes and fields as docs/machine.md, section 2 does."""
    tensors, mapping, array = case
    fmt = tensors[0].fmt
    words = pack_group(tensors, mapping, array)
    rt = array.n_cells // mapping.ks
    rp = array.n_tiles * rt
    codes = np.concatenate([t.codes for t in tensors])
    scales = np.concatenate([t.scale_bits for t in tensors])
    seen = 0
    for i in range(mapping.n_rows):
        s, r = divmod(i, rp)
        for index in range(-(-mapping.n_cols // array.word_codes)):
            j, w = divmod(index, mapping.wpc)
            cell = (r % rt) * mapping.ks + j
            for p in range(mapping.planes):
                word = words[(s * mapping.wpc + w) * mapping.planes + p, r // rt, cell]
                seen += int.from_bytes(word.tobytes(), "little") != 0
                for lane in range(array.word_codes):
                    k = index * array.word_codes + lane
                    code = int(codes[i, k]) if k < mapping.n_cols else 0
                    if fmt.kind != "ternary":
                        code = (code >> (p * array.plane_shift)) % (1 << array.plane_shift)
                    assert bit_field(word, lane * array.lane_bits, array.lane_bits) == code
                if not fmt.group:
                    continue
                for field in range(array.n_scales):
                    k = index * array.word_codes + field * array.scale_group
                    held = int(scales[i, k // fmt.group]) if k < mapping.n_cols and p == 0 else 0
                    first = array.word_codes * array.lane_bits + 16 * field
                    assert bit_field(word, first, 16) == held
    assert seen == int((words != 0).any(axis=3).sum())  # nothing anywhere else


def test_a_code_of_two_planes_has_its_low_digit_at_the_lower_address() -> None:
    fmt, array = make_format("q8_0"), make_array(n_tiles=1, n_cells=1)
    mapping = make_mapping(1, 32, fmt, array, 1)
    tensor = random_tensor(np.random.default_rng(0), "t", 1, 32, fmt)
    tensor = replace(tensor, codes=np.full((1, 32), 0xA5, dtype=np.uint8))
    words = pack_group([tensor], mapping, array)
    assert words[0, 0, 0, :16].tolist() == [0x55] * 16
    assert words[1, 0, 0, :16].tolist() == [0xAA] * 16
    assert words[1, 0, 0, 16:].tolist() == [0] * 4  # scales stand in plane 0 only


def test_ternary_codes_are_their_two_bits() -> None:
    fmt = make_format("ternary")
    array = make_array(n_tiles=1, n_cells=1, lane_bits=2, encoding="ternary")
    tensor = random_tensor(np.random.default_rng(0), "t", 1, 4, fmt)
    tensor = replace(tensor, codes=np.array([[1, 2, 0, 1]], dtype=np.uint8))
    words = pack_group([tensor], make_mapping(1, 4, fmt, array, 1), array)
    assert words[0, 0, 0].tolist() == [0b01_00_10_01] + [0] * 11


def test_a_wider_group_repeats_its_scale_in_each_field() -> None:
    fmt, array = make_format("int4g128"), make_array(word_codes=64)
    tensor = random_tensor(np.random.default_rng(1), "t", 3, 256, fmt)
    mapping = make_mapping(3, 256, fmt, array, 2)
    fields = unpack_fields(pack_group([tensor], mapping, array), mapping, array, fmt, 3, 256)
    assert np.array_equal(fields.scales, np.repeat(tensor.scale_bits, 4, axis=1))
    assert fields.n_stray == 0


def test_mapping_chosen_by_the_compiler_round_trips() -> None:
    fmt, array = make_format("q4_1"), make_array(n_tiles=3, n_cells=8, word_codes=64, lane_bits=2)
    tensor = random_tensor(np.random.default_rng(2), "t", 77, 576, fmt)
    mapping = map_group(77, 576, fmt.planes(array), array, 64)
    words = pack_group([tensor], mapping, array)
    codes, scale_bits, minimum_bits = unpack_group(words, mapping, array, fmt, 77, 576)
    assert np.array_equal(codes, tensor.codes)
    assert np.array_equal(scale_bits, tensor.scale_bits)
    assert minimum_bits is not None
    assert tensor.minimum_bits is not None
    assert np.array_equal(minimum_bits, tensor.minimum_bits)


@settings(max_examples=60, deadline=None)
@given(packings(), st.data())
def test_a_flipped_bit_changes_what_is_read(
    case: tuple[list[RomTensor], Mapping, Array], data: st.DataObject
) -> None:
    tensors, mapping, array = case
    fmt = tensors[0].fmt
    words = pack_group(tensors, mapping, array)
    before = unpack_fields(words, mapping, array, fmt, mapping.n_rows, mapping.n_cols)
    at = data.draw(st.integers(0, words.size * 8 - 1))
    words.reshape(-1)[at >> 3] ^= 1 << (at & 7)
    after = unpack_fields(words, mapping, array, fmt, mapping.n_rows, mapping.n_cols)
    assert (
        not np.array_equal(before.codes, after.codes)
        or not np.array_equal(before.scales, after.scales)
        or not np.array_equal(before.minima, after.minima)
        or after.n_stray == 1
    )


def small() -> tuple[RomTensor, Mapping, Array]:
    fmt, array = make_format("int4g64"), make_array()
    tensor = random_tensor(np.random.default_rng(3), "blk.0.attn_q.weight", 9, 64, fmt)
    return tensor, make_mapping(9, 64, fmt, array, 2), array


def test_repeated_scales_that_differ_are_refused() -> None:
    tensor, mapping, array = small()
    words = pack_group([tensor], mapping, array)
    words[0, 0, 1, 16:18] = [0x34, 0x12]
    held = int(tensor.scale_bits[0, 0])
    with pytest.raises(
        DescriptionError,
        match=rf"^Scale of row 0, group 0 must be the same in the 2 ROM fields that repeat it, not "
        rf"\['{held:#06x}', '0x1234'\]; the image was changed or belongs to another placement$",
    ):
        unpack_group(words, mapping, array, tensor.fmt, 9, 64)


def test_padding_that_is_set_is_refused() -> None:
    tensor, mapping, array = small()
    words = pack_group([tensor], mapping, array)
    words[-1, -1, -1, 0] = 1  # row 11 of 9
    with pytest.raises(
        DescriptionError,
        match=r"^Padding of ROM words must be 0, not set in 1 words; the image was changed or "
        r"belongs to another placement$",
    ):
        unpack_group(words, mapping, array, tensor.fmt, 9, 64)


def test_words_of_another_shape_are_refused() -> None:
    tensor, mapping, array = small()
    words = pack_group([tensor], mapping, array)
    with pytest.raises(
        SpecError,
        match=r"^ROM words to read back must be whole steps of 1 addresses of \[2, 4, 20\] bytes, "
        r"not of shape \[3, 1, 4, 20\]$",
    ):
        unpack_group(words[:, :1], mapping, array, tensor.fmt, 9, 64)
    with pytest.raises(
        SpecError, match=r"^Rows to read back must be 1 to 12 in 3 addresses, not 13$"
    ):
        unpack_group(words, mapping, array, tensor.fmt, 13, 64)


def test_members_that_do_not_belong_together_are_refused() -> None:
    tensor, mapping, array = small()
    rng = np.random.default_rng(4)
    other = random_tensor(rng, "blk.0.attn_k.weight", 9, 64, make_format("q8_0"))
    with pytest.raises(
        SpecError,
        match=r"^Format of tensor 'blk\.0\.attn_k\.weight' must be 'int4g64' like the rest of its "
        r"group, not 'q8_0'$",
    ):
        pack_group([tensor, other], mapping, array)
    wide = random_tensor(rng, "blk.0.attn_k.weight", 9, 128, tensor.fmt)
    with pytest.raises(
        SpecError,
        match=r"^Columns of tensor 'blk\.0\.attn_k\.weight' must be 64 as mapped, not 128$",
    ):
        pack_group([wide], mapping, array)
    with pytest.raises(
        SpecError,
        match=r"^Rows of the group of tensor 'blk\.0\.attn_q\.weight' must be 9 as mapped, not 18$",
    ):
        pack_group([tensor, tensor], mapping, array)


def test_arrays_that_cannot_hold_the_format_are_refused() -> None:
    tensor, mapping, array = small()
    with pytest.raises(
        SpecError,
        match=r"^Planes of tensor 'blk\.0\.attn_q\.weight' must be 1 for format 'int4g64' on this "
        r"array, not 2$",
    ):
        pack_group([tensor], replace(mapping, planes=2), array)
    with pytest.raises(
        SpecError,
        match=r"^Lanes of a ROM word must be 2, 4 or 8 bits and fill whole bytes, not 32 lanes of "
        r"3 bits$",
    ):
        pack_group([tensor], replace(mapping, planes=2), replace(array, lane_bits=3))
    with pytest.raises(
        SpecError,
        match=r"^Codes of a scale field must divide the word's 32 codes and the group of 64 of "
        r"tensor 'blk\.0\.attn_q\.weight', not be 24$",
    ):
        pack_group([tensor], mapping, replace(array, scale_group=24))
    with pytest.raises(
        SpecError,
        match=r"^ROM words must hold 16-bit scales and minima for format 'int4g64' of tensor "
        r"'blk\.0\.attn_q\.weight', not 16 bits of scale and 0 of minimum$",
    ):
        pack_group([tensor], mapping, replace(array, min_bits=0))
