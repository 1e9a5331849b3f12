"""The integer reference decoder: the chip's arithmetic, vectorised over tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from romsim.reference import tables
from romsim.reference.attention import CachedWords, LayerCache
from romsim.reference.config import MAX_CONTEXT, NumericsConfig
from romsim.reference.functions import sin_cos
from romsim.reference.integer_matrix import IntegerMatrix
from romsim.reference.kv_history import KvHistory
from romsim.reference.kv_policy import KvPolicy
from romsim.reference.kv_vectors import Codebooks
from romsim.reference.layer import Layer, Record, Run, rotate_at
from romsim.reference.lora import LowRank, low_ranks
from romsim.reference.matvec import Linear, Resident, derive_grid
from romsim.reference.norm import Norm
from romsim.reference.primitives import Saturation
from romsim.reference.weights import WeightChoice, integer_matrix
from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.errors import CapacityError, SpecError
from romsim_models.lora import LoraAdapter
from romsim_models.spec import rope_frequencies
from romsim_models.tensors import EMBEDDING, OUTPUT_NORM, layer_tensor, lm_head_name

__all__ = ["CachedWords", "IntegerDecoder"]

_TOKENS = 512  # tokens of a batch: bounds the memory of a long prompt
# Matrices that one instruction multiplies share a grid: the page's fused groups.
_FUSED = {
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "o": ("attn_output",),
    "gu": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
}
# Matrices of different formats cannot be fused; then each has a grid of its own.
_ALONE = {"qkv": ("q", "k", "v"), "o": ("o",), "gu": ("gate", "up"), "down": ("down",)}


class IntegerDecoder:
    """Decoder in the integers of the numerics page, reading codes from the model file itself.

    Parameters
    ----------
    checkpoint
        Model file.
    config
        Free numbers of the page.
    choices
        Tensor name to how it becomes integers; needed for every matrix that the file holds in
        floating point.
    grids
        Grid exponent γ by fused group: ``"L0.qkv"``, ``"L0.o"``, ``"L0.gu"``, ``"L0.down"``, …,
        ``"head"``; or, for a group whose matrices are not fused, by matrix: ``"L0.q"``, ….
        ``None`` derives all by the page's rule, fused.
    loras
        Adapters that `forward` can choose, by name.
    device
        Any torch device.
    resident
        How weights are held: ``"float64"`` (8 bytes each) or ``"int32"`` (4, slower for single
        tokens).
    kv
        Codec and retention of the KV cache; the plain one if ``None``.
    codebooks
        Of the codec ``commvq``, one a layer.
    ternary_loras
        Whether adapters are trits (docs/numerics.md, section 6).

    Raises
    ------
    SpecError
        If an option names something that the model has not, or does not go with it.
    FormatError
        If a weight cannot be made an integer.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        config: NumericsConfig | None = None,
        choices: Mapping[str, WeightChoice] | None = None,
        grids: Mapping[str, int] | None = None,
        loras: Mapping[str, LoraAdapter] | None = None,
        device: torch.device | str = "cpu",
        resident: Resident = "float64",
        kv: KvPolicy | None = None,
        codebooks: Sequence[Codebooks] | None = None,
        ternary_loras: bool = False,
    ) -> None:
        self._codebooks = codebooks
        self.kv_policy = KvPolicy() if kv is None else kv
        self.spec = checkpoint.spec
        self.config = NumericsConfig() if config is None else config
        self.device = torch.device(device)
        if self.spec.activation == "silu" and self.config.linear_frac != 16:
            raise SpecError(
                "linear_frac of a model with SiLU must be 16, the frac of the sigmoid's table, "
                f"not {self.config.linear_frac!r}"
            )
        if resident not in ("float64", "int32"):
            raise SpecError(f"resident must be 'float64' or 'int32', not {resident!r}")
        self._checkpoint = checkpoint
        self._resident: Resident = resident
        self._choices = dict(choices or {})
        self._grids = None if grids is None else dict(grids)
        self._check_options()
        self._saturation = Saturation()
        turns = [tables.rope_increment(float(angle)) for angle in rope_frequencies(self.spec)]
        self._increments = torch.tensor(turns, dtype=torch.int64, device=self.device)
        self._layers = [self._load_layer(index) for index in range(self.spec.n_layers)]
        self._output_norm = self._load_norm(OUTPUT_NORM, self.config.residual_frac)
        self._embedding = self._matrix(EMBEDDING)
        name = lm_head_name(self.spec)
        head = self._embedding if name == EMBEDDING else self._matrix(name)
        self._head = self._linears("head", [head])[0]
        for one in (loras or {}).values():
            one.check_fits(self.spec)
        self._adapters = {
            name: low_ranks(
                adapter, block=self.config.act_block, device=device, is_ternary=ternary_loras
            )
            for name, adapter in (loras or {}).items()
        }
        self._caches: list[LayerCache | KvHistory] = []
        self.reset()

    @property
    def position(self) -> int:
        """Tokens seen since the last `reset`: the position of the next one."""
        return self._position

    @property
    def saturations(self) -> int:
        """Clips to int32 since the last `reset`."""
        return self._saturation.count

    def change_kv(self, policy: KvPolicy, codebooks: Sequence[Codebooks] | None = None) -> None:
        """Start anew with another KV cache, the same weights."""
        self.kv_policy, self._codebooks = policy, codebooks
        self.reset()

    def reset(self) -> None:
        """Forget all tokens and clips."""
        self._position = 0
        self._saturation.count = 0
        self._caches = [self._empty_cache(layer) for layer in range(self.spec.n_layers)]

    def _empty_cache(self, layer: int) -> LayerCache | KvHistory:
        shape: dict[str, Any] = {
            "n_heads": self.spec.n_kv_heads,
            "head_dim": self.spec.head_dim,
            "block": min(self.config.act_block, self.spec.head_dim),
            "frac": self.config.linear_frac,
            "device": self.device,
        }
        if self.kv_policy.is_plain:
            return LayerCache.empty(**shape)
        return KvHistory(
            self.kv_policy,
            **shape,
            books=None if self._codebooks is None else self._codebooks[layer],
            layer=layer,
            rotate=partial(rotate_at, increments=self._increments, saturation=self._saturation),
        )

    def kv(self, layer: int) -> CachedWords:
        """Words of one layer's plain cache, as the SRAM holds them.

        Raises
        ------
        SpecError
            If the cache is another one, whose words ``record`` gives.
        """
        cache = self._caches[layer]
        if not isinstance(cache, LayerCache):
            raise SpecError(
                f"KV cache must be the plain one to be read as codes, not {self.kv_policy!r}; use "
                f"record"
            )
        return cache.words(self._position)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int] | Tensor | NDArray[np.integer],
        *,
        adapter: str | None = None,
        record: Record | None = None,
        all_logits: bool = False,
    ) -> Tensor:
        """Append tokens at the current position.

        Parameters
        ----------
        tokens
            One or more token ids. Any split of a text into calls gives the same values.
        adapter
            Name of one of the adapters, or ``None``.
        record
            Called as ``record(name, first_position, array[T, n])`` with each operator's output.
        all_logits
            Give the logits of every token instead of the last.

        Returns
        -------
        Tensor
            int32 [vocab_size], or [T, vocab_size] with ``all_logits``; frac ``logit_frac``.

        Raises
        ------
        SpecError
            If there is no token, one is not in the vocabulary, or the adapter is unknown.
        CapacityError
            If the context would pass the page's limit.
        """
        ids = self._checked(tokens)
        if adapter is not None and adapter not in self._adapters:
            known = ", ".join(self._adapters) or "none, as none was given"
            raise SpecError(f"adapter must be one of the decoder's ({known}), not {adapter!r}")
        low_ranks = {} if adapter is None else self._adapters[adapter]
        for cache in self._caches:
            cache.rewind(self._position)  # an interrupted call leaves no half-appended token
        logits = []
        for first in range(0, len(ids), _TOKENS):
            part = ids[first : first + _TOKENS]
            is_last = first + _TOKENS >= len(ids)
            logits.append(
                self._batch(part, low_ranks, record, all_logits=all_logits, is_last=is_last)
            )
        return torch.cat(logits) if all_logits else logits[-1][-1]

    def _batch(
        self,
        ids: Tensor,
        adapter: Mapping[str, LowRank],
        record: Record | None,
        *,
        all_logits: bool,
        is_last: bool,
    ) -> Tensor:
        """One batch through all layers; int32 [n, vocab_size] for those tokens that are asked."""
        start = self._position
        positions = torch.arange(start, start + len(ids), device=self.device)
        sine, cosine = sin_cos(positions, self._increments)
        sinks = None
        if self.kv_policy.retention == "stream" and self.kv_policy.sinks:
            inside = positions.clamp(max=self.kv_policy.sinks + self.kv_policy.window - 1)
            a, b = sin_cos(inside, self._increments)
            sinks = a.to(torch.float64), b.to(torch.float64)
        run = Run(
            spec=self.spec,
            config=self.config,
            position=start,
            sine=sine.to(torch.float64),
            cosine=cosine.to(torch.float64),
            adapter=adapter,
            record=record,
            saturation=self._saturation,
            sink_angles=sinks,
        )
        x = self._embed(ids)
        run.note("embed", x)
        for layer, cache in zip(self._layers, self._caches, strict=True):
            x = layer(x, cache, run)
        self._position = start + len(ids)
        if not all_logits:
            if not is_last:
                return x.new_empty((0, self.spec.vocab_size), dtype=torch.int32)
            x, start = x[-1:], self._position - 1
        normed = self._output_norm(x, self._saturation)
        run.note_codes("output_norm", normed, position=start)
        logits = self._head(normed, frac=self.config.logit_frac, saturation=self._saturation)
        run.note("logits", logits, position=start)
        return logits.to(torch.int32)

    def _embed(self, ids: Tensor) -> Tensor:
        """Rows of the embedding on the residual stream's grid, float64 [T, dim]."""
        rows = ids.cpu().numpy()
        matrix = self._embedding
        frac = self.config.residual_frac
        if matrix.scale is not None:
            significand, exponent = matrix.scale
            exact = torch.from_numpy(matrix.values[rows].astype(np.int64) * significand)
            x = self._saturation.shr_sat32(exact, -exponent - frac)
            return x.to(self.device, torch.float64)
        selected = matrix.some_rows(rows)
        exact = torch.from_numpy(selected.scaled_rows(0, len(rows), -24))
        return self._saturation.shr_sat32(exact, 24 - frac).to(self.device, torch.float64)

    def _checked(self, tokens: Sequence[int] | Tensor | NDArray[np.integer]) -> Tensor:
        ids = torch.as_tensor(tokens)
        if ids.ndim != 1 or len(ids) == 0 or ids.is_floating_point():
            raise SpecError(
                f"tokens must be a sequence of at least one id, not of shape {list(ids.shape)}"
            )
        ids = ids.to(torch.int64)
        outside = (ids < 0) | (ids >= self.spec.vocab_size)
        if bool(outside.any()):
            raise SpecError(
                f"tokens must be ids below vocab_size={self.spec.vocab_size}, "
                f"not {int(ids[outside][0])!r}"
            )
        total = self._position + len(ids)
        if total > MAX_CONTEXT and self.kv_policy.has_end:
            raise CapacityError(
                f"context must be at most {MAX_CONTEXT} tokens, the bound of the exact sums, "
                f"not {total!r}; reset the decoder or shorten the prompt"
            )
        return ids

    def _check_options(self) -> None:
        """Refuse options that name what the model has not: none is ignored."""
        names = set(self._checkpoint.names())
        for name in self._choices:
            if name not in names:
                raise SpecError(f"choices must name tensors of the model, not {name!r}")
        if self._grids is None:
            return
        layers, parts = range(self.spec.n_layers), _ALONE.items()
        either = [(f"L{n}.{p}", {f"L{n}.{m}" for m in names}) for n in layers for p, names in parts]
        either.append(("head", {"head"}))
        known = {name for group, alone in either for name in (group, *alone)}
        for name in self._grids:
            if name not in known:
                raise SpecError(
                    f"grids must name fused groups such as 'L0.qkv' or 'head', not {name!r}"
                )
        for group, alone in either:
            if group not in self._grids and not alone <= set(self._grids):
                raise SpecError(f"grids must name every fused group; {group!r} is missing")

    def _matrix(self, name: str) -> IntegerMatrix:
        choice = self._choices.get(name)
        return integer_matrix(self._checkpoint.read(name), choice, block=self.config.act_block)

    def _linears(self, group: str, matrices: list[IntegerMatrix]) -> list[Linear]:
        """Make the matrices of one fused group ready on their common grid."""
        return [
            Linear(
                matrix,
                grid=grid,
                block=self.config.act_block,
                resident=self._resident,
                device=self.device,
            )
            for matrix, grid in zip(matrices, self._group_grids(group, matrices), strict=True)
        ]

    def _group_grids(self, group: str, matrices: list[IntegerMatrix]) -> list[int]:
        """Return the grid of each matrix of a group."""
        if self._grids is None:
            return [derive_grid(matrices)] * len(matrices)
        if group in self._grids:
            return [self._grids[group]] * len(matrices)
        layer, _, part = group.partition(".")
        return [self._grids[f"{layer}.{name}"] for name in _ALONE[part]]

    def _load_norm(self, name: str, input_frac: int) -> Norm:
        tensor = self._checkpoint.read(name)
        if isinstance(tensor, EncodedTensor):
            raise SpecError(f"tensor {name!r} must be floating point, not {tensor.format} codes")
        assert isinstance(tensor, FloatTensor)
        return Norm(
            name,
            tensor.values,
            epsilon=self.spec.norm_eps,
            input_frac=input_frac,
            block=self.config.act_block,
            device=self.device,
        )

    def _load_layer(self, index: int) -> Layer:
        linears: dict[str, Linear] = {}
        for group, parts in _FUSED.items():
            matrices = [self._matrix(layer_tensor(index, part)) for part in parts]
            ready = self._linears(f"L{index}.{group}", matrices)
            linears.update(zip(parts, ready, strict=True))
        fracs = dict.fromkeys(("attn_norm", "ffn_norm"), self.config.residual_frac)
        if self.spec.has_sub_norms:
            fracs |= dict.fromkeys(("attn_sub_norm", "ffn_sub_norm"), self.config.linear_frac)
        norms = {
            part: self._load_norm(layer_tensor(index, part), frac) for part, frac in fracs.items()
        }
        return Layer(index, norms=norms, linears=linears)
