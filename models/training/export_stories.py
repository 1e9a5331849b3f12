"""Write the trained story models as GGUF files.

``stories-ternary``: TQ2_0, one scale per matrix. ``stories-int4``: the float twin in Q4_1, rounded
after training. ``stories-int2``: the twin trained on with 2-bit groups; Q4_1 whose codes are 0 … 3,
since GGUF has no such 2-bit format, so that ``int2g32`` brings back the very codes. Embeddings are
Q8_0, norms F32. In ``models``: ``python -m training.export_stories --model FOLDER --out FOLDER``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from . import train_ternary as training

__all__ = ["write_model"]

_Q8_0, _Q4_1, _TQ2_0 = (
    gguf.GGMLQuantizationType.Q8_0,
    gguf.GGMLQuantizationType.Q4_1,
    gguf.GGMLQuantizationType.TQ2_0,
)
_CONTROL, _NORMAL = 3, 1  # token types


def four_levels(weight: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Q4_1 blocks of codes 0 … 3, rounded as the chip rounds ``int2g32``."""
    groups = weight.reshape(-1, 32)
    low = np.minimum(groups.min(axis=1), 0).astype(np.float16)
    high = np.maximum(groups.max(axis=1), 0)
    scale = ((high - low.astype(np.float32)) / np.float32(3)).astype(np.float16)
    wide = np.where(scale == 0, 1, scale).astype(np.float32)[:, None]
    codes = np.rint((groups - low.astype(np.float32)[:, None]) / wide).clip(0, 3).astype(np.uint8)
    blocks = np.empty((len(groups), 20), dtype=np.uint8)
    blocks[:, :2] = scale[:, None].view(np.uint8)
    blocks[:, 2:4] = low[:, None].view(np.uint8)
    blocks[:, 4:] = codes[:, :16] | codes[:, 16:] << 4
    return blocks.reshape(len(weight), -1)


def write_model(path: Path, name: str, state: dict[str, torch.Tensor], tokenizer: Path) -> None:
    """Write one file; ``name`` says how its matrices are stored."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(name)
    writer.add_license("Apache-2.0")
    writer.add_embedding_length(training.DIM)
    writer.add_block_count(training.N_LAYERS)
    writer.add_head_count(training.N_HEADS)
    writer.add_head_count_kv(training.N_KV_HEADS)
    writer.add_feed_forward_length(training.HIDDEN_DIM)
    writer.add_layer_norm_rms_eps(training.EPSILON)
    writer.add_rope_freq_base(training.THETA)
    writer.add_context_length(training.MAX_SEQ_LEN)
    writer.add_vocab_size(training.VOCAB)
    model = json.loads(tokenizer.read_text("utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if t == training.END else _NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    for key, tensor in state.items():
        weight = tensor.float()
        values: NDArray[np.float32] = weight.numpy()
        if values.ndim == 1:
            writer.add_tensor(key, values)
        elif key == "token_embd.weight":
            writer.add_tensor(key, gguf.quants.quantize(values, _Q8_0), raw_dtype=_Q8_0)
        elif name == "stories-ternary":
            rounded = training.ternary(weight).numpy()
            writer.add_tensor(key, gguf.quants.quantize(rounded, _TQ2_0), raw_dtype=_TQ2_0)
        elif name == "stories-int4":
            writer.add_tensor(key, gguf.quants.quantize(values, _Q4_1), raw_dtype=_Q4_1)
        else:
            writer.add_tensor(key, four_levels(values), raw_dtype=_Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of train_ternary")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, kind in (("ternary", "ternary"), ("int4", "float"), ("int2", "int2")):
        state = torch.load(options.model / f"{kind}.pt", weights_only=True)
        path = options.out / f"stories-{name}.gguf"
        write_model(path, f"stories-{name}", state, options.model / "tokenizer.json")


if __name__ == "__main__":
    _main()
