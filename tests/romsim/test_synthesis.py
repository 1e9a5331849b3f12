"""``romsim synth``: counts, the clock's verdict, units beside the estimate, JSON by its schema."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import romsim
from romsim import synthesis
from romsim.rtl_clock import path_period_ps
from romsim.synthesis import UNITS
from romsim_compiler.description import Description
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_rtl.module_timing import PortTiming
from romsim_rtl.synthesis import Memory, ModuleSynthesis, RtlilModule
from tests.command_line import run_command
from tests.tiny_chips import compile_tiny

SCHEMA = Path(romsim.__file__).parent / "schemas" / "synth.schema.json"
ASAP7 = load_technology("asap7")


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_tiny("tiny-int4", tmp_path_factory.mktemp("synth") / "chip")


def module(name: str, *, flop: float = 10.0, rom: float = -math.inf, **children: int) -> Any:
    inner = (flop, -math.inf, rom)
    return ModuleSynthesis(
        name=name,
        cells={"DFFHQNx1": 10, "INVx1": 100},
        memories=(Memory(kind="rom", words=8, bits=4, count=2),),
        children={f"romsim_{child}": n for child, n in children.items()},
        delays=PortTiming(inner=inner, worst=(("a", "b"), ("", ""), ("r", "s"))),
        gates=PortTiming(inner=tuple(2 * v for v in inner), worst=(("a", "b"), ("", ""), ("", ""))),
    )


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules made by hand in the place of yosys, which takes minutes for a whole chip."""
    found = {
        "romsim_htile": module("romsim_htile"),
        "romsim_hside": module("romsim_hside", htile=2),
        "romsim_cell": module("romsim_cell"),
        "romsim_row": module("romsim_row", flop=80.0),
        "romsim_ltile": module("romsim_ltile", cell=2, row=2),
        "romsim_lside": module("romsim_lside", ltile=2),
        "romsim_sequencer": module("romsim_sequencer", flop=2.0, rom=3.0),
        "romsim_vector_group": module("romsim_vector_group"),
        "romsim_vector": module("romsim_vector", vector_group=1),
        "romsim_top": module("romsim_top", flop=-math.inf, hside=1, lside=1, sequencer=1, vector=1),
    }
    modules = [RtlilModule(name=n, text="", children=m.children) for n, m in found.items()]
    monkeypatch.setattr(synthesis, "Top", lambda **_: None)
    monkeypatch.setattr(synthesis, "rtlil_modules", lambda *_: modules)
    monkeypatch.setattr(
        synthesis,
        "synthesise_modules",
        lambda some, *_, **__: {module.name: found[module.name] for module in some},
    )
    return found


def test_every_module_of_a_chip_has_a_unit(chip: Description, stubbed: dict[str, Any]) -> None:
    report = romsim.synth(chip)
    assert [row.module for row in report.modules] == list(reversed(list(stubbed)))
    counts = {row.module: row.count for row in report.modules}
    assert counts["romsim_cell"] == counts["romsim_row"] == 4
    assert counts["romsim_htile"] == counts["romsim_ltile"] == 2
    assert counts["romsim_vector_group"] == counts["romsim_top"] == 1
    one = 10 * ASAP7.cell_um2["DFFHQNx1"] + 100 * ASAP7.cell_um2["INVx1"]
    assert report.cell_um2 == pytest.approx(one * sum(counts.values()))
    assert report.placed_um2.mid == pytest.approx(report.cell_um2 / 0.75)
    assert sum(unit.placed_um2.mid for unit in report.units) == pytest.approx(report.placed_um2.mid)
    assert {unit.unit for unit in report.units} == set(UNITS.values())


def test_clock_is_that_of_the_slowest_path(chip: Description, stubbed: dict[str, Any]) -> None:
    report = romsim.synth(chip)
    assert report.slowest.module == "romsim_row"
    assert report.period_ps.mid == pytest.approx((80 * 1.5 + 4) * 18.3)
    assert not report.meets_clock
    assert report.verdict() == (
        "500 MHz of target 'small' are NOT reached by its own RTL: 441 MHz (255 to 683), bound by "
        "romsim_row (from a to b, 160 gates)"
    )
    stubbed["romsim_row"] = module("romsim_row", flop=50.0)
    report = romsim.synth(chip)
    assert report.meets_clock
    assert report.verdict() == (
        "500 MHz of target 'small' are reached: 692 MHz, bound by romsim_row (from a to b, "
        "100 gates)"
    )


def test_a_memory_is_read_before_the_logic(chip: Description, stubbed: dict[str, Any]) -> None:
    logic = (3 * 1.5 + 4) * 18.3
    assert path_period_ps(ASAP7, "flop", 3.0).mid == pytest.approx(logic)
    assert path_period_ps(ASAP7, "sram", 3.0).mid == pytest.approx(logic + 500)
    # a bank of logic ROM stands before its register, a compiler's macro after the clock's edge
    assert path_period_ps(ASAP7, "rom", 3.0).mid == pytest.approx(logic)
    macros = load_technology("n7-compiler")
    assert path_period_ps(macros, "rom", 3.0).mid == pytest.approx(logic + 787)
    row = {r.module: r for r in romsim.synth(chip).modules}["romsim_sequencer"]
    assert (row.start, row.first, row.last, row.gates) == ("rom", "r", "s", 6)
    assert row.memory_bits == 64


def test_command_prints_the_schema_and_a_table(
    chip: Description, stubbed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    values = run_command(capsys, "synth", chip.path, "--json").json()
    jsonschema.validate(values, json.loads(SCHEMA.read_text()))
    assert values["clock"]["is_met"] is False
    assert values["modules"][0]["period_ps"] is None  # the top has no logic that ends in it
    text = run_command(capsys, "synth", chip.path).out
    assert "clock: 500 MHz of target 'small' are NOT reached by its own RTL" in text
    assert "rom read, r -> s" in text


def test_modules_can_be_chosen(chip: Description, stubbed: dict[str, Any]) -> None:
    report = romsim.synth(chip, modules=["romsim_ltile"])
    assert [row.module for row in report.modules] == ["romsim_ltile", "romsim_row", "romsim_cell"]
    assert [row.count for row in report.modules] == [2, 4, 4]
    assert [unit.unit for unit in report.units] == ["L-units"]
    assert len(report.left_out) == len(stubbed) - 3
    assert report.verdict().endswith("160 gates; 7 modules were left out)")
    jsonschema.validate(report.to_json(), json.loads(SCHEMA.read_text()))
    with pytest.raises(SpecError, match=r"^Module must be one of romsim_cell, .*, not 'cell'$"):
        romsim.synth(chip, modules=["cell"])


def test_no_cell_table_no_synthesis(chip: Description, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(ASAP7, name="bare", cell_um2={}, cell_function={})
    monkeypatch.setattr(synthesis, "load_technology", lambda _: bare)
    with pytest.raises(
        SpecError,
        match=r"^Technology 'bare' must have a cell table with DFFHQNx1, ICGx1, BUFx2 and gates "
        r"for synthesis, but has no DFFHQNx1, ICGx1, BUFx2; use a target in a technology that "
        r"has them, such as asap7$",
    ):
        romsim.synth(chip)
