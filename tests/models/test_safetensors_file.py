from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romsim_models.errors import FormatError
from romsim_models.safetensors_file import SafetensorsFile
from tests.models.hf_files import write_raw_safetensors, write_safetensors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.safetensors"


def refused(path: Path, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^{re.escape(f'{path}: {message}')}$"):
        SafetensorsFile(path)


def test_each_type_is_read_exactly(path: Path) -> None:
    values = np.random.RandomState(0).standard_normal((5, 7)).astype(np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    write_safetensors(path, {"a": values, "b": values.astype(np.float16), "c": bf16})
    file = SafetensorsFile(path)
    np.testing.assert_array_equal(file.read("a"), values)
    np.testing.assert_array_equal(file.read("b"), values.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(file.read("c"), (bf16.astype(np.uint32) << 16).view(np.float32))
    assert [file.format(name) for name in "abc"] == ["f32", "f16", "bf16"]
    np.testing.assert_array_equal(file.read("b", 1, 3), file.read("b")[1:3])


def test_bfloat16_equals_ml_dtypes(path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="an independent bfloat16")
    save_file = pytest.importorskip("safetensors.numpy", reason="an independent writer").save_file
    values = np.random.RandomState(0).standard_normal((3, 4)).astype(ml_dtypes.bfloat16)
    save_file({"a": values}, path)
    np.testing.assert_array_equal(SafetensorsFile(path).read("a"), values.astype(np.float32))


def test_large_tensor_is_read_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("romsim_models.safetensors_file._PIECE_BYTES", 16)
    values = np.random.RandomState(0).standard_normal((9, 5)).astype(np.float16)
    write_safetensors(path, {"a": values})
    np.testing.assert_array_equal(SafetensorsFile(path).read("a", 2, 8), values[2:8])


def test_reading_needs_the_result_and_one_piece_of_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = 2**16
    monkeypatch.setattr("romsim_models.safetensors_file._PIECE_BYTES", piece)
    write_safetensors(path, {"a": np.ones((1024, 512), np.uint16), "b": np.ones(9, np.uint16)})
    file = SafetensorsFile(path)
    tracemalloc.start()
    try:
        values = file.read("a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values.nbytes < peak < values.nbytes + 4 * piece


def test_missing_file_is_refused(path: Path) -> None:
    refused(
        path,
        "safetensors file must be readable, not 'No such file or directory'; check that the "
        "directory is complete",
    )


@pytest.mark.parametrize(
    ("raw", "length", "size"), [(b"abc", 6513249, 3), (b"\xff" * 8 + b"{}", 2**64 - 1, 10)]
)
def test_header_must_fit_into_the_file(path: Path, raw: bytes, length: int, size: int) -> None:
    path.write_bytes(raw)
    refused(
        path,
        f"header of a safetensors file must fit into the file, not be {length} bytes long in a "
        f"file of {size}; the file is truncated or of another format",
    )


def test_header_must_be_json(path: Path) -> None:
    write_raw_safetensors(path, b"{'a'", b"")
    refused(
        path,
        "header must be JSON, not text with an error: Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1); the file is corrupt",
    )
    write_raw_safetensors(path, [], b"")
    refused(path, "header must be a JSON object, not 'list'")


@pytest.mark.parametrize(
    "fields", [None, {"dtype": "F32"}, {"dtype": "F32", "shape": [1], "data_offsets": [0]}]
)
def test_entry_must_be_complete(path: Path, fields: Any) -> None:
    write_raw_safetensors(path, {"a": fields}, bytes(4))
    refused(
        path,
        "header entry of tensor 'a' must have dtype, shape and two data_offsets, "
        f"not {fields!r}; the file is corrupt",
    )


def test_size_must_fit_the_shape(path: Path) -> None:
    entry = {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 10]}
    write_raw_safetensors(path, {"a": entry}, bytes(12))
    refused(
        path, "tensor 'a' of shape [2, 3] in F16 must have 12 bytes, not 10; the file is corrupt"
    )


def test_truncated_file_names_tensor_and_missing_bytes(path: Path) -> None:
    write_safetensors(path, {"a": np.ones(4, np.float32), "b": np.ones(8, np.float32)})
    raw = path.read_bytes()
    path.write_bytes(raw[:-17])
    refused(
        path,
        "tensor 'b' must have 32 bytes, not 15; the file is truncated, 17 bytes are missing: get "
        "the file again",
    )


def test_tensors_must_not_overlap(path: Path) -> None:
    entries = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    }
    write_raw_safetensors(path, entries, bytes(12))
    refused(
        path,
        "data of tensor 'b' must start behind those of 'a', not overlap with them; the file is "
        "corrupt",
    )


def test_type_must_be_floating_point(path: Path) -> None:
    write_safetensors(path, {"a": np.ones(4, np.int8)})
    file = SafetensorsFile(path)
    message = (
        f"{path}: type of tensor 'a' must be one of F32, F16, BF16, not 'I8'; save the model in "
        "one of these types"
    )
    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        file.read("a")


def test_file_that_shrinks_while_open_is_refused(path: Path) -> None:
    write_safetensors(path, {"a": np.ones(8, np.float32)})
    file = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[:-4])
    message = (
        f"{path}: data of tensor 'a' must be complete, not end early; the file was changed while "
        "it was open"
    )
    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        file.read("a")


def test_file_that_goes_away_while_open_is_refused(path: Path) -> None:
    write_safetensors(path, {"a": np.ones(8, np.float32)})
    file = SafetensorsFile(path)
    path.unlink()
    message = f"{path}: data of tensor 'a' must be readable, not 'No such file or directory'"
    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        file.read("a")
