"""Float decoder in PyTorch: the model as its authors meant it, on dequantised weights.

One readable file, and the only module of the package that imports torch. Shapes in comments:
B sequences, T new tokens, S tokens in the cache, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from romsim_models.checkpoint import Checkpoint
from romsim_models.errors import SpecError
from romsim_models.lora import LoraAdapter
from romsim_models.spec import rope_frequencies
from romsim_models.tensors import EMBEDDING, OUTPUT_NORM, lm_head_name

try:
    import torch
except ImportError as error:
    raise SpecError(
        "package 'torch' must be installed for the reference decoder, not missing; "
        "run pip install 'romsim[torch]'"
    ) from error

__all__ = ["FloatDecoder", "KvCache", "Observer"]

# Called with "blk.3.q" and the like, and the tensor.
Observer = Callable[[str, torch.Tensor], None]


@dataclass(slots=True, kw_only=True)
class KvCache:
    """Keys (turned by their positions) and values of the tokens so far.

    Parameters
    ----------
    keys, values
        [n_layers, B, K, max_tokens, D].
    n_tokens
        Tokens that are in the cache; grows with each call of the decoder.
    """

    keys: torch.Tensor
    values: torch.Tensor
    n_tokens: int = 0

    @property
    def max_tokens(self) -> int:
        """Tokens that fit."""
        return self.keys.shape[3]


class FloatDecoder:
    """Decoder of the LLaMA family in floating point.

    Parameters
    ----------
    checkpoint
        The model; all its tensors are read and dequantised.
    device
        Torch device.
    dtype
        Type of the matrices and activations. Norms, rotary angles and logits are float32 always.
    lora
        Adapter that is added to the matrices' outputs, or ``None``.

    Raises
    ------
    SpecError
        If the checkpoint has no weights, or the adapter is for another shape.
    FormatError
        If a tensor cannot be read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        lora: LoraAdapter | None = None,
    ) -> None:
        self.spec = checkpoint.spec
        self.device = torch.device(device)
        self.dtype = dtype
        self._weights: dict[str, torch.Tensor] = {}
        for name in checkpoint.names():
            values = torch.tensor(checkpoint.read(name).dequantize(), device=self.device)
            self._weights[name] = values.to(dtype) if values.ndim == 2 else values
        self._adapter: dict[str, tuple[torch.Tensor, torch.Tensor, float]] = {}
        if lora is not None:
            lora.check_fits(self.spec)
            for name, target in lora.targets.items():
                a = torch.tensor(target.a, device=self.device, dtype=dtype)
                b = torch.tensor(target.b, device=self.device, dtype=dtype)
                self._adapter[name] = (a, b, target.scaling)
        # float64, so that the angle is right at any position
        self._frequencies = torch.tensor(rope_frequencies(self.spec), device=self.device)

    def new_cache(self, *, batch: int = 1, max_tokens: int | None = None) -> KvCache:
        """Make an empty cache.

        Parameters
        ----------
        batch
            Sequences.
        max_tokens
            Tokens that fit; the model's ``max_seq_len`` by default.
        """
        spec = self.spec
        n_tokens = spec.max_seq_len if max_tokens is None else max_tokens
        shape = (spec.n_layers, batch, spec.n_kv_heads, n_tokens, spec.head_dim)
        return KvCache(
            keys=torch.zeros(shape, device=self.device, dtype=self.dtype),
            values=torch.zeros(shape, device=self.device, dtype=self.dtype),
        )

    @torch.no_grad()
    def forward(
        self,
        tokens: torch.Tensor | Sequence[Sequence[int]] | NDArray[np.int64],
        *,
        cache: KvCache | None = None,
        observe: Observer | None = None,
        last_only: bool = False,
    ) -> torch.Tensor:
        """Logits after each token.

        Parameters
        ----------
        tokens
            [B, T], below ``vocab_size``.
        cache
            The tokens before these; is extended. Without one, these are the first.
        observe
            Called with intermediate results, in order. Names: ``x`` (the embedding's output and,
            as ``blk.N.x``, each block's), ``blk.N.`` followed by ``attn_norm, q, k, v`` (before
            their rotation), ``q_rope, k_rope, attn_out, attn_sub_norm, o, ffn_norm, gate, up, act``
            (the product of the two), ``ffn_sub_norm, down``, then ``output_norm`` and ``logits``.
            Shape [B, T, ...].
        last_only
            Whether only the last token's logits are wanted.

        Returns
        -------
        float32 [B, T, vocab_size], or [B, 1, vocab_size] with ``last_only``

        Raises
        ------
        SpecError
            If a token is out of the vocabulary, or the tokens do not fit into the cache or the
            model's context.
        """
        inputs = torch.as_tensor(tokens, dtype=torch.long, device=self.device)
        if cache is None:
            cache = self.new_cache(batch=len(inputs), max_tokens=max(inputs.shape[-1], 1))
        self.check_input(inputs, cache)
        see = observe or _ignore
        n_new = inputs.shape[1]
        positions = torch.arange(cache.n_tokens, cache.n_tokens + n_new, device=self.device)
        angles = positions.double()[:, None] * self._frequencies  # [T, D/2]
        turn = (angles.cos().float(), angles.sin().float())
        x = self._weights[EMBEDDING][inputs]  # [B, T, dim]
        see("x", x)
        for layer in range(self.spec.n_layers):
            x = x + self._attention(layer, x, turn, cache, see)
            x = x + self._feed_forward(layer, x, see)
            see(f"blk.{layer}.x", x)
        cache.n_tokens += n_new
        x = self._norm(OUTPUT_NORM, x[:, -1:] if last_only else x)
        see("output_norm", x)
        logits = (x @ self._weights[lm_head_name(self.spec)].T).float()
        see("logits", logits)
        return logits

    def step(
        self,
        tokens: torch.Tensor | Sequence[int],
        cache: KvCache,
        *,
        observe: Observer | None = None,
    ) -> torch.Tensor:
        """Decode one more token of each sequence.

        Parameters
        ----------
        tokens
            [B].
        cache
            The tokens before; is extended.
        observe
            As in `forward`.

        Returns
        -------
        float32 [B, vocab_size]

        Raises
        ------
        SpecError
            As `forward`.
        """
        inputs = torch.as_tensor(tokens, dtype=torch.long, device=self.device)[:, None]
        return self.forward(inputs, cache=cache, observe=observe)[:, 0]

    def generate(
        self, prompt: Sequence[int], *, n_tokens: int, eos_ids: Sequence[int] | None = None
    ) -> list[int]:
        """Continue a prompt greedily; among equal logits the lowest token is taken.

        Parameters
        ----------
        prompt
            Tokens, at least one.
        n_tokens
            Tokens to generate at most.
        eos_ids
            Tokens after which to stop (they are the last returned); the model's by default.

        Returns
        -------
        list of int
            The new tokens.

        Raises
        ------
        SpecError
            If prompt and continuation are longer than the model's context, or as `forward`.
        """
        length = len(prompt) + n_tokens
        if length > self.spec.max_seq_len:
            raise SpecError(
                f"prompt and new tokens must fit into the context of {self.spec.max_seq_len} "
                f"tokens, not be {length!r} together; shorten one of them"
            )
        ends = set(self.spec.eos_ids if eos_ids is None else eos_ids)
        cache = self.new_cache(max_tokens=length)
        logits = self.forward([list(prompt)], cache=cache, last_only=True)[:, -1]
        generated: list[int] = []
        while len(generated) < n_tokens:
            generated.append(int(logits[0].argmax()))  # torch returns the first of equals
            if generated[-1] in ends or len(generated) == n_tokens:
                break
            logits = self.step(generated[-1:], cache)
        return generated

    def token_nll(
        self, tokens: Sequence[int] | NDArray[np.int64], *, window: int, batch: int = 4
    ) -> NDArray[np.float64]:
        """Negative log likelihood of a text's tokens, for perplexity.

        The text is cut into windows that do not overlap; each window is read on its own, and every
        token but its first is scored. Nothing is put in front.

        Parameters
        ----------
        tokens
            The text.
        window
            Tokens of one window, at least 2. The last window may be shorter.
        batch
            Windows that are computed together.

        Returns
        -------
        float64 [number of scored tokens]
            Nats, in order. The perplexity is ``exp(mean)``.

        Raises
        ------
        SpecError
            If the window is too short or too long, or as `forward`.
        """
        if not 2 <= window <= self.spec.max_seq_len:
            raise SpecError(f"window must be 2 to {self.spec.max_seq_len} tokens, not {window!r}")
        text = torch.as_tensor(tokens, dtype=torch.long)
        whole = text[: len(text) // window * window].reshape(-1, window)
        groups = list(torch.split(whole, batch)) if len(whole) else []
        if len(rest := text[whole.numel() :]) > 1:
            groups.append(rest[None])
        scores = []
        for group in groups:
            logits = self.forward(group)[:, :-1]  # [B, window - 1, vocab]
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), group[:, 1:].flatten().to(self.device), reduction="none"
            )
            scores.append(losses.double().cpu().numpy())
        return np.concatenate(scores) if scores else np.empty(0, dtype=np.float64)

    def check_input(self, inputs: torch.Tensor, cache: KvCache) -> None:
        """Refuse tokens [B, T] that `forward` cannot take; a GPU has to wait for this look."""
        if inputs.ndim != 2 or 0 in inputs.shape:
            raise SpecError(
                f"tokens must have the shape [sequences, tokens], not {list(inputs.shape)!r}"
            )
        wrong = inputs[(inputs < 0) | (inputs >= self.spec.vocab_size)]
        if len(wrong):
            raise SpecError(
                f"each token must be below the vocabulary's {self.spec.vocab_size}, "
                f"not {int(wrong[0])!r}; the text was encoded with another tokenizer"
            )
        limit = min(cache.max_tokens, self.spec.max_seq_len)
        if cache.n_tokens + inputs.shape[1] > limit:
            raise SpecError(
                f"tokens must fit into the context of {limit}, "
                f"not be {cache.n_tokens + inputs.shape[1]!r}; shorten the prompt"
            )

    def _linear(self, layer: int, part: str, x: torch.Tensor) -> torch.Tensor:
        name = f"blk.{layer}.{part}.weight"
        y = x @ self._weights[name].T
        if name in self._adapter:
            a, b, scaling = self._adapter[name]
            y = y + scaling * (x @ a.T) @ b.T
        return y

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """RMSNorm in float32."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.spec.norm_eps)
        return (wide * self._weights[name]).to(x.dtype)

    def _attention(
        self,
        layer: int,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        cache: KvCache,
        see: Observer,
    ) -> torch.Tensor:
        spec, at = self.spec, f"blk.{layer}"
        h = self._norm(f"{at}.attn_norm.weight", x)
        see(f"{at}.attn_norm", h)
        projected = []
        for short, n_heads in (("q", spec.n_heads), ("k", spec.n_kv_heads), ("v", spec.n_kv_heads)):
            y = self._linear(layer, f"attn_{short}", h)
            see(f"{at}.{short}", y)
            projected.append(y.reshape(*y.shape[:2], n_heads, spec.head_dim))  # [B, T, H or K, D]
        q, k, v = projected
        q, k = _rotate(q, turn), _rotate(k, turn)
        see(f"{at}.q_rope", q.flatten(-2))
        see(f"{at}.k_rope", k.flatten(-2))
        start, end = cache.n_tokens, cache.n_tokens + x.shape[1]
        cache.keys[layer, :, :, start:end] = k.transpose(1, 2)
        cache.values[layer, :, :, start:end] = v.transpose(1, 2)
        mask = None
        if x.shape[1] > 1:  # [T, S]: each token sees itself and those before
            mask = torch.ones(end - start, end, dtype=torch.bool, device=self.device).tril(start)
        h = q.transpose(1, 2)  # [B, H, T, D]
        if x.shape[1] == 1:  # heads that share keys are rows of one product, twice as fast
            h = h.reshape(len(x), spec.n_kv_heads, -1, spec.head_dim)
        k, v = cache.keys[layer, :, :, :end], cache.values[layer, :, :, :end]  # [B, K, S, D]
        # Query head h reads key/value head h // (H / K).
        h = torch.nn.functional.scaled_dot_product_attention(h, k, v, mask, enable_gqa=True)
        h = h.reshape(len(x), spec.n_heads, -1, spec.head_dim)
        h = h.transpose(1, 2).flatten(-2)  # [B, T, H * D]
        see(f"{at}.attn_out", h)
        if spec.has_sub_norms:
            h = self._norm(f"{at}.attn_sub_norm.weight", h)
            see(f"{at}.attn_sub_norm", h)
        h = self._linear(layer, "attn_output", h)
        see(f"{at}.o", h)
        return h

    def _feed_forward(self, layer: int, x: torch.Tensor, see: Observer) -> torch.Tensor:
        at = f"blk.{layer}"
        h = self._norm(f"{at}.ffn_norm.weight", x)
        see(f"{at}.ffn_norm", h)
        gate = self._linear(layer, "ffn_gate", h)
        see(f"{at}.gate", gate)
        up = self._linear(layer, "ffn_up", h)
        see(f"{at}.up", up)
        if self.spec.activation == "silu":
            h = torch.nn.functional.silu(gate) * up
        else:
            h = torch.nn.functional.relu(gate).square() * up
        see(f"{at}.act", h)
        if self.spec.has_sub_norms:
            h = self._norm(f"{at}.ffn_sub_norm.weight", h)
            see(f"{at}.ffn_sub_norm", h)
        h = self._linear(layer, "ffn_down", h)
        see(f"{at}.down", h)
        return h


def _rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn the pairs (2i, 2i+1) of each head by the position's angles; x is [B, T, heads, D]."""
    cos, sin = (each[:, None] for each in turn)  # [T, 1, D/2]
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def _ignore(_name: str, _value: torch.Tensor) -> None:
    """Observe nothing."""
