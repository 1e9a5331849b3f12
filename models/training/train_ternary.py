"""Train the project's story models: ternary with its float twin, and the twin's 2-bit sibling.

All three see the same text in the same order. The ternary model is trained with quantisation in
the loop: weights by their mean magnitude, activations as int8 per token, gradients straight through
(BitNet b1.58). The 2-bit model starts from the float twin and is trained on with groups of 32,
whose values the chip's rounding keeps. In ``models``: ``python -m training.train_ternary --help``;
``training.export_stories`` writes the model files.

Source: Ma et al., The Era of 1-bit LLMs (arXiv 2402.17764), for the quantisers.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import lzma
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import nn

__all__ = ["Decoder", "read_stories", "train_tokenizer"]

DIM, N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM, HIDDEN_DIM = 256, 2, 4, 2, 64, 512
VOCAB, MAX_SEQ_LEN, THETA, EPSILON = 1024, 512, 10000.0, 1e-5
END = "<|endoftext|>"
SEPARATOR = "<|story|>"  # as generate_stories writes it

_WINDOW, _BATCH = 256, 8
_HELD_OUT = 0.06  # of the stories
_LOOP = 7  # a story whose most frequent pair of words stands more often than this loops

Quantiser = Callable[[torch.Tensor], torch.Tensor]


def read_stories(paths: Sequence[Path], seed: int) -> tuple[list[str], list[str]]:
    """Stories to train on and held-out ones: cut at the last whole sentence, loops left out."""
    stories = []
    for path in paths:
        opened = lzma.open if path.suffix == ".xz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            text = file.read()
        for raw in text.split(f"{SEPARATOR}\n"):
            end = max(raw.rfind(mark) for mark in (".", "!", "?"))
            story = re.sub(r"\s*\n\s*", "\n", raw[: end + 1].strip())
            words = story.lower().split()
            pairs = Counter(itertools.pairwise(words))
            if len(words) >= 40 and max(pairs.values()) <= _LOOP:
                stories.append(story)
    random.Random(seed).shuffle(stories)
    n_held_out = max(1, int(_HELD_OUT * len(stories)))
    return stories[n_held_out:], stories[:n_held_out]


def train_tokenizer(stories: Sequence[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE of `VOCAB` tokens; token 0 ends a story."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(stories, trainer)
    return tokenizer


def ternary(weight: torch.Tensor) -> torch.Tensor:
    """Round to -1, 0, +1 times the mean magnitude, which is rounded to binary16 as in the file."""
    scale = weight.abs().mean().clamp(min=1e-5).half().float()
    return (weight / scale).round().clamp(-1, 1) * scale


def groups_of_32(levels: int) -> Quantiser:
    """Codes 0 … levels with a scale and a minimum, both in binary16, per 32 columns."""

    def quantise(weight: torch.Tensor) -> torch.Tensor:
        groups = weight.reshape(len(weight), -1, 32)
        low = groups.amin(-1, keepdim=True).clamp(max=0).half().float()
        high = groups.amax(-1, keepdim=True).clamp(min=0)
        scale = ((high - low) / levels).clamp(min=1e-6).half().float()
        codes = ((groups - low) / scale).round().clamp(0, levels)
        return (codes * scale + low).reshape(weight.shape)

    return quantise


def int8_per_token(values: torch.Tensor) -> torch.Tensor:
    """Round each token's vector to int8 with one scale."""
    scale = 127 / values.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    return (values * scale).round().clamp(-128, 127) / scale


def straight_through(values: torch.Tensor, quantise: Quantiser) -> torch.Tensor:
    """Quantised values forwards, the identity backwards."""
    return values + (quantise(values) - values).detach()


class Linear(nn.Module):
    """A matrix that is quantised each time it is used."""

    def __init__(self, n_cols: int, n_rows: int, quantise: Quantiser | None, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_rows, n_cols) * std)
        self.quantise = quantise

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Multiply; [..., n_cols] -> [..., n_rows]."""
        if self.quantise is None:
            return nn.functional.linear(values, self.weight)
        weight = straight_through(self.weight, self.quantise)
        return nn.functional.linear(straight_through(values, int8_per_token), weight)


class Block(nn.Module):
    """LLaMA's block: attention with rotary positions and shared key/value heads, and SwiGLU."""

    def __init__(self, quantise: Quantiser | None) -> None:
        super().__init__()
        std, last = DIM**-0.5, (2 * N_LAYERS) ** -0.5
        kv_dim = N_KV_HEADS * HEAD_DIM
        self.attn_norm = nn.RMSNorm(DIM, eps=EPSILON)
        self.attn_q = Linear(DIM, N_HEADS * HEAD_DIM, quantise, std)
        self.attn_k = Linear(DIM, kv_dim, quantise, std)
        self.attn_v = Linear(DIM, kv_dim, quantise, std)
        self.attn_output = Linear(N_HEADS * HEAD_DIM, DIM, quantise, std * last)
        self.ffn_norm = nn.RMSNorm(DIM, eps=EPSILON)
        self.ffn_gate = Linear(DIM, HIDDEN_DIM, quantise, std)
        self.ffn_up = Linear(DIM, HIDDEN_DIM, quantise, std)
        self.ffn_down = Linear(HIDDEN_DIM, DIM, quantise, HIDDEN_DIM**-0.5 * last)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """One block; x is [B, T, DIM]."""
        h = self.attn_norm(x)
        q, k, v = (
            part(h).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        out = nn.functional.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        x = x + self.attn_output(out.transpose(1, 2).flatten(-2))
        h = self.ffn_norm(x)
        gated: torch.Tensor = nn.functional.silu(self.ffn_gate(h)) * self.ffn_up(h)
        result: torch.Tensor = x + self.ffn_down(gated)
        return result


class Decoder(nn.Module):
    """The whole model; its LM head is the embedding."""

    def __init__(self, quantise: Quantiser | None) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(VOCAB, DIM)
        nn.init.normal_(self.token_embd.weight, std=0.05)
        self.blk = nn.ModuleList(Block(quantise) for _ in range(N_LAYERS))
        self.output_norm = nn.RMSNorm(DIM, eps=EPSILON)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, VOCAB] of tokens [B, T]."""
        frequencies = THETA ** -(torch.arange(HEAD_DIM // 2, dtype=torch.float64) * 2 / HEAD_DIM)
        angles = torch.arange(tokens.shape[1], dtype=torch.float64)[:, None] * frequencies
        cos, sin = angles.cos().float(), angles.sin().float()
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, cos, sin)
        return nn.functional.linear(self.output_norm(x), self.token_embd.weight)

    def set_quantiser(self, quantise: Quantiser | None) -> None:
        """Quantise all matrices in another way from now on."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.quantise = quantise


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


