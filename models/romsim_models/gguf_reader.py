"""A GGUF file -> `Checkpoint`, tensors as shipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from romsim_models.checkpoint import Checkpoint, check_complete, digest_files
from romsim_models.encoded import Tensor
from romsim_models.errors import FormatError
from romsim_models.floats import FLOAT_BYTES
from romsim_models.gguf_blocks import block_of_type
from romsim_models.gguf_config import spec_from_gguf
from romsim_models.gguf_header import GgufHeader, GgufTensorInfo, read_gguf_header
from romsim_models.tensors import EMBEDDING, LM_HEAD
from romsim_models.tokenizer import Tokenizer
from romsim_models.tokenizer_gguf import (
    chat_template_of_gguf,
    tokenizer_from_gguf,
    unsupported_tokenizer,
)

__all__ = ["open_gguf"]

_ROPE_FACTORS = "rope_freqs.weight"


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of the LLaMA family; only its header is read.

    Query and key rows stay in the interleaved rotary order in which GGUF ships them.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Checkpoint
        Of kind ``"gguf"``.

    Raises
    ------
    FormatError
        If the file is unreadable, truncated, corrupt, of another architecture, incomplete, or
        holds something that is not supported.
    """
    header = read_gguf_header(path)
    store = _GgufStore(path, header)
    embedding = header.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise FormatError(
            f"{path}: tensor {EMBEDDING!r} must be present as a matrix, "
            f"not {'missing' if embedding is None else list(embedding.shape)!r}; "
            "the file is incomplete: get or convert it again"
        )
    spec, notes = spec_from_gguf(
        header.metadata,
        where=str(path),
        default_name=path.stem,
        vocab_size=embedding.shape[0],
        tie_embeddings=LM_HEAD not in header.tensors,
        rope_factors=store.rope_factors(),
    )
    shapes = {name: info.shape for name, info in header.tensors.items() if name != _ROPE_FACTORS}
    check_complete(spec, shapes, where=str(path))
    store.check_norms()

    def load_tokenizer() -> Tokenizer:
        return tokenizer_from_gguf(
            header.metadata, where=str(path), vocab_size=spec.vocab_size, eos_ids=spec.eos_ids
        )

    has_tokenizer = "tokenizer.ggml.model" in header.metadata
    reason = unsupported_tokenizer(header.metadata) if has_tokenizer else None
    if reason is not None:
        has_tokenizer = False
        notes += (f"{path.name}: no tokenizer, prompts are token numbers: {reason}",)
    return Checkpoint(
        spec=spec,
        kind="gguf",
        name=path.name,
        store=store,
        notes=notes,
        load_tokenizer=load_tokenizer if has_tokenizer else None,
        chat_template=chat_template_of_gguf(header.metadata),
    )


class _GgufStore:
    """Reads tensors of one file."""

    def __init__(self, path: Path, header: GgufHeader) -> None:
        self._path = path
        self._tensors = header.tensors

    def formats(self) -> Mapping[str, str]:
        return {
            name: block_of_type(info.type_id, tensor=name, path=str(self._path)).name
            for name, info in self._tensors.items()
        }

    def read(self, name: str) -> Tensor:
        info = self._tensors[name]
        return self._decode(info, info.shape, info.offset, info.size_bytes)

    def read_rows(self, name: str, first: int, last: int) -> Tensor:
        info = self._tensors[name]
        row_bytes = info.size_bytes // info.shape[0]
        return self._decode(
            info,
            (last - first, *info.shape[1:]),
            info.offset + first * row_bytes,
            (last - first) * row_bytes,
        )

    def digest(self) -> str:
        return digest_files([self._path])

    def rope_factors(self) -> tuple[float, ...] | None:
        """Divisors of the rotary frequencies, where the file ships them as a tensor."""
        info = self._tensors.get(_ROPE_FACTORS)
        if info is None:
            return None
        self._require_float(info)
        return tuple(float(factor) for factor in self.read(_ROPE_FACTORS).dequantize())

    def check_norms(self) -> None:
        """Refuse a vector in a quantised format: codes belong to matrices."""
        for info in self._tensors.values():
            if len(info.shape) == 1:
                self._require_float(info)

    def _require_float(self, info: GgufTensorInfo) -> None:
        block = block_of_type(info.type_id, tensor=info.name, path=str(self._path))
        if block.name not in FLOAT_BYTES or len(info.shape) != 1:
            raise FormatError(
                f"{self._path}: tensor {info.name!r} must be a vector in F32, F16 or BF16, "
                f"not {block.name.upper()!r} of shape {list(info.shape)}"
            )

    def _decode(
        self, info: GgufTensorInfo, shape: tuple[int, ...], offset: int, size: int
    ) -> Tensor:
        block = block_of_type(info.type_id, tensor=info.name, path=str(self._path))
        raw = self._bytes(info.name, offset, size)
        try:
            return block.decode(info.name, raw, shape)
        except FormatError as error:
            raise FormatError(f"{self._path}: {error}") from None

    def _bytes(self, name: str, offset: int, size: int) -> NDArray[np.uint8]:
        try:
            raw = np.fromfile(self._path, dtype=np.uint8, count=size, offset=offset)
        except OSError as error:
            raise FormatError(
                f"{self._path}: data of tensor {name!r} must be readable, not {error.strerror!r}"
            ) from error
        if raw.size != size:
            raise FormatError(
                f"{self._path}: data of tensor {name!r} must be {size} bytes, not {raw.size!r}; "
                "the file was changed while it was open"
            )
        return raw
