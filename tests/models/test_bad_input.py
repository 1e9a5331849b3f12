"""Whatever is wrong with a file, what comes out is one of our errors, never another exception."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim_models.errors import RomsimError
from romsim_models.gguf_reader import open_gguf
from romsim_models.lora import read_adapter
from romsim_models.safetensors_reader import open_huggingface
from romsim_models.tokenizer_gguf import tokenizer_from_gguf
from tests.models import test_lora, test_tokenizer
from tests.models.gguf_files import Q4_1, SPEC, metadata_of, tensors_of, write_gguf
from tests.models.hf_files import CONFIG, config_with, weights_of, write_model, write_safetensors

WEIRD: list[Any] = [
    None, -1, 0, 1, 1.5, "x", "", [], [1], [[1]], {}, {"factor": 2}, True, 10**30, float("nan"),
    float("inf"),
]  # fmt: skip


def read_all(open_it: Any, *arguments: Any) -> None:
    """Open and read everything; our own errors are an answer."""
    with contextlib.suppress(RomsimError):
        checkpoint = open_it(*arguments)
        for name in checkpoint.names():
            checkpoint.read(name)
        checkpoint.tokenizer()


@pytest.fixture(scope="module")
def gguf_bytes() -> bytes:
    metadata = {**metadata_of(), **test_tokenizer.METADATA}
    with tempfile.TemporaryDirectory() as folder:
        return write_gguf(Path(folder) / "m", metadata, tensors_of(matrices=Q4_1)).read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_gguf_with_changed_bytes(gguf_bytes: bytes, data: st.DataObject) -> None:
    raw = bytearray(gguf_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        # Mostly in the header, where the lengths are.
        place = data.draw(st.integers(0, data.draw(st.sampled_from([900, len(raw) - 1]))))
        raw[place] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(
            bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
        )
        read_all(open_gguf, path)


@pytest.mark.parametrize("key", [*metadata_of(), "llama.rope.scaling.type", "general.alignment"])
def test_gguf_with_any_value_of_any_key(tmp_path: Path, key: str) -> None:
    tensors = tensors_of()
    for value in (-1.0, 0, 1, 1.5, "x", "", [], [1], ["x"], True, 2**31):
        path = write_gguf(tmp_path / "m.gguf", metadata_of(SPEC, **{key: value}), tensors)
        read_all(open_gguf, path)


@pytest.mark.parametrize("key", [*test_tokenizer.METADATA, "tokenizer.ggml.add_bos_token"])
def test_gguf_tokenizer_with_any_value_of_any_key(key: str) -> None:
    for value in WEIRD:
        metadata = {**test_tokenizer.METADATA, key: value}
        with contextlib.suppress(RomsimError):
            tokenizer_from_gguf(metadata, where="m.gguf", vocab_size=264, eos_ids=())


@pytest.mark.parametrize(
    "key", [*CONFIG, "rope_scaling", "rope_parameters", "attention_bias", "quantization_config"]
)
def test_huggingface_with_any_value_of_any_key(tmp_path: Path, key: str) -> None:
    write_model(tmp_path)
    for value in WEIRD:
        (tmp_path / "config.json").write_text(json.dumps(config_with(**{key: value})))
        read_all(open_huggingface, tmp_path)


LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@pytest.mark.parametrize("key", [*LLAMA3, "rope_type", "type", "rope_theta"])
def test_rope_scaling_with_any_value_of_any_key(tmp_path: Path, key: str) -> None:
    write_model(tmp_path)
    complete = dict(zip(LLAMA3, (8.0, 1.0, 4.0, 16), strict=True))
    for kind in ("llama3", "linear"):
        for value in WEIRD:
            scaling = {"rope_type": kind, **complete, key: value}
            (tmp_path / "config.json").write_text(json.dumps(config_with(rope_scaling=scaling)))
            read_all(open_huggingface, tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_safetensors_with_changed_bytes(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = write_model(Path(folder) / "m")
        path = directory / "model.safetensors"
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, data.draw(st.sampled_from([8, 1200, len(raw) - 1]))))
            raw[place] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(raw))
        read_all(open_huggingface, directory)


@pytest.mark.parametrize("key", [*test_lora.CONFIG, "use_dora", "init_lora_weights"])
def test_adapter_with_any_value_of_any_key(tmp_path: Path, key: str) -> None:
    tensors = test_lora.factors()
    for value in [*WEIRD, {"(": 1}, {"q_proj": "x"}]:
        directory = test_lora.write(tmp_path / "a", tensors, **{key: value})
        with contextlib.suppress(RomsimError):
            read_adapter(directory, SPEC)


def test_special_files_with_any_content(tmp_path: Path) -> None:
    weights = weights_of()
    write_model(tmp_path)
    for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        for value in WEIRD:
            for content in (
                value,
                {"eos_token_id": value, "chat_template": value, "bos_token": value},
            ):
                (tmp_path / name).write_text(json.dumps(content))
                read_all(open_huggingface, tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    read_all(open_huggingface, tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {**weights, "x": np.ones((), np.float32)})
    read_all(open_huggingface, tmp_path)
