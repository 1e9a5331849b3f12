"""Small random models made and saved by transformers, and its logits: the oracle of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

transformers = pytest.importorskip(
    "transformers", reason="transformers is the oracle of these tests (extra 'oracle')"
)

TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 60] * 4]  # 48 tokens, below a vocabulary of 64


def save_llama(directory: Path, *, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """Save a random LLaMA with norms that are not 1, and return the model."""
    values = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
    }
    shard = config.pop("max_shard_size", "1GB")
    # transformers computes with heads that do not divide the width, but its configuration refuses
    # to be made or saved so: a width that passes is put in for these two moments.
    late = config.pop("late_hidden_size", None)
    if late is not None:
        values["hidden_size"] = config["num_attention_heads"] * 8
    model_config = transformers.LlamaConfig(**{**values, **config})
    if late is None:
        return _save(transformers.LlamaForCausalLM(model_config), directory, dtype, shard)
    passing, model_config.hidden_size = model_config.hidden_size, late
    model = transformers.LlamaForCausalLM(model_config)
    model.config.hidden_size = passing
    model = _save(model, directory, dtype, shard)
    model.config.hidden_size = late
    edit_json(directory / "config.json", hidden_size=late)
    return model


def save_bitnet(directory: Path, **config: Any) -> Any:
    """Save a random BitNet (unpacked, in floating point), and return the model."""
    values = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    model_config = transformers.BitNetConfig(**{**values, **config})
    return _save(transformers.BitNetForCausalLM(model_config), directory, torch.float32, "1GB")


def _save(model: Any, directory: Path, dtype: torch.dtype, shard: str) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(1.0 + 0.5 * noise)
            else:
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
    model = model.to(dtype).eval()
    model.save_pretrained(directory, max_shard_size=shard)
    if dtype is torch.float32:
        return model
    # Read back: casting the model in place has rounded its rotary frequencies as well.
    return type(model).from_pretrained(directory, dtype=torch.float32)


def logits_of(model: Any, tokens: list[list[int]] = TOKENS) -> NDArray[np.float32]:
    """transformers' logits in float32 arithmetic."""
    with torch.no_grad():
        logits = model.float()(torch.tensor(tokens)).logits
    return np.asarray(logits.numpy())


def edit_json(path: Path, *remove: str, **change: Any) -> None:
    """Take keys out of a JSON file, and set others."""
    values = json.loads(path.read_text())
    for key in remove:
        values.pop(key, None)
    values.update(change)
    path.write_text(json.dumps(values))
