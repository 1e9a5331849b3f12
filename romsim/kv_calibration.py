"""What a KV codec learns from a model's own keys and values on a text (docs/kv.md, 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from romsim_compiler.kv import DEFAULT_KV
from romsim_compiler.kv_heads import choose_heads, score_losses
from romsim_compiler.kv_training import train_codebooks
from romsim_compiler.memory_map import kv_sram_bytes
from romsim_compiler.pipeline import CompileOptions, compile_model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.reference import IntegerDecoder
    from romsim_compiler.kv import KvConfig
    from romsim_compiler.kv_codebooks import KvCodebooks
    from romsim_compiler.target import Target
    from romsim_models.checkpoint import Checkpoint
    from romsim_models.spec import ModelSpec
    from romsim_models.tokenizer import Tokenizer

__all__ = [
    "CALIBRATION_TOKENS",
    "calibrate",
    "calibrate_heads",
    "calibration_tokens",
    "codebooks_of",
    "heads_of",
]

CALIBRATION_TOKENS = 2048
_WINDOW = 512  # tokens that know of each other

Progress = Callable[[str, float], None]


def calibration_tokens(tokenizer: Tokenizer | None, vocab_size: int) -> list[int]:
    """Return the tokens that codebooks are trained on and heads chosen by: a part of a novel.

    A model without a tokenizer has ids drawn with a seed.

    Source: Jane Austen, *Persuasion*, 1818, public domain; Debian package r-cran-janeaustenr
    1.0.0-1. It is a later part than the text of `romsim.quality.default_text`.
    """
    if tokenizer is None:
        drawn = np.random.default_rng(0).integers(0, vocab_size, CALIBRATION_TOKENS)
        return [int(token) for token in drawn]
    file = resources.files("romsim") / "texts" / "calibration.txt"
    text = file.read_text(encoding="utf-8")
    return tokenizer.encode(text, add_special=False)[:CALIBRATION_TOKENS]


def codebooks_of(
    checkpoint: Checkpoint,
    target: Target,
    *,
    options: CompileOptions,
    progress: Progress | None = None,
) -> KvCodebooks:
    """Train the codebooks of a model that is to be compiled for a target.

    The model is compiled with the plain cache first, aside: its arithmetic gives keys and values.
    """
    with _plain_decoder(checkpoint, target, options) as (decoder, tokens):
        return calibrate(decoder, tokens, target.kv, progress=progress)


def heads_of(
    checkpoint: Checkpoint,
    target: Target,
    *,
    options: CompileOptions,
    progress: Progress | None = None,
) -> KvConfig:
    """Choose the heads of wider codes of a model that is to be compiled, as `codebooks_of`."""
    with _plain_decoder(checkpoint, target, options) as (decoder, tokens):
        return calibrate_heads(decoder, tokens, target.kv, progress=progress)


@contextmanager
def _plain_decoder(
    checkpoint: Checkpoint, target: Target, options: CompileOptions
) -> Iterator[tuple[IntegerDecoder, list[int]]]:
    """Give the model's arithmetic with the plain cache, and the tokens to calibrate on."""
    from romsim.comparison import make_reference

    plain = _with_room(checkpoint.spec, replace(target, kv=DEFAULT_KV))
    with TemporaryDirectory() as folder:
        aside = replace(options, context=_WINDOW, adapters=())
        chip = compile_model(checkpoint, plain, Path(folder) / "chip", options=aside)
        tokens = calibration_tokens(checkpoint.tokenizer(), checkpoint.spec.vocab_size)
        yield make_reference(chip, checkpoint), tokens


def _with_room(spec: ModelSpec, target: Target) -> Target:
    """Return the chip with SRAM for a window of the plain cache, which changes no value."""
    tiles = target.array.n_tiles
    schedule = replace(target.schedule, n_slots=1)
    plain = replace(target, schedule=schedule)
    n_bytes = kv_sram_bytes(spec, plain, -(-_WINDOW // tiles) * tiles)
    least = math.ceil(n_bytes / (1024 * tiles))
    attention = replace(plain.attention, sram_kib=max(plain.attention.sram_kib, least))
    return replace(plain, attention=attention)


def calibrate(
    decoder: IntegerDecoder,
    tokens: Sequence[int],
    kv: KvConfig,
    *,
    progress: Progress | None = None,
) -> KvCodebooks:
    """Decode a text with the plain cache and train codebooks on its keys and values.

    Parameters
    ----------
    decoder
        Integer reference; its KV cache is the plain one afterwards.
    tokens
        Of the text.
    kv
        Gives stages and bits.

    Raises
    ------
    SpecError
        If there are too few tokens.
    """
    report = progress or (lambda stage, fraction: None)
    keys, values = _samples(decoder, tokens, "kv", lambda f: report("keys and values", f / 2))
    return train_codebooks(
        keys,
        values,
        stages=kv.stages,
        value_bits=kv.value_bits,
        progress=lambda fraction: report("codebooks", (1 + fraction) / 2),
    )


def calibrate_heads(
    decoder: IntegerDecoder,
    tokens: Sequence[int],
    kv: KvConfig,
    *,
    progress: Progress | None = None,
) -> KvConfig:
    """Decode a text with the plain cache and choose the heads whose scores suffer most.

    Parameters
    ----------
    decoder, tokens
        As for `calibrate`.
    kv
        Of the codec tiered, with a number of wide heads.
    """
    report = progress or (lambda stage, fraction: None)
    queries, keys = _samples(decoder, tokens, "qk", lambda f: report("queries and keys", f))
    return choose_heads(score_losses(queries, keys, kv), kv)


def _samples(
    decoder: IntegerDecoder,
    tokens: Sequence[int],
    names: str,
    progress: Callable[[float], None],
) -> list[list[NDArray[np.float64]]]:
    """Return operators' values by name and layer, float64 [n_tokens, heads, head_dim] each."""
    from romsim.reference import KvPolicy

    spec = decoder.spec
    parts: dict[str, list[NDArray[np.float64]]] = {}
    wanted = {f"L{layer}.{name}" for layer in range(spec.n_layers) for name in names}

    def record(name: str, position: int, values: NDArray[np.integer]) -> None:
        if name in wanted:
            parts.setdefault(name, []).append(values.astype(np.float64))

    decoder.change_kv(KvPolicy())
    for first in range(0, len(tokens), _WINDOW):
        progress(first / len(tokens))
        decoder.reset()
        decoder.forward(tokens[first : first + _WINDOW], record=record)
    decoder.reset()
    shape = len(tokens), -1, spec.head_dim
    layers = range(spec.n_layers)
    return [
        [np.concatenate(parts[f"L{n}.{name}"]).reshape(shape) for n in layers] for name in names
    ]
