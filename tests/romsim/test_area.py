from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace

import pytest

from romsim.area import AreaReport, chip_area_mm2, estimate_area
from romsim.area_parts import Part, parts_of
from romsim_compiler.kv import parse_kv
from romsim_compiler.kv_sram import codebook_bits
from romsim_compiler.target_file import list_targets, load_target
from romsim_compiler.technology import GRADES, Range
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES
from tests.romsim.random_points import random_spec, random_target


def in_order(value: Range) -> bool:
    return 0 < value.low <= value.mid <= value.high < math.inf


def assert_sound(report: AreaReport) -> None:
    total = Range(0, 0, 0)
    for row in report.rows:
        assert in_order(row.area_um2), row
        assert row.count >= 1
        assert row.formula
        assert row.source
        assert row.grade in GRADES
        total = total + row.area_um2
    units = Range(0, 0, 0)
    for area in report.by_unit().values():
        units = units + area
    kinds = Range(0, 0, 0)
    for area in report.by_kind().values():
        kinds = kinds + area
    for other in (total, units, kinds):
        assert [other.low, other.mid, other.high] == pytest.approx(
            [report.total_um2.low, report.total_um2.mid, report.total_um2.high], rel=1e-12
        )
    json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", list_targets())
def test_parts_of_every_target_sum_to_the_total(name: str) -> None:
    assert_sound(estimate_area(load_target(name)))


def test_parts_of_300_random_targets_are_finite_and_sum_to_the_total() -> None:
    rng = random.Random(11)
    for _ in range(300):
        spec = random_spec(rng) if rng.random() < 0.5 else None
        assert_sound(estimate_area(random_target(rng), spec=spec))


def test_every_unit_of_the_template_is_there() -> None:
    report = estimate_area(load_target("roma-7nm-g32"))
    assert list(report.by_unit()) == [
        "L-units",
        "H-units",
        "vector unit",
        "network",
        "sequencer",
        "periphery",
    ]
    assert chip_area_mm2(load_target("roma-7nm-g32")) == report.total_mm2.mid


def test_rom_is_the_macro_model_times_the_cells() -> None:
    target = load_target("roma-7nm")
    report = estimate_area(target)
    model = load_technology("n7-compiler").rom
    row = report.component("L-units", "ROM")
    assert row.count == 256 * 64
    assert row.area_um2.mid == pytest.approx(16384 * model.mid_um2(3584, 274))
    assert row.grade == "derived"


def test_lanes_are_the_measured_area_over_the_utilisation() -> None:
    target = load_target("rtl-1k")
    row = estimate_area(target, logic="parts").component("L-units", "multiply lanes")
    assert row.count == 1024
    assert row.area_um2.mid == pytest.approx(1024 * 19.42 / 0.75)
    assert row.area_um2.low == pytest.approx(1024 * 19.42 / 0.80)


def test_activation_format_decides_the_area_of_lanes() -> None:
    int8 = load_target("roma-7nm-int8")
    fp8 = replace(
        int8,
        executable=False,
        formats=replace(int8.formats, activation="fp8_e4m3", kv="fp8_e4m3"),
    )
    of = {
        name: estimate_area(target, logic="parts")
        .component("L-units", "multiply lanes")
        .area_um2.mid
        for name, target in (("int8", int8), ("fp8", fp8))
    }
    assert of["fp8"] / of["int8"] == pytest.approx(35.3 / 9.91)


def test_ternary_lane_is_the_smallest() -> None:
    parts = parts_of(load_technology("asap7"))
    areas = [
        parts.lane(weight, "mxint8", lane_bits=bits).area.mid
        for weight, bits in (
            ("ternary", 2),
            ("unsigned", 1),
            ("unsigned", 2),
            ("unsigned", 3),
            ("unsigned", 4),
            ("unsigned", 6),
            ("unsigned", 8),
        )
    ]
    assert areas[1] < areas[0] < areas[2]  # a bit is half of int2
    assert areas[2:] == sorted(areas[2:])
    assert areas[3] == pytest.approx((9.91 + 19.42) / 2 / 0.75)


@pytest.mark.parametrize(
    ("section", "field", "unit"),
    [
        ("array", "n_tiles", "L-units"),
        ("array", "n_cells", "L-units"),
        ("array", "rom_rows", "L-units"),
        ("vector", "n_lanes", "vector unit"),
        ("vector", "sram_kib", "vector unit"),
        ("attention", "sram_kib", "H-units"),
        ("attention", "heads_parallel", "H-units"),
    ],
)
def test_doubling_a_resource_enlarges_its_unit(section: str, field: str, unit: str) -> None:
    rng = random.Random(3)
    for _ in range(20):
        small = random_target(rng)
        part = getattr(small, section)
        large = replace(small, **{section: replace(part, **{field: 2 * getattr(part, field)})})
        before, after = (estimate_area(t, spec=SHAPES["smollm2"]) for t in (small, large))
        assert after.by_unit()[unit].mid > before.by_unit()[unit].mid


