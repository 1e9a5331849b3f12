"""A GGUF file -> `Checkpoint`, tensors as shipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from romsim_models.checkpoint import Checkpoint, check_complete, digest_files
from romsim_models.encoded import EncodedTensor, FloatTensor, Tensor
from romsim_models.errors import FormatError
from romsim_models.floats import FLOAT_BYTES
from romsim_models.gguf_blocks import block_of_type
from romsim_models.gguf_config import spec_from_gguf
from romsim_models.gguf_header import GgufHeader, GgufTensorInfo, read_gguf_header
from romsim_models.gguf_scale import SCALED_FLOATS, is_scale, times_scale
from romsim_models.hf_names import interleave_rotary_tensor, is_rotary
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

    Query and key rows stay in the interleaved rotary order in which the ``llama`` architecture
    ships them. The BitNet architectures ship them in halves, as transformers does (llama.cpp's
    ``LLAMA_ROPE_TYPE_NEOX``); they are brought into that order while they are read.

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
    if spec.arch == "bitnet":
        store.take_bitnet(spec.head_dim)
    shapes = {name: info.shape for name, info in header.tensors.items() if name != _ROPE_FACTORS}
    for name in store.scales():
        del shapes[name]
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
        self._halves: int | None = None  # rows of a head, where its rows are in halves
        self._scales: dict[str, float] = {}

    def formats(self) -> Mapping[str, str]:
        names = {
            name: block_of_type(info.type_id, tensor=name, path=str(self._path)).name
            for name, info in self._tensors.items()
        }
        for scale in self._scales:
            matrix = f"{scale.removesuffix('.scale')}.weight"
            if names[matrix] in FLOAT_BYTES:
                names[matrix] = SCALED_FLOATS
        return names

    def take_bitnet(self, head_dim: int) -> None:
        """Read as a BitNet file: rotary rows in halves, perhaps a scale beside a matrix."""
        self._halves = head_dim
        self._scales = {
            name: self._read_scale(info)
            for name, info in self._tensors.items()
            if is_scale(name, self._tensors)
        }

    def scales(self) -> Mapping[str, float]:
        """Scales that stand beside a matrix, by their own names."""
        return self._scales

    def read(self, name: str) -> Tensor:
        return self.read_rows(name, 0, self._tensors[name].shape[0])

    def read_rows(self, name: str, first: int, last: int) -> Tensor:
        info = self._tensors[name]
        if self._halves is None or not is_rotary(name):
            return self._scaled(self._read_plain(info, first, last))
        from_row = first // self._halves * self._halves  # whole heads
        to_row = -(-last // self._halves) * self._halves
        tensor = self._scaled(self._read_plain(info, from_row, to_row))
        heads = interleave_rotary_tensor(tensor, self._halves)
        if (from_row, to_row) == (first, last):
            return heads
        if isinstance(heads, EncodedTensor):
            return heads.rows(first - from_row, last - from_row)
        rows = heads.values[first - from_row : last - from_row]
        return FloatTensor(name=name, shape=rows.shape, format=heads.format, values=rows)

    def _read_plain(self, info: GgufTensorInfo, first: int, last: int) -> Tensor:
        """Rows as the file has them."""
        block = block_of_type(info.type_id, tensor=info.name, path=str(self._path))
        body = info.size_bytes - block.trailer_bytes
        row_bytes = body // info.shape[0]
        raw = self._bytes(info.name, info.offset + first * row_bytes, (last - first) * row_bytes)
        if block.trailer_bytes:
            trailer = self._bytes(info.name, info.offset + body, block.trailer_bytes)
            raw = np.concatenate([raw, trailer])
        try:
            return block.decode(info.name, raw, (last - first, *info.shape[1:]))
        except FormatError as error:
            raise FormatError(f"{self._path}: {error}") from None

    def _read_scale(self, info: GgufTensorInfo) -> float:
        self._require_float(info)
        if info.shape != (1,):
            raise FormatError(
                f"{self._path}: tensor {info.name!r} must hold the one scale of its matrix, "
                f"not be of shape {list(info.shape)}; convert the file again"
            )
        return float(self._read_plain(info, 0, 1).dequantize()[0])

    def _scaled(self, tensor: Tensor) -> Tensor:
        scale = self._scales.get(f"{tensor.name.removesuffix('.weight')}.scale")
        if scale is None:
            return tensor
        try:
            return times_scale(tensor, scale)
        except FormatError as error:
            raise FormatError(f"{self._path}: {error}") from None

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
