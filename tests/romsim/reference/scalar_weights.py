"""Section 8 of the page and the file formats, element by element, for the tests' own reading."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from romsim_models.encoded import EncodedTensor, FloatTensor
from tests.romsim.reference.scalar_page import Matrix, fp16

F32 = np.float32


def _half(value: np.float32) -> tuple[np.float32, tuple[int, int]]:
    word = value.astype(np.float16)
    return F32(word), fp16(int(word.view(np.uint16)))


def _clip(value: float, low: int, high: int) -> int:
    return max(low, min(high, int(value)))


def _asymmetric(group: list[np.float32], bits: int) -> tuple[list[int], list[tuple[int, int]]]:
    lo, hi = min(F32(0), *group), max(F32(0), *group)
    d, scale = _half(F32(F32(hi - lo) / F32(2**bits - 1)))
    m, minimum = _half(lo)
    codes = [0 if d == 0 else _clip(np.rint(F32(F32(w - m) / d)), 0, 2**bits - 1) for w in group]
    return codes, [scale, minimum]


def _symmetric(group: list[np.float32]) -> tuple[list[int], list[tuple[int, int]]]:
    d, scale = _half(F32(max(abs(w) for w in group) / F32(127)))
    codes = [0 if d == 0 else _clip(np.rint(F32(w / d)), -127, 127) for w in group]
    return codes, [scale]


def _ternary(tensor: FloatTensor) -> Matrix:
    n_rows, n_cols = tensor.shape
    mean = float(sum(abs(Fraction(float(w))) for w in tensor.values.flat) / tensor.values.size)
    d, exponent = Fraction(mean), 0
    significand = 0
    if d:
        while d >= 2**24:
            d, exponent = d / 2, exponent + 1
        while d < 2**23:
            d, exponent = d * 2, exponent - 1
        significand = int(d)  # truncated
    scale = F32(Fraction(significand) * Fraction(2) ** exponent)
    q = [
        [0 if scale == 0 else _clip(np.rint(F32(w / scale)), -1, 1) for w in row]
        for row in tensor.values
    ]
    return Matrix(q=q, group=n_cols, scales=[[(1, 0)]] * n_rows, whole=(significand, exponent))


def scalar_matrix(
    tensor: EncodedTensor | FloatTensor, kind: str = "shipped", group: int | None = None
) -> Matrix:
    """Integers of one matrix, by the page."""
    if isinstance(tensor, EncodedTensor):
        minima = tensor.minimum_bits
        return Matrix(
            q=[[int(c) - tensor.code_offset for c in row] for row in tensor.codes],
            group=tensor.group_size,
            scales=[[fp16(int(w)) for w in row] for row in tensor.scale_bits],
            minima=None if minima is None else [[fp16(int(w)) for w in row] for row in minima],
        )
    if kind == "ternary":
        return _ternary(tensor)
    assert group is not None
    rows, scales, minima_ = [], [], []
    for row in tensor.values:
        codes: list[int] = []
        row_scales, row_minima = [], []
        for first in range(0, len(row), group):
            part = list(row[first : first + group])
            if kind == "int8":
                coded, words = _symmetric(part)
            else:
                coded, words = _asymmetric(part, int(kind[-1]))
            codes += coded
            row_scales.append(words[0])
            row_minima += words[1:]
        rows.append(codes)
        scales.append(row_scales)
        minima_.append(row_minima)
    return Matrix(q=rows, group=group, scales=scales, minima=None if kind == "int8" else minima_)
