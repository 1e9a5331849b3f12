"""Scores, softmax and value sums over the coded cache, and the fixed tree that merges blocks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from romsim.reference.config import NumericsConfig
from romsim.reference.functions import exp2n, recip
from romsim.reference.primitives import (
    BlockCodes,
    Saturation,
    power_of_two,
    rne,
    shr_float,
)

__all__ = [
    "HIDDEN",
    "QUERIES",
    "SCORE_FRAC",
    "CachedWords",
    "LayerCache",
    "attend",
    "block_numerators",
    "block_scores",
    "divide",
    "exact_products",
    "merge_blocks",
]

QUERIES = 64
"""Query tokens at a time: their scores over the context stay in the processor's cache."""
SCORE_FRAC = 16
"""Fraction bits of scores."""
HIDDEN = -(2.0**40)
"""Score of a key that is not there for a query: below any score, and still exact."""
_EXACT = 2**53
_UNIT = 2**SCORE_FRAC
_VANISHED = 16 * _UNIT  # from 2^-16 on a numerator of frac 15 rounds to 0
_NO_KEY = -(2**20)  # exponents below this are of blocks without keys


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachedWords:
    """Words of one layer's cache, in logical order.

    Parameters
    ----------
    k_codes, v_codes
        int8 [n_tokens, n_kv_heads * head_dim].
    k_shifts, v_shifts
        int8 [n_tokens, n_kv_heads * blocks of a head].
    """

    k_codes: NDArray[np.int8]
    k_shifts: NDArray[np.int8]
    v_codes: NDArray[np.int8]
    v_shifts: NDArray[np.int8]


