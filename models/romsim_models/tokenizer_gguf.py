"""A GGUF file's tokenizer metadata -> `Tokenizer` (byte-level BPE).

Source: llama.cpp ``src/llama-vocab.cpp`` for the names of the pre-tokenizers and their regular
expressions; the ids agree with transformers' for SmolLM2's file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from romsim_models.errors import FormatError
from romsim_models.tokenizer import Tokenizer

__all__ = [
    "byte_level_bpe",
    "chat_template_of_gguf",
    "tokenizer_from_gguf",
    "unsupported_tokenizer",
]

_CONTROL, _USER_DEFINED = 3, 4  # token types that are matched as they stand, before BPE

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_split()])


def _llama3_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# Name in tokenizer.ggml.pre -> (how text is split before BPE, whether a whole word that is a token
# is taken without merging, whether BOS is put in front where the file does not say).
_PRE_TOKENIZERS = {
    "gpt-2": (_gpt2_split, False, False),
    "smollm": (_digits_split, False, False),
    "starcoder": (_digits_split, False, False),
    "refact": (_digits_split, False, False),
    "llama-bpe": (_llama3_split, True, True),
    "llama3": (_llama3_split, True, True),
    "llama-v3": (_llama3_split, True, True),
}


def tokenizer_from_gguf(
    metadata: Mapping[str, Any], *, where: str, vocab_size: int, eos_ids: tuple[int, ...]
) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Parameters
    ----------
    metadata
        The file's keys and values.
    where
        The file, for messages.
    vocab_size
        Rows of the model's embedding.
    eos_ids
        Tokens that end a generation, as the model's specification has them.

    Raises
    ------
    FormatError
        If the tokenizer is of another kind than byte-level BPE, its pre-tokenizer is unknown, a
        list is missing, or it has more tokens than the embedding has rows.
    """
    reason = unsupported_tokenizer(metadata)
    if reason is not None:
        raise FormatError(f"{where}: {reason}; give the prompt as token numbers")
    pre: str = metadata["tokenizer.ggml.pre"]
    for key, kind in (("tokens", str), ("merges", str), ("token_type", int)):
        values = metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(values, list) or not all(isinstance(each, kind) for each in values):
            raise FormatError(
                f"{where}: key 'tokenizer.ggml.{key}' must be a list of {kind.__name__}, not "
                f"{type(values).__name__!r}; convert the model again with a current llama.cpp"
            )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    if len(tokens) > vocab_size or len(types) != len(tokens):
        raise FormatError(
            f"{where}: tokenizer must have one type for each token and at most {vocab_size} "
            f"tokens, as the embedding has rows, not {len(tokens)!r} tokens and {len(types)!r} "
            "types"
        )
    seen: dict[str, int] = {}
    for index, text in enumerate(tokens):
        if seen.setdefault(text, index) != index:
            raise FormatError(
                f"{where}: each of tokenizer.ggml.tokens must be another text, not {text!r} for "
                f"both {seen[text]} and {index}; the file is corrupt"
            )
    split, ignore_merges, adds_bos = _PRE_TOKENIZERS[pre]
    by_type = list(zip(tokens, types, strict=True))
    merges = [_merge(text, where) for text in metadata["tokenizer.ggml.merges"]]
    try:
        backend = byte_level_bpe(
            tokens=tokens,
            merges=merges,
            split=split(),
            special=[token for token, kind in by_type if kind == _CONTROL],
            verbatim=[token for token, kind in by_type if kind == _USER_DEFINED],
            ignore_merges=ignore_merges,
        )
    except Exception as error:  # the library raises bare Exception
        raise FormatError(
            f"{where}: tokenizer must be a byte-level BPE that fits together, not refused by the "
            f"tokenizers library: {error}; the file is corrupt"
        ) from error
    special_tokens = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int) and 0 <= token < len(tokens):
            special_tokens[f"{name}_token"] = tokens[token]
    if metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        _put_bos_in_front(backend, special_tokens.get("bos_token"), where)
    return Tokenizer(
        backend=backend,
        special_tokens=special_tokens,
        eos_ids=eos_ids,
        chat_template=chat_template_of_gguf(metadata),
    )


def unsupported_tokenizer(metadata: Mapping[str, Any]) -> str | None:
    """Say why a GGUF file's tokenizer is of a kind that cannot be built; ``None`` if it can.

    A model can be compiled without its tokenizer: prompts are token numbers then.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        return f"tokenizer.ggml.model must be 'gpt2' (byte-level BPE), not {model!r}"
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        return f"tokenizer.ggml.pre must be one of {', '.join(_PRE_TOKENIZERS)}, not {pre!r}"
    return None


def chat_template_of_gguf(metadata: Mapping[str, Any]) -> str | None:
    """Jinja template of a GGUF file, or ``None``."""
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def byte_level_bpe(
    *,
    tokens: Sequence[str],
    merges: Sequence[tuple[str, str]],
    split: pre_tokenizers.PreTokenizer | None = None,
    special: Sequence[str] = (),
    verbatim: Sequence[str] = (),
    ignore_merges: bool = False,
) -> tokenizers.Tokenizer:
    """Build a byte-level BPE backend (GPT-2's alphabet of 256 printable characters).

    Parameters
    ----------
    tokens
        Vocabulary, in order of the ids.
    merges
        Pairs, best first.
    split
        How text is cut before BPE; GPT-2's way by default.
    special
        Tokens that `Tokenizer.decode` may leave out.
    verbatim
        Other tokens that are matched as they stand.
    ignore_merges
        Whether a whole word that is a token is taken without merging.
    """
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=list(merges),
            ignore_merges=ignore_merges,
        )
    )
    backend.pre_tokenizer = split or _gpt2_split()
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token in verbatim])
    return backend


def _merge(text: str, where: str) -> tuple[str, str]:
    left, separator, right = text.partition(" ")
    if not separator or " " in right:
        raise FormatError(
            f"{where}: each of tokenizer.ggml.merges must be two tokens with a space between, "
            f"not {text!r}"
        )
    return left, right


def _put_bos_in_front(backend: tokenizers.Tokenizer, bos: str | None, where: str) -> None:
    if bos is None:
        raise FormatError(
            f"{where}: tokenizer.ggml.bos_token_id must be a token where a BOS token is put in "
            "front of a text, not missing"
        )
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
    )
