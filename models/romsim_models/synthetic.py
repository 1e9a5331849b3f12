"""Checkpoints with seeded random weights, for tests, examples and timing.

Every weight is an exact function of the seed and the tensor's name: sums of uniform bytes of a
generator that NumPy keeps frozen, times one power of two or float32 constant, so that no library's
version and no machine's rounding changes a bit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import FloatTensor, Tensor
from romsim_models.spec import ModelSpec
from romsim_models.tensors import EMBEDDING, LM_HEAD, expected_shapes
from romsim_models.tokenizer import Tokenizer
from romsim_models.tokenizer_gguf import byte_level_bpe

__all__ = ["N_SPECIAL_TOKENS", "byte_tokenizer", "synthetic_checkpoint", "synthetic_values"]

_RECIPE = "romsim-synthetic-1"
_ROWS_PER_DRAW = 4096  # rows of one stream of random bytes: any block of rows can be drawn alone
_BYTE_SUM_STD = math.sqrt(4 * (256**2 - 1) / 12)  # standard deviation of the sum of four bytes

N_SPECIAL_TOKENS = 32
_CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def synthetic_checkpoint(spec: ModelSpec, *, seed: int = 0) -> Checkpoint:
    """Make a checkpoint of any specification with random weights, drawn when they are read.

    The standard deviations keep activations and logits in the range of a trained model's: matrices
    keep the norm of what they read; the last matrix of each branch is scaled so that all branches
    together weigh several times the embedding (or a tied LM head would repeat the last token for
    ever); logits have a standard deviation of about 3.

    Parameters
    ----------
    spec
        The model. With 288 rows of vocabulary or more, it gets `byte_tokenizer`.
    seed
        Another seed gives other weights.

    Returns
    -------
    Checkpoint
        Of kind ``"synthetic"``; all tensors float32.
    """
    has_tokenizer = spec.vocab_size >= 256 + N_SPECIAL_TOKENS
    return Checkpoint(
        spec=spec,
        kind="synthetic",
        name=spec.name,
        store=_SyntheticStore(spec, seed),
        load_tokenizer=byte_tokenizer if has_tokenizer else None,
        chat_template=_CHATML if has_tokenizer else None,
    )


def synthetic_values(name: str, shape: tuple[int, int], *, std: float, seed: int) -> Tensor:
    """Random float32 matrix of a given standard deviation, roughly normal.

    Parameters
    ----------
    name
        Name of the tensor; another name gives other values.
    shape
        (n_rows, n_cols).
    std
        Standard deviation; the largest magnitude is 3.45 times this.
    seed
        Another seed gives other values.
    """
    values = _draw(name, 0, shape[0], shape[1], seed)
    values *= np.float32(std / _BYTE_SUM_STD)
    return FloatTensor(name=name, shape=shape, format="f32", values=values)


def byte_tokenizer() -> Tokenizer:
    """Tokenizer of 32 special tokens and the 256 bytes, with a ChatML template."""
    named = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    special = named + [f"<|unused_{index}|>" for index in range(len(named), N_SPECIAL_TOKENS)]
    backend = byte_level_bpe(tokens=[*special, *_byte_alphabet()], merges=[], special=special)
    return Tokenizer(
        backend=backend,
        special_tokens={"bos_token": named[1], "eos_token": named[2]},
        eos_ids=(2,),
        chat_template=_CHATML,
    )


class _SyntheticStore:
    def __init__(self, spec: ModelSpec, seed: int) -> None:
        self._spec = spec
        self._seed = seed
        self._shapes = expected_shapes(spec)

    def formats(self) -> Mapping[str, str]:
        return dict.fromkeys(self._shapes, "f32")

    def read(self, name: str) -> Tensor:
        return self.read_rows(name, 0, self._shapes[name][0])

    def read_rows(self, name: str, first: int, last: int) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:  # a norm: around 1
            values = _draw(name, 0, 1, shape[0], self._seed)[0]
            values *= np.float32(0.1 / _BYTE_SUM_STD)
            values += np.float32(1.0)
        else:
            values = _draw(name, first, last, shape[1], self._seed)
            values *= np.float32(self._std(name, shape[1]) / _BYTE_SUM_STD)
        return FloatTensor(name=name, shape=values.shape, format="f32", values=values)

    def digest(self) -> str:
        recipe = f"{_RECIPE}\nseed {self._seed}\n{self._spec.to_json()}"
        return hashlib.sha256(recipe.encode()).hexdigest()

    def _std(self, name: str, n_cols: int) -> float:
        if name == LM_HEAD or (name == EMBEDDING and self._spec.tie_embeddings):
            return 3.0 / math.sqrt(n_cols)
        if name == EMBEDDING:
            return 0.5
        std = 1.0 / math.sqrt(n_cols)
        if "attn_output" in name or "ffn_down" in name:
            std *= 4.0 / math.sqrt(2.0 * self._spec.n_layers)
        return std


def _draw(name: str, first: int, last: int, n_cols: int, seed: int) -> NDArray[np.float32]:
    """Rows of sums of four uniform bytes, less their mean: float32 [last - first, n_cols]."""
    values = np.empty((last - first, n_cols), dtype=np.float32)
    for block in range(first // _ROWS_PER_DRAW, -(-last // _ROWS_PER_DRAW)):
        block_first = block * _ROWS_PER_DRAW
        wanted = range(max(first, block_first), min(last, block_first + _ROWS_PER_DRAW))
        key = hashlib.sha256(f"{seed} {block} {name}".encode()).digest()[:4]
        generator = np.random.RandomState(int.from_bytes(key, "little"))
        for row_first in range(block_first, wanted.stop, 64):
            words = np.frombuffer(generator.bytes(64 * n_cols * 4), dtype="<u4")
            rows = range(max(row_first, wanted.start), min(row_first + 64, wanted.stop))
            if len(rows) == 0:
                continue
            halves = (words & 0x00FF00FF) + ((words >> 8) & 0x00FF00FF)  # two sums of two bytes
            summed = ((halves & 0xFFFF) + (halves >> 16)).reshape(64, n_cols)
            values[rows.start - first : rows.stop - first] = summed[
                rows.start - row_first : rows.stop - row_first
            ]
    values -= np.float32(510.0)
    return values


def _byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte, in order of the bytes.

    Source: openai/gpt-2 ``src/encoder.py::bytes_to_unicode``.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet, next_free = [], 0x100
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(next_free))
            next_free += 1
    return alphabet
