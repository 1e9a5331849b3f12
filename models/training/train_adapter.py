"""Train a LoRA adapter of `stories-ternary` on a text, ternary in the loop or in float.

The base is frozen and in float; the adapter is on all seven projections. A ternary one has its
factors rounded to their mean magnitude in every step, gradients straight through, so that the
adder arrays of a chip take it as it is. In ``models``: ``python -m training.train_adapter --help``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from romsim_models.hf_names import HF_PROJECTIONS, ROTARY_PROJECTIONS
from romsim_models.registry import open_model
from romsim_models.tokenizer import Tokenizer

from . import train_ternary as base

__all__ = ["Adapted", "adapt", "save_adapter"]


class Adapted(nn.Module):
    """A frozen matrix and its adapter.

    Parameters
    ----------
    matrix
        The base.
    rank
        Of the adapter.
    quantise
        Rounds both factors in every step; ``None`` for floats.
    """

    def __init__(self, matrix: base.Linear, rank: int, quantise: base.Quantiser | None) -> None:
        super().__init__()
        n_rows, n_cols = matrix.weight.shape
        self.matrix = matrix
        self.quantise = quantise
        self.a = nn.Parameter(torch.randn(rank, n_cols) * n_cols**-0.5)
        self.b = nn.Parameter(torch.zeros(n_rows, rank))

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return A and B as they are saved."""
        if self.quantise is None:
            return self.a.detach(), self.b.detach()
        return self.quantise(self.a.detach()), self.quantise(self.b.detach())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Multiply; [..., n_cols] -> [..., n_rows]."""
        a: torch.Tensor = self.a
        b: torch.Tensor = self.b
        if self.quantise is not None:
            a = base.straight_through(a, self.quantise)
            b = base.straight_through(b, self.quantise)
        out: torch.Tensor = self.matrix(values) + values @ a.T @ b.T
        return out


def adapt(model: base.Decoder, rank: int, quantise: base.Quantiser | None) -> list[nn.Parameter]:
    """Freeze a model and put adapters on its projections; return what is left to train."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for block in model.blk:
        for part in HF_PROJECTIONS:
            setattr(block, part, Adapted(getattr(block, part), rank, quantise))
    return [p for p in model.parameters() if p.requires_grad]


def save_adapter(model: base.Decoder, folder: Path, rank: int) -> None:
    """Write the adapter as PEFT does; rows of queries and keys in transformers' order."""
    tensors = {}
    for layer, block in enumerate(model.blk):
        for part, module in HF_PROJECTIONS.items():
            a, b = getattr(block, part).factors()
            if part in ROTARY_PROJECTIONS:
                pairs = b.reshape(-1, base.HEAD_DIM // 2, 2, rank)
                b = pairs.swapaxes(1, 2).reshape(b.shape)
            stem = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{stem}.lora_A.weight"] = a.contiguous()
            tensors[f"{stem}.lora_B.weight"] = b.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "stories-ternary",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted(name.rpartition(".")[2] for name in HF_PROJECTIONS.values()),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def open_base() -> tuple[base.Decoder, Tokenizer]:
    """Return `stories-ternary` in float, and its tokenizer."""
    checkpoint = open_model("stories-ternary")
    tokenizer = checkpoint.tokenizer()
    assert tokenizer is not None  # the model ships with it
    model = base.Decoder(None)
    state = {
        name: torch.from_numpy(np.array(checkpoint.read(name).dequantize()))
        for name in model.state_dict()
    }
    model.load_state_dict(state)
    return model, tokenizer


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("ternary", "float"))
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--skip", type=int, default=0, help="characters kept out of the training")
    parser.add_argument("--out", type=Path, required=True, help="folder of the adapter")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model, tokenizer = open_base()
    text = options.text.read_text("utf-8")[options.skip :]
    tokens = torch.tensor(tokenizer.encode(text, add_special=False))
    quantise = base.ternary if options.kind == "ternary" else None
    optimiser = torch.optim.AdamW(
        adapt(model, options.rank, quantise), lr=options.rate, weight_decay=0.0
    )
    batches = base.windows(tokens, options.seed)
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 10) * (1 - step / options.steps)
        loss = base.loss_of(model, next(batches))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's stub
        optimiser.step()
        if step % 10 == 0 or step + 1 == options.steps:
            print(f"{step + 1} {math.exp(loss.item()):.2f}", file=sys.stderr, flush=True)
    save_adapter(model, options.out, options.rank)


if __name__ == "__main__":
    _main()
