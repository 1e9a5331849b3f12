"""The default model's own file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.reference import FloatDecoder
from romsim_models.registry import named_models, open_model
from romsim_models.tensors import n_parameters
from romsim_models.tokenizer import Tokenizer

TEXTS = (
    "Once upon a time, there was a little girl who",
    "  It's 12,345.67 km\u2014na\u00efve caf\u00e9, \u4f60\u597d \U0001f30a\n\n\tdef f(x): 1",
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
    "I'll we've DON'T   \r\n trailing   ",
)


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    found = open_model(smollm2_path).tokenizer()
    assert found is not None
    return found


def test_file_has_the_shape_that_is_listed(smollm2_path: Path) -> None:
    spec = open_model(smollm2_path).spec
    listed = named_models()["smollm2"].spec.to_dict()
    found = spec.to_dict()
    assert found.pop("name") == "Smollm2 135M 8k Lc100K Mix1 Ep2"
    assert math.isclose(found.pop("norm_eps"), listed.pop("norm_eps"), rel_tol=1e-7)
    del listed["name"]
    assert found == listed


def test_parameters_are_those_of_the_model_card(smollm2_path: Path) -> None:
    assert n_parameters(open_model(smollm2_path).spec) == 134_515_008


def test_file_takes_no_default_and_leaves_no_key_unused(smollm2_path: Path) -> None:
    assert open_model(smollm2_path).notes == ()


def test_source_names_the_file_and_its_digest(smollm2_path: Path) -> None:
    source = open_model("smollm2").source
    assert (source.kind, source.name) == ("gguf", "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert source.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_formats_are_those_shipped(smollm2_path: Path) -> None:
    checkpoint = open_model(smollm2_path)
    formats = checkpoint.formats()
    assert tuple(formats) == checkpoint.names()
    counts = {each: list(formats.values()).count(each) for each in set(formats.values())}
    assert counts == {"q4_1": 210, "q8_0": 1, "f32": 61}


def test_tensors_keep_codes_scales_and_minima(smollm2_path: Path) -> None:
    checkpoint = open_model(smollm2_path)
    matrix = checkpoint.read("blk.7.ffn_down.weight")
    assert isinstance(matrix, EncodedTensor)
    assert (matrix.format, matrix.shape, matrix.bits_per_weight) == ("q4_1", (576, 1536), 5.0)
    assert (matrix.codes.min(), matrix.codes.max()) == (0, 15)
    embedding = checkpoint.read_rows("token_embd.weight", 1000, 1010)
    assert isinstance(embedding, EncodedTensor)
    assert (embedding.format, embedding.shape, embedding.bits_per_weight) == (
        "q8_0",
        (10, 576),
        8.5,
    )
    norm = checkpoint.read("output_norm.weight")
    assert isinstance(norm, FloatTensor)
    assert (norm.format, norm.shape) == ("f32", (576,))


def test_tokens_of_a_known_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Once upon a time") == [6403, 1980, 253, 655]
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_ids == (2,)


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens, skip_special=False) == text
    stream = tokenizer.stream(skip_special=False)
    assert "".join([*(stream.push(token) for token in tokens), stream.finish()]) == text


def test_chat_prompt_is_chatml(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.chat("What is ROM?")
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is ROM?<|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = tokenizer.encode_chat("What is ROM?")
    assert tokens[0] == 1
    assert tokens.count(1) == 3
    assert tokens.count(2) == 2


@pytest.mark.slow
def test_logits_text_and_tokens_equal_transformers(
    smollm2_path: Path, tokenizer: Tokenizer
) -> None:
    transformers = pytest.importorskip("transformers", reason="oracle (extra 'oracle')")
    pytest.importorskip("accelerate", reason="transformers needs it to read GGUF")
    folder, name = str(smollm2_path.parent), smollm2_path.name
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    for text in TEXTS:
        assert tokenizer.encode(text) == their_tokenizer(text)["input_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32
    ).eval()
    decoder = FloatDecoder(open_model(smollm2_path))
    tokens = [tokenizer.encode(TEXTS[0] + TEXTS[1] + TEXTS[3]), tokenizer.encode(TEXTS[2] * 4)]
    for text_tokens in tokens:
        with torch.no_grad():
            theirs = model(torch.tensor([text_tokens])).logits.numpy()
        ours = decoder.forward([text_tokens]).numpy()
        assert np.abs(ours - theirs).max() <= 1e-3
    for prompt in (tokenizer.encode(TEXTS[0]), tokenizer.encode_chat("What is the sea?")):
        theirs = model.generate(
            torch.tensor([prompt]), max_new_tokens=32, do_sample=False, pad_token_id=2
        )[0, len(prompt) :]
        assert decoder.generate(prompt, n_tokens=32) == theirs.tolist()
