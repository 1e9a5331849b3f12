from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim_models.errors import FormatError, SpecError
from romsim_models.synthetic import N_SPECIAL_TOKENS, byte_tokenizer
from romsim_models.tokenizer import Tokenizer
from romsim_models.tokenizer_gguf import byte_level_bpe, tokenizer_from_gguf

BYTES = byte_tokenizer()
ALPHABET = [BYTES.token_text(N_SPECIAL_TOKENS + byte) or "" for byte in range(256)]

METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*ALPHABET, "ab", "abc", "\u0120a", "12", "<|end|>", "<verbatim>"],
    "tokenizer.ggml.token_type": [1] * 260 + [3, 4],
    "tokenizer.ggml.merges": ["a b", "ab c", "\u0120 a", "1 2"],
    "tokenizer.ggml.bos_token_id": 260,
    "tokenizer.ggml.eos_token_id": 260,
    "tokenizer.ggml.eot_token_id": 261,
}


def from_gguf(**changes: Any) -> Tokenizer:
    metadata = {**METADATA, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return tokenizer_from_gguf(metadata, where="m.gguf", vocab_size=264, eos_ids=(260, 261))


def refused(message: str, **changes: Any) -> None:
    with pytest.raises(FormatError, match=rf"^{re.escape(f'm.gguf: {message}')}$"):
        from_gguf(**changes)


def test_byte_tokenizer_has_a_token_for_each_byte() -> None:
    assert BYTES.vocab_size == N_SPECIAL_TOKENS + 256 == 288
    assert BYTES.encode("A \u00e9") == [32 + byte for byte in b"A \xc3\xa9"]
    assert BYTES.encode("<|im_end|>") == [2]
    assert BYTES.eos_ids == (2,)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40))
def test_any_text_comes_back(text: str) -> None:
    tokens = BYTES.encode(text)
    assert BYTES.decode(tokens, skip_special=False) == text
    stream = BYTES.stream(skip_special=False)
    assert "".join([*(stream.push(token) for token in tokens), stream.finish()]) == text


def test_stream_gives_a_character_when_it_is_complete() -> None:
    stream = BYTES.stream()
    given_out = [stream.push(token) for token in BYTES.encode("a\u00e9\U0001f30a!")]
    assert given_out == ["a", "", "\u00e9", "", "", "", "\U0001f30a", "!"]
    assert stream.finish() == ""


def test_stream_ends_with_a_replacement_for_an_unfinished_character() -> None:
    stream = BYTES.stream()
    assert [stream.push(token) for token in (32 + 0x41, 32 + 0xC3)] == ["A", ""]
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_special_tokens_are_left_out_or_shown() -> None:
    tokens = BYTES.encode("<|im_start|>hi<|im_end|>")
    assert BYTES.decode(tokens) == "hi"
    assert BYTES.decode(tokens, skip_special=False) == "<|im_start|>hi<|im_end|>"
    stream = BYTES.stream()
    assert "".join(stream.push(token) for token in tokens) + stream.finish() == "hi"


def test_tokens_above_the_vocabulary_have_no_text() -> None:
    assert BYTES.decode([32 + 0x41, 999]) == "A"
    assert BYTES.token_text(999) is None
    assert BYTES.token_id("<|im_start|>") == 1
    assert BYTES.token_id("<|no|>") is None


def test_json_comes_back_to_the_byte() -> None:
    for tokenizer in (BYTES, from_gguf(), from_gguf(add_bos_token=True)):
        text = tokenizer.to_json()
        again = Tokenizer.from_json(text)
        assert again.to_json() == text
        assert again.encode("abc <|end|> \u00e9") == tokenizer.encode("abc <|end|> \u00e9")
        assert again.eos_ids == tokenizer.eos_ids
        assert again.chat_template == tokenizer.chat_template


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", "'list'"),
        ("{}", "None"),
        ('{"format": "other"}', "'other'"),
        ("{\n", "'JSON with an error in line 2, column 1'"),
    ],
)
def test_json_of_another_kind_is_refused(text: str, found: str) -> None:
    with pytest.raises(
        FormatError,
        match=rf"^format of a tokenizer must be 'romsim-tokenizer-1', not {re.escape(found)}$",
    ):
        Tokenizer.from_json(text)


def test_chat_takes_a_text_or_messages() -> None:
    prompt = BYTES.chat("Hi")
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert BYTES.chat(messages, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )
    assert BYTES.encode_chat("Hi") == BYTES.encode(prompt)


def test_chat_message_must_have_its_keys() -> None:
    with pytest.raises(
        SpecError,
        match=r"^each chat message must have the keys role and content, not \['content'\]$",
    ):
        BYTES.chat([{"content": "Hi"}])


