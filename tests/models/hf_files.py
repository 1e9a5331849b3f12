"""Hugging Face directories written without transformers, so that they can also be wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_models.hf_names import huggingface_name
from romsim_models.spec import ModelSpec
from romsim_models.tensors import expected_shapes
from tests.models.gguf_files import SPEC

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 40,
    "rms_norm_eps": 2.0**-17,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config_with(**changes: Any) -> dict[str, Any]:
    """`CONFIG` with changes; a change to ``None`` takes the key out."""
    values = {**CONFIG, **changes}
    return {key: value for key, value in values.items() if value is not None}


def weights_of(spec: ModelSpec = SPEC, *, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights by transformers' names."""
    generator = np.random.RandomState(seed)
    return {
        huggingface_name(name): generator.standard_normal(shape).astype(np.float32)
        for name, shape in expected_shapes(spec).items()
    }


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> Path:
    """Write a file; float16 and float32 as they are, uint16 as BF16, others by their name."""
    kinds = {"float32": "F32", "float16": "F16", "uint16": "BF16", "float64": "F64", "int8": "I8",
             "uint8": "U8"}  # fmt: skip
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": kinds[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    return write_raw_safetensors(path, header, data)


def write_raw_safetensors(path: Path, header: Any, data: bytes) -> Path:
    """Write any header, as JSON or as the bytes given."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_model(
    directory: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """Write config.json and model.safetensors."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    write_safetensors(directory / "model.safetensors", weights_of() if tensors is None else tensors)
    return directory


def write_sharded(directory: Path, shards: Mapping[str, Mapping[str, NDArray[Any]]]) -> Path:
    """Write config.json, shards, and an index to match."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    weight_map = {}
    for file, tensors in shards.items():
        write_safetensors(directory / file, tensors)
        weight_map.update(dict.fromkeys(tensors, file))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def three_shards() -> dict[str, dict[str, NDArray[Any]]]:
    """The test model in three files."""
    weights = list(weights_of().items())
    return {
        f"model-0000{part + 1}-of-00003.safetensors": dict(weights[part::3]) for part in range(3)
    }
