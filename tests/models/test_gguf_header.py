from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest

from romsim_models.errors import FormatError
from romsim_models.gguf_header import read_gguf_header
from tests.models.gguf_files import (
    F32,
    Q4_1,
    Q8_0,
    Written,
    metadata_of,
    string,
    tensors_of,
    write_gguf,
)

ONE = {"a": Written((2, 32), Q8_0, bytes(68))}


def refused(path: Path, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^{re.escape(f'{path}: {message}')}$"):
        read_gguf_header(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


@pytest.mark.parametrize("version", [2, 3])
def test_header_reads_every_kind_of_value(path: Path, version: int) -> None:
    metadata: dict[str, Any] = {
        "u8": struct.pack("<IB", 0, 200),
        "i8": struct.pack("<Ib", 1, -3),
        "u16": struct.pack("<IH", 2, 60000),
        "i16": struct.pack("<Ih", 3, -300),
        "u32": 4_000_000_000,
        "i32": struct.pack("<Ii", 5, -7),
        "f32": 0.5,
        "bool": True,
        "text": "a\u00e9\U0001f30a",
        "u64": struct.pack("<IQ", 10, 2**40),
        "i64": struct.pack("<Iq", 11, -(2**40)),
        "f64": struct.pack("<Id", 12, 0.1),
        "numbers": [1, 2, 3],
        "texts": ["x", "", "yz"],
        "nothing": [],
    }
    header = read_gguf_header(write_gguf(path, metadata, {}, version=version))
    assert header.version == version
    assert header.metadata == {
        "u8": 200, "i8": -3, "u16": 60000, "i16": -300, "u32": 4_000_000_000, "i32": -7,
        "f32": 0.5, "bool": True, "text": "a\u00e9\U0001f30a", "u64": 2**40, "i64": -(2**40),
        "f64": 0.1, "numbers": [1, 2, 3], "texts": ["x", "", "yz"], "nothing": [],
    }  # fmt: skip


def test_header_locates_tensors_behind_their_alignment(path: Path) -> None:
    tensors = {"a": Written((2, 32), Q8_0, bytes(68)), "b": Written((3,), F32, bytes(12))}
    metadata = {"general.alignment": 64}
    write_gguf(path, metadata, tensors, offsets={"b": 128})
    raw = path.read_bytes()
    path.write_bytes(raw + bytes(64))
    header = read_gguf_header(path)
    start = header.tensors["a"].offset
    assert start % 64 == 0
    assert header.tensors["a"].shape == (2, 32)
    assert header.tensors["a"].size_bytes == 68
    assert header.tensors["b"].offset == start + 128
    assert header.tensors["b"].shape == (3,)


def test_header_equals_the_gguf_package(path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="an independent reader (extra 'oracle')")
    write_gguf(path, metadata_of(), tensors_of(matrices=Q4_1))
    ours = read_gguf_header(path)
    theirs = gguf.GGUFReader(path)
    assert {
        tensor.name: (tuple(int(n) for n in reversed(tensor.shape)), tensor.data_offset)
        for tensor in theirs.tensors
    } == {name: (info.shape, info.offset) for name, info in ours.tensors.items()}
    for key, value in ours.metadata.items():
        assert theirs.fields[key].contents() == value


def test_header_refuses_a_missing_file(path: Path) -> None:
    refused(path, "model file must be readable, not 'No such file or directory'; check the path")


def test_header_refuses_a_stub(path: Path) -> None:
    path.write_bytes(b"GGUF")
    refused(path, "a GGUF file must be at least 24 bytes long, not 4; get the file again")


def test_header_refuses_another_format(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(40))
    refused(
        path,
        "first four bytes must be b'GGUF', not b'PK\\x03\\x04'; give a GGUF file or a Hugging "
        "Face directory",
    )


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_header_refuses_another_version(path: Path, version: int) -> None:
    write_gguf(path, {}, {}, version=version)
    refused(
        path,
        f"GGUF version must be 2 or 3 (little-endian), not {version}; convert the file with a "
        "current llama.cpp",
    )


def test_header_names_the_tensor_and_the_bytes_that_a_truncated_file_lacks(path: Path) -> None:
    write_gguf(path, metadata_of(), {**ONE, "b": Written((2, 32), Q8_0, bytes(68))})
    raw = path.read_bytes()
    path.write_bytes(raw[: -(28 + 17)])  # 28 bytes of padding, 17 of data
    refused(
        path,
        "tensor 'b' must have 68 bytes, not 51; the file is truncated, 17 bytes of this tensor "
        "are missing: get the file again",
    )
    path.write_bytes(raw[:-96])  # all of b, whose data begin where the file now ends
    refused(
        path,
        "tensor 'b' must have 68 bytes, not 0; the file is truncated, 68 bytes of this tensor "
        "are missing: get the file again",
    )
    path.write_bytes(raw[: -(96 + 28 + 1)])
    refused(
        path,
        "tensor 'a' must have 68 bytes, not 67; the file is truncated, 1 bytes of this tensor "
        "are missing: get the file again",
    )


@pytest.mark.parametrize("cut", range(24, 200, 7))
def test_header_refuses_every_truncation(path: Path, cut: int) -> None:
    write_gguf(path, metadata_of(), ONE)
    raw = path.read_bytes()
    path.write_bytes(raw[:cut])
    with pytest.raises(
        FormatError,
        match=rf"^{re.escape(str(path))}: .* must have \d+ bytes at byte \d+, not \d+; the file is "
        r"truncated or corrupt, \d+ bytes are missing: get the file again$",
    ):
        read_gguf_header(path)


def test_header_refuses_a_wild_length(path: Path) -> None:
    body = string("key") + struct.pack("<IIQ", 9, 8, 2**60)  # an array of 2^60 texts
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body)
    refused(
        path,
        f"metadata key 'key' must have {2**63} bytes at byte 51, not 0; the file is truncated or "
        f"corrupt, {2**63} bytes are missing: get the file again",
    )


def test_header_refuses_an_unknown_value_type(path: Path) -> None:
    write_gguf(path, {"key": struct.pack("<I", 13)}, {})
    refused(
        path,
        "type of metadata key 'key' must be a number from 0 to 12, not 13; the file is corrupt",
    )


def test_header_refuses_an_array_of_arrays(path: Path) -> None:
    write_gguf(path, {"key": struct.pack("<IIQ", 9, 9, 1)}, {})
    refused(
        path,
        "elements of metadata key 'key' must be numbers or texts, not of type 9; the file is "
        "corrupt",
    )


def test_header_refuses_a_key_twice(path: Path) -> None:
    body = (string("key") + struct.pack("<II", 4, 1)) * 2
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + body)
    refused(path, "metadata key 'key' must stand once, not twice")


