"""A small GGUF writer for tests, which can also write what no sane program would."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_models.spec import ModelSpec
from romsim_models.tensors import expected_shapes

SPEC = ModelSpec(
    name="test", arch="llama", dim=64, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=32,
    hidden_dim=96, vocab_size=40, norm_eps=2.0**-17, rope_theta=10000.0, max_seq_len=64,
    tie_embeddings=True,
)  # fmt: skip

F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q4_1: (32, 20), Q8_0: (32, 34), BF16: (1, 2)}


@dataclass
class Written:
    """A tensor to write: shape (rows, columns), type number, raw bytes."""

    shape: tuple[int, ...]
    type_id: int
    raw: bytes


def metadata_of(spec: ModelSpec = SPEC, **changes: Any) -> dict[str, Any]:
    """Metadata of a model; a change to ``None`` takes the key out ("__" stands for ".")."""
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": spec.name,
        "llama.embedding_length": spec.dim,
        "llama.block_count": spec.n_layers,
        "llama.attention.head_count": spec.n_heads,
        "llama.attention.head_count_kv": spec.n_kv_heads,
        "llama.feed_forward_length": spec.hidden_dim,
        "llama.attention.layer_norm_rms_epsilon": spec.norm_eps,
        "llama.rope.freq_base": spec.rope_theta,
        "llama.context_length": spec.max_seq_len,
    }
    values.update({key.replace("__", "."): value for key, value in changes.items()})
    return {key: value for key, value in values.items() if value is not None}


def tensors_of(spec: ModelSpec = SPEC, *, matrices: int = F32, seed: int = 0) -> dict[str, Written]:
    """All tensors of a model: norms in F32, matrices of one type with random blocks."""
    generator = np.random.RandomState(seed)
    return {
        name: random_tensor(shape, matrices if len(shape) == 2 else F32, generator)
        for name, shape in expected_shapes(spec).items()
    }


def random_tensor(
    shape: tuple[int, ...], type_id: int, generator: np.random.RandomState
) -> Written:
    """Random codes with small fp16 scales and minima, or random floats."""
    count = int(np.prod(shape))
    if type_id in (F32, F16):
        values = generator.standard_normal(count).astype("<f4" if type_id == F32 else "<f2")
        return Written(shape, type_id, values.tobytes())
    if type_id == BF16:
        values = generator.standard_normal(count).astype("<f4").view("<u4") >> 16
        return Written(shape, type_id, values.astype("<u2").tobytes())
    n_weights, n_bytes = BLOCKS[type_id]
    blocks: NDArray[np.uint8] = generator.randint(
        0, 256, (count // n_weights, n_bytes), dtype=np.uint8
    )
    n_words = 2 if type_id == Q4_1 else 1
    words = generator.standard_normal((len(blocks), n_words)).astype("<f2")
    blocks[:, : 2 * n_words] = words.view(np.uint8)
    return Written(shape, type_id, blocks.tobytes())


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Written],
    *,
    version: int = 3,
    offsets: Mapping[str, int] | None = None,
) -> Path:
    """Write a file; ``offsets`` puts a tensor where it does not belong."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += string(key) + typed(value)
    data = b""
    for name, tensor in tensors.items():
        offset = (offsets or {}).get(name, len(data))
        header += string(name) + struct.pack("<I", len(tensor.shape))
        header += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        header += struct.pack("<IQ", tensor.type_id, offset)
        data += tensor.raw + bytes(-len(tensor.raw) % 32)
    path.write_bytes(header + bytes(-len(header) % 32) + data)
    return path


def string(text: str) -> bytes:
    """A GGUF text."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> bytes:
    """A GGUF value with its type in front."""
    if isinstance(value, bytes):
        return value  # type and value as they are wanted, perhaps wrong
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + string(value)
    if isinstance(value, Sequence):
        elements = [typed(each) for each in value]
        kind = elements[0][:4] if elements else struct.pack("<I", 8)
        body = b"".join(element[4:] for element in elements)
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(value)) + body
    raise TypeError(f"no GGUF type for {value!r}")
