"""One decoder layer in integers, and the record of its operators' outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from romsim.reference import tables
from romsim.reference.attention import LayerCache, attend
from romsim.reference.config import NumericsConfig
from romsim.reference.functions import sigmoid, sin_cos
from romsim.reference.kv_attention import attend_history
from romsim.reference.kv_history import KvHistory, NotePart
from romsim.reference.lora import LowRank
from romsim.reference.matvec import Linear
from romsim.reference.norm import Norm
from romsim.reference.primitives import (
    BlockCodes,
    Saturation,
    quantise,
    rne_product,
    shr_float,
)
from romsim_models.spec import ModelSpec

__all__ = ["Layer", "Record", "Run", "rotate_at"]

Record = Callable[[str, int, NDArray[np.int64] | NDArray[np.int32] | NDArray[np.int8]], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """What all layers of one forward pass share.

    Parameters
    ----------
    spec, config
        The model, and the free numbers of the page.
    position
        Of the first token of the batch.
    sine, cosine
        float64 [T, head_dim / 2], frac 20.
    adapter
        Canonical projection name to its adapter; empty for none.
    record
        Called with name, first position and array of each operator's output, or ``None``.
    saturation
        Counts the clips.
    sink_angles
        Sine and cosine of the query that a window's sinks are read by, or ``None``.
    """

    spec: ModelSpec
    config: NumericsConfig
    position: int
    sine: Tensor
    cosine: Tensor
    adapter: Mapping[str, LowRank]
    record: Record | None
    saturation: Saturation
    sink_angles: tuple[Tensor, Tensor] | None = None

    def note(self, name: str, values: Tensor, *, position: int | None = None) -> None:
        """Record int32 values [T, n]."""
        if self.record is not None:
            flat = values.reshape(values.shape[0], -1).to(torch.int32)
            self.record(name, self.position if position is None else position, flat.cpu().numpy())

    def note_kv(self, layer: str) -> NotePart:
        """Return a function that records values of a layer's KV cache, [T, …] of any width."""

        def note(name: str, position: int, values: Tensor) -> None:
            if self.record is not None:
                flat = values.reshape(values.shape[0], -1).to(torch.int64)
                self.record(f"{layer}.{name}", position, flat.cpu().numpy())

        return note

    def note_codes(self, name: str, coded: BlockCodes, *, position: int | None = None) -> None:
        """Record codes [T, n] and shifts [T, blocks] under ``name.codes`` and ``name.shifts``."""
        if self.record is not None:
            first = self.position if position is None else position
            n_tokens = coded.codes.shape[0]
            self.record(f"{name}.codes", first, coded.codes.reshape(n_tokens, -1).cpu().numpy())
            self.record(f"{name}.shifts", first, coded.shifts.reshape(n_tokens, -1).cpu().numpy())


