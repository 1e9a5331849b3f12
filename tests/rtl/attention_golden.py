"""Attention by docs/numerics.md, one Python integer at a time, for the tests of unit H."""

from __future__ import annotations

from decimal import Decimal, getcontext

getcontext().prec = 60
EXP = [
    int((Decimal(2) ** (Decimal(-i) / 256) * 2**20).to_integral_value(rounding="ROUND_HALF_EVEN"))
    for i in range(257)
]
Block = tuple[list[int], int]  # codes and shift


def rne(value: int, shift: int) -> int:
    if shift >= 63:
        return 0
    if shift == 0:
        return value
    floor, rest, half = value >> shift, value & ((1 << shift) - 1), 1 << (shift - 1)
    return floor + (rest > half or (rest == half and floor & 1))


def shr(value: int, shift: int) -> int:
    return rne(value, shift) if shift >= 0 else value << -shift


def sat32(value: int) -> tuple[int, int]:
    clipped = max(-(2**31), min(2**31 - 1, value))
    return clipped, int(clipped != value)


def exp2n(d: int) -> tuple[int, int]:
    i, r = (d >> 8) & 255, d & 255
    return EXP[i] - rne((EXP[i] - EXP[i + 1]) * r, 8), d >> 16


def score(q: list[Block], k: list[Block], frac: int = 16) -> tuple[int, int]:
    total = 0
    for (cq, sq), (ck, sk) in zip(q, k, strict=True):
        p = sum(a * b for a, b in zip(cq, ck, strict=True))
        total += shr(p, 2 * frac - 16 - sq - sk)
    return sat32(total)


Node = tuple[int, int, list[int]]


def join(a: Node, b: Node) -> Node:
    m = max(a[0], b[0])
    return (
        m,
        rne(a[1], m - a[0]) + rne(b[1], m - b[0]),
        [rne(x, m - a[0]) + rne(y, m - b[0]) for x, y in zip(a[2], b[2], strict=True)],
    )


def attention(
    q: list[Block], keys: list[list[Block]], values: list[list[Block]], attn_block: int
) -> tuple[int, list[int], int]:
    """One head: return l, o and the number of clipped scores."""
    nodes: list[Node] = []
    clips = 0
    for first in range(0, len(keys), attn_block):
        scores = []
        for k in keys[first : first + attn_block]:
            z, clip = score(q, k)
            scores.append(z)
            clips += clip
        m = (max(scores) + 65535) >> 16
        weights = []
        for z in scores:
            v, n = exp2n((m << 16) - z)
            weights.append(0 if n >= 16 else rne(v, 5 + n))
        sums = [0] * sum(len(codes) for codes, _ in values[0])
        for p, token in zip(weights, values[first : first + attn_block], strict=True):
            d = 0
            for codes, shift in token:
                for code in codes:
                    sums[d] += p * code << shift
                    d += 1
        nodes.append((m, sum(weights), sums))
    while len(nodes) > 1:
        joined = [
            join(nodes[i], nodes[i + 1]) if i + 1 < len(nodes) else nodes[i]
            for i in range(0, len(nodes), 2)
        ]
        nodes = joined
    return nodes[0][1], nodes[0][2], clips
