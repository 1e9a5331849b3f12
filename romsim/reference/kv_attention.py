"""Attention of the integer reference over any KV cache (docs/kv.md, sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from romsim.reference.attention import (
    HIDDEN,
    QUERIES,
    SCORE_FRAC,
    block_numerators,
    block_scores,
    divide,
    exact_products,
    merge_blocks,
)
from romsim.reference.functions import recip
from romsim.reference.kv_history import KvHistory, NotePart
from romsim.reference.primitives import BlockCodes, Saturation, power_of_two, rne

__all__ = ["attend_history"]

_EXACT = 2.0**53
_MASS_LIMIT = 2**40 - 1


def attend_history(
    query: BlockCodes,
    sink_query: BlockCodes | None,
    history: KvHistory,
    *,
    attn_block: int,
    saturation: Saturation,
    note: NotePart,
) -> Tensor:
    """Attention of the history's last tokens, and what follows it.

    Parameters
    ----------
    query
        Codes int8 [T, n_heads, head_dim] of the last T tokens, scaled and rotated.
    sink_query
        The same for a window's sinks, or ``None``.
    history
        Holds all tokens, the T new ones included.
    attn_block
        Slots whose sums are exact before blocks are merged.

    Returns
    -------
    Tensor
        float64 [T, n_heads * head_dim], int32 values.
    """
    rows = _rows(query, history)
    # Products then have the scores' frac.
    keyed = rows * 2.0 ** -(query.frac + history.frac - SCORE_FRAC)
    if history.policy.is_ranked:
        return _attend_ranked(keyed, history, attn_block, saturation, note)
    if history.policy.retention == "stream":
        sinks = None if sink_query is None else _rows(sink_query, history)
        if sinks is not None:
            sinks = sinks * 2.0 ** -(query.frac + history.frac - SCORE_FRAC)
        return _attend_stream(keyed, sinks, history, attn_block, saturation)
    return _attend_all(keyed, history, attn_block, saturation)


def _rows(query: BlockCodes, history: KvHistory) -> Tensor:
    """Query as integers, float64 [T, n_kv, n_rep, head_dim]."""
    n_tokens, n_heads, head_dim = query.codes.shape
    scaled = query.codes.to(torch.float64) * power_of_two(query.element_shifts())
    return scaled.reshape(n_tokens, history.n_heads, n_heads // history.n_heads, head_dim)


def _gather_heads(part: Tensor) -> Tensor:
    """[n_kv, n_rep, T, head_dim] -> [T, n_heads * head_dim]."""
    return part.permute(2, 0, 1, 3).reshape(part.shape[2], -1)


def _finish(
    exponent: Tensor, weights: Tensor, sums: Tensor, bound: float, saturation: Saturation
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge blocks and divide.

    Parameters
    ----------
    exponent
        float64 [n, rows, n_blocks, 1].
    weights
        float64 [n, n_blocks, rows, block].
    sums
        float64 or int64 [n, n_blocks, rows, head_dim].
    bound
        Of the tree's sums: from 2^53 on they are kept in int64.

    Returns
    -------
    tuple of Tensor
        Exponent and mass, float64 [n, rows], and the result, float64 [n, rows, head_dim].
    """
    if bound >= _EXACT:
        sums = sums.to(torch.int64)
    top, mass, total = merge_blocks(exponent[..., 0].transpose(1, 2), weights.sum(dim=-1), sums)
    return top, mass, divide(mass, total, saturation)


def _attend_all(
    query: Tensor, history: KvHistory, attn_block: int, saturation: Saturation
) -> Tensor:
    """Every token in its own slot; with KIVI in one of two forms."""
    n_tokens, n_kv, n_rep, head_dim = query.shape
    start = history.length - n_tokens
    device = query.device
    out = torch.empty((n_tokens, n_kv * n_rep * head_dim), dtype=torch.float64, device=device)
    for first in range(0, n_tokens, QUERIES):
        part = slice(first, min(first + QUERIES, n_tokens))
        seen = start + part.stop
        tokens = torch.arange(seen, device=device)
        positions = torch.arange(start + part.start, seen, device=device)
        scores = block_scores(query[part], history.fresh[0][:, :seen], history.block)
        forms: list[_Form] = [(history.fresh[1][:, :seen], None)]
        if history.policy.codec in ("kivi", "commvq"):
            is_plain = tokens < history.policy.plain_sinks
            keys_to, values_to = history.late_before(positions)
            late_keys = (tokens[None] < keys_to[:, None]) & ~is_plain
            late = (tokens[None] < values_to[:, None]) & ~is_plain
            coded = block_scores(query[part], history.late[0][:, :seen], history.block)
            scores = torch.where(late_keys, coded, scores)
            forms = [(history.fresh[1][:, :seen], ~late), (history.late[1][:, :seen], late)]
        there = tokens[None] <= positions[:, None]  # [T, N]
        out[part] = _gather_heads(_weighted_sums(scores, there, forms, attn_block, saturation))
    return out


