"""Which KV heads keep wider codes under the codec tiered: those that lose most (docs/kv.md, 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.kv import KvConfig

__all__ = ["choose_heads", "score_losses"]

_Floats = NDArray[np.float64]


def score_losses(queries: Sequence[_Floats], keys: Sequence[_Floats], kv: KvConfig) -> _Floats:
    """Estimate how much narrow keys change the scores of each KV head.

    The mean square of a query's element times that of a key's error: the variance of a score if
    both were independent, up to a factor that all heads share. Codes are rounded as in docs/kv.md,
    but for the words of scale and zero.

    Parameters
    ----------
    queries, keys
        Of each layer: float64 [n_samples, n_heads, head_dim] and [n_samples, n_kv_heads, head_dim],
        in one unit for all layers.

    Returns
    -------
    ndarray
        float64 [n_layers, n_kv_heads].
    """
    largest = (1 << kv.key_bits) - 1
    losses = []
    for q, k in zip(queries, keys, strict=True):
        n_samples, n_kv, dim = k.shape
        groups = k.reshape(n_samples, n_kv, -1, kv.group)
        low = groups.min(axis=-1, keepdims=True)
        step = (groups.max(axis=-1, keepdims=True) - low) / largest
        codes = np.rint((groups - low) / np.where(step == 0, 1, step))
        error = ((codes * step + low - groups) ** 2).reshape(n_samples, n_kv, dim)
        asked = (q**2).reshape(n_samples, n_kv, -1, dim)
        losses.append(asked.mean(axis=(0, 2, 3)) * error.mean(axis=(0, 2)))
    return np.array(losses)


def choose_heads(losses: _Floats, kv: KvConfig) -> KvConfig:
    """Fill in the table of heads: the ``wide_heads`` of the largest loss, ties: the first.

    Parameters
    ----------
    losses
        float64 [n_layers, n_kv_heads].
    """
    order = np.argsort(-losses.reshape(-1), kind="stable")[: kv.wide_heads]
    n_kv_heads = losses.shape[1]
    table = sorted((int(place) // n_kv_heads, int(place) % n_kv_heads) for place in order)
    return replace(kv, head_table=tuple(table))
