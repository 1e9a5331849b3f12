"""Tiny random models as compiled chips in memory, and the same models decoded by the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.encoded import RomTensor
from romsim_compiler.formats import WeightFormat, parse_format
from romsim_compiler.gains import GainVector
from romsim_compiler.grid import choose_grid
from romsim_compiler.groups import Group, build_groups, tensor_shapes
from romsim_compiler.lora_image import LoraAdapterImage, LoraProjection
from romsim_compiler.mapping import map_group
from romsim_compiler.numerics import Numerics
from romsim_compiler.program import PlacedGroup, Program
from romsim_compiler.rom_image import pack_group
from romsim_compiler.schedule import build_decode, build_prefill
from romsim_compiler.target import Array, Target
from romsim_compiler.target_file import load_target
from romsim_models.spec import ModelSpec, rope_frequencies
from tests.romsim.cycle import page

LLAMA = ModelSpec(
    name="tiny", arch="llama", dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32,
    hidden_dim=96, vocab_size=40, norm_eps=1e-5, rope_theta=10000.0, max_seq_len=512,
    tie_embeddings=True,
)  # fmt: skip
WIDE = replace(LLAMA, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=64, tie_embeddings=False)
BITNET = replace(
    LLAMA, arch="bitnet", n_layers=1, activation="relu2", has_sub_norms=True, hidden_dim=64
)


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """Random weights in ROM form, and float gains."""

    spec: ModelSpec
    tensors: Mapping[str, RomTensor]
    gains: Mapping[str, list[float]]


def make_model(
    spec: ModelSpec, format_of: Callable[[str], str], *, seed: int = 0, spread: float = 1.0
) -> TinyModel:
    """Weights of about unit variance per output, times ``spread``."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, (n_rows, n_cols) in tensor_shapes(spec).items():
        size = spread if name == "token_embd.weight" else spread / math.sqrt(n_cols)
        tensors[name] = _tensor(rng, name, n_rows, n_cols, parse_format(format_of(name)), size)
    lengths = {"attn_norm": spec.dim, "ffn_norm": spec.dim}
    if spec.has_sub_norms:
        lengths |= {"attn_sub_norm": spec.q_dim, "ffn_sub_norm": spec.hidden_dim}
    gains = {
        f"blk.{layer}.{kind}": rng.uniform(0.5, 1.5, n).tolist()
        for layer in range(spec.n_layers)
        for kind, n in lengths.items()
    }
    gains["output_norm"] = rng.uniform(0.5, 2.5, spec.dim).tolist()
    return TinyModel(spec=spec, tensors=tensors, gains=gains)


def _tensor(
    rng: np.random.Generator, name: str, n_rows: int, n_cols: int, fmt: WeightFormat, size: float
) -> RomTensor:
    top = 3 if fmt.kind == "ternary" else 1 << fmt.code_bits
    n_groups = n_cols // fmt.group if fmt.group else 0
    step = size * (3.5 / top if fmt.kind != "ternary" else 1.2)
    scales = (step * rng.uniform(0.6, 1.4, (n_rows, n_groups))).astype(np.float16)
    minima = (-step * top / 2 * rng.uniform(0.8, 1.2, (n_rows, n_groups))).astype(np.float16)
    multiplier, exponent = page.whole_scale(step)
    return RomTensor(
        name=name,
        fmt=fmt,
        codes=rng.integers(0, top, (n_rows, n_cols), dtype=np.uint8),
        scale_bits=scales.view(np.uint16),
        minimum_bits=minima.view(np.uint16) if fmt.has_minimum else None,
        **({} if fmt.group else {"multiplier": multiplier, "exponent": exponent}),
    )