_Form = tuple[Tensor, Tensor | None]
"""Values [n_kv, slots, head_dim], and which query reads which slot of them, bool [T, slots]."""


def _weighted_sums(
    scores: Tensor,
    there: Tensor,
    forms: Sequence[_Form],
    attn_block: int,
    saturation: Saturation,
) -> Tensor:
    """Softmax over slots and the sums of their values: float64 [n_kv, n_rep, T, head_dim].

    Parameters
    ----------
    scores
        float64 [n_kv, n_rep, T, slots], not yet clipped.
    there
        Which slot holds a token that a query reads, bool [T, slots].
    forms
        One, or several of which each query reads every slot in at most one.
    """
    n_kv, n_rep, n_tokens, n_slots = scores.shape
    scores = saturation.sat32(scores, where=there)
    scores = torch.where(there, scores, HIDDEN)
    exponent, p = block_numerators(scores, attn_block)
    weights = p.transpose(1, 2)
    n_blocks = weights.shape[1]
    pad = n_blocks * attn_block - n_slots
    total: Tensor | None = None
    largest = 1.0
    for values, chosen in forms:
        mine = weights
        if chosen is not None:
            chosen = torch.nn.functional.pad(chosen, (0, pad))
            chosen = chosen.reshape(-1, n_blocks, attn_block).transpose(0, 1)
            mine = weights * chosen.repeat(1, n_rep, 1)
        blocked = torch.nn.functional.pad(values, (0, 0, 0, pad))
        blocked = blocked.reshape(n_kv, n_blocks, attn_block, -1)
        sums = exact_products(mine, blocked, attn_block)
        total = sums if total is None else _added(total, sums)
        largest = max(largest, float(values.abs().max()))
    assert total is not None
    _, _, result = _finish(exponent, weights, total, n_slots * 2.0**15 * largest, saturation)
    return result.reshape(n_kv, n_rep, n_tokens, -1)


def _added(a: Tensor, b: Tensor) -> Tensor:
    """Add sums of which either may have needed whole words; each is below 2^52 in float64."""
    if a.dtype == b.dtype == torch.float64:
        return a + b
    return a.to(torch.int64) + b.to(torch.int64)


def _attend_stream(
    query: Tensor,
    sink_query: Tensor | None,
    history: KvHistory,
    attn_block: int,
    saturation: Saturation,
) -> Tensor:
    """Sinks and a ring: no slot takes more than one new token while a batch of queries attends.

    So a slot holds what it held before the batch (its old form) up to the query at which its new
    token arrives, and that token (its new form) from then on.
    """
    n_tokens, n_kv, n_rep, head_dim = query.shape
    sinks, window = history.policy.sinks, history.policy.window
    start, device = history.length - n_tokens, query.device
    out = torch.empty((n_tokens, n_kv * n_rep * head_dim), dtype=torch.float64, device=device)
    step = min(QUERIES, window)
    for first in range(0, n_tokens, step):
        part = slice(first, min(first + step, n_tokens))
        positions = torch.arange(start + part.start, start + part.stop, device=device)
        n_slots = min(start + part.stop, sinks + window)
        n_sinks = min(sinks, n_slots)
        last = start + part.stop - 1
        place = torch.arange(n_slots - n_sinks, device=device)
        new = last - (last - sinks - place) % window
        old = torch.where(new >= start + part.start, new - window, new)
        low = max(sinks, start + part.start - window, history.first)
        held = slice(low - history.first, last + 1 - history.first)
        keys, values = (side[:, held] for side in history.fresh)
        scores = block_scores(query[part], keys, history.block)
        is_new = new[None] <= positions[:, None]  # [T, ring]
        at_new, at_old = new - low, (old - low).clamp(min=0)
        scores = torch.where(is_new, scores[..., at_new], scores[..., at_old])
        there = is_new | (old >= sinks)
        is_old = ~is_new
        new_values, old_values = values[:, at_new], values[:, at_old]
        if n_sinks:
            assert sink_query is not None
            of_sinks = block_scores(sink_query[part], history.sinks[0][:, :n_sinks], history.block)
            scores = torch.cat((of_sinks, scores), dim=3)
            fixed = history.sinks[1][:, :n_sinks]
            new_values = torch.cat((fixed, new_values), dim=1)
            old_values = torch.nn.functional.pad(old_values, (0, 0, n_sinks, 0))
            before = torch.arange(n_sinks, device=device)[None] <= positions[:, None]
            there = torch.cat((before, there), dim=1)
            is_new = torch.nn.functional.pad(is_new, (n_sinks, 0), value=True)
            is_old = torch.nn.functional.pad(is_old, (n_sinks, 0), value=False)
        forms: list[_Form] = [(new_values, is_new), (old_values, is_old)]
        out[part] = _gather_heads(_weighted_sums(scores, there, forms, attn_block, saturation))
    return out


