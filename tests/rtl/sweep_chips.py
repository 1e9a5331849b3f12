"""Chips and models of the sweep: axes, a draw that covers every value, and their compilation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from romsim_compiler.choices import parse_rules
from romsim_compiler.description import Description
from romsim_compiler.pipeline import CompileOptions, compile_model
from romsim_compiler.target import Target
from romsim_models.lora import read_adapter
from romsim_models.spec import ModelSpec
from romsim_models.synthetic import synthetic_checkpoint
from tests.tiny_chips import sized_target, write_adapter

__all__ = [
    "AXES",
    "BLOCK",
    "LEAST",
    "SweepChip",
    "build_size",
    "chip_number",
    "compile_chip",
    "coverage",
    "coverage_lines",
    "draw_block",
    "is_covered",
    "simpler",
]

BLOCK = 25
"""Chips of one draw, which covers every value of every axis."""

LEAST = 5
"""Times that every value of every axis stands in a draw."""

AXES: dict[str, dict[Any, int]] = {
    # value: times in a draw before chips are made possible; the simplest value first
    "n_tiles": {1: 5, 2: 10, 4: 5, 8: 5},
    "n_cells": {1: 8, 2: 9, 4: 8},
    "width": {"32/32": 14, "32/64": 5, "64/64": 6},
    "word_elems": {32: 17, 64: 8},
    "heads_parallel": {1: 11, 2: 8, 3: 6},
    "attn_block": {8: 12, 16: 13},
    "n_inflight": {1: 7, 2: 11, 3: 7},
    "hop": {1: 13, 3: 12},
    "codes": {"int4 on 4": 6, "int2 on 2": 6, "int4 on 2": 6, "ternary": 7},
    "group": {32: 14, 64: 11},
    "wide": {"none": 8, "head": 9, "head and down": 8},
    "family": {"llama": 15, "bitnet": 10},
    "heads": {"1/1": 6, "2/2": 6, "4/2": 7, "3/1": 6},
    "head_dim": {32: 14, 64: 6, 96: 5},
    "dim": {64: 8, 96: 9, 128: 8},
    "hidden_dim": {64: 8, 192: 8, 160: 9},
    "vocab_size": {33: 8, 64: 8, 131: 9},
    "is_tied": {True: 13, False: 12},
    "n_layers": {1: 6, 2: 12, 3: 7},
    "context": {12: 9, 21: 8, 40: 8},
    "rank": {0: 9, 4: 5, 8: 5, 32: 6},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepChip:
    """An architecture and a model of random weights; one value of each of `AXES`, and a seed."""

    n_tiles: int
    n_cells: int
    width: str  # codes of a ROM word / lanes of unit V
    word_elems: int
    heads_parallel: int
    attn_block: int
    n_inflight: int
    hop: int  # register stages of broadcast and collection
    codes: str  # format of the matrices and bits of a lane
    group: int  # codes that share a scale
    wide: str  # matrices of 8-bit codes
    family: str
    heads: str  # query heads / key-value heads
    head_dim: int
    dim: int
    hidden_dim: int
    vocab_size: int
    is_tied: bool
    n_layers: int
    context: int
    rank: int  # of two resident adapters; 0 for none
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the chip as JSON-ready values."""
        return asdict(self)

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA."""
        n_heads, n_kv = map(int, self.heads.split("/"))
        return "MHA" if n_heads == n_kv else "MQA" if n_kv == 1 else "GQA"

    def target(self) -> Target:
        """The architecture."""
        ternary = self.codes == "ternary"
        lane_bits = 2 if ternary else int(self.codes[-1])
        word_codes, n_lanes = map(int, self.width.split("/"))
        target = sized_target(
            "small-ternary" if ternary else "small",
            name="sweep",
            n_tiles=self.n_tiles,
            n_cells=self.n_cells,
            rom_rows=1 << 15,
            word_codes=word_codes,
            scale_group=min(self.group, word_codes),
            lane_bits=lane_bits,
            n_lanes=n_lanes,
            word_elems=self.word_elems,
            heads_parallel=self.heads_parallel,
            attn_block=self.attn_block,
            n_inflight=self.n_inflight,
            broadcast_cycles=self.hop,
            collect_cycles=self.hop,
        )
        return replace(target, vector=replace(target.vector, sram_kib=256))

    def spec(self) -> ModelSpec:
        """The model's shape."""
        n_heads, n_kv = map(int, self.heads.split("/"))
        bitnet = self.family == "bitnet"
        return ModelSpec(
            name="sweep",
            arch=self.family,
            dim=self.dim,
            n_layers=self.n_layers,
            n_heads=n_heads,
            n_kv_heads=n_kv,
            head_dim=self.head_dim,
            hidden_dim=self.hidden_dim,
            vocab_size=self.vocab_size,
            norm_eps=1e-5,
            rope_theta=10000.0,
            max_seq_len=self.context,
            tie_embeddings=self.is_tied,
            activation="relu2" if bitnet else "silu",
            has_sub_norms=bitnet,
            eos_ids=(2,),
        )

    def rules(self) -> list[str]:
        """Formats of the matrices, as `romsim compile --quantize` takes them."""
        narrow = "ternary" if self.codes == "ternary" else f"{self.codes[:4]}g{self.group}"
        head = f"int4g{self.group}" if self.wide == "none" else f"int8g{self.group}"
        rules = [f"blk.*={narrow}", f"token_embd.weight={head}"]
        if not self.is_tied:
            rules.append(f"output.weight={head}")
        if self.wide == "head and down":
            rules.append(f"blk.*.ffn_down.weight=int8g{self.group}")
        return rules


