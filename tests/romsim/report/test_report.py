"""Reports: their figures and tables on descriptions and on random design points, and as JSON."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import romsim
from romsim.description_point import area_of_description, point_of_description
from romsim.design_point import DesignPoint
from romsim.energy import EnergyReport, estimate_energy
from romsim.report.build import build_report, chip_report
from romsim.report.model import ChipReport, Column, Figure, Report, Table
from romsim.report.output import render_json
from romsim.report.zero_bits import count_zero_bits
from romsim.rtl_clock import rtl_clock
from romsim.throughput import profile_token
from romsim_compiler.description import Description
from romsim_compiler.formats import parse_format
from romsim_compiler.kv import parse_kv
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_models.shapes import SHAPES
from tests.romsim.random_points import random_point
from tests.tiny_chips import compile_tiny, sized_target, tiny_spec, write_adapter

SCHEMA = Path(romsim.__file__).parent / "schemas" / "report.schema.json"


def check_json(report: Report) -> dict[str, Any]:
    """The report's JSON, by its schema, every number finite and with a unit."""
    values: dict[str, Any] = json.loads(render_json(report))
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(values)
    tables = [t for chip in values["chips"] for t in chip["tables"]] + values["tables"]
    for figure in (f for chip in values["chips"] for f in chip["figures"]):
        assert figure["unit"]
        assert figure["low"] <= figure["value"] <= figure["high"]
        assert all(math.isfinite(figure[k]) for k in ("low", "value", "high"))
    for table in tables:
        keys = {c["key"] for c in table["columns"]}
        for row in table["rows"]:
            for column, cell in zip(table["columns"], row, strict=True):
                if isinstance(cell, int | float):
                    assert column["unit"], (table["key"], column["key"])
                    assert math.isfinite(cell)
                    assert column["formula"] or {"formula", "source", "grade"} <= keys
    return values


def of_point(point: DesignPoint, context: int, limit: int) -> ChipReport:
    return chip_report(point, letter="A", label="a", name="a", context=context, limit=limit)


def as_report(chip: ChipReport) -> Report:
    return Report(title="t", commands=("a", "b"), chips=(chip,), tables=(), notes=())


def total(chip: ChipReport, table: str, column: str) -> float:
    found = chip.table(table)
    assert found is not None
    return math.fsum(found.numbers(column))


