"""docs/numerics.md once more, in Python's unbounded integers, one scalar at a time.

Slow and plain on purpose: the kernels are held against it. Nothing of the product is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, getcontext
from functools import cache
from operator import mul

Block = tuple[list[int], int]

clips = [0]


def rne(v: int, s: int) -> int:
    if s >= 63:
        return 0
    quotient, rest = divmod(v, 1 << s)
    if 2 * rest > 1 << s or (2 * rest == 1 << s and quotient % 2 == 1):
        quotient += 1
    return quotient


def shr(v: int, s: int) -> int:
    return rne(v, s) if s >= 0 else v * 2**-s


def sat32(v: int) -> int:
    if v > 2**31 - 1:
        clips[0] += 1
        return 2**31 - 1
    if v < -(2**31):
        clips[0] += 1
        return -(2**31)
    return v


# --- tables (section 3) ---------------------------------------------------------------------


def _nearest(value: Decimal) -> int:
    return int(value.to_integral_value(rounding="ROUND_HALF_EVEN"))


def _sin(x: Decimal) -> Decimal:
    term, total, n = x, x, 1
    while abs(term) > Decimal(10) ** -45:
        term *= -x * x / ((n + 1) * (n + 2))
        total += term
        n += 2
    return total


@cache
def tables() -> dict[str, list[int]]:
    getcontext().prec = 50
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    one = Decimal(2**20)
    return {
        "SIN": [_nearest(one * _sin(pi / 2 * i / 256)) for i in range(257)],
        "EXP": [_nearest(one * Decimal(2) ** (Decimal(-i) / 256)) for i in range(257)],
        "SIG": [_nearest(one / (1 + (Decimal(-i) / 64).exp())) for i in range(1025)],
        "RSQ": [
            _nearest(2**15 / ((Decimal(i) + Decimal("0.5")) / 128).sqrt()) for i in range(32, 128)
        ],
        "RCP": [_nearest(2**15 / ((128 + i + Decimal("0.5")) / 256)) for i in range(128)],
    }


# --- functions (section 3) ------------------------------------------------------------------


def rsqrt(n_value: int) -> tuple[int, int]:
    if n_value == 0:
        return 0, 0
    b = n_value.bit_length()
    b += b % 2
    n = n_value * 2**32 >> b
    y = tables()["RSQ"][(n >> 25) - 32] << 15
    for _ in range(2):
        a = (y * y) >> 30
        p = (n * a) >> 32
        y = (y * (3 * 2**30 - p)) >> 31
    return y, b // 2


def recip(value: int) -> tuple[int, int]:
    if value == 0:
        return 0, 0
    b = value.bit_length()
    n = value << (32 - b)
    y = tables()["RCP"][(n >> 24) & 127] << 15
    for _ in range(2):
        p = (n * y) >> 32
        y = (y * (2**31 - p)) >> 30
    return y, b


def exp2n(d: int) -> tuple[int, int]:
    table = tables()["EXP"]
    i, r = (d >> 8) & 255, d & 255
    return table[i] - rne((table[i] - table[i + 1]) * r, 8), d >> 16


def sinq(f: int) -> int:
    table = tables()["SIN"]
    if f == 2**30:
        return table[256]
    i, r = f >> 22, f % 2**22
    return table[i] + rne((table[i + 1] - table[i]) * r, 22)


# --- MXINT8 (section 2) ---------------------------------------------------------------------


def quantise(values: Sequence[int], size: int) -> list[Block]:
    blocks = []
    for first in range(0, len(values), size):
        block = values[first : first + size]
        united = 0
        for v in block:
            united |= abs(v)
        s = max(0, united.bit_length() - 7)
        codes = [rne(v, s) for v in block]
        if any(abs(c) == 128 for c in codes):
            s += 1
            codes = [rne(v, s) for v in block]
        blocks.append((codes, s))
    return blocks


def codes_of(blocks: Sequence[Block]) -> list[int]:
    return [c for codes, _ in blocks for c in codes]


def shifts_of(blocks: Sequence[Block]) -> list[int]:
    return [s for _, s in blocks]


def fp16(word: int) -> tuple[int, int]:
    field = (word >> 10) & 31
    sig = (word & 1023) + (1024 if field else 0)
    return (-sig if word >> 15 else sig), max(field, 1) - 25


# --- operators (sections 4 to 6) ------------------------------------------------------------


def matvec_row(
    values: Sequence[int],
    scales: Sequence[tuple[int, int]],
    minima: Sequence[tuple[int, int]],
    group: int,
    blocks: Sequence[Block],
    *,
    grid: int,
    shift: int,
) -> int:
    """One output; ``shift`` is F_in - F_out - grid; scales and minima per group of columns."""
    acc, k = 0, 0
    for codes, s in blocks:
        g = k // group
        p = sum(map(mul, values[k : k + len(codes)], codes))
        sig, exp = scales[g]
        acc += shr(p * sig, grid - exp - s)
        if minima:
            sig, exp = minima[g]
            acc += shr(sum(codes) * sig, grid - exp - s)
        k += len(codes)
    return sat32(shr(acc, shift))


def matvec_whole_row(
    values: Sequence[int], blocks: Sequence[Block], *, m: int, e: int, a: int, frac: int
) -> int:
    """One output of a matrix with one scale; ``frac`` is F_in - F_out."""
    acc, k = 0, 0
    for codes, s in blocks:
        acc += shr(sum(map(mul, values[k : k + len(codes)], codes)), -s)
        k += len(codes)
    return sat32(shr(shr(acc, a) * m, frac - e - a))


def embed(
    values: Sequence[int],
    scales: Sequence[tuple[int, int]],
    minima: Sequence[tuple[int, int]],
    group: int,
    residual_frac: int,
) -> list[int]:
    out = []
    for k, value in enumerate(values):
        sig, exp = scales[k // group]
        v = value * sig * 2 ** (exp + 24)
        if minima:
            sig, exp = minima[k // group]
            v += sig * 2 ** (exp + 24)
        out.append(sat32(shr(v, 24 - residual_frac)))
    return out


def norm(
    x: Sequence[int], gains: Sequence[int], *, g: int, e0: int, sk: int, out_frac: int
) -> list[int]:
    united = 0
    for v in x:
        united |= abs(v)
    t = max(united.bit_length() - 24, -10)
    n = sum(shr(v, t) ** 2 for v in x) + rne(e0, 2 * (t + 10))
    y, h = rsqrt(n)
    r = rne(y * sk, 26)
    return [
        sat32(shr(shr(v * r, h + t - 2) * w, 22 + g - out_frac))
        for v, w in zip(x, gains, strict=True)
    ]


def sine_cosine(position: int, increment: int) -> tuple[int, int]:
    phase = position * increment % 2**32
    a, b = sinq(phase % 2**30), sinq(2**30 - phase % 2**30)
    return [(a, b), (b, -a), (-a, -b), (-b, a)][phase // 2**30]


def rope(x: Sequence[int], position: int, increments: Sequence[int]) -> list[int]:
    head_dim, out = 2 * len(increments), []
    for first in range(0, len(x), head_dim):
        for j, increment in enumerate(increments):
            sin, cos = sine_cosine(position, increment)
            a, b = x[first + 2 * j], x[first + 2 * j + 1]
            out.append(sat32(rne(a * cos - b * sin, 20)))
            out.append(sat32(rne(a * sin + b * cos, 20)))
    return out


def scale_query(x: Sequence[int], cq: int) -> list[int]:
    return [sat32(rne(v * cq, 20)) for v in x]


Node = tuple[int, int, list[int]]


def join(left: Node, right: Node) -> Node:
    m = max(left[0], right[0])
    a, b = m - left[0], m - right[0]
    sums = [rne(x, a) + rne(y, b) for x, y in zip(left[2], right[2], strict=True)]
    return m, rne(left[1], a) + rne(right[1], b), sums


def merge(nodes: list[Node]) -> Node:
    while len(nodes) > 1:
        pairs = [nodes[i : i + 2] for i in range(0, len(nodes), 2)]
        nodes = [join(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return nodes[0]


def attend(
    q: Sequence[Block],
    keys: Sequence[Sequence[Block]],
    values: Sequence[Sequence[Block]],
    attn_block: int,
    linear_frac: int = 16,
) -> Node:
    """One head: the merged maximum, weight and sums."""
    z = []
    for key in keys:
        total = 0
        for (qc, qs), (kc, ks) in zip(q, key, strict=True):
            total += shr(sum(map(mul, qc, kc)), 2 * linear_frac - 16 - qs - ks)
        z.append(sat32(total))
    nodes: list[Node] = []
    for first in range(0, len(z), attn_block):
        inside = range(first, min(first + attn_block, len(z)))
        m = (max(z[t] for t in inside) + 65535) // 65536
        weight, sums = 0, [0] * len(codes_of(values[0]))
        for t in inside:
            v, n = exp2n(m * 65536 - z[t])
            p = 0 if n >= 16 else rne(v, 5 + n)
            weight += p
            wide = [c * 2**s for codes, s in values[t] for c in codes]
            sums = [o + p * c for o, c in zip(sums, wide, strict=True)]
        nodes.append((m, weight, sums))
    return merge(nodes)


def attention_output(weight: int, sums: Sequence[int]) -> list[int]:
    y, b = recip(weight)
    return [sat32(rne(rne(o, b) * y, 30)) for o in sums]


def gated(gate: Sequence[int], up: Sequence[int], activation: str) -> list[int]:
    table, out = tables()["SIG"], []
    for g, u in zip(gate, up, strict=True):
        if activation == "silu":
            a = abs(g)
            sigma = 2**20
            if a < 2**20:
                i, r = a >> 10, a & 1023
                sigma = table[i] + rne((table[i + 1] - table[i]) * r, 10)
            if g < 0:
                sigma = 2**20 - sigma
            out.append(sat32(rne(rne(g * sigma, 20) * u, 16)))
        else:
            positive = max(g, 0)
            out.append(sat32(rne(sat32(rne(positive * positive, 16)) * u, 16)))
    return out


def adapter_row(
    codes: Sequence[int],
    exponents: Sequence[int],
    size: int,
    blocks: Sequence[Block],
    *,
    grid: int,
    shift: int,
) -> int:
    """One output of an adapter matrix whose blocks have ``size`` codes."""
    acc = 0
    for index, (inputs, s) in enumerate(blocks):
        p = sum(map(mul, codes[index * size : (index + 1) * size], inputs))
        acc += shr(p, grid - exponents[index] - s)
    return sat32(shr(acc, shift))


def whole_scale(value: float) -> tuple[int, int]:
    """``M * 2^E`` of binary32, 24 bits."""
    import math

    fraction, exponent = math.frexp(value)
    return int(fraction * 2**24), exponent - 24


def gain_words(
    weights: Sequence[float], eps: float, in_frac: int
) -> tuple[list[int], int, int, int, int]:
    """(W, g, E0, SK, F_y) of a norm."""
    import math

    k, top = len(weights), max(abs(w) for w in weights)
    g = 22 - math.floor(math.log2(top))
    words = [round(w * 2.0**g) for w in weights]
    e0 = round(eps * k * 2.0 ** (20 + 2 * in_frac))
    sk = round(math.sqrt(k) * 2**16)
    out_frac = min(24, 30 - math.ceil(math.log2(math.sqrt(k) * top)))
    return words, g, e0, sk, out_frac