def with_template(template: str | None) -> Tokenizer:
    return Tokenizer(
        backend=byte_level_bpe(tokens=ALPHABET, merges=[]),
        special_tokens={"bos_token": "<s>"},
        chat_template=template,
    )


def test_template_sees_special_tokens_and_line_control() -> None:
    template = (
        "{{ bos_token }}\n{% for m in messages %}\n  {% if true %}\n[{{ m['content'] }}]\n"
        "  {% endif %}\n{% endfor %}"
    )
    assert with_template(template).chat("Hi") == "<s>\n[Hi]\n"


def test_chat_without_a_template_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"^chat template of the model must be present, not missing; give the prompt as "
        r"plain text$",
    ):
        with_template(None).chat("Hi")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('only pairs') }}", "only pairs"),
        ("{% if %}", "Expected an expression, got 'end of statement block'"),
        (
            "{{ messages.__class__.__mro__ }}",
            "access to attribute '__class__' of 'list' object is unsafe.",
        ),
    ],
)
def test_template_that_refuses_is_an_error(template: str, reason: str) -> None:
    with pytest.raises(
        SpecError,
        match=r"^chat messages must be what the model's template accepts, not refused by it: "
        rf"{re.escape(reason)}$",
    ):
        with_template(template).chat("Hi")


def test_gguf_merges_split_digits_and_match_special_tokens() -> None:
    tokenizer = from_gguf()
    texts = [tokenizer.token_text(token) for token in tokenizer.encode("abc a12<|end|><verbatim>")]
    # "12" is a token, but digits stand alone before merging.
    assert texts == ["abc", "\u0120a", "1", "2", "<|end|>", "<verbatim>"]
    assert tokenizer.eos_ids == (260, 261)
    assert tokenizer.decode([260, 261, 97]) == "<verbatim>a"


def test_gguf_pre_tokenizers_differ() -> None:
    def texts(pre: str, text: str) -> list[str | None]:
        tokenizer = from_gguf(pre=pre, add_bos_token=False)
        return [tokenizer.token_text(token) for token in tokenizer.encode(text)]

    assert texts("gpt-2", "12") == ["12"]
    assert texts("llama-bpe", "12") == ["12"]
    assert texts("smollm", "12") == ["1", "2"]
    assert texts("gpt-2", " ab") == ["\u0120", "ab"]  # "a b" is the better merge


def test_gguf_bos_is_put_in_front_where_the_file_says_so() -> None:
    assert from_gguf().encode("ab") == [256]
    assert from_gguf(add_bos_token=True).encode("ab") == [260, 256]
    assert from_gguf(add_bos_token=True).encode("ab", add_special=False) == [256]
    assert from_gguf(pre="llama-bpe").encode("ab") == [260, 256]


@pytest.mark.parametrize("model", ["llama", "bert", None])
def test_gguf_model_must_be_byte_level_bpe(model: str | None) -> None:
    refused(
        f"tokenizer.ggml.model must be 'gpt2' (byte-level BPE), not {model!r}; give the prompt as "
        "token numbers",
        model=model,
    )


@pytest.mark.parametrize("pre", ["qwen2", None])
def test_gguf_pre_tokenizer_must_be_known(pre: str | None) -> None:
    refused(
        "tokenizer.ggml.pre must be one of gpt-2, smollm, starcoder, refact, llama-bpe, llama3, "
        f"llama-v3, not {pre!r}; give the prompt as token numbers",
        pre=pre,
    )


@pytest.mark.parametrize("key", ["tokens", "merges", "token_type"])
def test_gguf_lists_must_be_there(key: str) -> None:
    kind = "int" if key == "token_type" else "str"
    for value, found in ((None, "NoneType"), ([None], "list")):
        refused(
            f"key 'tokenizer.ggml.{key}' must be a list of {kind}, not {found!r}; convert the "
            "model again with a current llama.cpp",
            **{key: value},
        )


def test_gguf_tokens_must_fit_the_embedding() -> None:
    refused(
        "tokenizer must have one type for each token and at most 264 tokens, as the embedding has "
        "rows, not 300 tokens and 262 types",
        tokens=[str(index) for index in range(300)],
    )


def test_gguf_merge_must_be_a_pair() -> None:
    refused(
        "each of tokenizer.ggml.merges must be two tokens with a space between, not 'abc'",
        merges=["a b", "abc"],
    )


def test_gguf_merge_must_be_of_known_tokens() -> None:
    refused(
        "tokenizer must be a byte-level BPE that fits together, not refused by the tokenizers "
        "library: Error while initializing BPE: Token `zz` out of vocabulary; the file is corrupt",
        merges=["zz a"],
    )


def test_gguf_bos_must_exist_where_it_is_put_in_front() -> None:
    refused(
        "tokenizer.ggml.bos_token_id must be a token where a BOS token is put in front of a text, "
        "not missing",
        add_bos_token=True,
        bos_token_id=None,
    )
