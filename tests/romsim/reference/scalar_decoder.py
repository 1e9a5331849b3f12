"""Adapters and the whole decoder of the numerics page, token by token, in Python integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from tests.romsim.reference.scalar_page import (
    Clips,
    Coded,
    Matrix,
    Vector,
    act,
    attend,
    embed,
    grid_of,
    matvec,
    mxint8,
    norm,
    rope,
    scale_query,
)

# 6. LoRA ------------------------------------------------------------------------------------------


def code_adapter(weights: Sequence[Sequence[float]], block: int) -> Matrix:
    q, scales = [], []
    for row in weights:
        codes, exponents = [], []
        for first in range(0, len(row), block):
            part = [Fraction(w) for w in row[first : first + block]]
            e = -40
            while any(abs(round(w / Fraction(2) ** e)) > 127 for w in part):
                e += 1
            codes += [round(w / Fraction(2) ** e) for w in part]
            exponents.append((1 if any(codes[first:]) else 0, e))
        q.append(codes)
        scales.append(exponents)
    return Matrix(q=q, group=block, scales=scales)


@dataclass
class Adapter:
    a: Matrix
    b: Matrix
    block: int

    @classmethod
    def of(
        cls, a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], scaling: float
    ) -> Adapter:
        rank = len(a)
        block = min(32, rank)
        padding = -rank % block
        rows = [*a, *([0.0] * len(a[0]) for _ in range(padding))]
        columns = [[*(w * scaling for w in row), *[0.0] * padding] for row in b]
        return cls(a=code_adapter(rows, 32), b=code_adapter(columns, block), block=block)

    def add(self, y: Vector, x: Coded, f_in: int, f_a: int, f_out: int, clips: Clips) -> Vector:
        z = matvec(self.a, x, f_in, f_a, grid_of([self.a]), clips)
        inner = mxint8(z, self.block)
        d = matvec(self.b, inner, f_a, f_out, grid_of([self.b]), clips, self.block)
        return [clips.sat32(p + q) for p, q in zip(y, d, strict=True)]


# The decoder --------------------------------------------------------------------------------------

FUSED = {"qkv": ("attn_q", "attn_k", "attn_v"), "o": ("attn_output",),
         "gu": ("ffn_gate", "ffn_up"), "down": ("ffn_down",)}  # fmt: skip


@dataclass
class Shape:
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    activation: str
    has_sub_norms: bool
    epsilon: float
    theta: list[float]
    tied: bool
    f_r: int = 14
    f_a: int = 16
    f_l: int = 16
    attn_block: int = 32


@dataclass
class ScalarDecoder:
    """Token by token, recording every operator under the names that the reference uses."""

    shape: Shape
    matrices: dict[str, Matrix]
    norms: dict[str, list[float]]
    adapters: dict[str, Adapter] = field(default_factory=dict)
    clips: Clips = field(default_factory=Clips)
    position: int = 0
    cache: dict[tuple[int, str, int], list[Coded]] = field(default_factory=dict)
    grids: dict[str, int] = field(default_factory=dict)

    def grid(self, layer: int, group: str) -> int:
        name = f"L{layer}.{group}"
        if name not in self.grids:
            parts = [self.matrices[f"blk.{layer}.{p}.weight"] for p in FUSED[group]]
            self.grids[name] = grid_of(parts)
        return self.grids[name]

    def step(self, token: int, note: Callable[[str, Vector], None]) -> Vector:
        shape, clips = self.shape, self.clips

        def note_codes(name: str, coded: Coded) -> None:
            note(f"{name}.codes", coded[0])
            note(f"{name}.shifts", coded[1])

        x = embed(self.matrices["token_embd.weight"], token, shape.f_r, clips)
        note("embed", x)
        for layer in range(shape.n_layers):
            x = self._layer(layer, x, note, note_codes)
        y, f_y = norm(x, self.norms["output_norm.weight"], shape.epsilon, shape.f_r, clips)
        coded = mxint8(y)
        note_codes("output_norm", coded)
        head = self.matrices["token_embd.weight" if shape.tied else "output.weight"]
        if "head" not in self.grids:
            self.grids["head"] = grid_of([head])
        logits = matvec(head, coded, f_y, shape.f_l, self.grids["head"], clips)
        note("logits", logits)
        self.position += 1
        return logits

    def _project(
        self, layer: int, part: str, group: str, x: Coded, f_in: int, f_out: int
    ) -> Vector:
        name = f"blk.{layer}.{part}.weight"
        own = f"L{layer}.{part.removeprefix('attn_').removeprefix('ffn_')}"
        gamma = self.grids[own] if own in self.grids else self.grid(layer, group)
        y = matvec(self.matrices[name], x, f_in, f_out, gamma, self.clips)
        if name in self.adapters:
            y = self.adapters[name].add(y, x, f_in, self.shape.f_a, f_out, self.clips)
        return y

    def _norm(self, layer: int, part: str, x: Vector, f: int) -> tuple[Coded, int]:
        gains = self.norms[f"blk.{layer}.{part}.weight"]
        y, f_y = norm(x, gains, self.shape.epsilon, f, self.clips)
        return mxint8(y), f_y

    def _layer(
        self, layer: int, x: Vector, note: Callable[[str, Vector], None],
        note_codes: Callable[[str, Coded], None],
    ) -> Vector:  # fmt: skip
        shape, clips, n = self.shape, self.clips, f"L{layer}"
        f_a, f_r, hd = shape.f_a, shape.f_r, shape.head_dim
        block = min(32, hd)
        coded, f_y = self._norm(layer, "attn_norm", x, f_r)
        note_codes(f"{n}.attn_norm", coded)
        q, k, v = (self._project(layer, p, "qkv", coded, f_y, f_a) for p in FUSED["qkv"])
        for name, values in (("q", q), ("k", k), ("v", v)):
            note(f"{n}.{name}", values)
        q = scale_query(rope(q, hd, self.position, shape.theta, clips), hd, clips)
        k = rope(k, hd, self.position, shape.theta, clips)
        words: dict[str, list[Coded]] = {}
        for name, values in (("q", q), ("k", k), ("v", v)):
            heads = [mxint8(values[i : i + hd], block) for i in range(0, len(values), hd)]
            words[name] = heads
            codes = [code for head in heads for code in head[0]]
            note_codes(f"{n}.{name}", (codes, [shift for head in heads for shift in head[1]]))
        for h in range(shape.n_kv_heads):
            for name in ("k", "v"):
                self.cache.setdefault((layer, name, h), []).append(words[name][h])
        a: Vector = []
        for h in range(shape.n_heads):
            kv = h // (shape.n_heads // shape.n_kv_heads)
            keys, values_ = self.cache[layer, "k", kv], self.cache[layer, "v", kv]
            a += attend(words["q"][h], keys, values_, block, shape.attn_block, f_a, clips)
        note(f"{n}.attn", a)
        coded, f_in = mxint8(a), f_a
        if shape.has_sub_norms:
            coded, f_in = self._norm(layer, "attn_sub_norm", a, f_a)
        note_codes(f"{n}.attn", coded)
        o = self._project(layer, "attn_output", "o", coded, f_in, f_r)
        note(f"{n}.o", o)
        x = [clips.sat32(p + r) for p, r in zip(x, o, strict=True)]
        note(f"{n}.x_attn", x)
        coded, f_y = self._norm(layer, "ffn_norm", x, f_r)
        note_codes(f"{n}.ffn_norm", coded)
        gate, up = (self._project(layer, p, "gu", coded, f_y, f_a) for p in FUSED["gu"])
        note(f"{n}.gate", gate)
        note(f"{n}.up", up)
        h_ = [act(shape.activation, g, u, f_a, clips) for g, u in zip(gate, up, strict=True)]
        coded, f_in = mxint8(h_), f_a
        if shape.has_sub_norms:
            coded, f_in = self._norm(layer, "ffn_sub_norm", h_, f_a)
        note_codes(f"{n}.act", coded)
        down = self._project(layer, "ffn_down", "down", coded, f_in, f_r)
        note(f"{n}.down", down)
        x = [clips.sat32(p + r) for p, r in zip(x, down, strict=True)]
        note(f"{n}.x_ffn", x)
        return x
