"""Chips and models of the sweep: axes, a draw that covers every value, and their compilation.

A draw has four or eight builds, and on each several models that differ in what the Verilog does
not depend on (`romsim_rtl.die`): layers, vocabulary, formats, adapters.
"""

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
from romsim_compiler.kv import parse_kv
from romsim_compiler.pipeline import CompileOptions, compile_model
from romsim_compiler.target import Target
from romsim_models.lora import read_adapter
from romsim_models.spec import ModelSpec
from romsim_models.synthetic import synthetic_checkpoint
from tests.tiny_chips import sized_target, write_adapter

__all__ = [
    "AXES",
    "BLOCK",
    "DIES",
    "DIE_AXES",
    "FIRST",
    "FIRST_DIES",
    "LEAST",
    "MODEL_AXES",
    "N_SEQUENCES",
    "SMALL_TERNARY",
    "SweepChip",
    "axes_of",
    "block_of",
    "build_size",
    "chip_number",
    "compile_chip",
    "coverage",
    "coverage_lines",
    "die_number",
    "draw_block",
    "is_covered",
    "simpler",
]

FIRST, FIRST_DIES = 25, 4
"""Chips of the first draw, which `make test` runs, and builds that they share."""

BLOCK, DIES = 50, 8
"""Chips and builds of every other draw."""

LEAST = 5
"""Times that every value of every axis stands in a draw."""

DIE_AXES: dict[str, tuple[Any, ...]] = {
    # the simplest value first
    "n_tiles": (1, 2, 4, 8),
    "n_cells": (1, 2, 4),
    "width": ("32/32", "32/64", "64/64"),
    "word_elems": (32, 64),
    "heads_parallel": (1, 2, 3),
    "attn_block": (8, 16),
    "n_inflight": (1, 2, 3),
    "hop": (1, 3),
    "group": (32, 64),
    "family": ("llama", "bitnet"),
    "heads": ("1/1", "2/2", "4/2", "3/1"),
    "head_dim": (32, 64, 96),
    "dim": (64, 96, 128),
    "hidden_dim": (64, 192, 160),
    "context": (12, 21, 40),
    "kv_codec": ("int8", "int4", "int2", "fp16", "kivi-2bit", "kivi-4bit", "kivi-k4v2"),
    "kv_slots": ("all", "window", "sinks", "pages", "forks", "heavy"),
}
"""What the Verilog of a chip depends on."""

_KV_SLOTS = {
    "all": "{}",
    "window": "window,window=7,codec={}",
    "sinks": "streaming-llm,sinks=3,window=9,codec={}",
    "pages": "{},layout=paged,block=4",
    "forks": "{},layout=paged,block=4",
    "heavy": "h2o,heavy=4,window=3,codec={}",
}
_KIVI_SLOTS = {
    "all": "{},residual=32",
    "sinks": "{},residual=32,plain_sinks=8",
    "pages": "{},residual=32,layout=paged,block=32",
}
N_SEQUENCES = 3  # of chips whose sequences fork

MODEL_AXES: dict[str, tuple[Any, ...]] = {
    "codes": ("int4 on 4", "int2 on 2", "int4 on 2", "ternary"),
    "wide": ("none", "head", "head and down"),
    "vocab_size": (33, 64, 131),
    "is_tied": (True, False),
    "n_layers": (1, 2, 3),
    "rank": (0, 2, 8, 32),
}
"""What models of one build have of their own, within the bits of its lanes."""

AXES: dict[str, tuple[Any, ...]] = DIE_AXES | MODEL_AXES
"""All axes."""

_KINDS: dict[str, tuple[Any, ...]] = {
    "codes": (("int4 on 4",), ("int2 on 2", "int4 on 2"), ("int2 on 2", "int4 on 2"), ("ternary",)),
    "has_adapters": (True, True, False, False),
}
"""Of the builds of a draw: formats that models may have, and whether they may have adapters."""

_SHARES = {True: (8, 7), False: (5, 5)}  # of 25 chips, to builds with adapters and without


