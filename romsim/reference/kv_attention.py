"""Attention of the integer reference over any KV cache (docs/kv.md, sections 3 and 4)."""

from __future__ import annotations

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
_FEW = 16  # queries at a time where each has slots of its own


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
        values = [history.fresh[1][:, :seen]]
        late: Tensor | None = None
        if history.policy.codec == "kivi":
            is_plain = tokens < history.policy.plain_sinks
            keys_to, values_to = history.late_before(positions)
            late_keys = (tokens[None] < keys_to[:, None]) & ~is_plain
            late = (tokens[None] < values_to[:, None]) & ~is_plain
            coded = block_scores(query[part], history.late[0][:, :seen], history.block)
            scores = torch.where(late_keys, coded, scores)
            values.append(history.late[1][:, :seen])
        hidden = tokens[None] > positions[:, None]  # [T, N]
        scores = saturation.sat32(scores, where=~hidden)
        scores = torch.where(hidden, HIDDEN, scores)
        exponent, p = block_numerators(scores, attn_block)
        weights = p.transpose(1, 2)
        n_blocks = weights.shape[1]
        pad = n_blocks * attn_block - seen
        sums = []
        for number, form in enumerate(values):
            mine = weights
            if late is not None:
                chosen = late if number else ~late
                chosen = torch.nn.functional.pad(chosen, (0, pad))
                chosen = chosen.reshape(-1, n_blocks, attn_block).transpose(0, 1)
                mine = weights * chosen.repeat(1, n_rep, 1)
            blocked = torch.nn.functional.pad(form, (0, 0, 0, pad))
            blocked = blocked.reshape(n_kv, n_blocks, attn_block, head_dim)
            sums.append(exact_products(mine, blocked, attn_block))
        bound = seen * 2.0**15 * max(1.0, *(float(form.abs().max()) for form in values))
        total = sums[0] if len(sums) == 1 else _added(sums[0], sums[1])
        _, _, result = _finish(exponent, weights, total, bound, saturation)
        out[part] = _gather_heads(result.reshape(n_kv, n_rep, -1, head_dim))
    return out


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
    """Sinks and a ring: each query has its own tokens in the same slots."""
    n_tokens, n_kv, n_rep, head_dim = query.shape
    sinks, window = history.policy.sinks, history.policy.window
    start, device = history.length - n_tokens, query.device
    out = torch.empty((n_tokens, n_kv * n_rep * head_dim), dtype=torch.float64, device=device)
    for first in range(0, n_tokens, _FEW):
        part = slice(first, min(first + _FEW, n_tokens))
        positions = torch.arange(start + part.start, start + part.stop, device=device)
        n_slots = min(start + part.stop, sinks + window)
        n_sinks = min(sinks, n_slots)
        # The newest token of each slot of the ring that is not after the query.
        place = torch.arange(n_slots - n_sinks, device=device)
        tokens = positions[:, None] - (positions[:, None] - sinks - place[None]) % window
        low = max(sinks, start + part.start - window + 1, history.first)
        held = slice(low - history.first, start + part.stop - history.first)
        recent = [side[:, held] for side in history.fresh]
        columns = (tokens - low).clamp(min=0)
        there = tokens >= sinks
        scores = block_scores(query[part], recent[0], history.block)
        index = columns[None, None].expand(n_kv, n_rep, -1, -1)
        scores = scores.gather(3, index)
        values = recent[1][:, columns]  # [n_kv, T, ring, head_dim]
        if n_sinks:
            assert sink_query is not None
            of_sinks = block_scores(sink_query[part], history.sinks[0][:, :n_sinks], history.block)
            scores = torch.cat((of_sinks, scores), dim=3)
            fixed = history.sinks[1][:, None, :n_sinks].expand(-1, len(positions), -1, -1)
            values = torch.cat((fixed, values), dim=2)
            before = torch.arange(n_sinks, device=device)[None] <= positions[:, None]
            there = torch.cat((before, there), dim=1)
        scores = saturation.sat32(scores, where=there)
        scores = torch.where(there, scores, HIDDEN)
        exponent, p = block_numerators(scores, attn_block)
        n_blocks = p.shape[2]
        # [n_kv * T, n_blocks, n_rep, block] @ [n_kv * T, n_blocks, block, head_dim]
        weights = p.reshape(n_kv, n_rep, len(positions), n_blocks, attn_block)
        weights = weights.permute(0, 2, 3, 1, 4).flatten(0, 1)
        padded = torch.nn.functional.pad(values, (0, 0, 0, n_blocks * attn_block - n_slots))
        padded = padded.reshape(-1, n_blocks, attn_block, head_dim)
        sums = exact_products(weights, padded, attn_block)
        bound = n_slots * 2.0**15 * max(float(values.abs().max()), 1.0)
        tops = exponent.reshape(n_kv, n_rep, len(positions), n_blocks, 1)
        tops = tops.permute(0, 2, 1, 3, 4).flatten(0, 1)
        _, _, result = _finish(tops, weights, sums, bound, saturation)
        result = result.reshape(n_kv, len(positions), n_rep, head_dim).transpose(1, 2)
        out[part] = _gather_heads(result)
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
