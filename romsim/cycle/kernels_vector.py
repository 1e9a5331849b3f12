"""The vector unit: quantiser, norm, rotary positions, activation (numerics, sections 2 and 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from romsim.cycle.compiled import inlined, kernel
from romsim.cycle.kernels_primitives import (
    bitlen,
    rne,
    rsqrt,
    saturate,
    shr,
    shr_saturate,
    sine_quarter,
)

__all__ = [
    "gated_activation",
    "quantise_blocks",
    "quantise_vector",
    "rms_norm",
    "rotate",
    "scale_query",
    "sine_cosine",
]


@inlined
def quantise_blocks(source: Any, block: Any, codes: Any, shifts: Any) -> None:
    """Quantise ``source`` (int32 [n]) to MXINT8 in blocks of ``block``, the last one shorter."""
    n = source.shape[0]
    for index in range((n + block - 1) // block):
        first = index * block
        end = min(first + block, n)
        united = np.int64(0)
        for i in range(first, end):
            united |= abs(np.int64(source[i]))
        shift = max(np.int64(0), bitlen(united) - np.int64(7))
        # A code of 128 needs a magnitude of 127.5 * 2^shift, which the OR cannot exclude.
        over = False
        for i in range(first, end):
            code = rne(np.int64(source[i]), shift)
            over |= code == 128 or code == -128
            codes[i] = code
        if over:
            shift += np.int64(1)
            for i in range(first, end):
                codes[i] = rne(np.int64(source[i]), shift)
        shifts[index] = shift


@kernel
def quantise_vector(source: Any, block: Any, codes: Any, shifts: Any, sums: Any) -> None:
    """Quantise a matrix input: codes int16 [n], shifts and sums of codes int64 [n_blocks]."""
    quantise_blocks(source, block, codes, shifts)
    n = source.shape[0]
    for index in range(shifts.shape[0]):
        total = np.int64(0)
        for i in range(index * block, min((index + 1) * block, n)):
            total += np.int64(codes[i])
        sums[index] = total


@kernel
def rms_norm(
    source: Any,  # int32 [n]
    gains: Any,  # int32 [n]
    gain_shift: Any,
    eps_term: Any,
    root: Any,
    out_frac: Any,
    rsq_table: Any,
    out: Any,  # int32 [n]
) -> Any:
    """RMSNorm with gains; return the saturations."""
    united = np.int64(0)
    for i in range(source.shape[0]):
        united |= abs(np.int64(source[i]))
    down = max(bitlen(united) - np.int64(24), np.int64(-10))
    squares = np.int64(0)
    for i in range(source.shape[0]):
        u = shr(np.int64(source[i]), down)
        squares += u * u
    squares += rne(np.int64(eps_term), np.int64(2) * (down + np.int64(10)))
    y, half = rsqrt(squares, rsq_table)
    factor = rne(y * np.int64(root), np.int64(26))
    to_unit = half + down - np.int64(2)
    to_out = np.int64(22) + np.int64(gain_shift) - np.int64(out_frac)
    clipped = np.int64(0)
    for i in range(source.shape[0]):
        unit = shr(np.int64(source[i]) * factor, to_unit)
        result, clip = shr_saturate(unit * np.int64(gains[i]), to_out)
        out[i] = result
        clipped += clip
    return clipped


@kernel
def sine_cosine(increments: Any, position: Any, table: Any, sines: Any, cosines: Any) -> None:
    """Sine and cosine (frac 20) of every pair's angle; increments are int64 below 2^32."""
    for j in range(increments.shape[0]):
        phase = (np.int64(position) * increments[j]) & np.int64((1 << 32) - 1)
        quadrant = phase >> np.int64(30)
        inside = phase & np.int64((1 << 30) - 1)
        a = sine_quarter(inside, table)
        b = sine_quarter(np.int64(1 << 30) - inside, table)
        if quadrant == 0:
            sines[j], cosines[j] = a, b
        elif quadrant == 1:
            sines[j], cosines[j] = b, -a
        elif quadrant == 2:
            sines[j], cosines[j] = -a, -b
        else:
            sines[j], cosines[j] = -b, a


@kernel
def rotate(vector: Any, sines: Any, cosines: Any) -> Any:
    """Rotate the neighbouring pairs of every head in place, int32 [n_heads * head_dim]."""
    clipped = np.int64(0)
    half = sines.shape[0]
    for first in range(0, vector.shape[0], 2 * half):
        for j in range(half):
            a = np.int64(vector[first + 2 * j])
            b = np.int64(vector[first + 2 * j + 1])
            x, clip_x = saturate(rne(a * cosines[j] - b * sines[j], np.int64(20)))
            y, clip_y = saturate(rne(a * sines[j] + b * cosines[j], np.int64(20)))
            vector[first + 2 * j] = x
            vector[first + 2 * j + 1] = y
            clipped += clip_x + clip_y
    return clipped


@kernel
def scale_query(vector: Any, scale: Any) -> Any:
    """Multiply the rotated query by CQ (frac 20) in place; return the saturations."""
    clipped = np.int64(0)
    for i in range(vector.shape[0]):
        result, clip = saturate(rne(np.int64(vector[i]) * np.int64(scale), np.int64(20)))
        vector[i] = result
        clipped += clip
    return clipped


@kernel
def gated_activation(gate: Any, up: Any, is_silu: Any, frac: Any, sig_table: Any, out: Any) -> Any:
    """``act(gate) * up`` for SiLU or squared ReLU, int32 [hidden_dim]; return the saturations."""
    one = np.int64(1 << 20)
    clipped = np.int64(0)
    for i in range(out.shape[0]):
        g = np.int64(gate[i])
        if is_silu:
            magnitude = abs(g)
            sigma = one
            if magnitude < one:
                k = magnitude >> np.int64(10)
                r = magnitude & np.int64(1023)
                step = sig_table[k + 1] - sig_table[k]
                sigma = sig_table[k] + rne(step * r, np.int64(10))
            if g < 0:
                sigma = one - sigma
            active = rne(g * sigma, np.int64(20))
        else:
            g = max(g, np.int64(0))
            active, clip = saturate(rne(g * g, np.int64(frac)))
            clipped += clip
        result, clip = saturate(rne(active * np.int64(up[i]), np.int64(frac)))
        out[i] = result
        clipped += clip
    return clipped
