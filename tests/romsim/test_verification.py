"""What ``romsim verify`` runs at each level, says when RTL is missing, and refuses."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import romsim
from romsim import verification_rtl
from romsim.rtl_parts import build_seconds, full_width_tile, scaled_chip, sizes, whole_cost
from romsim.rtl_report import RtlDivergence, RtlReport
from romsim.verification import RtlPart, Verification, Waves
from romsim_compiler.description import Description
from romsim_compiler.reduced import ReducedDescription, distinct_layers, one_layer
from romsim_models.errors import SpecError
from romsim_rtl import driver_prerequisites
from romsim_rtl.rom_files import program_words
from romsim_rtl.toolchain import ToolError
from tests.command_line import Outcome, run_command
from tests.romsim.test_commands import checked
from tests.tiny_chips import compile_tiny, sized_target

Capture = pytest.CaptureFixture[str]

EQUAL = RtlReport(
    n_programs=2, n_tokens=3, n_logits=512, n_writes=70, n_events=9, n_mismatches=0, first=None,
    by_memory={"X": 50, "K": 20}, by_operator={"rope": 20, "resid o": 50}, n_cycles=4000,
    wall_s=1.0,
)  # fmt: skip
FIRST = RtlDivergence(
    what="value of L1.matvec qkv to Y", layer=1, operator="matvec qkv", tile=-1, lane=5, program=1,
    position=2, cycle=1200, chip_cycle=3100, index=37, expected=-1, got=255,
)  # fmt: skip


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_tiny("tiny-int4", tmp_path_factory.mktemp("verification") / "chip")


class Runs:
    """Stands for the comparison with RTL: keeps what was asked, and calls it equal."""

    def __init__(self, report: RtlReport = EQUAL) -> None:
        self.asked: list[tuple[Description, list[int], dict[str, Any]]] = []
        self._report = report

    def __call__(self, chip: Description, prompt: list[int], **options: Any) -> RtlReport:
        assert chip.placement["n_words"] > 0  # read while the folder is there
        self.asked.append((chip, list(prompt), options))
        if options["waves"] is not None:
            options["waves"][0].write_text("waves")
        return self._report


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(verification_rtl, "compare_rtl", made)
    monkeypatch.setattr(verification_rtl, "write_chip", lambda chip: chip.path)
    monkeypatch.setattr(verification_rtl, "check_tools", lambda: None)
    return made


def test_chip_is_the_level_without_one(chip: Description, runs: Runs) -> None:
    report = romsim.verify(chip, tokens=[1, 2], n_new=1)
    assert (report.level, report.passed, report.notes) == ("chip", True, ())
    assert [(part.name, part.report) for part in report.rtl] == [("whole chip", EQUAL)]
    ((ran, prompt, options),) = runs.asked
    assert (ran, prompt, options["n_new"]) == (chip, [1, 2], 1)
    assert options["sram_seed"] == verification_rtl.SRAM_SEED
    assert report.reference.n_tokens == 3


def test_layer_runs_a_layer_of_each_shape(chip: Description, runs: Runs) -> None:
    report = romsim.verify(chip, tokens=[1, 2], n_new=1, level="layer")
    assert [part.name for part in report.rtl] == ["layer 0"]
    ((ran, prompt, _),) = runs.asked
    assert isinstance(ran, ReducedDescription)
    assert prompt == [1, 2]
    kept = [i for i in chip.decode.instructions if i.layer < 1]
    assert list(ran.decode.instructions) == kept
    assert ran.prefill(2, True).n_tokens == 2


def test_unit_runs_instructions_one_by_one_on_random_tokens(chip: Description, runs: Runs) -> None:
    report = romsim.verify(chip, tokens=[1, 2], n_new=1, level="unit")
    assert [part.name for part in report.rtl] == ["instructions of layer 0 one by one"]
    ((ran, prompt, _),) = runs.asked
    assert prompt != [1, 2]
    assert len(prompt) == 2
    for instruction in ran.decode.instructions:
        assert {instruction.unit, *instruction.wait} == set("VLH")


def test_layers_of_another_format_are_run_too(tmp_path: Path) -> None:
    mixed = compile_tiny(
        "tiny-int4", tmp_path / "mixed", quantize=["blk.1.ffn_down.weight=int8g32"]
    )
    assert distinct_layers(mixed) == [0, 1]


def test_a_reduced_program_begins_where_the_whole_one_does(chip: Description) -> None:
    starts, words = program_words(chip)
    reduced = one_layer(chip, 1)
    assert reduced.whole is chip
    assert program_words(reduced)[0] == starts
    assert len(program_words(reduced)[1]) == len(words)
    assert program_words(reduced)[1] != words


def test_missing_tool_is_said_and_the_values_compared(
    chip: Description, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sentence = "g++ must be installed, not missing from PATH; apt-get install g++"

    def missing() -> None:
        raise ToolError(sentence)

    monkeypatch.setattr(verification_rtl, "check_tools", missing)
    arguments = ["verify", chip.path, "--token-ids", "1,2", "--tokens", 1]
    done = run_command(capsys, *arguments)
    assert (done.code, runs.asked) == (0, [])
    assert done.out.splitlines()[1:] == [f"note: no RTL: {sentence}"]
    values = checked(run_command(capsys, *arguments, "--json"), "verify")
    assert (values["level"], values["notes"]) == ("values", [f"no RTL: {sentence}"])
    for level in ("unit", "layer", "chip"):
        refused(run_command(capsys, *arguments, "--level", level), sentence)


def test_description_without_hardware_is_said(
    chip: Description, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_hardware(_: Description) -> Path:
        raise SpecError("schedule.n_slots of an RTL target must be 1, not 2")

    monkeypatch.setattr(verification_rtl, "write_chip", no_hardware)
    report = romsim.verify(chip, tokens=[1], n_new=1)
    assert report.notes == ("no RTL: schedule.n_slots of an RTL target must be 1, not 2",)
    assert (report.level, report.passed) == ("values", True)
    with pytest.raises(SpecError, match=r"^schedule\.n_slots of an RTL target must be 1, not 2$"):
        romsim.verify(chip, tokens=[1], n_new=1, level="chip")


def test_failed_build_is_an_error_and_not_a_note(
    chip: Description, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> RtlReport:
        raise ToolError("Verilator build of 'romsim_top' must succeed")

    monkeypatch.setattr(verification_rtl, "compare_rtl", broken)
    with pytest.raises(ToolError, match=r"^Verilator build of 'romsim_top' must succeed$"):
        romsim.verify(chip, tokens=[1], n_new=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--tokens", 0], "Tokens to decode must be at least 1, not 0"),
        (["--max-lanes", 0], "Lanes of a chip that is simulated must be at least 1, not 0"),
        (["--level", "gate"], "Level must be one of values, unit, layer, chip, not 'gate'"),
        (
            ["--waves", "fst"],
            "--waves must be used with --from and --to, the first and the last cycle, not without "
            "--from",
        ),
        (
            ["--waves", "fst", "--from", 3],
            "--waves must be used with --from and --to, the first and the last cycle, not without "
            "--to",
        ),
        (
            ["--waves", "fst", "--from", 9, "--to", 3],
            "Waves must be from a cycle of at least 0 to one not before it, not from 9 to 3",
        ),
        (
            ["--waves", "fst", "--from", -1, "--to", 3],
            "Waves must be from a cycle of at least 0 to one not before it, not from -1 to 3",
        ),
        (["--waves", "lxt", "--from", 1, "--to", 3], "Waves must be one of fst, vcd, not 'lxt'"),
        (["--from", 1], "--from must be used with --waves, not alone; add --waves fst"),
        (["--to", 1], "--to must be used with --waves, not alone; add --waves fst"),
        (
            ["--level", "values", "--waves", "vcd", "--from", 1, "--to", 3],
            "Waves must be asked of RTL, with level unit, layer or chip, not with 'values'",
        ),
    ],
)
def test_impossible_request_is_refused(
    arguments: list[Any], sentence: str, chip: Description, capsys: Capture
) -> None:
    refused(run_command(capsys, "verify", chip.path, *arguments), sentence)


def refused(done: Outcome, sentence: str) -> None:
    assert (done.code, done.sentence()) == (2, f"romsim: {sentence}")


def test_waves_appear_whole_and_only_if_they_show_something(
    chip: Description, runs: Runs, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "meine Wellen"
    arguments = ["verify", chip.path, "--token-ids", "1", "--tokens", 1, "--out", folder]
    done = run_command(capsys, *arguments, "--waves", "vcd", "--from", 10, "--to", 20)
    assert (done.code, done.err) == (0, "")
    file = folder / "whole-chip.vcd"
    assert f"  waves: {file}" in done.out.splitlines()
    assert [path.name for path in folder.iterdir()] == [file.name]
    options = runs.asked[0][2]
    assert (options["options"].waves, options["waves"][1:]) == ("vcd", (10, 21))
    sentence = (
        "Waves must begin before cycle 4000, at which whole chip ends, not at 4000; give a smaller "
        "--from"
    )
    file.unlink()
    late = run_command(capsys, *arguments, "--waves", "vcd", "--from", 4000, "--to", 5000)
    refused(late, sentence)
    assert list(folder.iterdir()) == []


def test_waves_are_vcd_where_zlib_is_missing(
    chip: Description, runs: Runs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(verification_rtl, "has_zlib", lambda: False)
    waves = Waves(form="fst", first=0, last=9, folder=tmp_path)
    report = romsim.verify(chip, tokens=[1], n_new=1, waves=waves)
    assert report.notes == (
        "waves are VCD and not FST, which needs zlib's header; apt-get install zlib1g-dev",
    )
    assert report.rtl[0].waves == tmp_path / "whole-chip.vcd"


def test_first_difference_and_the_command_that_shows_it(
    chip: Description, monkeypatch: pytest.MonkeyPatch, runs: Runs, capsys: Capture
) -> None:
    wrong = Runs(replace(EQUAL, n_mismatches=12, first=FIRST))
    monkeypatch.setattr(verification_rtl, "compare_rtl", wrong)
    arguments = ["verify", chip.path, "--token-ids", "1,2", "--tokens", 1]
    done = run_command(capsys, *arguments)
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[1:] == [
        "RTL, whole chip: DIFFERENT: 70 elements written, 9 issues and 512 logits of 3 tokens in "
        "4,000 cycles, 12 mismatches; 3 tokens/s",
        "  by memory: K 20, X 50",
        "  by operator: resid o 50, rope 20",
        "  first: value of L1.matvec qkv to Y[37], lane 5, cycle 1200 of program 1 at position 2: "
        "cycle model -1 (0xffffffffffffffff), RTL 255 (0xff)",
        "  and 11 mismatches more",
        f"  waves around it: romsim verify {chip.path} --tokens 1 --level chip --token-ids 1,2 "
        f"--waves fst --from 3060 --to 3108",
    ]
    values = checked(run_command(capsys, *arguments, "--json"), "verify", 1)
    assert (values["passed"], values["n_mismatches"]) == (False, 12)
    first = values["rtl"][0]["first"]
    assert (first["layer"], first["operator"], first["lane"]) == (1, "matvec qkv", 5)


def test_nothing_compared_is_a_failure(chip: Description) -> None:
    reference = romsim.verify(chip, tokens=[1], n_new=1, level="values").reference
    assert not Verification(level="chip", reference=reference).passed
    part = RtlPart(name="whole chip", chip="", report=replace(EQUAL, n_logits=0))
    assert not Verification(level="chip", reference=reference, rtl=(part,)).passed


def test_large_chip_is_verified_by_parts_and_says_what_is_missing(
    tmp_path: Path, runs: Runs, capsys: Capture
) -> None:
    target = sized_target("small", n_tiles=8, n_cells=4, n_lanes=64)
    large = compile_tiny("tiny-int4", tmp_path / "large", target=target)
    arguments = ["verify", large.path, "--token-ids", "1,2", "--tokens", 1, "--max-lanes", 320]
    done = run_command(capsys, *arguments)
    assert done.code == 0
    names = ["full-width tile, instructions of layer 0 one by one", "scaled target, whole chip"]
    values = checked(run_command(capsys, *arguments, "--json"), "verify")
    assert [part["name"] for part in values["rtl"]] == names
    assert [part["chip"] for part in values["rtl"]] == [
        "1 tiles of 4 cells of 32 lanes, 32 vector lanes",
        "2 tiles of 2 cells of 32 lanes, 64 vector lanes",
    ]
    tiles = (
        "the 8 tiles of small side by side: where its rows and tokens stand, and the cycles that "
        "follow from the number of tiles"
    )
    assert values["not_covered"] == [tiles]
    assert (values["whole"]["lanes"], values["whole"]["max_lanes"]) == (1024 + 512 + 64, 320)
    assert f"note: {values['whole']['sentence']}" in done.out.splitlines()
    tile, scaled = runs.asked[0][0], runs.asked[1][0]
    assert (tile.context, scaled.context) == (3, 3)
    # the same model, in no more ROM than it needs
    for small in (tile, scaled):
        assert small.placement["n_words"] == small.target.array.rom_rows
    lanes, cells = "32 of the 64 lanes of the vector unit", "2 of the 4 cells of a tile"
    for level, count, max_lanes, less in (
        ("unit", 1, 300, [lanes]),
        ("layer", 1, 320, [cells]),
        ("layer", 1, 319, [cells, lanes]),
    ):
        report = romsim.verify(large, tokens=[1], n_new=1, level=level, max_lanes=max_lanes)
        assert len(report.rtl) == count
        assert list(report.not_covered) == [tiles, *less]


def test_a_tile_too_wide_keeps_some_of_its_cells(tmp_path: Path) -> None:
    target = sized_target("small", n_cells=16)
    wide = compile_tiny("tiny-int4", tmp_path / "wide", target=target)
    tile = full_width_tile(wide, 300)
    assert (tile.array.n_tiles, tile.array.n_cells) == (1, 4)
    assert sizes(tile).lanes <= 300 < sizes(full_width_tile(wide, 1000)).lanes
    assert (scaled_chip(wide, 300).array.n_tiles, scaled_chip(wide, 300).array.n_cells) == (2, 2)


def test_cost_of_a_whole_chip_grows_with_its_lanes(tmp_path: Path) -> None:
    chips = [
        compile_tiny("tiny-int4", tmp_path / f"{n}", target=sized_target("small", n_tiles=n))
        for n in (2, 8)
    ]
    few, many = (whole_cost(one) for one in chips)
    assert few.fits
    assert (few.lanes, many.lanes) == (128 + 128 + 32, 512 + 512 + 32)
    # 128 lanes more of the vector unit cost more than of H-units, those more than of ROM cells
    changes: tuple[dict[str, int], ...] = ({"n_lanes": 160}, {"heads_parallel": 4}, {"n_cells": 4})
    builds = [build_seconds(sized_target("small", **change)) for change in changes]
    assert builds == sorted(builds, reverse=True)
    assert builds[-1] > build_seconds(sized_target("small"))
    assert many.build_s > few.build_s
    assert many.build_mib > few.build_mib
    assert not whole_cost(chips[1], max_lanes=many.lanes - 1).fits
    assert whole_cost(chips[1], max_lanes=many.lanes).fits


def test_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_prerequisites, "find_verilator", lambda: None)
    which = "romsim_rtl.driver_prerequisites.shutil.which"
    monkeypatch.setattr(which, lambda name: None if name == "perl" else name)
    sentence = "perl must be installed, not missing from PATH; apt-get install perl"
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        driver_prerequisites.check_tools()


def test_every_constant_has_a_range_a_unit_a_source_and_a_grade() -> None:
    file = resources.files("romsim") / "tables" / "rtl_cost.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    assert len(table) == 10
    for entry in table.values():
        assert entry["low"] <= entry["value"] <= entry["high"]
        assert entry["grade"] in ("published", "measured", "derived", "assumed")
        assert entry["unit"]
        assert entry["source"]