@dataclass(slots=True, kw_only=True)
class LayerCache:
    """Key and value words of one layer, in logical order of the tokens.

    Parameters
    ----------
    n_heads, head_dim, block
        Shape of one token's words: key/value heads, elements of a head, elements per shift.
    frac
        Fraction bits of keys and values.
    keys, values, key_shifts, value_shifts
        int8 [capacity, n_heads, head_dim] and [capacity, n_heads, blocks of a head].
    length
        Tokens held.
    """

    n_heads: int
    head_dim: int
    block: int
    frac: int
    keys: Tensor
    values: Tensor
    key_shifts: Tensor
    value_shifts: Tensor
    length: int = 0

    @classmethod
    def empty(
        cls, *, n_heads: int, head_dim: int, block: int, frac: int, device: torch.device
    ) -> LayerCache:
        """Cache without tokens."""
        n_blocks = -(-head_dim // block)
        words = torch.zeros((0, n_heads, head_dim), dtype=torch.int8, device=device)
        shifts = torch.zeros((0, n_heads, n_blocks), dtype=torch.int8, device=device)
        return cls(
            n_heads=n_heads,
            head_dim=head_dim,
            block=block,
            frac=frac,
            keys=words,
            values=words,
            key_shifts=shifts,
            value_shifts=shifts,
        )

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self.length = length

    def words(self, length: int) -> CachedWords:
        """Words of the first ``length`` tokens."""

        def flat(held: Tensor) -> NDArray[np.int8]:
            return np.array(held[:length].reshape(length, -1).cpu().numpy())

        return CachedWords(
            k_codes=flat(self.keys),
            k_shifts=flat(self.key_shifts),
            v_codes=flat(self.values),
            v_shifts=flat(self.value_shifts),
        )

    def append(self, keys: BlockCodes, values: BlockCodes) -> None:
        """Add words of tokens: codes int8 [T, n_heads, head_dim]."""
        first, last = self.length, self.length + keys.codes.shape[0]
        for name, words in (
            ("keys", keys.codes),
            ("values", values.codes),
            ("key_shifts", keys.shifts),
            ("value_shifts", values.shifts),
        ):
            held: Tensor = getattr(self, name)
            if last > held.shape[0]:
                grown = held.new_zeros((max(last, 2 * held.shape[0]), *held.shape[1:]))
                grown[:first] = held[:first]
                held = grown
                setattr(self, name, held)
            held[first:last] = words
        self.length = last

    def scaled(self, codes: Tensor, shifts: Tensor, frac: int) -> Tensor:
        """Words as exact float64 integers times ``2^-frac``: [n_heads, length, head_dim]."""
        wide = shifts[: self.length].repeat_interleave(self.block, dim=-1)[..., : self.head_dim]
        scale = power_of_two(wide.to(torch.int64) - frac)
        return (codes[: self.length].to(torch.float64) * scale).transpose(0, 1).contiguous()


def attend(
    query: BlockCodes, cache: LayerCache, *, config: NumericsConfig, saturation: Saturation
) -> Tensor:
    """Causal attention of the cache's last tokens.

    Parameters
    ----------
    query
        Codes int8 [T, n_heads, head_dim] of the last T tokens of the cache, scaled and rotated.
    cache
        Words of all tokens, the T new ones included.
    config
        Gives ``attn_block``.
    saturation
        Counts the clips.

    Returns
    -------
    Tensor
        float64 [T, n_heads * head_dim], int32 values, of the values' frac.
    """
    n_tokens, n_heads, head_dim = query.codes.shape
    n_kv = cache.n_heads
    # Both factors carry their shifts; a product of one block is an integer below 2^53 times one
    # power of two, exact in float64, and `round` is the page's rounding.
    scaled_query = query.codes.to(torch.float64) * power_of_two(query.element_shifts())
    grouped = scaled_query.reshape(n_tokens, n_kv, n_heads // n_kv, head_dim)
    keys = cache.scaled(cache.keys, cache.key_shifts, query.frac + cache.frac - SCORE_FRAC)
    values = cache.scaled(cache.values, cache.value_shifts, 0)
    start = cache.length - n_tokens
    out = torch.empty((n_tokens, n_heads * head_dim), dtype=torch.float64, device=keys.device)
    for first in range(0, n_tokens, QUERIES):
        last = min(first + QUERIES, n_tokens)
        seen = start + last
        scores = block_scores(grouped[first:last], keys[:, :seen], query.block)
        hidden = torch.ones((last - first, seen), dtype=torch.bool, device=keys.device)
        hidden = hidden.triu(start + first + 1)  # [T, N]: keys after the query
        scores = saturation.sat32(scores, where=~hidden)
        # Keys before the first query are seen by all.
        scores[..., start + first :].add_(hidden[:, start + first :], alpha=HIDDEN)
        part = _weighted_values(scores, values[:, :seen], config.attn_block, saturation)
        # [n_kv, n_rep, T, head_dim] -> [T, n_heads * head_dim]
        out[first:last] = part.permute(2, 0, 1, 3).reshape(last - first, n_heads * head_dim)
    return out


def block_scores(query: Tensor, keys: Tensor, block: int) -> Tensor:
    """Sum rounded block products: float64 [n_kv, n_rep, T, N], frac 16, not yet clipped.

    Parameters
    ----------
    query
        float64 [T, n_kv, n_rep, head_dim].
    keys
        float64 [n_kv, N, head_dim], already shifted to frac 16 together with the query.
    block
        Elements per shift.
    """
    n_tokens, n_kv, n_rep, head_dim = query.shape
    rows = query.permute(1, 2, 0, 3).reshape(n_kv, n_rep * n_tokens, head_dim)
    total: Tensor | None = None
    for first in range(0, head_dim, block):
        part = slice(first, first + block)
        product = (rows[..., part] @ keys[..., part].transpose(1, 2)).round_()
        total = product if total is None else total.add_(product)
    assert total is not None
    return total.reshape(n_kv, n_rep, n_tokens, keys.shape[1])


@functools.lru_cache(maxsize=8)
def _numerators(device: torch.device) -> Tensor:
    """Numerator p of every distance d = 0 … 2^20 below the block's exponent, float64."""
    distance = torch.arange(_VANISHED + 1, dtype=torch.int64, device=device)
    v, n = exp2n(distance)
    return torch.where(n >= 16, 0, rne(v, 5 + n)).to(torch.float64)


def _weighted_values(scores: Tensor, values: Tensor, block: int, saturation: Saturation) -> Tensor:
    """Softmax and value sums, float64 [n_kv, n_rep, T, head_dim], int32 values.

    Parameters
    ----------
    scores
        float64 [n_kv, n_rep, T, N]: int32 values, and lower ones at keys that do not exist for a
        query.
    values
        float64 [n_kv, N, head_dim], integers.
    block
        Keys whose sums are exact before blocks are merged.
    saturation
        Counts the clips.
    """
    n_kv, n_rep, n_tokens, n_keys = scores.shape
    head_dim = values.shape[-1]
    exponent, p = block_numerators(scores, block)
    # [n_kv, n_blocks, rows, block] @ [n_kv, n_blocks, block, head_dim]
    weights = p.transpose(1, 2)
    n_blocks = weights.shape[1]
    padded_values = torch.nn.functional.pad(values, (0, 0, 0, n_blocks * block - n_keys))
    sums = exact_products(weights, padded_values.reshape(n_kv, n_blocks, block, head_dim), block)
    # The tree's sums stay below 2^15 N max|v|: float64 holds them if that is below 2^53.
    if n_keys * 2.0**15 * max(float(values.abs().max()), 1.0) >= _EXACT:
        sums = sums.to(torch.int64)
    _, mass, total = merge_blocks(exponent[..., 0].transpose(1, 2), weights.sum(dim=-1), sums)
    return divide(mass, total, saturation).reshape(n_kv, n_rep, n_tokens, head_dim)


def block_numerators(scores: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Exponent and numerators of every block of keys.

    Parameters
    ----------
    scores
        float64 [n_kv, n_rep, T, N]: int32 values, and lower ones at keys that do not exist for a
        query.
    block
        Keys of a block.

    Returns
    -------
    tuple of Tensor
        Exponents float64 [n_kv, rows, n_blocks, 1] and numerators [n_kv, rows, n_blocks, block],
        ``rows = n_rep * T``.
    """
    n_kv, n_rep, n_tokens, n_keys = scores.shape
    n_blocks = -(-n_keys // block)
    padded = torch.nn.functional.pad(scores, (0, n_blocks * block - n_keys), value=HIDDEN)
    blocked = padded.reshape(n_kv, n_rep * n_tokens, n_blocks, block)
    # floor((z + 65535) / 65536) is z / 65536 rounded up.
    exponent = (blocked.amax(dim=-1, keepdim=True) * 2.0**-SCORE_FRAC).ceil_()
    distance = (exponent * _UNIT - blocked).clamp_(max=_VANISHED)
    table = _numerators(scores.device)
    p = table.index_select(0, distance.reshape(-1).to(torch.int32)).reshape(distance.shape)
    no_key = exponent < _NO_KEY
    if bool(no_key.any()):
        p.masked_fill_(no_key, 0.0)
    return exponent, p


def divide(mass: Tensor, total: Tensor, saturation: Saturation) -> Tensor:
    """Divide value sums [..., head_dim] by the mass [...]: float64, int32 values."""
    # Every token sees itself, so that its mass is at least 2^14.
    y, places = recip(mass.to(torch.int64))
    shortened = rne(total.to(torch.int64), places[..., None])
    return saturation.sat32(rne(shortened * y[..., None], 30)).to(torch.float64)


def exact_products(weights: Tensor, blocks: Tensor, block: int) -> Tensor:
    """Sum products of a block exactly, in float64 or, where 2^53 could be passed, in int64."""
    if block * 2.0**15 * max(float(blocks.abs().max()), 1.0) < _EXACT:
        return weights @ blocks
    # |v| <= 2^31: its low 16 bits and the rest; block <= 2^16 keeps both sums below 2^48.
    high = torch.floor(blocks / 2.0**16)
    low = blocks - high * 2.0**16
    return ((weights @ high).to(torch.int64) << 16) + (weights @ low).to(torch.int64)


def merge_blocks(exponent: Tensor, mass: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Join neighbouring blocks level by level; a node without a right neighbour passes up.

    A block in which a query sees no key has no mass: joined as a right neighbour it changes
    nothing, which is the same as passing up.

    Parameters
    ----------
    exponent, mass
        float64 [n_kv, n_blocks, rows].
    total
        float64 or int64 [n_kv, n_blocks, rows, head_dim].

    Returns
    -------
    tuple of Tensor
        The three without the blocks' dimension.
    """
    shift_right = shr_float if total.dtype == torch.float64 else rne
    while (n_blocks := exponent.shape[1]) > 1:
        n_pairs = n_blocks // 2
        left, right = slice(0, 2 * n_pairs, 2), slice(1, 2 * n_pairs, 2)
        joined = torch.maximum(exponent[:, left], exponent[:, right])
        to_left = (joined - exponent[:, left]).to(torch.int64)
        to_right = (joined - exponent[:, right]).to(torch.int64)
        new_mass = shr_float(mass[:, left], to_left) + shr_float(mass[:, right], to_right)
        new_total = shift_right(total[:, left], to_left[..., None])
        new_total += shift_right(total[:, right], to_right[..., None])
        if n_blocks % 2:
            joined = torch.cat((joined, exponent[:, -1:]), dim=1)
            new_mass = torch.cat((new_mass, mass[:, -1:]), dim=1)
            new_total = torch.cat((new_total, total[:, -1:]), dim=1)
        exponent, mass, total = joined, new_mass, new_total
    return exponent[:, 0], mass[:, 0], total[:, 0]
