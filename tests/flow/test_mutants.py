"""Whatever is wrong in a chip must be found: by digests, by the audit, by the comparison."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import romsim
from romsim_compiler.description import Description
from romsim_models.errors import DescriptionError, SpecError
from tests.command_line import run_command
from tests.tiny_chips import RomFile, compile_tiny, copied, forge, reseal

HEAD = 32  # rows of a head in every tiny model


def flip_code(rom: RomFile) -> None:
    rom.flip_code_bit("L0.qkv", 5, 17)


def flip_value_code(rom: RomFile) -> None:
    rom.flip_code_bit("L1.qkv", 4 * HEAD + 2 * HEAD + 9, 63, bit=3)


def raise_scale(rom: RomFile) -> None:
    rom.raise_scale("L0.o", 3, 40)


def swap_query_heads(rom: RomFile) -> None:
    for row in range(HEAD):
        rom.swap_rows("L1.qkv", row, HEAD + row)


def swap_key_heads(rom: RomFile) -> None:
    for row in range(4 * HEAD, 5 * HEAD):
        rom.swap_rows("L0.qkv", row, HEAD + row)


def swap_vocabulary_rows(rom: RomFile) -> None:
    rom.swap_rows("head", 100, 101)


MUTANTS: list[tuple[Callable[[RomFile], None], str, int]] = [
    (flip_code, "L0.q", 5),
    (flip_value_code, "L1.v", 9),
    (raise_scale, "L0.o", 3),
    (swap_query_heads, "L1.q", 0),
    (swap_key_heads, "L0.k", 0),
    (swap_vocabulary_rows, "logits", 100),
]
IDS = [mutate.__name__ for mutate, _, _ in MUTANTS]


def mutant(chip: Description, folder: Path, mutate: Callable[[RomFile], None]) -> Path:
    copied(chip.path, folder)
    rom = RomFile(folder)
    before = bytes(rom.data)
    mutate(rom)
    assert bytes(rom.data) != before
    rom.save()
    return folder


@pytest.mark.parametrize(("mutate", "operator", "index"), MUTANTS, ids=IDS)
def test_comparison_names_the_first_divergence(
    mutate: Callable[[RomFile], None],
    operator: str,
    index: int,
    chips: dict[str, Description],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = reseal(mutant(chips["tiny-int4"], tmp_path / "m", mutate))
    arguments = ["verify", folder, "--prompt", "Once", "--tokens", 4, "--level", "values"]
    done = run_command(capsys, *arguments, "--json")
    assert done.code == 1
    assert not done.json()["passed"]
    report = done.json()["reference"]
    first = report["first"]
    assert (first["operator"], first["index"]) == (operator, index)
    assert first["expected"] != first["got"]
    expected, got = first["expected"], first["got"]
    assert first["sentence"] == (
        f"{operator}[{index}] at position {first['position']}: reference {expected} "
        f"(0x{expected & 0xFFFFFFFF:08x}), cycle model {got} (0x{got & 0xFFFFFFFF:08x})"
    )
    assert report["tainted"][0] == operator
    assert not report["passed"]
    assert report["n_mismatches"] >= 1
    done = run_command(capsys, *arguments)
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("DIFFERENT: ")
    assert lines[1] == f"  first: {first['sentence']}"
    tainted = ", ".join(report["tainted"][1:11]) or "nothing"
    assert lines[2:] == [f"  tainted after it: {tainted}"]


@pytest.mark.parametrize(("mutate", "operator", "index"), MUTANTS, ids=IDS)
def test_audit_finds_every_mutant(
    mutate: Callable[[RomFile], None],
    operator: str,
    index: int,
    chips: dict[str, Description],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = reseal(mutant(chips["tiny-int4"], tmp_path / "m", mutate))
    done = run_command(capsys, "audit", folder, "--json")
    report = done.json()
    assert done.code == 1
    assert report["n_differences"] >= 1
    first = report["differences"][0]
    assert first["place"][0] == index
    assert first["kind"] == ("scale" if mutate is raise_scale else "code")
    done = run_command(capsys, "audit", folder)
    assert done.code == 1
    assert done.out.splitlines()[0].endswith(f": {report['n_differences']} differences")


def test_changed_rom_is_refused_unless_digests_are_not_checked(
    chips: dict[str, Description], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = mutant(chips["tiny-int4"], tmp_path / "m", flip_code)
    pattern = (
        rf"{re.escape(str(folder / 'rom.bin'))} must have the SHA-256 [0-9a-f]{{64}} of the "
        r"manifest, not [0-9a-f]{64}; it was changed: compile again"
    )
    with pytest.raises(DescriptionError, match=rf"^{pattern}$"):
        romsim.load(folder)
    for command in ("audit", "verify", "simulate"):
        more = ["--prompt", "x"] if command == "simulate" else []
        done = run_command(capsys, command, folder, *more)
        assert done.code == 2
        assert re.fullmatch(rf"romsim: {pattern}", done.sentence())
    unchecked = Description.load(folder, verify=False)
    assert romsim.audit(unchecked).n_differences == 1
    report = romsim.verify(unchecked, prompt="Once", n_new=2, level="values").reference
    assert report.first is not None
    assert (report.first.operator, report.first.index) == ("L0.q", 5)


def change_gain(folder: Path) -> None:
    data = bytearray((folder / "gains.bin").read_bytes())
    (value,) = struct.unpack_from("<i", data, 4 * 70)
    struct.pack_into("<i", data, 4 * 70, value + 1)
    (folder / "gains.bin").write_bytes(data)


def change_table(folder: Path) -> None:
    tables = json.loads((folder / "tables.json").read_text())
    tables["EXP"][3] -= 1
    (folder / "tables.json").write_text(json.dumps(tables))


def change_grid(folder: Path) -> None:
    placement = json.loads((folder / "placement.json").read_text())
    placement["groups"][2]["grid"] -= 1
    (folder / "placement.json").write_text(json.dumps(placement))


def change_rotation(folder: Path) -> None:
    placement = json.loads((folder / "placement.json").read_text())
    placement["phase_increments"][1] += 1
    (folder / "placement.json").write_text(json.dumps(placement))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            change_gain,
            r"gain \[6\] of 'blk\.0\.ffn_norm' must be \d+ as in the model file, not \d+",
        ),
        (change_table, r"entry \[3\] of 'EXP' must be \d+ as in the model file, not \d+"),
        (change_grid, r"grid of 'L0\.gu' must be -\d+ as in the model file, not -\d+"),
        (
            change_rotation,
            r"entry \[1\] of 'phase increments' must be \d+ as in the model file, not \d+",
        ),
    ],
)
def test_audit_finds_what_is_beside_the_rom(
    change: Callable[[Path], None],
    sentence: str,
    chips: dict[str, Description],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = copied(chips["tiny-int4"].path, tmp_path / "m")
    change(folder)
    done = run_command(capsys, "audit", reseal(folder))
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0].endswith("1 differences")
    assert re.fullmatch(f"  {sentence}", lines[1])


def test_changed_adapter_is_found(
    adapted: Description,
    adapter_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = copied(adapted.path, tmp_path / "m")
    path = folder / "lora" / "story" / "lora.bin"
    data = bytearray(path.read_bytes())
    index = json.loads((folder / "lora" / "story" / "lora.json").read_text())
    q = next(p for p in index["groups"][0]["projections"] if p["operator"] == "q")
    where = q["arrays"]["b_codes"]  # [rows, rank]
    data[where["first"] + 7 * where["shape"][1] + 2] ^= 0x20
    path.write_bytes(data)
    reseal(folder)
    arguments = ["verify", folder, "--prompt", "Once", "--tokens", 3, "--level", "values"]
    chosen = ["--adapter", "story", "--lora", f"story={adapter_folder}"]
    done = run_command(capsys, *arguments, *chosen, "--json")
    assert done.code == 1
    first = done.json()["reference"]["first"]
    assert (first["operator"], first["index"]) == ("L0.q", 7)
    done = run_command(capsys, *arguments)
    assert done.code == 0  # nothing is wrong without the adapter


def test_another_model_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip")
    manifest = json.loads((chip.path / "manifest.json").read_text())
    digest = manifest["model"]["source"]["sha256"]
    manifest["model"]["source"]["sha256"] = "0" * 64
    forge(chip.path, manifest)
    sentence = (
        f"Model tiny-int4 must be the one that {chip.path} was compiled from (SHA-256 {'0' * 64}), "
        f"not one with SHA-256 {digest}; give the right --model or compile again"
    )
    for call in (romsim.audit, romsim.verify):
        with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
            call(chip.path)


@pytest.mark.parametrize("name", ["rom.bin", "placement.json", "tokenizer.json", "program.json"])
def test_truncated_or_missing_file_is_refused(
    name: str, chips: dict[str, Description], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(chips["tiny-int4"].path, tmp_path / "m")
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-17])
    done = run_command(capsys, "verify", folder)
    assert done.code == 2
    assert done.sentence() == (
        f"romsim: {folder / name} must have {len(data)} bytes, not {len(data) - 17}; compile again"
    )
    (folder / name).unlink()
    done = run_command(capsys, "audit", folder)
    assert done.code == 2
    assert done.sentence() == (
        f"romsim: {folder / name} must exist, but it is missing; compile again"
    )