class Layer:
    """A layer's weights and the path of a batch through them.

    Parameters
    ----------
    index
        Of the layer, from 0.
    norms
        By the part of their canonical name: ``attn_norm``, ``ffn_norm`` and, where the model has
        them, ``attn_sub_norm``, ``ffn_sub_norm``.
    linears
        By the part of their canonical name: the seven projections.
    """

    def __init__(
        self, index: int, *, norms: Mapping[str, Norm], linears: Mapping[str, Linear]
    ) -> None:
        self.index = index
        self._norms = norms
        self._linears = linears

    def __call__(self, x: Tensor, cache: LayerCache | KvHistory, run: Run) -> Tensor:
        """Pass a batch through the layer.

        Parameters
        ----------
        x
            Residual stream, float64 [T, dim], int32 values.
        cache
            Words of the tokens before; those of the batch are appended.
        run
            What all layers share.

        Returns
        -------
        Tensor
            Residual stream after the layer.
        """
        x = run.saturation.sat32(x + self._attention(x, cache, run))
        run.note(f"L{self.index}.x_attn", x)
        x = run.saturation.sat32(x + self._feed_forward(x, run))
        run.note(f"L{self.index}.x_ffn", x)
        return x

    def _attention(self, x: Tensor, cache: LayerCache | KvHistory, run: Run) -> Tensor:
        name = f"L{self.index}"
        spec, config = run.spec, run.config
        normed = self._norms["attn_norm"](x, run.saturation)
        run.note_codes(f"{name}.attn_norm", normed)
        q, k, v = (
            self._project(part, normed, config.linear_frac, run)
            for part in ("attn_q", "attn_k", "attn_v")
        )
        for part, projected in (("q", q), ("k", k), ("v", v)):
            run.note(f"{name}.{part}", projected)
        block = min(config.act_block, spec.head_dim)

        def code(values: Tensor) -> BlockCodes:
            heads = values.reshape(values.shape[0], -1, spec.head_dim)
            return quantise(heads, block=block, frac=config.linear_frac)

        scale = tables.query_scale(spec.head_dim)

        def code_query(angles: tuple[Tensor, Tensor]) -> BlockCodes:
            turned = _rotate(q, angles, run.saturation)
            return code(run.saturation.sat32(shr_float(turned * scale, 20)))

        angles = run.sine, run.cosine
        query = code_query(angles)
        run.note_codes(f"{name}.q", query)
        turned_k = _rotate(k, angles, run.saturation)
        if isinstance(cache, LayerCache):
            keys, values = code(turned_k), code(v)
            run.note_codes(f"{name}.k", keys)
            run.note_codes(f"{name}.v", values)
            cache.append(keys, values)
            attended = attend(query, cache, config=config, saturation=run.saturation)
        else:
            sink_query = None
            if run.sink_angles is not None:
                sink_query = code_query(run.sink_angles)
                run.note_codes(f"{name}.q.sink", sink_query)
            note = run.note_kv(name)
            heads = (-1, spec.n_kv_heads, spec.head_dim)
            kept_k = k if cache.policy.codec == "commvq" else turned_k
            cache.append(kept_k.reshape(heads), v.reshape(heads), note)
            attended = attend_history(
                query,
                sink_query,
                cache,
                attn_block=config.attn_block,
                saturation=run.saturation,
                note=note,
            )
        run.note(f"{name}.attn", attended)
        coded = self._coded(attended, "attn_sub_norm", run)
        run.note_codes(f"{name}.attn", coded)
        out = self._project("attn_output", coded, config.residual_frac, run)
        run.note(f"{name}.o", out)
        return out

    def _feed_forward(self, x: Tensor, run: Run) -> Tensor:
        name = f"L{self.index}"
        normed = self._norms["ffn_norm"](x, run.saturation)
        run.note_codes(f"{name}.ffn_norm", normed)
        gate, up = (
            self._project(part, normed, run.config.linear_frac, run)
            for part in ("ffn_gate", "ffn_up")
        )
        run.note(f"{name}.gate", gate)
        run.note(f"{name}.up", up)
        coded = self._coded(_activation(gate, up, run), "ffn_sub_norm", run)
        run.note_codes(f"{name}.act", coded)
        out = self._project("ffn_down", coded, run.config.residual_frac, run)
        run.note(f"{name}.down", out)
        return out

    def _project(self, part: str, x: BlockCodes, frac: int, run: Run) -> Tensor:
        """Multiply by one projection and add the adapter's update, where there is one."""
        y = self._linears[part](x, frac=frac, saturation=run.saturation)
        low_rank = run.adapter.get(f"blk.{self.index}.{part}.weight")
        if low_rank is None:
            return y
        return low_rank(
            x, y, inner_frac=run.config.linear_frac, frac=frac, saturation=run.saturation
        )

    def _coded(self, values: Tensor, sub_norm: str, run: Run) -> BlockCodes:
        """Code a vector for the projection that follows, after its sub-norm where it has one."""
        norm = self._norms.get(sub_norm)
        if norm is not None:
            return norm(values, run.saturation)
        return quantise(values, block=run.config.act_block, frac=run.config.linear_frac)


def rotate_at(
    keys: Tensor, positions: Tensor, *, increments: Tensor, saturation: Saturation
) -> Tensor:
    """Turn keys [T, n_heads, head_dim] by the angles of positions [T]; float64 [T, n]."""
    sine, cosine = sin_cos(positions, increments)
    angles = sine.to(torch.float64), cosine.to(torch.float64)
    return _rotate(keys.reshape(len(keys), -1), angles, saturation)


def _rotate(values: Tensor, angles: tuple[Tensor, Tensor], saturation: Saturation) -> Tensor:
    """Turn neighbouring pairs of each head by the token's angles [T, pairs]; float64 [T, n]."""
    sine, cosine = (angle[:, None, :] for angle in angles)
    pairs = values.reshape(values.shape[0], -1, sine.shape[-1], 2)
    a, b = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((a * cosine - b * sine, a * sine + b * cosine), dim=-1)  # below 2^52
    return saturation.sat32(shr_float(turned.reshape(values.shape), 20))


def _activation(gate: Tensor, up: Tensor, run: Run) -> Tensor:
    """Feed-forward activation ``h``, float64, int32 values, frac ``F_A``."""
    frac = run.config.linear_frac
    if run.spec.activation == "silu":
        weighted = shr_float(gate * sigmoid(gate), 20)  # below 2^51
    else:
        positive = gate.clamp(min=0)
        weighted = run.saturation.sat32(rne_product(positive, positive, frac))
    return run.saturation.sat32(rne_product(weighted, up, frac))
