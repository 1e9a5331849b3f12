"""The numerics page once more, in Python integers, one element at a time: the tests' own reading.

Written from the page alone, with nothing of the package under test; slow and plain on purpose.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

Vector = list[int]
Coded = tuple[Vector, Vector]  # codes, shifts


# 1. Primitives ------------------------------------------------------------------------------------


def rne(v: int, s: int) -> int:
    if s >= 63:
        return 0
    unit = 1 << s
    whole, rest = divmod(v, unit)
    if 2 * rest == unit:
        return whole + whole % 2
    return whole + (2 * rest > unit)


def shr(v: int, s: int) -> int:
    return rne(v, s) if s >= 0 else v << -s


@dataclass
class Clips:
    count: int = 0

    def sat32(self, v: int) -> int:
        if v > 2**31 - 1 or v < -(2**31):
            self.count += 1
        return max(-(2**31), min(2**31 - 1, v))


def wrap64(v: int) -> int:
    return (v + 2**63) % 2**64 - 2**63


# 2. Formats ---------------------------------------------------------------------------------------


def fp16(word: int) -> tuple[int, int]:
    sign, exponent, fraction = word >> 15, (word >> 10) & 31, word & 1023
    assert exponent != 31
    sig = fraction + (1024 if exponent > 0 else 0)
    return (-sig if sign else sig), max(exponent, 1) - 25


def mxint8(v: Vector, block: int = 32) -> Coded:
    codes, shifts = [], []
    for first in range(0, len(v), block):
        part = v[first : first + block]
        bits = 0
        for value in part:
            bits |= abs(value)
        s = max(0, bits.bit_length() - 7)
        coded = [rne(value, s) for value in part]
        if any(abs(c) == 128 for c in coded):
            s += 1
            coded = [rne(value, s) for value in part]
        codes += coded
        shifts.append(s)
    return codes, shifts


# 3. Constants -------------------------------------------------------------------------------------


def _decimal_sin(x: Decimal) -> Decimal:
    total, term, n = Decimal(0), x, 1
    while abs(term) > Decimal(10) ** -45:
        total += term
        term *= -x * x / ((n + 1) * (n + 2))
        n += 2
    return total


PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")

with localcontext() as _context:
    _context.prec = 50
    _E = Decimal(1).exp()
    SIN = [round(2**20 * _decimal_sin(PI / 2 * i / 256)) for i in range(257)]
    EXP = [round(2**20 * Decimal(2) ** (Decimal(-i) / 256)) for i in range(257)]
    SIG = [round(2**20 / (1 + _E ** (Decimal(-i) / 64))) for i in range(1025)]
    RSQ = {i: round(2**15 / ((i + Decimal("0.5")) / 128).sqrt()) for i in range(32, 128)}
    RCP = [round(2**15 / ((128 + i + Decimal("0.5")) / 256)) for i in range(128)]
    LOG2E = 1 / Decimal(2).ln()


def rsqrt(n: int) -> tuple[int, int]:
    if n == 0:
        return 0, 0
    b = n.bit_length()
    b += b % 2
    m = n * 2**32 // 2**b
    y = RSQ[m >> 25] << 15
    for _ in range(2):
        a = (y * y) >> 30
        p = (m * a) >> 32
        y = (y * (3 * 2**30 - p)) >> 31
    return y, b // 2


def recip(l: int) -> tuple[int, int]:  # noqa: E741  # the page's letter
    if l == 0:
        return 0, 0
    b = l.bit_length()
    n = l << (32 - b)
    y = RCP[(n >> 24) & 127] << 15
    for _ in range(2):
        p = (n * y) >> 32
        y = (y * (2**31 - p)) >> 30
    return y, b


def exp2n(d: int) -> tuple[int, int]:
    i, r = (d >> 8) & 255, d & 255
    return EXP[i] - rne((EXP[i] - EXP[i + 1]) * r, 8), d >> 16


def sinq(f: int) -> int:
    if f == 2**30:
        return SIN[256]
    i, r = f >> 22, f & (2**22 - 1)
    return SIN[i] + rne((SIN[i + 1] - SIN[i]) * r, 22)


# 4. Matrix times vector ---------------------------------------------------------------------------


@dataclass
class Matrix:
    """Rows of q - offset, group length, and per row a list of (sig, exp); or one scale (M, E)."""

    q: list[Vector]
    group: int
    scales: list[list[tuple[int, int]]]
    minima: list[list[tuple[int, int]]] | None = None
    whole: tuple[int, int] | None = None

    def pairs(self) -> list[tuple[int, int]]:
        rows = self.scales + (self.minima or [])
        return [pair for row in rows for pair in row if pair[0] != 0]

    def row_sum(self, i: int) -> Fraction:
        """``sum_k |w_ik|``, exact."""
        unit = 2**64  # every exponent is above -64
        total = 0
        for k, q in enumerate(self.q[i]):
            sig, exp = self.scales[i][k // self.group]
            w = q * sig * 2 ** (exp + 64)
            if self.minima is not None:
                sig, exp = self.minima[i][k // self.group]
                w += sig * 2 ** (exp + 64)
            total += abs(w)
        return Fraction(total, unit)


def grid_of(matrices: Sequence[Matrix]) -> int:
    scaled = [m for m in matrices if m.whole is None]
    exponents = [exp for m in scaled for _, exp in m.pairs()]
    if not exponents:
        return 0
    gamma = min(exponents)
    largest = max(m.row_sum(i) for m in scaled for i in range(len(m.q)))
    while 2**31 * largest / Fraction(2) ** gamma >= 2**63:
        gamma += 1
    return gamma


def matvec(
    m: Matrix, x: Coded, f_in: int, f_out: int, gamma: int, clips: Clips, block: int = 32
) -> Vector:
    codes, shifts = x
    if m.whole is not None:
        gamma = 0
    out = []
    for i, row in enumerate(m.q):
        acc = 0
        for b, s in enumerate(shifts):
            part = range(b * block, min((b + 1) * block, len(row)))
            p = sum(row[k] * codes[k] for k in part)
            total = sum(codes[k] for k in part)
            sig, exp = m.scales[i][b * block // m.group]
            term = shr(p * sig, gamma - exp - s)
            if m.minima is not None:
                sig, exp = m.minima[i][b * block // m.group]
                term += shr(total * sig, gamma - exp - s)
            acc = wrap64(acc + term)
        if m.whole is None:
            out.append(clips.sat32(shr(acc, f_in - f_out - gamma)))
        else:
            out.append(clips.sat32(shr(*_whole(m, acc, f_in - f_out))))
    return out


def _whole(m: Matrix, acc: int, places: int) -> tuple[int, int]:
    assert m.whole is not None
    significand, exponent = m.whole
    worst = 2**31 * max(sum(abs(q) for q in row) for row in m.q)
    a = 0
    while rne(worst, a) >= 2**38:
        a += 1
    return shr(acc, a) * significand, places - exponent - a


# 5. Operators -------------------------------------------------------------------------------------


def embed(m: Matrix, token: int, f_r: int, clips: Clips) -> Vector:
    out = []
    for k, q in enumerate(m.q[token]):
        if m.whole is not None:
            out.append(clips.sat32(shr(q * m.whole[0], -m.whole[1] - f_r)))
            continue
        sig, exp = m.scales[token][k // m.group]
        v = q * sig * 2 ** (exp + 24)
        if m.minima is not None:
            sig, exp = m.minima[token][k // m.group]
            v += sig * 2 ** (exp + 24)
        out.append(clips.sat32(shr(v, 24 - f_r)))
    return out


def _floor_log2(value: Fraction) -> int:
    n = 0
    while Fraction(2) ** n > value:
        n -= 1
    while Fraction(2) ** (n + 1) <= value:
        n += 1
    return n


def norm(
    x: Vector, gains: Sequence[float], epsilon: float, f: int, clips: Clips
) -> tuple[Vector, int]:
    """Values of a norm before they are coded, and their frac."""
    k = len(x)
    exact = [Fraction(w) for w in gains]
    largest = max(abs(w) for w in exact)
    g = 22 - _floor_log2(largest)
    with localcontext() as context:
        context.prec = 50
        magnitude = Decimal(k).sqrt() * Decimal(largest.numerator) / Decimal(largest.denominator)
        ceiling = math.ceil(Fraction(magnitude.ln() / Decimal(2).ln()) - Fraction(1, 10**30))
        sk = round(Decimal(k).sqrt() * 2**16)
    f_y = min(24, 30 - ceiling)
    bits = 0
    for value in x:
        bits |= abs(value)
    t = max(bits.bit_length() - 24, -10)
    q = sum(shr(value, t) ** 2 for value in x)
    e0 = round(Fraction(epsilon) * k * 2 ** (20 + 2 * f))
    y, h = rsqrt(q + rne(e0, 2 * (t + 10)))
    r = rne(y * sk, 26)
    out = []
    for value, w in zip(x, exact, strict=True):
        n = shr(value * r, h + t - 2)
        out.append(clips.sat32(shr(n * round(w * Fraction(2) ** g), 22 + g - f_y)))
    return out, f_y


@functools.cache
def increment(theta: float) -> int:
    with localcontext() as context:
        context.prec = 50
        return round(Decimal(theta) / (2 * PI) * 2**32) % 2**32


def rope(x: Vector, head_dim: int, pos: int, theta: Sequence[float], clips: Clips) -> Vector:
    out = []
    for first in range(0, len(x), head_dim):
        for j in range(head_dim // 2):
            inc = increment(theta[j])
            phi = pos * inc % 2**32
            a_, b_ = sinq(phi % 2**30), sinq(2**30 - phi % 2**30)
            sin, cos = [(a_, b_), (b_, -a_), (-a_, -b_), (-b_, a_)][phi // 2**30]
            a, b = x[first + 2 * j], x[first + 2 * j + 1]
            out.append(clips.sat32(rne(a * cos - b * sin, 20)))
            out.append(clips.sat32(rne(a * sin + b * cos, 20)))
    return out


def scale_query(q: Vector, head_dim: int, clips: Clips) -> Vector:
    with localcontext() as context:
        context.prec = 50
        cq = round(2**20 * LOG2E / Decimal(head_dim).sqrt())
    return [clips.sat32(rne(value * cq, 20)) for value in q]


def score(q: Coded, k: Coded, block: int, f_a: int, clips: Clips) -> int:
    total = 0
    for b, (sq, sk) in enumerate(zip(q[1], k[1], strict=True)):
        part = range(b * block, min((b + 1) * block, len(q[0])))
        p = sum(q[0][i] * k[0][i] for i in part)
        total += shr(p, 2 * f_a - 16 - sq - sk)
    return clips.sat32(total)


Node = tuple[int, int, Vector]


def softmax_block(z: Vector, values: list[Coded], block: int) -> Node:
    m = (max(z) + 65535) >> 16
    mass, o = 0, [0] * len(values[0][0])
    for zt, (codes, shifts) in zip(z, values, strict=True):
        v, n = exp2n(m * 2**16 - zt)
        p = 0 if n >= 16 else rne(v, 5 + n)
        mass += p
        for d, c in enumerate(codes):
            o[d] += p * c * 2 ** shifts[d // block]
    return m, mass, o


def merge(nodes: list[Node]) -> Node:
    while len(nodes) > 1:
        above = []
        for i in range(0, len(nodes), 2):
            if i + 1 == len(nodes):
                above.append(nodes[i])
                continue
            (m1, l1, o1), (m2, l2, o2) = nodes[i], nodes[i + 1]
            m = max(m1, m2)
            o = [rne(a, m - m1) + rne(b, m - m2) for a, b in zip(o1, o2, strict=True)]
            above.append((m, rne(l1, m - m1) + rne(l2, m - m2), o))
        nodes = above
    return nodes[0]


def attend(
    q: Coded, keys: list[Coded], values: list[Coded], block: int, attn_block: int, f_a: int,
    clips: Clips,
) -> Vector:  # fmt: skip
    """One query head over one KV head's words."""
    z = [score(q, k, block, f_a, clips) for k in keys]
    nodes = [
        softmax_block(z[i : i + attn_block], values[i : i + attn_block], block)
        for i in range(0, len(z), attn_block)
    ]
    _, mass, o = merge(nodes)
    y, b = recip(mass)
    return [clips.sat32(rne(rne(od, b) * y, 30)) for od in o]


def act(kind: str, gate: int, up: int, f_a: int, clips: Clips) -> int:
    if kind == "relu2":
        positive = max(gate, 0)
        return clips.sat32(rne(clips.sat32(rne(positive * positive, f_a)) * up, f_a))
    a = abs(gate)
    sigma = 2**20
    if a < 2**20:
        i, r = a >> 10, a & 1023
        sigma = SIG[i] + rne((SIG[i + 1] - SIG[i]) * r, 10)
    if gate < 0:
        sigma = 2**20 - sigma
    return clips.sat32(rne(rne(gate * sigma, 20) * up, f_a))
