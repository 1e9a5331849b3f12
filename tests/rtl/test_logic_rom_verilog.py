# amaranth: UnusedElaboratable=no
"""A chip whose weights are logic: what is written, and that it is the same chip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from romsim.verify_rtl import compare_rtl
from romsim_compiler.description import Description
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.driver_build import BuildOptions
from romsim_rtl.logic_rom import synthesise
from romsim_rtl.logic_rom_verilog import LogicRomOptions, logic_rom_texts
from romsim_rtl.lside import TILE_MODULE
from romsim_rtl.model_banks import bank_bits, bank_places, block_bits
from romsim_rtl.toolchain import ToolError
from tests.command_line import run_command
from tests.rtl.sweep_chips import SMALL_TERNARY, compile_chip

OPTIONS = LogicRomOptions(bank_words=256)


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_chip(SMALL_TERNARY, tmp_path_factory.mktemp("chip"))


@pytest.mark.slow
@pytest.mark.verilator
def test_written_chip_is_clean_and_needs_no_images_of_weights(
    chip: Description, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "rtl"
    arguments = ["rtl", str(chip.path), "-o", str(folder), "--logic-rom", "--lint", "--json"]
    done = run_command(capsys, *arguments)
    assert (done.code, done.err) == (0, "")
    values = done.json()
    assert values["n_images"] == 2
    assert values["lint_messages"] == 0
    assert sorted(p.name for p in (folder / "rom").iterdir()) == ["gains.hex", "program.hex"]
    assert ".FILE" not in (folder / f"{TILE_MODULE}.v").read_text()
    banks = {name for name in values["verilog"] if name.startswith("romsim_bank_")}
    assert banks == {
        f"romsim_bank_t{p.tile}_c{p.cell}_w{p.block * 1024 + p.first}.v"
        for places in bank_places(chip).values()
        for p in places
        if bank_bits(chip, p).any()
    }
    for name in banks:
        assert (folder / name).read_text().count("module ") == 1


@pytest.mark.slow
@pytest.mark.verilator
def test_logic_chip_equals_the_cycle_model(chip: Description) -> None:
    options = BuildOptions(opt="-O0", logic_rom=OPTIONS)
    report = compare_rtl(chip, [1, 2, 3, 4], n_new=32, options=options)
    assert report.n_tokens >= 32
    assert report.n_logits >= 32 * 33
    assert report.first is None
    assert report.passed


def test_a_blocks_banks_are_its_words(chip: Description) -> None:
    array, n_words = chip.target.array, chip.placement["n_words"]
    words = np.zeros((n_words, array.word_bits), dtype=np.uint8)
    library = CellLibrary.of(load_technology(chip.target.technology))
    for banks in bank_places(chip, 256).values():
        for place in banks:
            if (place.tile, place.cell) != (1, 0):
                continue
            bank = synthesise(block_bits(chip, place, 256), "patterns", library)
            rows = bank.netlist.contents(library, 256)[: n_words - place.block * 256]
            words[place.block * 256 : place.block * 256 + 256] |= rows
    image = np.asarray(chip.rom_words(0, n_words))[:, 1, 0]
    assert (np.packbits(words, axis=1, bitorder="little") == image).all()


def test_same_chip_same_bytes_whatever_the_jobs(
    chip: Description, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {f"{TILE_MODULE}.v": _tile(1)}
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "one"))
    one = logic_rom_texts(texts, chip, OPTIONS)
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "two"))
    assert logic_rom_texts(texts, chip, LogicRomOptions(bank_words=256, jobs=2)) == one


def _tile(n_roms: int) -> str:
    roms = [
        f'  romsim_rom #(\n    .DEPTH(32\'d4),\n    .FILE("c{cell}.hex"),\n    .TILE(TILE)\n'
        f"  ) rom{cell} (\n"
        for cell in range(n_roms)
    ]
    return "".join(roms)


def test_tile_without_its_roms_is_refused(chip: Description) -> None:
    with pytest.raises(ToolError) as caught:
        logic_rom_texts({f"{TILE_MODULE}.v": _tile(2)}, chip, OPTIONS)
    assert str(caught.value) == (
        f"Verilog of {TILE_MODULE!r} must have one ROM for each of 1 cells, not 2"
    )


def test_unknown_style(
    chip: Description, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rtl", str(chip.path), "-o", str(tmp_path / "rtl"), "--logic-rom"]
    done = run_command(capsys, *arguments, "--style", "gates")
    assert done.code == 2
    assert done.sentence() == (
        "romsim: Logic ROM style must be one of plain, shared2, shared3, patterns, not 'gates'"
    )
    assert not (tmp_path / "rtl").exists()


def test_style_alone_would_do_nothing(
    chip: Description, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_command(capsys, "rtl", str(chip.path), "-o", str(tmp_path / "r"), "--style", "plain")
    assert done.code == 2
    assert done.sentence() == (
        "romsim: Option --style must come with --logic-rom, not alone; add --logic-rom or remove it"
    )


def test_refused_bank_words(chip: Description) -> None:
    with pytest.raises(SpecError) as caught:
        logic_rom_texts({f"{TILE_MODULE}.v": _tile(1)}, chip, LogicRomOptions(bank_words=3))
    assert str(caught.value) == "Words of a bank must be a power of two, 2 or more, not 3"


def test_weights_as_logic_are_verified_in_rtl_or_not_at_all(
    chip: Description, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_command(capsys, "verify", str(chip.path), "--logic-rom", "--level", "values")
    assert done.code == 2
    assert done.sentence() == (
        "romsim: --logic-rom must be used where RTL is run, at level unit, layer or chip, not at "
        "'values'; leave it out or choose another level"
    )
