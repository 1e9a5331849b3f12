"""KV codecs: 16-bit words, affine codes, and the integers that attention sees (docs/kv.md, 1, 2).

Integers that stand for words are exact in float64 (below 2^32), the form in which attention reads
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from romsim.cycle.compiled import inlined, kernel
from romsim.cycle.kernels_primitives import bitlen, reciprocal, rne

__all__ = ["decode_blocks", "encode_channels", "encode_rows", "encode_words", "fp16_word"]


@inlined
def fp16_word(value: Any) -> Any:
    """Return ``FP16(value)`` and the integer that it stands for."""
    magnitude = abs(value)
    down = max(np.int64(0), bitlen(magnitude) - np.int64(11))
    kept = rne(magnitude, down) << down
    if kept == 0:
        return np.int64(0), np.int64(0)
    length = bitlen(kept)
    if length >= 3:
        if length > 11:
            fraction = (kept >> (length - np.int64(11))) & np.int64(1023)
        else:
            fraction = (kept << (np.int64(11) - length)) & np.int64(1023)
        word = ((length - np.int64(2)) << np.int64(10)) | fraction
    else:
        word = kept << np.int64(8)
    if value < 0:
        return word | np.int64(0x8000), -kept
    return word, kept


@inlined
def _scale(low: Any, high: Any, bits: Any) -> Any:
    """Return the scale's word and integer, and the zero's, of a group's least and largest value."""
    top = (np.int64(1) << bits) - np.int64(1)
    # 2^32 / 3 and 2^32 / 15 leave a third and a fifteenth: the floor is the nearest.
    step = rne((high - low) * ((np.int64(1) << np.int64(32)) // top), np.int64(32))
    scale_word, scale = fp16_word(step)
    zero_word, zero = fp16_word(low)
    return scale_word, scale, zero_word, zero


@inlined
def _inverse(scale: Any, table: Any) -> Any:
    """Return ``Y`` and the shift with which a difference times it becomes a code."""
    exponent = max(np.int64(0), bitlen(scale) - np.int64(11))
    y, bits = reciprocal(scale >> exponent, table)
    return rne(y, np.int64(8)), np.int64(22) + bits + exponent


@inlined
def _code(difference: Any, inverse: Any, shift: Any, bits: Any) -> Any:
    code = rne(difference * inverse, shift)
    return min(max(code, np.int64(0)), (np.int64(1) << bits) - np.int64(1))


@kernel
def encode_words(source: Any, words: Any, seen: Any) -> None:
    """Encode int32 [n] as words uint16 [n]; ``seen`` (float64 [n]) are their integers."""
    for i in range(source.shape[0]):
        word, value = fp16_word(np.int64(source[i]))
        words[i] = word
        seen[i] = value


@kernel
def encode_rows(
    source: Any,  # int64 [n]
    group: Any,
    bits: Any,
    rcp_table: Any,
    codes: Any,  # uint8 [n]
    scales: Any,  # uint16 [n / group]
    zeros: Any,  # uint16 [n / group]
    seen: Any,  # float64 [n]
) -> None:
    """Encode groups of neighbouring values in affine codes."""
    for g in range(scales.shape[0]):
        first, end = g * group, (g + 1) * group
        low, high = np.int64(source[first]), np.int64(source[first])
        for i in range(first, end):
            low, high = min(low, np.int64(source[i])), max(high, np.int64(source[i]))
        scale_word, scale, zero_word, zero = _scale(low, high, bits)
        scales[g], zeros[g] = scale_word, zero_word
        inverse, shift = np.int64(0), np.int64(0)
        if scale != 0:
            inverse, shift = _inverse(scale, rcp_table)
        for i in range(first, end):
            code = np.int64(0)
            if scale != 0:
                code = _code(np.int64(source[i]) - zero, inverse, shift, bits)
            codes[i] = code
            seen[i] = zero + code * scale


@kernel
def encode_channels(
    held: Any,  # float64 [n_heads, capacity, width], integers; encoded in place
    rows: Any,  # int64 [n_tokens] of the window, oldest first
    group: Any,
    bits: Any,
    rcp_table: Any,
    codes: Any,  # uint8 [n_heads, n_tokens, head_dim]
    scales: Any,  # uint16 [n_heads, n_tokens / group, head_dim]
    zeros: Any,  # uint16 [n_heads, n_tokens / group, head_dim]
) -> None:
    """Encode a window of keys, each channel in groups of neighbouring tokens."""
    n_heads, n_groups, head_dim = scales.shape
    for head in range(n_heads):
        for g in range(n_groups):
            for d in range(head_dim):
                low = np.int64(held[head, rows[g * group], d])
                high = low
                for i in range(g * group, (g + 1) * group):
                    value = np.int64(held[head, rows[i], d])
                    low, high = min(low, value), max(high, value)
                scale_word, scale, zero_word, zero = _scale(low, high, bits)
                scales[head, g, d], zeros[head, g, d] = scale_word, zero_word
                inverse, shift = np.int64(0), np.int64(0)
                if scale != 0:
                    inverse, shift = _inverse(scale, rcp_table)
                for i in range(g * group, (g + 1) * group):
                    code = np.int64(0)
                    if scale != 0:
                        difference = np.int64(held[head, rows[i], d]) - zero
                        code = _code(difference, inverse, shift, bits)
                    codes[head, i, d] = code
                    held[head, rows[i], d] = zero + code * scale


@kernel
def decode_blocks(codes: Any, shifts: Any, seen: Any) -> None:
    """Integers of MXINT8 heads: codes int16 [n, width], shifts int64 [n, b], float64 [n, width]."""
    for head in range(codes.shape[0]):
        for i in range(codes.shape[1]):
            seen[head, i] = np.int64(codes[head, i]) << shifts[head, i // 32]
