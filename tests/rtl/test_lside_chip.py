# amaranth: UnusedElaboratable=no
"""Unit L of one chip, Verilated: matrices of all its mappings, and rows of the embedding."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from romsim_rtl.emit import MACROS, verilog_texts
from romsim_rtl.lside import LSide, LSideConfig
from romsim_rtl.lside_run import MATVEC_CYCLES
from tests.rtl.poke import Script, Simulation
from tests.rtl.test_lside import (
    EMBED_CYCLES,
    Chip,
    Matrix,
    activations,
    expected_beats,
    sat32,
)

pytestmark = pytest.mark.verilator

SIZES = Chip(n_tiles=4, n_cells=16, rom_rows=4096, n_inflight=8, collect_cycles=2, code_bits=8)
CHIPS = {"four tiles of 16 cells": SIZES}
"""64 cells, two beats of 32 lanes: a row in one cell, in two or in four."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A matrix on the chip: its rows stand there several times, one after the other.

    Parameters
    ----------
    chip
        Sizes of the rows that differ.
    base
        Address of its first word.
    times
        How often its rows follow; then they must fill their last step.
    fewer
        Rows that are left out at the end.
    """

    chip: Chip
    base: int
    times: int = 1
    fewer: int = 0

    @property
    def whole(self) -> Chip:
        """The chip with all rows."""
        return replace(self.chip, n_rows=self.times * self.chip.n_rows - self.fewer)


def matrix(base: int, *, times: int = 1, fewer: int = 0, **sizes: Any) -> Placed:
    return Placed(chip=replace(SIZES, **sizes), base=base, times=times, fewer=fewer)


MATRICES = {
    "many rows": matrix(0, times=1100, fewer=5, ks=1, n_rows=128, n_cols=32, code_bits=4),
    "rows of many words": matrix(2300, ks=1, n_rows=5, n_cols=6368, offset=99, first_row=700_000),
    "four cells a row": matrix(2701, ks=4, n_rows=50, n_cols=1000, offset=128, first_row=349_504),
    "two cells a row": matrix(2765, ks=2, n_rows=90, n_cols=130, code_bits=4, first_row=160),
    "two beats a step": matrix(2774, ks=1, n_rows=100, n_cols=64, code_bits=4, offset=8),
    "fewer rows than lanes": matrix(2778, ks=1, n_rows=20, n_cols=64, first_row=96),
    "four cells, half the lanes": matrix(2782, ks=4, n_rows=9, n_cols=100, first_row=16),
    "without scales": matrix(2784, ks=2, n_rows=64, n_cols=140, is_plain=True),
    **{
        f"{n_rows} rows": matrix(2800 + n_rows, ks=1, n_rows=n_rows, n_cols=20, code_bits=4)
        for n_rows in range(1, 33)
    },
    "to the last address": matrix(4096 - 12, ks=4, n_rows=40, n_cols=250),
}
ROWS = {
    "many rows": (140_794, 131_071, 65_537, 99_999, 12_345, 33, 0),
    "rows of many words": (4, 1),
    "four cells a row": (49, 6, 0),
    "two cells a row": (89, 31, 64),
    "to the last address": (39, 17),
}


def config() -> LSideConfig:
    """Give the hardware that all matrices need."""
    small = replace(SIZES, n_rows=64, n_cols=64, ks=1).config()
    x = replace(small.tile.x, n_words=200)
    cell = replace(small.tile.cell, max_planes=2, has_plain=True)
    return replace(small, tile=replace(small.tile, ks_logs=(0, 1, 2), cell=cell, x=x))


class _Chip(Simulation):
    """A simulation whose tiles are told their numbers."""

    def emit(self, component: Any, name: str, folder: Path) -> list[Path]:
        files = []
        for file, text in verilog_texts(component, name).items():
            if file not in MACROS:
                files.append(folder / file)
                files[-1].write_text(text)
        return files


def make_simulation(name: str, folder: Path, kind: type[Simulation] = _Chip) -> Simulation:
    assert name in CHIPS
    component = LSide(config=config())
    macros = ("romsim_constant.v", "romsim_rom.v", "romsim_sram.v")
    return kind(component, "romsim_lside", folder, macros=macros, opt="-O0")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The matrices, and the words of all ROMs."""

    matrices: dict[str, Matrix]
    rom: list[list[list[int]]]

    @classmethod
    def make(cls) -> Contents:
        """Place every matrix; what is between them is anything."""
        rng = random.Random(1)
        bits = config().tile.cell.word_bits
        rom = [
            [[rng.getrandbits(bits) for _ in range(SIZES.rom_rows)] for _ in range(SIZES.n_cells)]
            for _ in range(SIZES.n_tiles)
        ]
        matrices = {}
        for seed, (name, placed) in enumerate(MATRICES.items()):
            matrices[name] = one = Matrix(placed.chip, seed, base=placed.base)
            mapping = placed.chip.mapping()
            n_words = mapping.steps * mapping.wpc * mapping.planes
            end = placed.base + n_words * placed.times
            assert end <= SIZES.rom_rows
            for into, cells in zip(rom, one.words(), strict=True):
                for words, source in zip(into, cells, strict=True):
                    words[placed.base : end] = (
                        source[placed.base : placed.base + n_words] * placed.times
                    )
            for row in range(placed.whole.n_rows, placed.times * placed.chip.n_rows):
                step, inside = divmod(row, mapping.rows_per_step)
                tile, of_tile = divmod(inside, SIZES.n_cells // mapping.ks)
                size = mapping.wpc * mapping.planes
                at = placed.base + step * size
                for cell in range(of_tile * mapping.ks, (of_tile + 1) * mapping.ks):
                    rom[tile][cell][at : at + size] = [0] * size  # absent rows are zero
        return cls(matrices=matrices, rom=rom)

    def write(self, folder: Path) -> None:
        """Write the images that the ROMs read."""
        size = ceil(config().tile.cell.word_bits / 8)
        for tile, cells in enumerate(self.rom):
            for cell, words in enumerate(cells):
                data = b"".join(word.to_bytes(size, "big") for word in words)
                (folder / f"t{tile}_c{cell}.bin").write_bytes(data)


@pytest.fixture(scope="module")
def simulations(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Simulation] = {}

    def get(name: str) -> Simulation:
        if name not in made:
            made[name] = make_simulation(name, tmp_path_factory.mktemp("lside"))
        return made[name]

    return get


_contents: list[Contents] = []


def contents(simulation: Simulation) -> Contents:
    """Give the matrices, made once, and see to the simulation's images."""
    if not _contents:
        _contents.append(Contents.make())
    if not simulation.arguments:
        _contents[0].write(simulation.folder)
        simulation.arguments = [f"+romdir={simulation.folder}", "+rombin"]
    return _contents[0]


def noise(script: Script, rng: random.Random, *, token: int = 0, n_blocks: int = 1) -> None:
    """Put anything on the ports that are not asked for: blocks that are not for unit L."""
    script.set("instr", rng.getrandbits(script.ports["instr"][1]))
    script.set("row", rng.getrandbits(20))
    script.set("bc_kind", rng.choice((0, 2)))
    script.set("bc_token", token)
    script.set("bc_block", rng.randrange(n_blocks))
    script.set("bc_mask", 1)
    for name in ("bc_codes__0", "bc_shift__0", "bc_sum__0"):
        script.set(name, rng.getrandbits(script.ports[name][1]))


def send_x(script: Script, codes: list[int], shifts: list[int], token: int) -> None:
    for block, shift in enumerate(shifts):
        part = codes[32 * block : 32 * block + 32]
        script.set("bc_kind", 1)
        script.set("bc_token", token)
        script.set("bc_block", block)
        script.set("bc_mask", 1)
        script.set("bc_codes__0", sum((code & 255) << 8 * k for k, code in enumerate(part)))
        script.set("bc_shift__0", shift)
        script.set("bc_sum__0", sum(part))
        script.tick()
    script.set("bc_kind", 0)
    script.tick()


NAMES = ("busy", "ly_valid", "ly_token", "ly_head", "ly_row", "ly_mask", "em_valid")
Cycle = dict[str, int]


def ask(script: Script) -> Cycle:
    """Ask for a cycle's outputs."""
    names = (*NAMES, "sat_count", *(f"ly_data__{lane}" for lane in range(SIZES.n_lanes)))
    return {name: script.get(name) for name in names}


def duration(chip: Chip) -> int:
    mapping = chip.mapping()
    cycles = mapping.steps * mapping.step_cycles(chip.n_lanes) + mapping.drain_beats(chip.n_lanes)
    return cycles - 1 + mapping.ks.bit_length() - 1 + MATVEC_CYCLES + chip.collect_cycles


@pytest.mark.parametrize("name", CHIPS)
def test_matrices_of_every_mapping_one_after_the_other(simulations: Any, name: str) -> None:
    simulation = simulations(name)
    made = contents(simulation)
    rng = random.Random(7)
    script = simulation.script()
    asked: list[tuple[str, int, int, list[Cycle], list[int]]] = []
    order = [*MATRICES, *list(MATRICES)[1:], *["without scales"] * 3]
    rng.shuffle(order)
    tokens = [0, 7, *(rng.randrange(8) for _ in order)]
    for which, token in zip(order, tokens, strict=False):
        placed, one = MATRICES[which], made.matrices[which]
        chip = placed.whole
        codes, shifts = activations(chip, rng.randrange(1 << 30))
        send_x(script, codes, shifts, token)
        is_head = rng.randrange(2)
        one.out_shift = 20 if chip.is_plain else rng.choice((-3, 8, 12, 18, 25))
        if chip.is_plain:
            one.multiplier, one.pre_shift = rng.randrange(1 << 23, 1 << 24), rng.randrange(8)
        values = one.multiply(codes, shifts) * placed.times
        instruction = replace_rows(one, chip, token, is_head)
        script.set("instr", instruction)
        script.set("start", 1)
        script.tick()
        script.set("start", 0)
        cycles = []
        for number in range(duration(chip)):
            if number < 50:
                noise(script, rng, token=token, n_blocks=len(shifts))
            cycles.append(ask(script))
            script.tick()
        asked.append((which, token, is_head, cycles, values[: chip.n_rows]))
    answers = simulation.run(script)
    clipped = 0
    for which, token, is_head, cycles, values in asked:
        chip = MATRICES[which].whole
        beats = []
        for number, ports in enumerate(cycles, 1):
            assert answers[ports["busy"]] == (number < len(cycles)), which
            assert answers[ports["em_valid"]] == 0
            if answers[ports["ly_valid"]]:
                assert answers[ports["ly_token"]] == token
                assert answers[ports["ly_head"]] == is_head
                row, mask = answers[ports["ly_row"]], answers[ports["ly_mask"]]
                beats.append(
                    (
                        number,
                        {
                            row + lane: answers[ports[f"ly_data__{lane}"]]
                            for lane in range(chip.n_lanes)
                            if mask >> lane & 1
                        },
                    )
                )
        wanted = [
            (number, {row: value & (1 << 32) - 1 for row, value in found.items()})
            for number, found in expected_beats(chip, values)
        ]
        assert beats == wanted, which
        clipped += sum(value != sat32(value) for value in values)
        assert answers[cycles[-1]["sat_count"]] == clipped, which
    assert clipped > 0


def replace_rows(one: Matrix, chip: Chip, token: int, is_head: int) -> int:
    """Give the instruction for all rows."""
    given, one.chip = one.chip, chip
    try:
        return one.instruction(token=token, is_head=bool(is_head))
    finally:
        one.chip = given


@pytest.mark.parametrize("name", CHIPS)
def test_rows_of_the_embedding_of_every_mapping(simulations: Any, name: str) -> None:
    simulation = simulations(name)
    made = contents(simulation)
    rng = random.Random(8)
    script = simulation.script()
    asked: list[tuple[list[Cycle], list[tuple[int, int, int, int]]]] = []
    for which, row in [(which, row) for which, rows in ROWS.items() for row in rows]:
        one, chip = made.matrices[which], MATRICES[which].whole
        mapping = chip.mapping()
        step, inside = divmod(row, mapping.rows_per_step)
        tile, of_tile = divmod(inside, chip.n_cells // mapping.ks)
        n_words = ceil(chip.n_cols / chip.word_codes)
        wanted: list[tuple[int, int, int, int]] = []
        for word in range(n_words):
            j, w = divmod(word, mapping.wpc)
            for plane in range(mapping.planes):
                address = one.base + (step * mapping.wpc + w) * mapping.planes + plane
                data = made.rom[tile][of_tile * mapping.ks + j][address]
                cycle = EMBED_CYCLES + chip.collect_cycles + len(wanted)
                wanted.append((cycle, word, plane, data))
        script.set("instr", replace_rows(one, chip, rng.randrange(8), 0))
        script.set("row", row)
        script.set("embed", 1)
        script.tick()
        script.set("embed", 0)
        noise(script, rng)
        cycles = []
        for _ in range(wanted[-1][0] + 2):
            names = ("em_valid", "em_word", "em_plane", "em_data", "ly_valid", "busy")
            cycles.append({port: script.get(port) for port in names})
            script.tick()
        asked.append((cycles, wanted))
    answers = simulation.run(script)
    for cycles, wanted in asked:
        found = [
            (number, *(answers[ports[port]] for port in ("em_word", "em_plane", "em_data")))
            for number, ports in enumerate(cycles, 1)
            if answers[ports["em_valid"]]
        ]
        assert found == wanted
        assert not any(answers[c["ly_valid"]] or answers[c["busy"]] for c in cycles)