def _attend_ranked(
    query: Tensor, history: KvHistory, attn_block: int, saturation: Saturation, note: NotePart
) -> Tensor:
    """One token after another: what is dropped or narrowed depends on what was attended to."""
    n_tokens, n_kv, n_rep, head_dim = query.shape
    start = history.length - n_tokens
    out = torch.empty((n_tokens, n_kv * n_rep * head_dim), dtype=torch.float64, device=query.device)
    for index in range(n_tokens):
        position = start + index
        n_slots = _enter(history, position)
        scores = block_scores(
            query[index : index + 1], history.slot_keys[:, :n_slots], history.block
        )
        exponent, p = block_numerators(saturation.sat32(scores), attn_block)
        weights = p.transpose(1, 2)
        n_blocks = weights.shape[1]
        values = history.slot_values[:, :n_slots]
        padded = torch.nn.functional.pad(values, (0, 0, 0, n_blocks * attn_block - n_slots))
        sums = exact_products(
            weights, padded.reshape(n_kv, n_blocks, attn_block, head_dim), attn_block
        )
        bound = n_slots * 2.0**15 * max(float(values.abs().max()), 1.0)
        top, mass, result = _finish(exponent, weights, sums, bound, saturation)
        out[index] = result.reshape(-1)
        _add_mass(history, exponent, p, top, mass, n_slots)
        _demote(history, position, n_slots, note)
    return out


def _enter(history: KvHistory, position: int) -> int:
    """Put a token into its slots; return how many there are."""
    policy, heads = history.policy, torch.arange(history.n_heads)
    if policy.codec == "tiered":
        history.mass[:, position] = 0
        history.slot_positions[:, position] = position
        return position + 1
    whole = policy.heavy + policy.window + 1
    slots = history.free if position >= whole else torch.full_like(history.free, position)
    at = position - history.first
    history.slot_keys[heads, slots] = history.fresh[0][:, at]
    history.slot_values[heads, slots] = history.fresh[1][:, at]
    history.mass[heads, slots] = 0
    history.slot_positions[heads, slots] = position
    return min(position + 1, whole)


def _add_mass(
    history: KvHistory, exponent: Tensor, p: Tensor, top: Tensor, mass: Tensor, n_slots: int
) -> None:
    """Add each slot's share: p [n_kv, n_rep, n_blocks, block], top and mass [n_kv, n_rep]."""
    y, places = recip(mass.to(torch.int64))
    down = (top[..., None] - exponent[..., 0]).to(torch.int64)  # [n_kv, n_rep, n_blocks]
    shift = 14 + places[..., None] + down
    share = rne(p.to(torch.int64) * y[..., None, None], shift[..., None])
    total = share.flatten(2)[..., :n_slots].sum(dim=1)
    history.mass[:, :n_slots] = (history.mass[:, :n_slots] + total).clamp(max=_MASS_LIMIT)


def _demote(history: KvHistory, position: int, n_slots: int, note: NotePart) -> None:
    """Drop or narrow the token of least mass among all but the newest, in each KV head."""
    policy = history.policy
    is_tiered = policy.codec == "tiered"
    mass, positions = history.mass[:, :n_slots], history.slot_positions[:, :n_slots]
    if is_tiered:
        mass.masked_fill_(positions < 0, 0)
    note("mass", position, mass[None])
    slots = torch.full_like(history.free, -1)
    if position >= policy.heavy + policy.window:
        # One number orders by mass, then by slot: 40 bits and 17.
        order = mass * 2**17 + torch.arange(n_slots)
        fixed = (positions > position - policy.window) | (positions < 0)
        slots = order.masked_fill(fixed, 2**62).argmin(dim=1)
        if is_tiered:
            history.slot_positions[torch.arange(history.n_heads), slots] = -1
            history.narrow(slots, position, note)
        else:
            history.free = slots
    note("narrowed" if is_tiered else "evicted", position, slots[None])