def axes_of(number: int) -> dict[str, tuple[Any, ...]]:
    """Return the values that a draw covers.

    The first has builds for four values of an axis. Each of the others has one kind of KIVI, whose
    chips run longest.
    """
    if not number:
        return {name: values[:FIRST_DIES] for name, values in AXES.items()}
    plain = [codec for codec in AXES["kv_codec"] if not codec.startswith("kivi")]
    kivi = [codec for codec in AXES["kv_codec"] if codec.startswith("kivi")]
    return AXES | {"kv_codec": (*plain, kivi[number % len(kivi)])}


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
    kv_codec: str = "int8"
    kv_slots: str = "all"
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the chip as JSON-ready values."""
        return asdict(self)

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA."""
        n_heads, n_kv = map(int, self.heads.split("/"))
        return "MHA" if n_heads == n_kv else "MQA" if n_kv == 1 else "GQA"

    @property
    def is_kivi(self) -> bool:
        """Whether keys are coded by channel, behind a window of words."""
        return self.kv_codec.startswith("kivi")

    @property
    def has_forks(self) -> bool:
        """Whether several sequences share pages."""
        return self.kv_slots == "forks"

    @property
    def lanes(self) -> tuple[bool, int]:
        """Whether lanes are ternary, and their bits."""
        is_ternary = self.codes == "ternary"
        return is_ternary, 2 if is_ternary else int(self.codes[-1])

    def target(self) -> Target:
        """The architecture."""
        ternary, lane_bits = self.lanes
        word_codes, n_lanes = map(int, self.width.split("/"))
        target = sized_target(
            "small-ternary" if ternary else "small",
            name="sweep",
            n_tiles=self.n_tiles,
            n_cells=self.n_cells,
            rom_rows=1 << (16 if self.n_tiles * self.n_cells == 1 else 15),
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
        slots = _KIVI_SLOTS if self.is_kivi else _KV_SLOTS
        return replace(
            target,
            # room for any model of the draw
            vector=replace(target.vector, sram_kib=256),
            attention=replace(target.attention, sram_kib=512),
            schedule=replace(target.schedule, n_slots=N_SEQUENCES if self.has_forks else 1),
            kv=parse_kv(slots[self.kv_slots].format(self.kv_codec)),
        )

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
    """Change what the compiler would refuse, or do otherwise by itself."""
    if chip.group == 64:  # groups divide the columns of every matrix
        n_heads = int(chip.heads.split("/")[0])
        chip = replace(
            chip,
            dim=-(-chip.dim // 64) * 64,
            hidden_dim=-(-chip.hidden_dim // 64) * 64,
            head_dim=chip.head_dim if n_heads * chip.head_dim % 64 == 0 else 64,
        )
    if chip.kv_slots in ("window", "sinks", "heavy"):  # a token would write where another reads
        chip = replace(chip, n_inflight=1)
    if chip.kv_slots == "heavy" and not chip.is_kivi:  # slots are freed for some time
        chip = replace(chip, context=max(chip.context, 21))
    if chip.is_kivi:  # it has rows of its own, and codes nothing before the 33rd token
        slots = chip.kv_slots if chip.kv_slots in _KIVI_SLOTS else "all"
        chip = replace(chip, kv_slots=slots, context=40, n_layers=min(chip.n_layers, 2))
    return chip


def build_size(*, n_tiles: int, width: str, word_elems: int, heads: int, rank: int) -> float:
    """Estimate a build: megabytes of C++, and as much again as the Verilog of a tile costs.

    Parameters
    ----------
    heads
        Query heads that are multiplied with one KV word.
    rank
        Of adapters; 0 for none.
    """
    tile = word_elems // 32 * (0.4 * heads + 2.0 * (rank > 0))
    return 1 + 3 * (int(width.split("/")[1]) // 32) + tile * (n_tiles + 1.5)


def _die_columns(draw: random.Random, number: int) -> dict[str, list[Any]]:
    """Draw every axis of a draw's builds; what an axis has too few values for is drawn again.

    Values are swapped between builds where that makes both together smaller.
    """
    columns: dict[str, list[Any]] = {}
    n_dies = DIES if number else FIRST_DIES
    covered = axes_of(number)
    for name, values in ({name: covered[name] for name in DIE_AXES} | _KINDS).items():
        column = [*values * (n_dies // len(values)), *draw.sample(values, n_dies % len(values))]
        draw.shuffle(column)
        columns[name] = column

    def size(row: int) -> float:
        return build_size(
            n_tiles=columns["n_tiles"][row],
            width=columns["width"][row],
            word_elems=columns["word_elems"][row],
            heads=columns["heads_parallel"][row],
            rank=int(columns["has_adapters"][row]),
        )

    for _ in range(400 if number else 2000):
        column = columns[
            draw.choice(("n_tiles", "width", "word_elems", "heads_parallel", "has_adapters"))
        ]
        one, two = draw.sample(range(n_dies), 2)
        before = size(one) + size(two)
        column[one], column[two] = column[two], column[one]
        if size(one) + size(two) > before:
            column[one], column[two] = column[two], column[one]
    return columns


def _model_column(name: str, count: int, draw: random.Random) -> list[Any]:
    """Draw an axis of the models: every value as often, but for vocabularies of any size."""
    values = MODEL_AXES[name]
    if name == "vocab_size":
        column = list(values) * max(LEAST, count // 10)
        column += [draw.randrange(33, 161) for _ in range(count - len(column))]
    elif name == "rank":  # of builds with adapters
        column = list(values[1:]) * max(LEAST, count // 4)
        column += [0] * (count - len(column))
    else:
        column = [values[index % len(values)] for index in range(count)]
    draw.shuffle(column)
    return column


def _draw(number: int, attempt: int) -> list[tuple[SweepChip, ...]]:
    draw = random.Random(f"romsim sweep {number} {attempt}")
    count = BLOCK if number else FIRST
    columns = _die_columns(draw, number)
    shares = {has: list(sizes) * (count // FIRST) for has, sizes in _SHARES.items()}
    sizes = [shares[has].pop() for has in columns["has_adapters"]]
    models = {name: _model_column(name, count, draw) for name in MODEL_AXES if name != "codes"}
    n_adapted = sum(size for size, has in zip(sizes, columns["has_adapters"], strict=True) if has)
    models["rank"] = _model_column("rank", n_adapted, draw)
    seed = FIRST + (number - 1) * BLOCK if number else 0
    dies = []
    for index, size in enumerate(sizes):
        die = {name: columns[name][index] for name in DIE_AXES}
        codes = columns["codes"][index]
        chips = []
        for _ in range(size):
            own = {name: column.pop() for name, column in models.items() if name != "rank"}
            own["rank"] = models["rank"].pop() if columns["has_adapters"][index] else 0
            own["codes"] = codes[seed % len(codes)]
            chips.append(_possible(SweepChip(**die, **own, seed=seed)))
            seed += 1
        dies.append(tuple(chips))
    return dies


@cache
def draw_block(number: int) -> tuple[tuple[SweepChip, ...], ...]:
    """Draw chips that cover every axis, by build; the same number gives the same chips.

    The first draw, which `make test` runs, has the smallest builds that cover; the others meet
    large and small as they come, but for the very largest.
    """
    attempt = 0
    while True:
        dies = _draw(number, attempt)
        if is_covered([chip for die in dies for chip in die], axes_of(number)):
            return tuple(dies)
        attempt += 1


def block_of(number: int) -> int:
    """Give the draw in which the chip of a number from 0 on is."""
    return 0 if number < FIRST else 1 + (number - FIRST) // BLOCK


def die_number(number: int) -> tuple[SweepChip, ...]:
    """Give all chips of the build that the chip of a number from 0 on is on."""
    for die in draw_block(block_of(number)):
        if number <= die[-1].seed:
            return die
    raise AssertionError(number)


def chip_number(number: int) -> SweepChip:
    """Give the chip of a number from 0 on."""
    die = die_number(number)
    return die[number - die[0].seed]


def coverage(chips: Sequence[SweepChip]) -> dict[str, Counter[Any]]:
    """Count the chips of each value of each axis."""
    return {name: Counter(getattr(chip, name) for chip in chips) for name in AXES}


def is_covered(chips: Sequence[SweepChip], axes: dict[str, tuple[Any, ...]]) -> bool:
    """Whether every value of axes is there `LEAST` times, and half the chips have tiles and layers.

    No two chips are the same one.
    """
    if len({replace(chip, seed=0) for chip in chips}) < len(chips):
        return False
    counts = coverage(chips)
    several = sum(chip.n_tiles > 1 and chip.n_layers > 1 for chip in chips)
    return 2 * several >= len(chips) and all(
        counts[name][value] >= LEAST for name, values in axes.items() for value in values
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
    n_dies = len({tuple(getattr(chip, n) for n in DIE_AXES) + chip.lanes for chip in chips})
    lines.append(f"builds: {n_dies}")
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


SMALL_TERNARY = SweepChip(
    n_tiles=2,
    n_cells=1,
    width="32/32",
    word_elems=32,
    heads_parallel=1,
    attn_block=16,
    n_inflight=2,
    hop=1,
    codes="ternary",
    group=32,
    wide="none",
    family="bitnet",
    heads="2/1",
    head_dim=32,
    dim=64,
    hidden_dim=64,
    vocab_size=33,
    is_tied=True,
    n_layers=1,
    context=40,
    rank=0,
)
"""A ternary chip that builds quickly, outside the draw."""


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