def make_target(**changes: Any) -> Target:
    """The small target with other sizes."""
    target = load_target("small")
    for name, value in changes.items():
        for part in ("array", "vector", "attention", "schedule", "formats", "embedding"):
            if name in {f.name for f in fields(getattr(target, part))}:
                change: Any = {part: replace(getattr(target, part), **{name: value})}
                break
        else:
            change = {name: value}
        target = replace(target, **change)
    return target


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What a loaded description offers, without a folder."""

    spec: ModelSpec
    target: Target
    numerics: Numerics
    context: int
    groups: dict[str, PlacedGroup]
    built: list[Group]
    gains: dict[str, GainVector]
    phase_increments: NDArray[np.uint32]
    query_scale: int
    rom: NDArray[np.uint8]
    tables: dict[str, NDArray[np.int64]]
    loras: dict[str, LoraAdapterImage] = field(default_factory=dict)
    has_images: bool = True

    @cached_property
    def decode(self) -> Program:
        return build_decode(self.spec, self.built)

    def prefill(self, n_tokens: int, with_head: bool) -> Program:
        assert n_tokens in (1, self.target.schedule.n_inflight)
        if n_tokens == 1 and with_head:
            return self.decode
        return build_prefill(self.spec, self.built, n_tokens, with_head=with_head)

    def kv_codebooks(self) -> None:
        """No CommVQ."""

    def rom_words(self, base: int, n_words: int) -> NDArray[np.uint8]:
        return self.rom[base : base + n_words]


def make_chip(
    model: TinyModel,
    target: Target,
    *,
    context: int = 64,
    loras: dict[str, LoraAdapterImage] | None = None,
) -> Chip:
    spec = model.spec
    gains = {}
    for name, weights in model.gains.items():
        in_frac = 16 if name.endswith("sub_norm") else 14
        words, g, e0, sk, out_frac = page.gain_words(weights, spec.norm_eps, in_frac)
        gains[name] = GainVector(
            name=name, values=np.array(words, np.int32), shift=g, out_frac=out_frac, eps_term=e0,
            root=sk, in_frac=in_frac,
        )  # fmt: skip
    built = build_groups(
        spec,
        lambda tensor: model.tensors[tensor].fmt,
        input_in_rom=target.embedding.input == "rom",
        head_in_rom=target.embedding.head == "rom",
    )
    placed, images, base = {}, [], 0
    for group in built:
        entry = _place(group, model, gains, target.array, target.vector.n_lanes, base)
        placed[group.name] = entry
        base += entry.mapping.n_words
        members = [model.tensors[m.tensor] for m in group.members]
        images.append(pack_group(members, entry.mapping, target.array))
    increments = rope_frequencies(spec) / (2 * math.pi) * 2**32
    return Chip(
        spec=spec,
        target=target,
        numerics=Numerics(attn_block=target.attention.attn_block),
        context=context,
        groups=placed,
        built=built,
        gains=gains,
        phase_increments=np.array([round(x) % 2**32 for x in increments], np.uint32),
        query_scale=round(2**20 * math.log2(math.e) / math.sqrt(spec.head_dim)),
        rom=np.concatenate(images),
        tables={name: np.array(values, np.int64) for name, values in page.tables().items()},
        loras=loras or {},
    )


def _place(
    group: Group,
    model: TinyModel,
    gains: Mapping[str, GainVector],
    array: Array,
    n_lanes: int,
    base: int,
) -> PlacedGroup:
    spec, fmt, operator = model.spec, group.fmt, group.members[0].operator
    grid = choose_grid([model.tensors[m.tensor] for m in group.members])
    norm = {"q": "attn_norm", "k": "attn_norm", "v": "attn_norm", "gate": "ffn_norm"}
    norm |= {"up": "ffn_norm"}
    if spec.has_sub_norms:
        norm |= {"o": "attn_sub_norm", "down": "ffn_sub_norm"}
    if group.layer < 0:
        in_frac = gains["output_norm"].out_frac
    elif operator in norm:
        in_frac = gains[f"blk.{group.layer}.{norm[operator]}"].out_frac
    else:
        in_frac = 16
    first = model.tensors[group.members[0].tensor]
    return PlacedGroup(
        name=group.name, layer=group.layer,
        mapping=map_group(group.n_rows, group.n_cols, fmt.planes(array), array, n_lanes),
        base=base, code_bits=fmt.code_bits, kind=fmt.kind, offset=fmt.offset, group=fmt.group,
        has_minimum=fmt.has_minimum, grid=grid.grid, in_frac=in_frac,
        out_frac=14 if operator in ("o", "down", "embd") else 16,
        multiplier=first.multiplier, multiplier_exp=first.exponent,
        pre_shift=grid.pre_shift,
        members=tuple((m.tensor, m.operator, m.first_row, m.n_rows) for m in group.members),
    )  # fmt: skip


class PageDecoder:
    """A token-serial decoder after the page; ``records`` holds the last token's operators."""

    def __init__(self, model: TinyModel, chip: Chip) -> None:
        self.spec = model.spec
        self.model = model
        self.chip = chip
        self.attn_block = chip.numerics.attn_block
        self.cache: dict[tuple[int, str, int], list[list[page.Block]]] = {}
        self.position = 0
        self.records: dict[str, list[int]] = {}
        self.adapter: LoraAdapterImage | None = None

    def _matrix(self, tensor: str, blocks: Sequence[page.Block]) -> list[int]:
        rom = self.model.tensors[tensor]
        (group,) = [g for g in self.chip.groups.values() if tensor in {m[0] for m in g.members}]
        frac = group.in_frac - group.out_frac
        values = rom.values().tolist()
        if not rom.fmt.group:
            return [
                page.matvec_whole_row(
                    row, blocks, m=rom.multiplier, e=rom.exponent, a=group.pre_shift,
                    frac=frac,
                )
                for row in values
            ]  # fmt: skip
        scales = [[page.fp16(int(w)) for w in row] for row in rom.scale_bits]
        minima: list[list[tuple[int, int]]] = [[] for _ in values]
        if rom.minimum_bits is not None:
            minima = [[page.fp16(int(w)) for w in row] for row in rom.minimum_bits]
        return [
            page.matvec_row(
                row, s, m, rom.fmt.group, blocks, grid=group.grid, shift=frac - group.grid
            )
            for row, s, m in zip(values, scales, minima, strict=True)
        ]

    def _linear(self, layer: int, stem: str, blocks: Sequence[page.Block]) -> list[int]:
        tensor = f"blk.{layer}.{stem}.weight"
        y = self._matrix(tensor, blocks)
        for p in self.adapter.projections if self.adapter else ():
            if p.tensor != tensor:
                continue
            assert isinstance(p, LoraProjection)
            (group,) = [g for g in self.chip.groups.values() if tensor in {m[0] for m in g.members}]
            z = [
                page.adapter_row(
                    a.tolist(), e.tolist(), 32, blocks, grid=p.grid_a,
                    shift=group.in_frac - 16 - p.grid_a,
                )
                for a, e in zip(p.a_codes, p.a_exps, strict=True)
            ]  # fmt: skip
            size = min(32, p.rank)
            inner = page.quantise(z, size)
            y = [
                page.sat32(
                    v
                    + page.adapter_row(
                        b.tolist(), e.tolist(), size, inner, grid=p.grid_b,
                        shift=16 - group.out_frac - p.grid_b,
                    )
                )
                for v, b, e in zip(y, p.b_codes, p.b_exps, strict=True)
            ]  # fmt: skip
        return y

    def _norm(self, x: Sequence[int], name: str) -> list[int]:
        in_frac = 16 if name.endswith("sub_norm") else 14
        weights = self.model.gains[name]
        words, g, e0, sk, out_frac = page.gain_words(weights, self.spec.norm_eps, in_frac)
        return page.norm(x, words, g=g, e0=e0, sk=sk, out_frac=out_frac)

    def _encode(self, name: str, values: Sequence[int]) -> list[page.Block]:
        blocks = page.quantise(values, 32)
        self.records[f"{name}.codes"] = page.codes_of(blocks)
        self.records[f"{name}.shifts"] = page.shifts_of(blocks)
        return blocks

    def _encode_heads(self, name: str, values: Sequence[int]) -> list[list[page.Block]]:
        d = self.spec.head_dim
        heads = [page.quantise(values[i : i + d], min(32, d)) for i in range(0, len(values), d)]
        self.records[f"{name}.codes"] = [c for h in heads for c in page.codes_of(h)]
        self.records[f"{name}.shifts"] = [s for h in heads for s in page.shifts_of(h)]
        return heads

    def step(self, token: int) -> dict[str, list[int]]:
        spec, self.records = self.spec, {}
        rom = self.model.tensors["token_embd.weight"]
        values = rom.values()[token].tolist()
        if rom.fmt.group:
            scales = [page.fp16(int(w)) for w in rom.scale_bits[token]]
            bits = rom.minimum_bits
            minima = [] if bits is None else [page.fp16(int(w)) for w in bits[token]]
            x = page.embed(values, scales, minima, rom.fmt.group, 14)
        else:
            x = [page.sat32(page.shr(v * rom.multiplier, -rom.exponent - 14)) for v in values]
        self.records["embed"] = x
        for layer in range(spec.n_layers):
            x = self._layer(layer, x)
        blocks = self._encode("output_norm", self._norm(x, "output_norm"))
        head = "token_embd.weight" if spec.tie_embeddings else "output.weight"
        self.records["logits"] = self._matrix(head, blocks)
        self.position += 1
        return self.records

    def _layer(self, layer: int, x: list[int]) -> list[int]:
        spec, name, records = self.spec, f"L{layer}", self.records
        increments = self.chip.phase_increments.tolist()
        blocks = self._encode(f"{name}.attn_norm", self._norm(x, f"blk.{layer}.attn_norm"))
        q, k, v = (self._linear(layer, f"attn_{s}", blocks) for s in "qkv")
        records |= {f"{name}.q": q, f"{name}.k": k, f"{name}.v": v}
        q = page.scale_query(page.rope(q, self.position, increments), self.chip.query_scale)
        queries = self._encode_heads(f"{name}.q", q)
        for kind, vector in (("k", page.rope(k, self.position, increments)), ("v", v)):
            for head, coded in enumerate(self._encode_heads(f"{name}.{kind}", vector)):
                self.cache.setdefault((layer, kind, head), []).append(coded)
        a = []
        for head, query in enumerate(queries):
            kv = head // (spec.n_heads // spec.n_kv_heads)
            _, weight, sums = page.attend(
                query, self.cache[layer, "k", kv], self.cache[layer, "v", kv], self.attn_block
            )
            a += page.attention_output(weight, sums)
        records[f"{name}.attn"] = a
        if spec.has_sub_norms:
            a = self._norm(a, f"blk.{layer}.attn_sub_norm")
        o = self._linear(layer, "attn_output", self._encode(f"{name}.attn", a))
        x = [page.sat32(p + r) for p, r in zip(x, o, strict=True)]
        records |= {f"{name}.o": o, f"{name}.x_attn": x}
        blocks = self._encode(f"{name}.ffn_norm", self._norm(x, f"blk.{layer}.ffn_norm"))
        gate, up = (self._linear(layer, f"ffn_{s}", blocks) for s in ("gate", "up"))
        records |= {f"{name}.gate": gate, f"{name}.up": up}
        h = page.gated(gate, up, spec.activation)
        if spec.has_sub_norms:
            h = self._norm(h, f"blk.{layer}.ffn_sub_norm")
        down = self._linear(layer, "ffn_down", self._encode(f"{name}.act", h))
        x = [page.sat32(p + r) for p, r in zip(x, down, strict=True)]
        records |= {f"{name}.down": down, f"{name}.x_ffn": x}
        return x