def test_more_sequences_share_the_rom_and_not_the_lanes() -> None:
    one = load_target("roma-7nm-g32")
    four = replace(one, schedule=replace(one.schedule, n_batch=4))
    before, after = (estimate_area(target, logic="parts") for target in (one, four))
    for component, factor in (("ROM", 1), ("multiply lanes", 4), ("scale multipliers", 4)):
        ratio = (
            after.component("L-units", component).area_um2.mid
            / before.component("L-units", component).area_um2.mid
        )
        assert ratio == pytest.approx(factor)


def test_logic_rom_shrinks_with_zero_bits_and_a_compiler_rom_does_not() -> None:
    target = load_target("tom-7nm")
    dense, sparse = (
        estimate_area(target, zero_bits=share).component("L-units", "ROM").area_um2.mid
        for share in (0.5, 0.9)
    )
    assert sparse < 0.55 * dense
    macros = [
        estimate_area(target, rom_style="compiler", zero_bits=share).total_mm2.mid
        for share in (0.5, 0.9)
    ]
    assert macros[0] == macros[1]


def test_words_that_a_model_uses_can_stand_in_for_all() -> None:
    target = load_target("tom-7nm")
    full, half = (estimate_area(target, rom_words=n) for n in (None, 51360))
    ratio = (
        half.component("L-units", "ROM").area_um2.mid
        / full.component("L-units", "ROM").area_um2.mid
    )
    assert ratio == pytest.approx(0.5, rel=0.01)


def test_synthesised_area_replaces_the_estimate() -> None:
    target = load_target("rtl-1k")
    part = Part(Range.exact(100.0), "measured", "synthesis of this project's RTL", "measured")
    replaced = {("L-units", "multiply lanes"): part}
    report = estimate_area(target, logic="parts", synthesised=replaced)
    row = report.component("L-units", "multiply lanes")
    assert row.area_um2 == Range.exact(1024 * 100.0)
    assert row.grade == "measured"
    assert_sound(report)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rom_style": "flash"}, r"ROM style must be 'compiler' or 'logic', not 'flash'"),
        ({"logic": "gates"}, r"Logic must be 'rtl' or 'parts', not 'gates'"),
        ({"zero_bits": 1.0}, r"Share of zero bits must be from 0 to below 1, not 1\.0"),
        (
            {"synthesised": {("L-units", "lanes"): Part(Range(1, 1, 1), "", "", "measured")}},
            r"Synthesised component must be one of L-units/ROM, .*, not 'L-units/lanes'",
        ),
    ],
)
def test_impossible_request_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=rf"^{message}$"):
        estimate_area(load_target("small"), **arguments)  # type: ignore[arg-type]


def test_codebooks_stand_in_every_tile() -> None:
    spec, plain = SHAPES["smollm2"], load_target("roma-7nm-g32")
    target = replace(plain, kv=parse_kv("commvq-1bit"))
    report = estimate_area(target, spec=spec)
    row = report.component("H-units", "CommVQ codebooks")
    assert row.count == plain.array.n_tiles == 256
    words = codebook_bits(spec, target.kv) / (64 * 16)
    assert row.formula.startswith(f"ROM macro {words:.0f} x 1024 b at ")
    more = report.total_mm2.mid - estimate_area(plain, spec=spec).total_mm2.mid
    assert more > row.area_um2.mid / 1e6 > 100
    sentence = (
        "Area of target 'roma-7nm-g32' with KV codec 'commvq' must be that of a model, whose "
        "codebooks are ROM in every tile; give the model"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        estimate_area(target)


def test_unknown_component_is_named_with_what_there_is() -> None:
    with pytest.raises(
        SpecError, match=r"^Area component must be one of L-units/ROM, .*, not 'H-units/ROM'$"
    ):
        estimate_area(load_target("small")).component("H-units", "ROM")


def test_small_buffer_is_made_of_flops_and_a_large_one_of_sram() -> None:
    parts = parts_of(load_technology("asap7"))
    assert parts.sram(2, 16).kind == "logic"
    assert parts.sram(4096, 64).kind == "sram"
    for words in (1, 8, 64, 512):
        area = parts.sram(words, 64).area.mid
        assert area <= parts.flops(words * 64).area.mid
        assert area <= load_technology("asap7").sram.mid_um2(words, 64)
