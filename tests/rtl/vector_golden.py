"""The vector unit in plain integers, from docs/numerics.md: one scalar at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LOW, HIGH = -(1 << 31), (1 << 31) - 1


def rne(value: int, shift: int) -> int:
    if shift == 0:
        return value
    if shift >= 63:
        return 0
    floor, rest, half = value >> shift, value & ((1 << shift) - 1), 1 << (shift - 1)
    return floor + (rest > half or (rest == half and floor & 1))


def shr(value: int, shift: int) -> int:
    return rne(value, shift) if shift >= 0 else value << -shift


def or_magnitudes(values: Sequence[int]) -> int:
    result = 0
    for value in values:
        result |= abs(value)
    return result


def mx_block(values: Sequence[int]) -> tuple[list[int], int]:
    """Codes and shift of one block."""
    shift = max(0, or_magnitudes(values).bit_length() - 7)
    codes = [rne(value, shift) for value in values]
    if any(abs(code) == 128 for code in codes):
        shift += 1
        codes = [rne(value, shift) for value in values]
    return codes, shift


def mx_blocks(values: Sequence[int]) -> list[tuple[tuple[int, ...], int, int]]:
    """(codes, shift, sum) of each block of 32, the last one filled up with zeros."""
    result = []
    for at in range(0, len(values), 32):
        block = list(values[at : at + 32])
        block += [0] * (32 - len(block))
        codes, shift = mx_block(block)
        result.append((tuple(codes), shift, sum(codes)))
    return result


def half(word: int) -> tuple[int, int]:
    """Significand and exponent of a binary16 word."""
    exponent, fraction = word >> 10 & 31, word & 1023
    size = fraction + (1024 if exponent else 0)
    return (-size if word >> 15 else size), max(exponent, 1) - 25


@dataclass
class Golden:
    """Operators of the page, and the saturation counter."""

    tables: Mapping[str, Sequence[int]]
    residual_frac: int = 14
    linear_frac: int = 16
    n_clips: int = field(default=0)

    def sat32(self, value: int) -> int:
        if LOW <= value <= HIGH:
            return value
        self.n_clips += 1
        return max(LOW, min(HIGH, value))

    def rsqrt(self, n: int) -> tuple[int, int]:
        if n == 0:
            return 0, 0
        bits = n.bit_length()
        bits += bits & 1
        scaled = (n << 32) >> bits
        y = int(self.tables["RSQ"][(scaled >> 25) - 32]) << 15
        for _ in range(2):
            a = (y * y) >> 30
            p = (scaled * a) >> 32
            y = (y * (3 * 2**30 - p)) >> 31
        return y, bits // 2

    def recip(self, total: int) -> tuple[int, int]:
        if total == 0:
            return 0, 0
        bits = total.bit_length()
        scaled = total << (32 - bits)
        y = int(self.tables["RCP"][(scaled >> 24) & 127]) << 15
        for _ in range(2):
            p = (scaled * y) >> 32
            y = (y * (2**31 - p)) >> 30
        return y, bits

    def sine(self, angle: int) -> int:
        table = self.tables["SIN"]
        if angle == 1 << 30:
            return int(table[256])
        i, r = angle >> 22, angle & ((1 << 22) - 1)
        return int(table[i]) + rne((int(table[i + 1]) - int(table[i])) * r, 22)

    def sincos(self, increment: int, pos: int) -> tuple[int, int]:
        phase = pos * increment % (1 << 32)
        angle = phase % (1 << 30)
        a, b = self.sine(angle), self.sine((1 << 30) - angle)
        return [(a, b), (b, -a), (-a, -b), (-b, a)][phase >> 30]

    def embed(
        self,
        codes: Sequence[int],
        offset: int,
        halves: Sequence[tuple[int, int | None]],
        group: int,
    ) -> list[int]:
        """Row of codes with (scale, minimum) words for each ``group`` codes."""
        result = []
        for index, code in enumerate(codes):
            scale, minimum = halves[index // group]
            significand, exponent = half(scale)
            value = (code - offset) * significand << (exponent + 24)
            if minimum is not None:
                low, low_exponent = half(minimum)
                value += low << (low_exponent + 24)
            result.append(self.sat32(shr(value, 24 - self.residual_frac)))
        return result

    def embed_whole(self, codes: Sequence[int], multiplier: int, shift: int) -> list[int]:
        return [self.sat32(shr(code * multiplier, shift)) for code in codes]

    def norm(
        self,
        x: Sequence[int],
        gains: Sequence[int],
        *,
        eps: int,
        root: int,
        gain_shift: int,
        buffer: Sequence[int],
    ) -> list[int]:
        """Norm of ``x``, which is the beginning of what ``buffer`` holds."""
        values = self.normalised(x, eps=eps, root=root, buffer=buffer)
        return [
            self.sat32(shr(value * gain, gain_shift))
            for value, gain in zip(values, gains, strict=True)
        ]

    def normalised(
        self, x: Sequence[int], *, eps: int, root: int, buffer: Sequence[int]
    ) -> list[int]:
        """Give the norm before the gains."""
        t, squares = self.squares(x, buffer)
        y, h = self.rsqrt(squares + rne(eps, 2 * (t + 10)))
        scale = rne(y * root, 26)
        return [shr(value * scale, h + t - 2) for value in x]

    def squares(self, x: Sequence[int], buffer: Sequence[int]) -> tuple[int, int]:
        """Give a norm's shift, and its sum of squares without epsilon."""
        t = max(or_magnitudes(buffer).bit_length() - 24, -10)
        return t, sum(shr(value, t) ** 2 for value in x)

    def add(self, y: Sequence[int], d: Sequence[int] | None) -> list[int]:
        if d is None:
            return list(y)
        return [self.sat32(a + b) for a, b in zip(y, d, strict=True)]

    def rope(
        self,
        values: Sequence[int],
        angles: Sequence[tuple[int, int]],
        *,
        n_heads: int,
        n_kv_heads: int,
        query_scale: int,
    ) -> list[int]:
        """q | k | v after rotation of q and k and scaling of q."""
        head_dim = 2 * len(angles)
        result = []
        for head in range(n_heads + 2 * n_kv_heads):
            part = list(values[head * head_dim : (head + 1) * head_dim])
            if head < n_heads + n_kv_heads:
                for j, (sine, cosine) in enumerate(angles):
                    a, b = part[2 * j], part[2 * j + 1]
                    part[2 * j] = self.sat32(rne(a * cosine - b * sine, 20))
                    part[2 * j + 1] = self.sat32(rne(a * sine + b * cosine, 20))
            if head < n_heads:
                part = [self.sat32(rne(value * query_scale, 20)) for value in part]
            result += part
        return result

    def attn_out(self, sums: Sequence[int], totals: Sequence[int]) -> list[int]:
        head_dim = len(sums) // len(totals)
        result = []
        for index, value in enumerate(sums):
            y, bits = self.recip(totals[index // head_dim])
            result.append(self.sat32(rne(rne(value, bits) * y, 30)))
        return result

    def silu(self, g: int) -> int:
        return rne(g * self.sigmoid(g), 20)

    def sigmoid(self, g: int) -> int:
        size = abs(g)
        if size >= 1 << 20:
            sigma = 1 << 20
        else:
            i, r = size >> 10, size & 1023
            table = self.tables["SIG"]
            sigma = int(table[i]) + rne((int(table[i + 1]) - int(table[i])) * r, 10)
        return (1 << 20) - sigma if g < 0 else sigma

    def active(self, gate: int, activation: str) -> int:
        """Give a gate's activation, without counting a clip."""
        if activation == "silu":
            return self.silu(gate)
        return min(HIGH, rne(max(gate, 0) ** 2, self.linear_frac))

    def glu(self, gate: Sequence[int], up: Sequence[int], activation: str) -> list[int]:
        result = []
        for g, u in zip(gate, up, strict=True):
            if activation == "silu":
                active = self.silu(g)
            else:
                positive = max(g, 0)
                active = self.sat32(rne(positive * positive, self.linear_frac))
            result.append(self.sat32(rne(active * u, self.linear_frac)))
        return result

    def resid(self, x: Sequence[int], o: Sequence[int]) -> list[int]:
        return [self.sat32(a + b) for a, b in zip(x, o, strict=True)]
