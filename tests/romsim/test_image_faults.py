"""What a fault changes in the images, read back by the formulas of another hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from romsim.image_faults import FAULT_KINDS, choose_faults, write_faulty
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.rom_files import write_images
from tests.tiny_chips import RomFile, compile_tiny, copied


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_tiny("tiny-int4", tmp_path_factory.mktemp("faults") / "build")


@pytest.fixture(scope="module")
def images(chip: Description, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_images(chip, folder, image_format="bin")
    return folder


def changed_images(images: Path, faulty: Path) -> list[str]:
    return [
        path.name
        for path in sorted(images.iterdir())
        if path.read_bytes() != (faulty / path.name).read_bytes()
    ]


def test_the_same_seed_gives_the_same_faults_and_another_does_not(chip: Description) -> None:
    first = choose_faults(chip, count=5, seed=1)
    assert choose_faults(chip, count=5, seed=1) == first
    assert choose_faults(chip, count=5, seed=2) != first
    assert [fault.kind for fault in first] == [kind for kind in FAULT_KINDS for _ in range(5)]
    assert len({fault.edits for fault in first}) == len(first)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_changes_its_files_and_the_rest_is_linked(
    chip: Description, images: Path, kind: str, tmp_path: Path
) -> None:
    for number, fault in enumerate(choose_faults(chip, count=4, seed=3, kinds=[kind])):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_faulty(images, fault, folder)
        assert changed_images(images, folder) == sorted({file for file, _, _ in fault.edits})
        assert {path.name for path in folder.iterdir()} == {p.name for p in images.iterdir()}


def test_a_flipped_code_is_the_description_with_that_bit_flipped(
    chip: Description, images: Path, tmp_path: Path
) -> None:
    """The same bit found by the tests' own formulas, in the description's own image."""
    for number, fault in enumerate(choose_faults(chip, count=6, seed=4, kinds=["code"])):
        match = re.fullmatch(r"bit (\d) of plane 0 of (\S+)\[(\d+), (\d+)\]", fault.what)
        assert match is not None, fault.what
        bit, group, row, column = match.groups()
        copy = copied(chip.path, tmp_path / f"copy{number}")
        rom = RomFile(copy)
        rom.flip_code_bit(group, int(row), int(column), bit=int(bit))
        expected = np.frombuffer(bytes(rom.data), np.uint8)
        folder = tmp_path / f"faulty{number}"
        folder.mkdir()
        write_faulty(images, fault, folder)
        array = chip.target.array
        got = np.zeros((chip.placement["n_words"], array.n_tiles, array.n_cells, array.word_bytes))
        for tile in range(array.n_tiles):
            for cell in range(array.n_cells):
                raw = np.fromfile(folder / f"t{tile}_c{cell}.bin", np.uint8)
                got[:, tile, cell] = raw.reshape(-1, array.word_bytes)[:, ::-1]
        assert np.array_equal(got.reshape(-1), expected)


def test_faults_that_there_are_not_are_refused(chip: Description) -> None:
    with pytest.raises(SpecError, match=r"^Faults of each kind must be at least 1, not 0$"):
        choose_faults(chip, count=0, seed=1)
    message = r"^Kind of fault must be of code, scale, gain, program, heads, not 'flux'$"
    with pytest.raises(SpecError, match=message):
        choose_faults(chip, count=1, seed=1, kinds=["code", "flux"])