def windows(tokens: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    """Batches [_BATCH, _WINDOW + 1] for ever: each epoch cuts anew, in a new order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        start = int(torch.randint(_WINDOW, (1,), generator=generator))
        n_windows = (len(tokens) - start - 1) // _WINDOW
        order = torch.randperm(n_windows, generator=generator)
        for rows in torch.split(order[: n_windows // _BATCH * _BATCH], _BATCH):
            places = start + rows[:, None] * _WINDOW + torch.arange(_WINDOW + 1)
            yield tokens[places]


def loss_of(model: Decoder, batch: torch.Tensor) -> torch.Tensor:
    """Mean negative log likelihood of each next token, in nats."""
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Decoder, tokens: torch.Tensor) -> float:
    """Loss on a text in windows that do not overlap."""
    n_windows = (len(tokens) - 1) // _WINDOW
    places = torch.arange(n_windows)[:, None] * _WINDOW + torch.arange(_WINDOW + 1)
    parts = [loss_of(model, tokens[part]) * len(part) for part in torch.split(places, _BATCH)]
    return float(torch.stack(parts).sum() / n_windows)


def train(
    model: Decoder,
    text: torch.Tensor,
    held_out: torch.Tensor,
    *,
    steps: int,
    rate: float,
    seed: int,
    log: Path,
) -> None:
    """Train with AdamW: 30 steps of warm-up, then linearly down to 0; writes the loss curve."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": norms, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    batches = windows(text, seed)
    rows: list[tuple[int, float, float]] = []
    started, recent = time.monotonic(), 0.0
    for step in range(steps):
        warm = min(1.0, (step + 1) / 30)
        for group in optimiser.param_groups:
            group["lr"] = rate * warm * (1 - step / steps)
        loss = loss_of(model, next(batches))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's stub
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        recent += loss.item()
        if (step + 1) % 25 == 0 or step + 1 == steps:
            n_recent = (step % 25) + 1
            rows.append((step + 1, recent / n_recent, held_out_loss(model, held_out)))
            recent = 0.0
            seconds = time.monotonic() - started
            print(f"{log.stem} {rows[-1]} {seconds:.0f} s", file=sys.stderr, flush=True)
            with log.open("w", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(("step", "train_loss_nats", "held_out_loss_nats"))
                writer.writerows((s, f"{a:.4f}", f"{b:.4f}") for s, a, b in rows)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("tokenizer", "ternary", "float", "int2"))
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder, also of the tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--rate", type=float, help="highest learning rate [default: by kind]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    folder: Path = options.out
    folder.mkdir(parents=True, exist_ok=True)
    stories, held_out = read_stories(options.text, options.seed)
    path = folder / "tokenizer.json"
    if options.kind == "tokenizer":
        train_tokenizer(stories).save(str(path))
        (folder / "held_out.txt").write_text("".join(f"{s}{END}" for s in held_out), "utf-8")
        return
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    encoded = [
        torch.tensor([t for s in part for t in [*tokenizer.encode(s).ids, 0]])
        for part in (stories, held_out)
    ]
    print(f"{[len(e) for e in encoded]} tokens", file=sys.stderr)
    quantise = {"ternary": ternary, "int2": groups_of_32(3), "float": None}[options.kind]
    model = Decoder(quantise)
    rate = options.rate or {"ternary": 4e-3, "float": 3e-3, "int2": 1e-3}[options.kind]
    if options.kind == "int2":
        model.load_state_dict(torch.load(folder / "float.pt", weights_only=True))
    train(
        model, *encoded, steps=options.steps, rate=rate, seed=options.seed,
        log=folder / f"{options.kind}.csv",
    )  # fmt: skip
    torch.save(model.state_dict(), folder / f"{options.kind}.pt")
    loss = held_out_loss(model, encoded[1])
    print(f"{options.kind}: held-out perplexity {math.exp(loss):.3f}", file=sys.stderr)


if __name__ == "__main__":
    _main()