@given(st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_no_figure_of_any_chip_is_unfinite_or_without_unit(seed: int) -> None:
    rng = random.Random(seed)
    point = random_point(rng)
    context = rng.choice([1, 2, 17, 300])
    chip = of_point(point, context, context * rng.choice([1, 2]))
    check_json(as_report(chip))
    # Every stack sums to what it is a stack of.
    profile = profile_token(point, context)
    assert total(chip, "layers", "total") == profile.cycles
    parts = sum(total(chip, "layers", key) for key in ("L", "H", "V", "other"))
    assert parts == profile.cycles
    assert total(chip, "operations", "cycles") == profile.cycles
    area = chip.figure("area_mm2").value
    assert total(chip, "area", "mid_mm2") == pytest.approx(area, rel=1e-9)
    assert total(chip, "energy_layers", "share") == pytest.approx(100)
    assert total(chip, "energy", "mid_j") == pytest.approx(chip.figure("token_j").value, rel=1e-9)


@given(st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_floorplan_has_the_dies_area_and_nothing_overlaps(seed: int) -> None:
    rng = random.Random(seed)
    point = random_point(rng)
    chip = of_point(point, 1, 1)
    table = chip.table("floorplan")
    assert table is not None
    x, y, w, h = (table.numbers(k) for k in ("x_mm", "y_mm", "width_mm", "height_mm"))
    areas = [a * b for a, b in zip(w, h, strict=True)]
    die = chip.figure("area_mm2").value
    assert math.fsum(areas) == pytest.approx(die, rel=1e-9)
    side = math.sqrt(die)
    boxes = list(zip(x, y, w, h, strict=True))
    small = side * 1e-9
    for number, (x0, y0, w0, h0) in enumerate(boxes):
        assert -small < x0 < x0 + w0 < side + small
        assert -small < y0 < y0 + h0 < side + small
        for x1, y1, w1, h1 in boxes[:number]:
            across = min(x0 + w0, x1 + w1) - max(x0, x1)
            along = min(y0 + h0, y1 + h1) - max(y0, y1)
            assert across < small or along < small


def big(target: Target) -> ChipReport:
    point = DesignPoint.uniform(SHAPES["llama-3.2-1b"], target, parse_format("sym4g128"))
    return of_point(point, 256, 512)


@pytest.mark.parametrize(
    ("part", "field", "slower", "smaller"),
    [
        ("array", "n_cells", True, True),
        ("attention", "word_elems", True, True),
        ("attention", "sram_kib", False, True),
        ("vector", "n_lanes", True, True),
        ("array", "rom_rows", False, True),
    ],
)
def test_half_of_a_resource_moves_the_figures_in_its_direction(
    part: str, field: str, slower: bool, smaller: bool
) -> None:
    target = load_target("roma-7nm")
    section: Any = getattr(target, part)
    halved = replace(section, **{field: getattr(section, field) // 2})
    whole, half = big(target), big(replace(target, **{part: halved}))
    rates = [c.figure("tokens_per_s").value for c in (whole, half)]
    assert (rates[1] < rates[0]) if slower else (rates[1] == rates[0])
    areas = [c.figure("area_mm2").value for c in (whole, half)]
    assert (areas[1] < areas[0]) == smaller
    if field == "sram_kib":
        tokens = [c.table("kv_codecs") for c in (whole, half)]
        assert tokens[0] is not None
        assert tokens[1] is not None
        for a, b in zip(tokens[0].numbers("tokens"), tokens[1].numbers("tokens"), strict=True):
            assert b <= a / 2


def test_half_the_clock_is_half_the_rate_and_less_power() -> None:
    target = load_target("roma-7nm")
    whole, half = big(target), big(replace(target, clock_mhz=target.clock_mhz / 2))
    assert half.figure("tokens_per_s").value == whole.figure("tokens_per_s").value / 2
    assert half.figure("ttft_s").value == 2 * whole.figure("ttft_s").value
    assert half.figure("power_w").value < whole.figure("power_w").value
    # Leakage flows for twice as long.
    assert half.figure("token_j").value > whole.figure("token_j").value


def test_gating_never_costs_energy() -> None:
    for name in ("roma-7nm", "tom-7nm"):
        spec = SHAPES["bitnet-2b-4t" if name == "tom-7nm" else "llama-3.2-3b"]
        fmt = parse_format("ternary" if name == "tom-7nm" else "sym4g128")
        table = of_point(DesignPoint.uniform(spec, load_target(name), fmt), 64, 64).table(
            "energy_units"
        )
        assert table is not None
        totals = [float(r[3] or 0) for r in table.rows if r[1] == "total"]
        assert len(totals) == 3
        assert totals[0] > totals[1] > totals[2]


def test_report_of_a_description(tiny: Description) -> None:
    report = romsim.build_report(tiny)
    values = check_json(report)
    (chip,) = report.chips
    assert chip.context == 96
    assert chip.label == "tiny-int4 on small"
    assert [t["key"] for t in values["tables"]] == [
        "published",
        "fitted",
        "other_chips",
        "contradictions",
    ]
    assert report.commands == (
        "romsim compile tiny-int4 --target small --lora story=FOLDER --context 96 -o build/a",
        "romsim report build/a --context 96 -o report.html",
    )
    assert any("story" in note for note in chip.notes)
    adapters = chip.table("adapters")
    assert adapters is not None
    assert adapters.texts("adapter") == ("none", "story")
    assert adapters.numbers("rank") == (0, 8)
    assert adapters.numbers("rate")[0] == chip.figure("tokens_per_s").value
    # Rank 8 is hidden behind the matrices (docs/machine.md, section 4).
    assert adapters.numbers("slower") == (0, 0)


def test_a_wide_adapter_costs_time(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "wide", tiny_spec("tiny-int4"), rank=64)
    chip = compile_tiny("tiny-int4", tmp_path / "chip", adapters={"wide": folder})
    table = romsim.build_report(chip).chips[0].table("adapters")
    assert table is not None
    assert table.numbers("rank") == (0, 64)
    assert table.numbers("slower")[1] > 0


def test_zero_bits_are_those_of_the_images(tiny: Description) -> None:
    zeros = count_zero_bits(tiny)
    array = tiny.target.array
    shape = (-1, array.n_tiles, array.n_cells, array.word_bytes)
    words = np.fromfile(tiny.path / "rom.bin", np.uint8).reshape(shape)
    ones = np.unpackbits(words, axis=-1).sum(axis=(0, 3))
    bits = words.shape[0] * array.word_bits
    np.testing.assert_allclose(zeros.banks, 1 - ones / bits, rtol=1e-12)
    assert zeros.total == pytest.approx(1 - ones.sum() / (bits * ones.size), rel=1e-12)
    assert zeros.kinds.keys() == {"qkv", "o", "gu", "down", "embd", "head"} & zeros.kinds.keys()
    for kind in zeros.kinds:
        assert 0 < zeros.kinds[kind] < 1


def test_a_shape_has_no_zero_bits_and_says_so(shape: Description) -> None:
    (chip,) = romsim.build_report(shape).chips
    assert chip.table("rom_banks") is None
    assert "A shape without weights: no ROM images, so no zero-bit densities." in chip.notes
    assert "zero_bits" not in {f.key for f in chip.figures}


def test_a_target_that_cannot_run_says_so(paper: Description) -> None:
    (chip,) = romsim.build_report(paper).chips
    assert chip.notes[0].startswith("Target tom-7nm cannot be executed")
    assert any("LM head is off-chip" in note for note in chip.notes)


def test_die_area_is_that_of_the_area_model(tiny: Description) -> None:
    (chip,) = romsim.build_report(tiny).chips
    area = area_of_description(tiny).total_mm2
    figure = chip.figure("area_mm2")
    assert (figure.low, figure.value, figure.high) == (area.low, area.mid, area.high)


def test_a_cache_of_another_kind_has_its_own_row_and_says_so(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip", kv="kivi-2bit")
    (report,) = romsim.build_report(chip).chips
    table = report.table("kv_codecs")
    assert table is not None
    assert table.texts("codec")[0] == "kivi, all, contiguous"
    assert [s for s in table.texts("status") if s == "this chip's"] == ["this chip's"]
    assert table.numbers("bits")[0] == 3
    assert (
        f"KV cache: {chip.target.kv.text()} (docs/kv.md). Its words in SRAM are counted in cycles "
        f"and energy. Its own logic is in the area, and what switches with the tiles' lanes in the "
        f"energy; encoding is priced as that of MXINT8."
    ) in report.notes
    # Stored bits are what attention reads: 16-bit windows of 128 tokens, then 3 bits.
    plain = estimate_energy(point_of_description(tiny_plain(tmp_path)), 96)
    kivi = estimate_energy(point_of_description(chip), 96)
    assert reads(kivi) / reads(plain) == pytest.approx(16 / 8.25)


def test_chips_side_by_side_are_told_apart_by_their_caches(tmp_path: Path) -> None:
    texts = ("kivi-2bit", "h2o,heavy=8,window=8,codec=int4", "int8,layout=paged,block=16", "int8")
    chips = [
        compile_tiny("tiny-int4", tmp_path / str(number), kv=text, context=32)
        for number, text in enumerate(texts)
    ]
    report = build_report(chips)
    names = [", KV kivi 2/2 bits", ", KV int4 h2o", ", KV int8 paged", ""]
    assert [chip.label for chip in report.chips] == [
        f"{chips[0].name} on {chips[0].target.name}{name}" for name in names
    ]
    for command, chip in zip(report.commands, chips, strict=False):
        (text,) = re.findall(r" --kv (\S+)", command) or ["int8"]
        assert parse_kv(text) == chip.target.kv
    plain = report.chips[3].summary
    assert [chip.summary for chip in report.chips] == [plain + name for name in names]


def test_command_that_makes_a_chip_again_has_what_changes_its_target(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "one", tiny_spec("tiny-ternary"), is_ternary=True)
    chip = compile_tiny(
        "tiny-ternary",
        tmp_path / "chip",
        target="small-ternary",
        adapters={"one": adapter},
        lora_path="adders",
        kv="int4,layout=paged,block=16",
        slots=2,
        context=32,
    )
    assert romsim.build_report(chip).commands[0] == (
        "romsim compile tiny-ternary --target small-ternary "
        "--kv codec=int4,group=32,retention=all,layout=paged,block=16 --slots 2 --lora-path adders "
        "--lora one=FOLDER --context 32 -o build/a"
    )


def test_a_cache_without_rtl_says_that_its_logic_is_not_counted(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip", kv="kvc-q")
    note = romsim.build_report(chip).chips[0].notes[-1]
    assert note.endswith(
        " Its words in SRAM are counted in cycles and energy; its own logic is in neither area nor "
        "energy: the RTL has no codec 'tiered'."
    )


def tiny_plain(folder: Path) -> Description:
    return compile_tiny("tiny-int4", folder / "plain")


def reads(energy: EnergyReport) -> float:
    (row,) = [r for r in energy.rows if r.unit == "H" and r.event == "sram_read_bits"]
    return row.count


def test_curves_of_a_sequence_without_end_have_one(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip", kv="window,window=32", context=200_000)
    (report,) = romsim.build_report(chip).chips
    assert report.figure("context_limit").value == 200_000
    rates = report.table("rates")
    assert rates is not None
    assert rates.numbers("tokens")[-1] == 65_536
    assert "A sequence may have 200,000 tokens; curves end at 65,536." in report.notes
    limits = report.table("limits")
    assert limits is not None
    # What is achieved stays below what the ports allow, for only the window is read.
    for achieved, ports in zip(limits.numbers("achieved"), limits.numbers("KV_ports"), strict=True):
        assert achieved < ports


PROVENANCE = {"formula": "f", "source": "s", "grade": "derived"}


def test_figures_without_provenance_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^Figure 'k' must be finite, not nan$"):
        Figure.exact("k", "l", "J", math.nan, **PROVENANCE)
    with pytest.raises(ValueError, match=r"^Figure 'k' must have unit, formula, source and grade$"):
        Figure.exact("k", "l", "", 1.0, **PROVENANCE)


def test_tables_whose_cells_are_not_of_their_column_are_refused() -> None:
    def table(column: Column, *cells: Any) -> Table:
        return Table(
            key="t", title="t", note="", columns=(column,), rows=tuple((c,) for c in cells)
        )

    number = Column(key="c", label="c", unit="J", **PROVENANCE)
    with pytest.raises(ValueError, match=r"^Cell of t/c must be finite: inf$"):
        table(number, math.inf)
    with pytest.raises(ValueError, match=r"^Cell of t/c must be of its kind: x$"):
        table(number, "x")
    with pytest.raises(ValueError, match=r"^Cell of t/c must be of its kind: 1$"):
        table(Column(key="c", label="c"), 1)
    with pytest.raises(ValueError, match=r"^Column t/c must have formula and source$"):
        table(Column(key="c", label="c", unit="J"), 1.0)
    with pytest.raises(ValueError, match=r"^Row of table 't' must have a cell for each column$"):
        Table(key="t", title="t", note="", columns=(number,), rows=((1.0, 2.0),))


def test_clock_that_the_rtl_reaches_is_told() -> None:
    """A figure where there is RTL, and none where there is none."""
    spec, weights = SHAPES["smollm2"], parse_format("int4g32")
    target = load_target("roma-7nm-g32")
    clock = rtl_clock(target)
    assert clock is not None
    assert clock.is_met
    chip = of_point(DesignPoint.uniform(spec, target, weights), 1, 1)
    assert chip.figure("rtl_mhz").value == clock.max_mhz.mid
    assert "top (on a chip of 2 tiles): (" in chip.figure("rtl_mhz").formula
    assert chip.figure("rtl_mhz").formula.endswith(" + ROM access")
    few = of_point(DesignPoint.uniform(spec, load_target("rtl-1k"), weights), 1, 1)
    assert few.figure("rtl_mhz").formula.endswith(
        " FO4 × wire factor + overhead) × FO4 + SRAM access"
    )
    published = DesignPoint.uniform(spec, load_target("roma-7nm"), parse_format("sym4g128"))
    keys = {figure.key for figure in of_point(published, 1, 1).figures}
    assert "rtl_mhz" not in keys


def test_note_says_that_adapters_have_no_area_where_the_rtl_has_none(
    tmp_path: Path, adapter_folder: Path
) -> None:
    target = sized_target("small", n_tiles=64, n_cells=1)
    chip = compile_tiny(
        "tiny-int4", tmp_path / "chip", target=target, adapters={"story": adapter_folder}
    )
    assert romsim.build_report(chip).chips[0].notes[-1] == (
        "Adapters' hardware is not in the area: the RTL has adapters on at most as many tiles as "
        "lanes, 32, not on 64."
    )


def test_note_names_a_clock_that_the_rtl_does_not_reach(tmp_path: Path) -> None:
    target = sized_target("small", clock_mhz=2000.0)
    clock = rtl_clock(target)
    assert clock is not None
    report = build_report([compile_tiny("tiny-int4", tmp_path / "fast", target=target)])
    assert clock.verdict() in report.chips[0].notes
    assert " 2000 MHz of small are NOT reached by its own RTL: 5" in clock.verdict()
