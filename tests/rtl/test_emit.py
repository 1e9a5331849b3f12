# amaranth: UnusedElaboratable=no
"""The files of ``romsim rtl``: clean Verilog without a weight, and images that hold them all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romsim_compiler.description import Description
from romsim_compiler.pipeline import CompileOptions, compile_model
from romsim_models.errors import DescriptionError, SpecError
from romsim_models.synthetic import synthetic_checkpoint
from romsim_rtl.emit import MACROS, TOP_MODULE, Emission, emit_rtl
from romsim_rtl.encoding import WORD_BITS, encode_program
from romsim_rtl.rom_files import program_words, write_images
from romsim_rtl.toolchain import lint
from tests.command_line import run_command
from tests.tiny_chips import compile_tiny, sized_target, tree


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_tiny("tiny-int4", tmp_path_factory.mktemp("chip") / "build")


@pytest.fixture(scope="module")
def emission(chip: Description, tmp_path_factory: pytest.TempPathFactory) -> Emission:
    return emit_rtl(chip, tmp_path_factory.mktemp("emission") / "rtl")


def words_of(path: Path, n_bytes: int) -> Any:
    """Words of an image, least significant byte first."""
    if path.suffix == ".bin":
        raw = np.frombuffer(path.read_bytes(), np.uint8)
    else:
        raw = np.frombuffer(bytes.fromhex(path.read_text().replace("\n", "")), np.uint8)
    return raw.reshape(-1, n_bytes)[:, ::-1]


def test_folder_holds_what_the_manifest_and_the_file_list_say(emission: Emission) -> None:
    folder = emission.folder
    manifest = json.loads((folder / "manifest.json").read_text())
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert names == {*manifest["files"], "manifest.json"}
    assert manifest["top"] == TOP_MODULE
    assert tuple((folder / "filelist.f").read_text().split()) == emission.verilog
    assert set(MACROS) < set(emission.verilog)
    assert {f"rom/{name}" for name in emission.images} < names
    sizes = [len((folder / name).read_bytes()) for name in emission.verilog]
    assert sum(sizes) == emission.n_verilog_bytes


@pytest.mark.slow
@pytest.mark.verilator
@pytest.mark.parametrize("n_inflight", [1, 3])
def test_lint_has_nothing_to_say_of_other_numbers_of_tokens(
    n_inflight: int, tmp_path: Path
) -> None:
    chip = compile_tiny(
        "tiny-int4",
        tmp_path / "build",
        target=sized_target("small", n_inflight=n_inflight),
    )
    other = emit_rtl(chip, tmp_path / "rtl")
    report = lint([other.folder / name for name in other.verilog], TOP_MODULE)
    assert report.messages == ()


@pytest.mark.verilator
def test_lint_has_nothing_to_say(emission: Emission) -> None:
    report = lint([emission.folder / name for name in emission.verilog], TOP_MODULE)
    assert report.messages == ()


def test_port_table_is_the_top_modules(emission: Emission) -> None:
    table = json.loads((emission.folder / "ports.json").read_text())
    text = (emission.folder / f"{TOP_MODULE}.v").read_text()
    found = {}
    for direction, high, name in re.findall(
        r"^  (input|output) (?:\[(\d+):0\] )?(\w+);$", text, re.M
    ):
        found[name] = (direction.removesuffix("put"), int(high or 0) + 1)
    assert {p["name"]: (p["direction"], p["bits"]) for p in table["ports"]} == found
    assert all(port["meaning"] for port in table["ports"])


def test_cell_images_hold_the_words_of_the_rom_file(chip: Description, emission: Emission) -> None:
    array = chip.target.array
    words = chip.rom_words(0, chip.placement["n_words"])
    for tile in range(array.n_tiles):
        for cell in range(array.n_cells):
            got = words_of(emission.folder / "rom" / f"t{tile}_c{cell}.hex", array.word_bytes)
            assert np.array_equal(got, words[:, tile, cell])


def test_binary_images_hold_the_same_words(
    chip: Description, emission: Emission, tmp_path: Path
) -> None:
    names = write_images(chip, tmp_path, image_format="bin")
    assert [n.replace(".bin", ".hex") for n in names] == list(emission.images)
    for name in names:
        size = {"gains.bin": 4 * chip.target.vector.n_lanes, "program.bin": -(-WORD_BITS // 8)}
        n_bytes = size.get(name, chip.target.array.word_bytes)
        other = emission.folder / "rom" / name.replace(".bin", ".hex")
        assert np.array_equal(words_of(tmp_path / name, n_bytes), words_of(other, n_bytes))


def test_gain_image_holds_every_norms_gains_word_by_word(
    chip: Description, emission: Emission
) -> None:
    lanes = chip.target.vector.n_lanes
    raw = words_of(emission.folder / "rom" / "gains.hex", 4 * lanes)
    flat = np.ascontiguousarray(raw).view("<i4").reshape(-1)
    at = 0
    for gain in chip.gains.values():
        assert np.array_equal(flat[at : at + gain.values.size], gain.values)
        at += -(-gain.values.size // lanes) * lanes
    assert at == flat.size


def test_program_image_holds_all_programs(chip: Description, emission: Emission) -> None:
    starts, words = program_words(chip)
    raw = words_of(emission.folder / "rom" / "program.hex", -(-WORD_BITS // 8))
    assert [int.from_bytes(word.tobytes(), "little") for word in raw] == words
    size = chip.target.schedule.n_inflight
    programs = [chip.decode, chip.prefill(1, False), chip.prefill(size, False)]
    for start, program in zip(starts, programs, strict=False):
        wanted = encode_program(program, chip)
        assert words[start : start + len(wanted)] == wanted


@pytest.mark.slow
def test_same_bytes_again_in_another_process_with_another_seed(
    chip: Description, emission: Emission, tmp_path: Path
) -> None:
    code = (
        "import sys; from romsim_compiler.description import Description; "
        "from romsim_rtl.emit import emit_rtl; "
        "emit_rtl(Description.load(sys.argv[1]), sys.argv[2])"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(chip.path), str(tmp_path / "rtl")]
    environment = {"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"}
    subprocess.run(command, env=environment, check=True)
    assert tree(tmp_path / "rtl") == tree(emission.folder)


@pytest.mark.slow
def test_another_checkpoint_of_the_shape_gives_the_same_verilog(
    chip: Description, emission: Emission, tmp_path: Path
) -> None:
    checkpoint = synthetic_checkpoint(chip.spec, seed=2)
    again = compile_model(
        checkpoint,
        chip.target,
        tmp_path / "chip",
        options=CompileOptions(context=chip.context),
    )
    assert again.placement != chip.placement  # grids and shifts of gains, which are program words
    other = emit_rtl(again, tmp_path / "rtl")
    for name in emission.verilog:
        assert (other.folder / name).read_bytes() == (emission.folder / name).read_bytes()
    images = [
        (other.folder / "rom" / name).read_bytes() == (emission.folder / "rom" / name).read_bytes()
        for name in emission.images
    ]
    assert not all(images)


def test_command_refuses_an_image_format_that_there_is_not(
    chip: Description, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_command(capsys, "rtl", chip.path, "-o", tmp_path / "rtl", "--images", "oct")
    assert done.code == 2
    assert done.sentence() == "romsim: ROM image format must be one of hex, bin, not 'oct'"
    assert not (tmp_path / "rtl").exists()


def test_a_shape_without_weights_is_refused(chip: Description, tmp_path: Path) -> None:
    shape = replace(chip, manifest={**chip.manifest, "has_images": False})
    message = (
        f"{chip.path} must have ROM images to be written as RTL, but it was compiled from a shape "
        f"without weights; compile a model with weights"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        emit_rtl(shape, tmp_path / "rtl")


def test_a_folder_of_something_else_is_not_replaced(chip: Description, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(DescriptionError, match=r"must be a new or an earlier description"):
        emit_rtl(chip, tmp_path)
    assert (tmp_path / "mine").read_text() == "kept"
