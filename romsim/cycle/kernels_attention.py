"""Attention: quantised heads, scores, softmax numerators, the merge tree (numerics, section 5).

Codes of a head are padded with zeros to whole blocks of 32 (``width`` elements), which adds nothing
to any product.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from romsim.cycle.compiled import inlined, kernel, shared_kernel
from romsim.cycle.kernels_dot import accumulate32, dot32
from romsim.cycle.kernels_primitives import exp2n, reciprocal, rne, saturate, shr, shr_saturate
from romsim.cycle.kernels_sharing import CLAIMED, CLIPPED, FINISHED, fetch_add
from romsim.cycle.kernels_vector import quantise_blocks

__all__ = ["attention", "attention_output", "join_nodes", "quantise_heads"]


@kernel
def quantise_heads(source: Any, head_dim: Any, codes: Any, shifts: Any) -> None:
    """Quantise heads: source int32 [n * head_dim], codes int16 [n, width], shifts int64 [n, b]."""
    block = min(np.int64(32), np.int64(head_dim))
    for head in range(codes.shape[0]):
        inside = source[head * head_dim : (head + 1) * head_dim]
        quantise_blocks(inside, block, codes[head], shifts[head])


@inlined
def join_nodes(maxima: Any, weights: Any, sums: Any, left: Any, right: Any, width: Any) -> None:
    """Join stack entry ``right`` into ``left``: two nodes of the merge tree into one."""
    m = max(maxima[left], maxima[right])
    down_left, down_right = m - maxima[left], m - maxima[right]
    maxima[left] = m
    weights[left] = rne(weights[left], down_left) + rne(weights[right], down_right)
    for d in range(width):
        a, b = left * width + d, right * width + d
        sums[a] = rne(sums[a], down_left) + rne(sums[b], down_right)


@shared_kernel
def attention(
    counters: Any,
    q_codes: Any,  # int16 [n_heads * width]
    q_shifts: Any,  # int64 [n_heads * n_blocks]
    k_codes: Any,  # int8 [n_kv_heads * context * width]
    k_shifts: Any,  # int8 [n_kv_heads * context * n_blocks]
    v_codes: Any,
    v_shifts: Any,
    context: Any,
    n_tokens: Any,
    attn_block: Any,
    heads_per_kv: Any,
    score_shift: Any,  # 2 F_A - 16
    exp_table: Any,
    scores: Any,  # int64 [n_heads, attn_block], scratch
    maxima: Any,  # int64 [n_heads * depth], the merge stacks
    weights: Any,  # int64 [n_heads * depth]
    sums: Any,  # int64 [n_heads * depth * width]
) -> None:
    """Attend to tokens 0 to ``n_tokens - 1``, a head a piece; count the saturations.

    The result of head ``h`` is left in entry 0 of its merge stack, ``h * depth``.
    """
    n_heads = scores.shape[0]
    n_blocks = q_shifts.shape[0] // n_heads
    width = 32 * n_blocks
    depth = maxima.shape[0] // n_heads
    while True:
        head = fetch_add(counters, CLAIMED, 1)
        if head >= n_heads:
            return
        clipped = np.int64(0)
        row = (head // heads_per_kv) * context
        base = head * depth
        top = 0  # entries on the stack
        for first in range(0, n_tokens, attn_block):
            n = min(attn_block, n_tokens - first)
            highest = np.int64(-(2**31))
            for t in range(n):
                token = row + first + t
                total = np.int64(0)
                for b in range(n_blocks):
                    product = dot32(k_codes, token * width + 32 * b, q_codes, head * width + 32 * b)
                    down = score_shift - q_shifts[head * n_blocks + b]
                    total += shr(product, down - np.int64(k_shifts[token * n_blocks + b]))
                score, clip = saturate(total)
                clipped += clip
                scores[head, t] = score
                highest = max(highest, score)
            m = (highest + np.int64(65535)) >> np.int64(16)
            entry = base + top
            maxima[entry] = m
            weight = np.int64(0)
            for d in range(width):
                sums[entry * width + d] = 0
            for t in range(n):
                v, n_halvings = exp2n((m << np.int64(16)) - scores[head, t], exp_table)
                p = np.int64(0)
                if n_halvings < 16:
                    p = rne(v, np.int64(5) + n_halvings)
                weight += p
                token = row + first + t
                for b in range(n_blocks):
                    accumulate32(
                        sums,
                        entry * width + 32 * b,
                        v_codes,
                        token * width + 32 * b,
                        p,
                        np.int64(v_shifts[token * n_blocks + b]),
                    )
            weights[entry] = weight
            top += 1
            index = first // attn_block
            while index & 1:  # this block completes a pair: join as often as it has trailing ones
                top -= 1
                join_nodes(maxima, weights, sums, base + top - 1, base + top, width)
                index >>= 1
        while top > 1:  # what has no right neighbour passes up: join from the newest
            top -= 1
            join_nodes(maxima, weights, sums, base + top - 1, base + top, width)
        fetch_add(counters, CLIPPED, clipped)
        fetch_add(counters, FINISHED, 1)


@kernel
def attention_output(
    weights: Any,  # int64 [n_heads], l
    sums: Any,  # int64 [n_heads, width], o
    head_dim: Any,
    rcp_table: Any,
    out: Any,  # int32 [n_heads * head_dim]
) -> Any:
    """Divide the sums by the weights; return the saturations."""
    clipped = np.int64(0)
    for head in range(weights.shape[0]):
        y, bits = reciprocal(weights[head], rcp_table)
        for d in range(head_dim):
            result, clip = shr_saturate(rne(sums[head, d], bits) * y, np.int64(30))
            out[head * head_dim + d] = result
            clipped += clip
    return clipped
