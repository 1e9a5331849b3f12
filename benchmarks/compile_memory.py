"""Peak memory of compiling large bf16 checkpoints: it follows the largest tensor, not the model.

``python -m benchmarks.compile_memory [--layers 2 4 32] [--folder DIR]``: writes LLaMA-3-8B-shaped
checkpoints (random bf16, one block repeated) of so many layers, compiles each in a process of its
own and prints peak resident memory beside the largest tensor and the model.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from romsim_models.shapes import SHAPES
from romsim_models.spec import ModelSpec
from romsim_models.tensors import expected_shapes

__all__ = ["main", "write_checkpoint"]

_COMPILE = """
import resource, sys, time
import romsim
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
romsim.compile(sys.argv[1], sys.argv[2], target=sys.argv[3], context=1024, fit=True)
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter() - start)
"""

_HF = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _hf_name(name: str) -> str:
    if name in _HF:
        return _HF[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_HF[part]}.weight"


def write_checkpoint(spec: ModelSpec, folder: Path) -> tuple[int, int]:
    """Write a Hugging Face directory; return bytes of the largest tensor and of all."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.dim,
        "intermediate_size": spec.hidden_dim,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "max_position_embeddings": spec.max_seq_len,
        "tie_word_embeddings": spec.tie_embeddings,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in expected_shapes(spec).items():
        size = 2 * int(np.prod(shape))
        header[_hf_name(name)] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    floats = rng.standard_normal(1 << 24, dtype=np.float32) * np.float32(0.02) + np.float32(0.001)
    block = (floats.view(np.uint32) >> 16).astype("<u2").tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        left = at
        while left:
            left -= file.write(block[: min(left, len(block))])
    return max(2 * int(np.prod(s)) for s in expected_shapes(spec).values()), at


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--target", default="roma-7nm-g32")
    parser.add_argument("--folder", type=Path, help="where there is room for the files")
    options = parser.parse_args(arguments)
    for n_layers in options.layers:
        started = time.perf_counter()
        spec = replace(SHAPES["llama-3-8b"], n_layers=n_layers)
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            source = Path(name) / "model"
            source.mkdir()
            largest, total = write_checkpoint(spec, source)
            done = subprocess.run(
                [sys.executable, "-c", _COMPILE, str(source), f"{name}/out", options.target],
                check=True,
                capture_output=True,
                text=True,
            )
        before, peak, seconds = done.stdout.split()
        sys.stdout.write(
            f"{n_layers} layers, {total / 1e9:.2f} GB bf16, largest tensor {largest / 1e9:.3f} GB: "
            f"peak {int(peak) / 1e6:.3f} GB ({int(peak) * 1024 / largest:.2f} x largest tensor; "
            f"{int(before) / 1e6:.3f} GB before), {float(seconds):.0f} s "
            f"(whole {time.perf_counter() - started:.0f} s)\n"
        )
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