def _possible(chip: SweepChip) -> SweepChip:
    """Change what the compiler would refuse: groups divide the columns of every matrix."""
    if chip.group == 64:
        n_heads = int(chip.heads.split("/")[0])
        chip = replace(
            chip,
            dim=-(-chip.dim // 64) * 64,
            hidden_dim=-(-chip.hidden_dim // 64) * 64,
            head_dim=chip.head_dim if n_heads * chip.head_dim % 64 == 0 else 64,
        )
    return chip


def build_size(chip: SweepChip) -> float:
    """Estimate a chip's build: megabytes of Verilog of unit V's groups and of all tiles."""
    word_blocks = chip.word_elems // 32
    tile = 0.1 + word_blocks * (0.12 * chip.heads_parallel + 0.15 * (chip.rank > 0))
    return 0.3 + 0.5 * (int(chip.width.split("/")[1]) // 32) + tile * chip.n_tiles


def _spread(columns: dict[str, list[Any]], draw: random.Random, n_swaps: int) -> None:
    """Swap values between chips where that makes the larger of two builds smaller."""
    costly = ("n_tiles", "width", "word_elems", "heads_parallel", "rank")

    def size(row: int) -> float:
        return build_size(SweepChip(**{name: columns[name][row] for name in AXES}))

    for _ in range(n_swaps):
        column = columns[draw.choice(costly)]
        one, two = draw.sample(range(BLOCK), 2)
        before = max(size(one), size(two))
        column[one], column[two] = column[two], column[one]
        if max(size(one), size(two)) > before:
            column[one], column[two] = column[two], column[one]


@cache
def draw_block(number: int) -> tuple[SweepChip, ...]:
    """Draw `BLOCK` chips that cover every axis; the same number gives the same chips.

    The first draw, which `make test` runs, has the smallest builds that a draw can have; the
    others meet large and small as they come, but for the very largest.
    """
    attempt = 0
    while True:
        draw = random.Random(f"romsim sweep {number} {attempt}")
        columns = {}
        for name, values in AXES.items():
            column = [value for value, times in values.items() for _ in range(times)]
            draw.shuffle(column)
            columns[name] = column
        _spread(columns, draw, 60 if number else 4000)
        chips = [
            _possible(
                SweepChip(
                    seed=number * BLOCK + index, **{name: columns[name][index] for name in AXES}
                )
            )
            for index in range(BLOCK)
        ]
        if is_covered(chips):
            return tuple(chips)
        attempt += 1


def chip_number(number: int) -> SweepChip:
    """Give the chip of a number from 0 on."""
    return draw_block(number // BLOCK)[number % BLOCK]


def coverage(chips: Sequence[SweepChip]) -> dict[str, Counter[Any]]:
    """Count the chips of each value of each axis."""
    return {name: Counter(getattr(chip, name) for chip in chips) for name in AXES}


def is_covered(chips: Sequence[SweepChip]) -> bool:
    """Whether every value is there `LEAST` times, and half the chips have tiles and layers."""
    counts = coverage(chips)
    several = sum(chip.n_tiles > 1 and chip.n_layers > 1 for chip in chips)
    return 2 * several >= len(chips) and all(
        counts[name][value] >= LEAST for name, values in AXES.items() for value in values
    )


def coverage_lines(chips: Sequence[SweepChip]) -> list[str]:
    """Say how many chips have each value, a line an axis."""
    lines = []
    for name, counts in coverage(chips).items():
        listed = ", ".join(f"{value}: {counts[value]}" for value in AXES[name])
        rest = ", ".join(f"{v}: {n}" for v, n in sorted(counts.items()) if v not in AXES[name])
        lines.append(f"{name:15s} {listed}{', ' + rest if rest else ''}")
    kinds = Counter(chip.kind for chip in chips)
    lines.append("attention       " + ", ".join(f"{k}: {kinds[k]}" for k in sorted(kinds)))
    several = sum(chip.n_tiles > 1 and chip.n_layers > 1 for chip in chips)
    lines.append(f"several tiles and several layers: {several} of {len(chips)}")
    return lines


def simpler(chip: SweepChip) -> Iterator[SweepChip]:
    """Give chips with one axis at a simpler value, the simplest value of each axis first."""
    seen = {chip}
    for name, values in AXES.items():
        for value in values:
            if value == getattr(chip, name):
                break
            one = _possible(replace(chip, **{name: value}))
            if one not in seen:
                seen.add(one)
                yield one


def compile_chip(chip: SweepChip, folder: Path) -> Description:
    """Compile a chip with its adapters "a" and "b" into ``folder``."""
    spec = chip.spec()
    loras = []
    if chip.rank:
        all_parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        some = ("attn_q", "attn_v", "ffn_down")
        for name, parts, layers in (("a", all_parts, None), ("b", some, [spec.n_layers - 1])):
            path = write_adapter(
                folder / f"adapter-{name}",
                spec,
                rank=chip.rank,
                parts=parts,
                layers=layers,
                seed=chip.seed,
            )
            loras.append((name, read_adapter(path, spec)))
    options = CompileOptions(
        context=chip.context, rules=parse_rules(chip.rules()), adapters=tuple(loras)
    )
    checkpoint = synthetic_checkpoint(spec, seed=chip.seed)
    return compile_model(checkpoint, chip.target(), folder / "chip", options=options)


assert {f.name for f in fields(SweepChip)} == {*AXES, "seed"}