def test_header_refuses_a_tensor_twice(path: Path) -> None:
    entry = string("a") + struct.pack("<IQIQ", 1, 8, F32, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + entry * 2)
    refused(path, "tensor 'a' must stand once, not twice")


def test_header_refuses_text_that_is_no_utf8(path: Path) -> None:
    body = struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<II", 4, 1)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body)
    refused(
        path,
        "text in metadata key 1 of 1 must be UTF-8, not b'\\xff\\xfe'; the file is corrupt",
    )


@pytest.mark.parametrize("n_dims", [0, 5])
def test_header_refuses_a_wrong_number_of_dimensions(path: Path, n_dims: int) -> None:
    entry = string("a") + struct.pack("<I", n_dims) + bytes(60)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + entry)
    refused(
        path,
        f"number of dimensions of tensor 'a' must be 1 to 4, not {n_dims}; the file is corrupt",
    )


@pytest.mark.parametrize("n_cols", [0, 48])
def test_header_refuses_columns_that_blocks_do_not_divide(path: Path, n_cols: int) -> None:
    write_gguf(path, {}, {"a": Written((2, n_cols), Q8_0, bytes(200))})
    refused(
        path,
        f"number of columns of tensor 'a' must be a positive multiple of 32 for Q8_0, not {n_cols}",
    )


def test_header_refuses_an_unaligned_offset(path: Path) -> None:
    write_gguf(path, {}, ONE, offsets={"a": 8})
    refused(
        path,
        "offset of tensor 'a' must be a multiple of the alignment 32, not 8; the file is corrupt",
    )


def test_header_refuses_overlapping_tensors(path: Path) -> None:
    write_gguf(path, {}, {**ONE, "b": Written((2, 32), Q8_0, bytes(68))}, offsets={"b": 32})
    start = (path.stat().st_size - 192) // 32 * 32
    refused(
        path,
        f"data of tensor 'b' must start at byte {start + 68} or later, not {start + 32}; it "
        "overlaps with 'a': the file is corrupt",
    )


def test_header_refuses_bytes_that_nothing_names(path: Path) -> None:
    write_gguf(path, {}, ONE)
    (info,) = read_gguf_header(path).tensors.values()
    end = info.offset + info.size_bytes
    with path.open("ab") as file:
        file.write(bytes(64))
    refused(
        path,
        f"file must end with the data of its last tensor at byte {end}, not at byte "
        f"{path.stat().st_size}: nothing names the bytes between; get the file again",
    )


@pytest.mark.parametrize("alignment", [0, 12, "x"])
def test_header_refuses_an_impossible_alignment(path: Path, alignment: Any) -> None:
    write_gguf(path, {"general.alignment": alignment}, ONE)
    refused(path, f"general.alignment must be a positive multiple of 8, not {alignment!r}")


@pytest.mark.parametrize(
    ("type_id", "name"),
    [(12, "Q4_K"), (14, "Q6_K"), (37, "IQ4_NL_4_8"), (99, "unknown to ggml")],
)
def test_header_refuses_a_type_by_number_and_name(path: Path, type_id: int, name: str) -> None:
    write_gguf(path, {}, {"blk.0.attn_q.weight": Written((1, 256), type_id, bytes(400))})
    refused(
        path,
        "type of tensor 'blk.0.attn_q.weight' must be one of F32, F16, BF16, Q4_0, Q4_1, Q8_0, "
        f"TQ1_0, TQ2_0, I2_S, not {type_id} ({name}); convert the file to one of these types",
    )
