"""Unit L against numerics section 4 read out in Python integers, with the cycles of machine.md."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from romsim_compiler.mapping import Mapping, map_group
from romsim_compiler.target import Array
from romsim_models.errors import SpecError
from romsim_rtl.cell import CellConfig
from romsim_rtl.emit import verilog_texts
from romsim_rtl.encoding import pack
from romsim_rtl.lside import LSide, LSideConfig
from romsim_rtl.lside_run import MATVEC_CYCLES
from romsim_rtl.ltile import LTileConfig
from romsim_rtl.toolchain import lint
from romsim_rtl.xbuffer import XBufferSizes
from tests.rtl.stepped import simulate

EMBED_CYCLES = 4
"""From the issue of embed to its first word, without the collecting wires."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Sizes of a small array and of one matrix on it."""

    n_tiles: int = 2
    n_cells: int = 2
    word_codes: int = 32
    lane_bits: int = 4
    is_ternary: bool = False
    scale_group: int = 32
    rom_rows: int = 256
    has_minima: bool = True
    n_lanes: int = 32
    collect_cycles: int = 1
    n_rows: int = 10
    n_cols: int = 96
    n_inflight: int = 2
    code_bits: int = 4
    offset: int = 0
    may_round: bool = False
    is_plain: bool = False
    first_row: int = 0
    ks: int | None = None
    more_logs: tuple[int, ...] = ()

    def array(self) -> Array:
        return Array(
            n_tiles=self.n_tiles,
            n_cells=self.n_cells,
            rom_rows=self.rom_rows,
            word_codes=self.word_codes,
            lane_bits=self.lane_bits,
            encoding="ternary" if self.is_ternary else "unsigned",
            scale_group=self.scale_group,
            scale_bits=16,
            min_bits=16 if self.has_minima else 0,
        )

    @property
    def planes(self) -> int:
        if self.is_ternary and self.code_bits == 2:
            return 1
        return -(-self.code_bits // self.array().plane_shift)

    def mapping(self) -> Mapping:
        best = map_group(self.n_rows, self.n_cols, self.planes, self.array(), self.n_lanes)
        if self.ks is None:
            return best
        rows = self.n_tiles * self.n_cells // self.ks
        return replace(
            best,
            ks=self.ks,
            wpc=ceil(ceil(self.n_cols / self.word_codes) / self.ks),
            rows_per_step=rows,
            steps=-(-self.n_rows // rows),
        )

    def config(self) -> LSideConfig:
        mapping = self.mapping()
        cell = CellConfig.of(
            self.array(), max_planes=self.planes, may_round=self.may_round, has_plain=self.is_plain
        )
        logs = {mapping.ks.bit_length() - 1, *self.more_logs}
        return LSideConfig(
            tile=LTileConfig(
                n_cells=self.n_cells,
                rom_rows=self.rom_rows,
                ks_logs=tuple(sorted(logs)),
                cell=cell,
                x=XBufferSizes(
                    n_words=mapping.ks * mapping.wpc,
                    n_inflight=self.n_inflight,
                    n_groups=self.n_lanes // 32,
                    word_blocks=self.word_codes // 32,
                ),
            ),
            n_tiles=self.n_tiles,
            n_lanes=self.n_lanes,
            collect_cycles=self.collect_cycles,
        )


def rne(value: int, shift: int) -> int:
    """RNE of the numerics page."""
    if shift <= 0:
        return value << -shift
    if shift >= 63:
        return 0
    floor = value >> shift
    rest = value - (floor << shift)
    half = 1 << (shift - 1)
    return floor + (rest > half or (rest == half and floor & 1))


def half_parts(word: int) -> tuple[int, int]:
    field, fraction = (word >> 10) & 31, word & 1023
    sig = fraction + (1024 if field else 0)
    return (-sig if word >> 15 else sig), max(field, 1) - 25


def sat32(value: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, value))


class Matrix:
    """Random codes and scales, their ROM words, and the products."""

    def __init__(self, chip: Chip, seed: int, *, base: int = 3) -> None:
        rng = random.Random(seed)
        self.chip, self.base = chip, base
        n_rows, n_cols = chip.n_rows, chip.n_cols
        top = 3 if chip.is_ternary and chip.code_bits == 2 else 1 << chip.code_bits
        self.codes = [[rng.randrange(top) for _ in range(n_cols)] for _ in range(n_rows)]
        n_fields = -(-n_cols // chip.scale_group)
        self.scales = [[self._half(rng) for _ in range(n_fields)] for _ in range(n_rows)]
        self.minima = [[self._half(rng) for _ in range(n_fields)] for _ in range(n_rows)]
        if chip.is_plain:
            self.scales = [[0] * n_fields for _ in range(n_rows)]
        if chip.is_plain or not chip.has_minima:
            self.minima = [[0] * n_fields for _ in range(n_rows)]
        for row in range(0, n_rows, 3):
            self.codes[row] = [top - 1] * n_cols
        used = [w for row in (*self.scales, *self.minima) for w in row if half_parts(w)[0]]
        self.grid = 0 if chip.is_plain else min(half_parts(w)[1] for w in used)
        if chip.may_round:
            self.grid += 7
        self.multiplier = rng.randrange(1 << 23, 1 << 24) if chip.is_plain else 1
        self.pre_shift = rng.choice((0, 5)) if chip.is_plain else 0
        self.out_shift = rng.choice((-3, 12, 18, 25)) if not chip.is_plain else 20

    def _half(self, rng: random.Random) -> int:
        special = rng.choice((None, None, None, None, 0, 5, 0x8003))
        word = rng.randrange(4, 12) << 10 | rng.randrange(1024) | rng.randrange(2) << 15
        return word if special is None else special

    def value(self, code: int) -> int:
        if self.chip.is_ternary and self.chip.code_bits == 2:
            return (0, 1, -1)[code]
        return code - self.chip.offset

    def words(self) -> list[list[list[int]]]:
        """ROM words [tile][cell][address], from docs/machine.md, section 2."""
        chip, mapping = self.chip, self.chip.mapping()
        size = chip.word_codes
        digit = 2 if chip.is_ternary and chip.code_bits == 2 else chip.array().plane_shift
        rom = [[[0] * chip.rom_rows for _ in range(chip.n_cells)] for _ in range(chip.n_tiles)]
        rt = chip.n_cells // mapping.ks
        n_words = -(-chip.n_cols // size)
        for i in range(chip.n_rows):
            step, r = divmod(i, mapping.rows_per_step)
            for index in range(n_words):
                j, w = divmod(index, mapping.wpc)
                cell = (r % rt) * mapping.ks + j
                for plane in range(mapping.planes):
                    word = 0
                    for lane in range(min(size, chip.n_cols - index * size)):
                        code = self.codes[i][index * size + lane] >> plane * digit
                        code &= (1 << digit) - 1
                        word |= code << lane * chip.lane_bits
                    at = size * chip.lane_bits
                    n_fields = size // chip.scale_group
                    for field in range(n_fields if plane == 0 else 0):
                        column = (index * size + field * chip.scale_group) // chip.scale_group
                        if column < len(self.scales[i]):
                            word |= self.scales[i][column] << at + 16 * field
                            if chip.has_minima:
                                word |= self.minima[i][column] << at + 16 * (n_fields + field)
                    address = self.base + (step * mapping.wpc + w) * mapping.planes + plane
                    rom[r // rt][cell][address] = word
        return rom

    def multiply(self, codes: list[int], shifts: list[int]) -> list[int]:
        """Section 4 of docs/numerics.md."""
        result = []
        for i in range(self.chip.n_rows):
            acc = 0
            for b in range(-(-self.chip.n_cols // 32)):
                part = range(32 * b, min(32 * b + 32, self.chip.n_cols))
                p = sum(self.value(self.codes[i][k]) * codes[k] for k in part)
                s = sum(codes[k] for k in part)
                column = 32 * b // self.chip.scale_group
                sig, exp = (1, 0) if self.chip.is_plain else half_parts(self.scales[i][column])
                low, low_exp = half_parts(self.minima[i][column])
                acc += rne(p * sig, self.grid - exp - shifts[b])
                acc += rne(s * low, self.grid - low_exp - shifts[b])
            assert abs(acc) < 1 << 63
            result.append(rne(rne(acc, self.pre_shift) * self.multiplier, self.out_shift))
        return result

    def instruction(self, *, token: int = 0, is_head: bool = False) -> int:
        mapping = self.chip.mapping()
        return pack(
            {
                "op": 4,
                "unit": 1,
                "token": token,
                "base": self.base,
                "steps": mapping.steps,
                "wpc": mapping.wpc,
                "planes": mapping.planes,
                "ks_log2": mapping.ks.bit_length() - 1,
                "n_rows": mapping.n_rows,
                "n_cols": mapping.n_cols,
                "grid": self.grid,
                "out_shift": self.out_shift,
                "offset": self.chip.offset,
                "has_scales": int(not self.chip.is_plain),
                "is_head": int(is_head),
                "pre_shift": self.pre_shift,
                "multiplier": self.multiplier,
                "first_row": self.chip.first_row,
            }
        )


def activations(chip: Chip, seed: int) -> tuple[list[int], list[int]]:
    rng = random.Random(seed)
    codes = [rng.randrange(-127, 128) for _ in range(chip.n_cols)]
    codes[:32] = [rng.choice((-127, 127)) for _ in range(min(32, chip.n_cols))]
    return codes, [rng.randrange(9) for _ in range(-(-chip.n_cols // 32))]


async def broadcast(
    ctx: Any, dut: LSide, codes: list[int], shifts: list[int], *, token: int = 0
) -> None:
    groups = dut.config.tile.x.n_groups
    for first in range(0, len(shifts), groups):
        mask = 0
        for group in range(groups):
            block = first + group
            if block >= len(shifts):
                continue
            mask |= 1 << group
            part = codes[32 * block : 32 * block + 32]
            word = sum((c & 255) << 8 * k for k, c in enumerate(part))
            ctx.set(dut.bc_codes[group], word)
            ctx.set(dut.bc_shift[group], shifts[block])
            ctx.set(dut.bc_sum[group], sum(part))
        ctx.set(dut.bc_kind, 1)
        ctx.set(dut.bc_token, token)
        ctx.set(dut.bc_block, first)
        ctx.set(dut.bc_mask, mask)
        await ctx.tick()
    ctx.set(dut.bc_kind, 0)
    await ctx.tick()


async def run(ctx: Any, dut: LSide, instruction: int) -> tuple[int, list[Any]]:
    """Start a matrix in cycle 0; give the cycle from which the unit is idle, and the beats."""
    ctx.set(dut.instr, instruction)
    ctx.set(dut.start, 1)
    beats: list[Any] = []
    cycle = 0
    while True:
        await ctx.tick()
        cycle += 1
        ctx.set(dut.start, 0)
        ctx.set(dut.instr, 0)
        if ctx.get(dut.ly_valid):
            mask, row = ctx.get(dut.ly_mask), ctx.get(dut.ly_row)
            values = {
                row + lane: ctx.get(dut.ly_data[lane])
                for lane in range(dut.config.n_lanes)
                if mask >> lane & 1
            }
            beats.append((cycle, ctx.get(dut.ly_token), ctx.get(dut.ly_head), values))
        if not ctx.get(dut.busy):
            return cycle, beats
        assert cycle < 5000


def expected_beats(chip: Chip, values: list[int]) -> list[tuple[int, dict[int, int]]]:
    """Beats with the cycle of each, from docs/machine.md and the interface of the unit."""
    mapping = chip.mapping()
    db, cps = mapping.drain_beats(chip.n_lanes), mapping.step_cycles(chip.n_lanes)
    beats = []
    for step in range(mapping.steps):
        first = step * mapping.rows_per_step
        last = min(first + mapping.rows_per_step, chip.n_rows)
        for beat, start in enumerate(range(first, last, chip.n_lanes)):
            cycle = step * cps + mapping.wpc * mapping.planes + 10 + mapping.ks.bit_length() - 1
            rows = range(start, min(start + chip.n_lanes, last))
            beats.append(
                (
                    cycle + beat + chip.collect_cycles,
                    {chip.first_row + r: sat32(values[r]) for r in rows},
                )
            )
        assert db >= len(beats) // (step + 1)
    return beats


CHIPS = {
    "plain_4bit": Chip(),
    "two_planes": Chip(code_bits=8, offset=128, n_cols=80),
    "shared_rows": Chip(n_cells=4, ks=4, n_cols=200, n_rows=7, more_logs=(0, 1)),
    "many_rows": Chip(n_tiles=4, n_cells=16, n_rows=150, n_cols=64, ks=1),
    "two_lane_groups": Chip(n_lanes=64, n_rows=20, n_cols=160, collect_cycles=3),
    "wide_words": Chip(word_codes=128, n_lanes=128, lane_bits=2, code_bits=4, n_cols=320, n_rows=6),
    "wide_group": Chip(
        word_codes=64, n_lanes=64, scale_group=64, n_cols=192, n_rows=5, has_minima=False
    ),
    "rounded": Chip(may_round=True, n_cols=64),
    "ternary": Chip(
        is_ternary=True, lane_bits=2, code_bits=2, is_plain=True, n_cols=160, first_row=64
    ),
    "codes_on_ternary": Chip(is_ternary=True, lane_bits=2, code_bits=4, offset=8, n_rows=5),
    "8bit_lanes": Chip(lane_bits=8, code_bits=8, offset=128, n_rows=5, n_cols=64),
    "small_tile": Chip(n_tiles=1, n_cells=1, n_rows=3, n_cols=32, first_row=2),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n == "many_rows" else []) for n in CHIPS],
)
def test_matrix_times_vector_and_its_cycles(name: str) -> None:
    chip = CHIPS[name]
    matrix = Matrix(chip, seed=len(name))
    dut = LSide(config=chip.config(), contents=matrix.words())
    vectors = [activations(chip, seed) for seed in (1, 2)]
    mapping = chip.mapping()
    duration = (
        mapping.steps * mapping.step_cycles(chip.n_lanes)
        + mapping.drain_beats(chip.n_lanes)
        - 1
        + mapping.ks.bit_length()
        - 1
        + MATVEC_CYCLES
        + chip.collect_cycles
    )
    clipped = 0

    async def bench(ctx: Any) -> None:
        nonlocal clipped
        for token, (codes, shifts) in enumerate(vectors):
            await broadcast(ctx, dut, codes, shifts, token=token)
        for token in (1, 0, 0):
            codes, shifts = vectors[token]
            values = matrix.multiply(codes, shifts)
            cycles, beats = await run(ctx, dut, matrix.instruction(token=token, is_head=token == 1))
            assert cycles == duration
            wanted = expected_beats(chip, values)
            assert [(c, v) for c, _, _, v in beats] == wanted
            assert {(t, h) for _, t, h, _ in beats} == {(token, int(token == 1))}
            assert max(c for c, *_ in beats) < duration
            clipped += sum(v != sat32(v) for v in values)
            assert ctx.get(dut.sat_count) == clipped

    simulate(dut, bench)


@pytest.mark.parametrize(("n_tiles", "n_cells", "ks"), [(2, 4, 2), (2, 1, 1), (4, 1, 1)])
def test_embedding_row_is_read_word_by_word(n_tiles: int, n_cells: int, ks: int) -> None:
    sizes: dict[str, Any] = {"n_tiles": n_tiles, "n_cells": n_cells, "ks": ks}
    chip = Chip(**sizes, n_cols=160, n_rows=9, code_bits=8, collect_cycles=2)
    matrix = Matrix(chip, seed=4, base=7)
    rom, mapping = matrix.words(), chip.mapping()
    dut = LSide(config=chip.config(), contents=rom)
    rows_per_tile = chip.n_cells // mapping.ks
    seen: list[tuple[int, ...]] = []
    wanted: list[tuple[int, ...]] = []

    async def bench(ctx: Any) -> None:
        for row in (8, 0, 3):
            step, inside = divmod(row, mapping.rows_per_step)
            ctx.set(dut.instr, matrix.instruction())
            ctx.set(dut.row, row)
            ctx.set(dut.embed, 1)
            for cycle in range(1, 30):
                await ctx.tick()
                ctx.set(dut.embed, 0)
                ctx.set(dut.row, 0)
                if ctx.get(dut.em_valid):
                    names = ("em_word", "em_plane", "em_data")
                    seen.append((cycle, *(ctx.get(getattr(dut, name)) for name in names)))
            assert not ctx.get(dut.busy)
            cycle = EMBED_CYCLES + chip.collect_cycles
            for word in range(ceil(chip.n_cols / chip.word_codes)):
                j, w = divmod(word, mapping.wpc)
                cell = inside % rows_per_tile * mapping.ks + j
                for plane in range(2):
                    address = matrix.base + (step * mapping.wpc + w) * 2 + plane
                    wanted.append((cycle, word, plane, rom[inside // rows_per_tile][cell][address]))
                    cycle += 1

    simulate(dut, bench)
    assert seen == wanted


@pytest.mark.verilator
@pytest.mark.parametrize("n_inflight", [1, 3])
def test_lint_has_nothing_to_say(n_inflight: int, tmp_path: Path) -> None:
    unit = LSide(config=Chip(n_inflight=n_inflight).config())
    paths = []
    for name, text in verilog_texts(unit, "romsim_lside").items():
        paths.append(tmp_path / name)
        paths[-1].write_text(text)
    assert lint(paths, "romsim_lside").messages == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_tiles": 3}, "n_tiles of the RTL must be a power of two of at least 1, not 3"),
        ({"n_lanes": 48}, "n_lanes of the RTL must be a power of two of at least 32, not 48"),
        ({"collect_cycles": 0}, "collect_cycles of an RTL target must be at least 1, not 0"),
    ],
)
def test_sizes_that_the_rtl_cannot_have_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}$"):
        replace(Chip().config(), **change)
