"""Attention over slots, whatever the codec: scores, numerators, sums, mass (docs/kv.md, 3, 4)."""

from __future__ import annotations

from typing import Any

import numpy as np

from romsim.cycle.compiled import kernel, shared_kernel
from romsim.cycle.kernels_attention import join_nodes
from romsim.cycle.kernels_dot_float import accumulate32_float, dot32_float
from romsim.cycle.kernels_primitives import exp2n, reciprocal, rne, saturate, shr
from romsim.cycle.kernels_sharing import CLAIMED, CLIPPED, FINISHED, fetch_add

__all__ = ["add_mass", "kv_attention", "least_mass"]


@shared_kernel
def kv_attention(
    counters: Any,
    queries: Any,  # float64 [2 * n_heads * width]: of recent keys, of the sinks
    q_shifts: Any,  # int64 [2 * n_heads * n_blocks]
    n_sinks: Any,  # slots that the second query reads
    keys: Any,  # float64 [n_kv_heads * capacity * width], integers
    values: Any,
    rows: Any,  # int64 [n_slots]: where a slot lies
    capacity: Any,
    n_slots: Any,
    attn_block: Any,
    heads_per_kv: Any,
    score_shift: Any,  # 2 F_A - 16
    is_small: Any,  # whether a block's sums stay below 2^53
    exp_table: Any,
    numerators: Any,  # int64 [n_heads, at least n_slots]
    tops: Any,  # int64 [n_heads, at least the number of blocks]: m of each block
    totals: Any,  # float64 [n_heads * width], scratch
    maxima: Any,  # int64 [n_heads * depth], the merge stacks
    weights: Any,
    sums: Any,  # int64 [n_heads * depth * width]
) -> None:
    """Attend to ``n_slots`` slots, a head a piece; the result is as `attention` leaves it."""
    n_heads = numerators.shape[0]
    n_blocks = q_shifts.shape[0] // (2 * n_heads)
    width = 32 * n_blocks
    depth = maxima.shape[0] // n_heads
    while True:
        head = fetch_add(counters, CLAIMED, 1)
        if head >= n_heads:
            return
        clipped = np.int64(0)
        kv_row = (head // heads_per_kv) * capacity
        base = head * depth
        top = 0
        for first in range(0, n_slots, attn_block):
            end = min(n_slots, first + attn_block)
            index = first // attn_block
            highest = np.int64(-(2**31))
            for slot in range(first, end):
                at = (kv_row + rows[slot]) * width
                row = head if slot >= n_sinks else n_heads + head
                total = np.int64(0)
                for b in range(n_blocks):
                    product = dot32_float(keys, at + 32 * b, queries, row * width + 32 * b)
                    total += shr(np.int64(product), score_shift - q_shifts[row * n_blocks + b])
                score, clip = saturate(total)
                clipped += clip
                numerators[head, slot] = score
                highest = max(highest, score)
            m = (highest + np.int64(65535)) >> np.int64(16)
            tops[head, index] = m
            entry = base + top
            maxima[entry] = m
            weight = np.int64(0)
            for d in range(width):
                totals[head * width + d] = 0.0
                sums[entry * width + d] = 0
            for slot in range(first, end):
                v, n_halvings = exp2n((m << np.int64(16)) - numerators[head, slot], exp_table)
                p = np.int64(0)
                if n_halvings < 16:
                    p = rne(v, np.int64(5) + n_halvings)
                numerators[head, slot] = p
                weight += p
                at = (kv_row + rows[slot]) * width
                if is_small:
                    for b in range(n_blocks):
                        accumulate32_float(
                            totals, head * width + 32 * b, values, at + 32 * b, np.float64(p)
                        )
                else:
                    for d in range(width):
                        sums[entry * width + d] += p * np.int64(values[at + d])
            if is_small:
                for d in range(width):
                    sums[entry * width + d] = np.int64(totals[head * width + d])
            weights[entry] = weight
            top += 1
            while index & 1:
                top -= 1
                join_nodes(maxima, weights, sums, base + top - 1, base + top, width)
                index >>= 1
        while top > 1:
            top -= 1
            join_nodes(maxima, weights, sums, base + top - 1, base + top, width)
        fetch_add(counters, CLIPPED, clipped)
        fetch_add(counters, FINISHED, 1)


@kernel
def add_mass(
    numerators: Any,  # int64 [n_heads, at least n_slots]
    tops: Any,  # int64 [n_heads, at least the number of blocks]
    maxima: Any,  # int64 [n_heads], m of the whole row
    weights: Any,  # int64 [n_heads], l
    n_slots: Any,
    attn_block: Any,
    heads_per_kv: Any,
    rcp_table: Any,
    mass: Any,  # int64 [n_kv_heads, slots]
) -> None:
    """Add each slot's share of attention, frac 16, over the query heads of a KV head."""
    limit = (np.int64(1) << np.int64(40)) - np.int64(1)
    n_kv_heads = mass.shape[0]
    for kv_head in range(n_kv_heads):
        for head in range(kv_head * heads_per_kv, (kv_head + 1) * heads_per_kv):
            y, bits = reciprocal(weights[head], rcp_table)
            for slot in range(n_slots):
                down = maxima[head] - tops[head, slot // attn_block]
                mass[kv_head, slot] += rne(numerators[head, slot] * y, np.int64(14) + bits + down)
        for slot in range(n_slots):
            mass[kv_head, slot] = min(limit, mass[kv_head, slot])


@kernel
def least_mass(mass: Any, positions: Any, n_slots: Any, oldest_kept: Any, evicted: Any) -> None:
    """Find the slot of least mass among tokens before ``oldest_kept``, per KV head; lowest wins.

    Positions are int64 [n_kv_heads, slots], -1 for none; the result is int64 [n_kv_heads].
    """
    for head in range(mass.shape[0]):
        best = -1
        for slot in range(n_slots):
            if 0 <= positions[head, slot] < oldest_kept and (
                best < 0 or mass[head, slot] < mass[head, best]
            ):
                best = slot
        evicted[head] = best
