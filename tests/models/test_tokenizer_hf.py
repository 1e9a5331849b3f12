from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from romsim_models.errors import FormatError
from romsim_models.safetensors_reader import open_huggingface
from romsim_models.synthetic import byte_tokenizer
from tests.models.hf_files import config_with, weights_of, write_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    weights = weights_of()
    embedding = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = embedding.repeat(8, axis=0)[:300]
    write_model(tmp_path, config_with(vocab_size=300), weights)
    backend = json.loads(byte_tokenizer().to_json())["backend"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(backend))
    return tmp_path


def configure(directory: Path, **values: Any) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps(values))


def test_tokenizer_file_is_used(directory: Path) -> None:
    checkpoint = open_huggingface(directory)
    tokenizer = checkpoint.tokenizer()
    assert tokenizer is not None
    assert tokenizer.encode("A<|im_end|>") == [97, 2]
    assert tokenizer.eos_ids == (2,)
    assert checkpoint.chat_template is None
    assert checkpoint.notes == ()


def test_missing_tokenizer_is_noted(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    checkpoint = open_huggingface(directory)
    assert checkpoint.tokenizer() is None
    assert checkpoint.notes == (
        "tokenizer.json: file is missing; the model has no tokenizer, prompts are token numbers",
    )


@pytest.mark.parametrize(
    "template", ["{{ bos_token }}[x]", [{"name": "default", "template": "{{ bos_token }}[x]"}]]
)
@pytest.mark.parametrize("bos", ["<b>", {"content": "<b>"}])
def test_template_and_special_tokens_of_the_configuration(
    directory: Path, template: Any, bos: Any
) -> None:
    configure(directory, chat_template=template, bos_token=bos, eos_token=None)
    tokenizer = open_huggingface(directory).tokenizer()
    assert tokenizer is not None
    assert tokenizer.chat("Hi") == "<b>[x]"


def test_template_file_goes_first(directory: Path) -> None:
    configure(directory, chat_template="old")
    (directory / "chat_template.jinja").write_text("new")
    assert open_huggingface(directory).chat_template == "new"


def test_broken_tokenizer_is_refused(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(
        FormatError,
        match=rf"^{re.escape(str(directory / 'tokenizer.json'))}: tokenizer must be in the format "
        r"of the tokenizers library, not refused by it: .+$",
    ):
        open_huggingface(directory).tokenizer()


def test_tokenizer_file_must_be_utf8(directory: Path) -> None:
    (directory / "tokenizer.json").write_bytes(b"\xff")
    with pytest.raises(
        FormatError,
        match=rf"^{re.escape(str(directory / 'tokenizer.json'))}: file must be UTF-8, not 'invalid "
        r"start byte'$",
    ):
        open_huggingface(directory).tokenizer()


def test_tokenizer_of_another_model_is_refused(directory: Path) -> None:
    write_model(directory)  # a vocabulary of 40
    with pytest.raises(
        FormatError,
        match=rf"^{re.escape(str(directory / 'tokenizer.json'))}: tokenizer must have at most 40 "
        r"tokens, as the embedding has rows, not 288; it belongs to another model$",
    ):
        open_huggingface(directory).tokenizer()
