from __future__ import annotations

import json
import math

import pytest

from romsim_compiler.technology import GRADES, Instance, Range, calibrate, sum_ranges
from romsim_compiler.technology_file import list_technologies, load_technology
from romsim_models.errors import SpecError

NAMES = list_technologies()


def instance(words: int, bits: int, mbit_per_mm2: float) -> Instance:
    return Instance(
        words=words, bits=bits, mbit_per_mm2=mbit_per_mm2, grade="measured", source="a test"
    )


def test_calibration_recovers_a_model_exactly() -> None:
    def area(words: int, bits: int) -> float:
        return bits * (words * 0.02 + 30)

    shapes = [(512, 64), (2048, 64), (8192, 128)]
    made = tuple(instance(w, b, w * b / area(w, b)) for w, b in shapes)
    bit, column = calibrate(made, bit_cell_um2=0.01, max_words=8192)
    assert bit == pytest.approx(0.02)
    assert column == pytest.approx(30)


def test_calibration_counts_a_bank_for_each_started_depth() -> None:
    def area(words: int, bits: int) -> float:
        return bits * (words * 0.02 + 5 * -(-words // 256))

    shapes = [(64, 32), (256, 64), (2048, 39), (300, 8)]
    made = tuple(instance(w, b, w * b / area(w, b)) for w, b in shapes)
    bit, column = calibrate(made, bit_cell_um2=0.01, max_words=256)
    assert [bit, column] == pytest.approx([0.02, 5])


def test_one_instance_leaves_what_is_no_cell_to_the_columns() -> None:
    bit, column = calibrate((instance(100, 10, 20.0),), bit_cell_um2=0.03, max_words=100)
    assert bit == 0.03
    assert column == pytest.approx((1000 / 20 - 1000 * 0.03) / 10)


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        (
            (instance(256, 64, 20.0), instance(256, 32, 20.0)),
            r"^macro instances must differ in depth, or no model can be fitted to them$",
        ),
        (
            (instance(64, 64, 40.0), instance(4096, 64, 20.0)),
            r"^macro instances must fit a model with positive terms, not 0\.0504 um2 a bit and "
            r"-1\.625 um2 a column; check their densities$",
        ),
    ],
)
def test_instances_without_a_model_are_refused(
    instances: tuple[Instance, ...], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        calibrate(instances, bit_cell_um2=0.01, max_words=8192)


@pytest.mark.parametrize(
    ("name", "rom", "sram"),
    [("n7-compiler", 0.015, 0.13), ("asap7", 0.001, 0.006), ("n5", 0.015, 0.13)],
)
def test_macro_models_are_near_the_instances_listed(name: str, rom: float, sram: float) -> None:
    technology = load_technology(name)
    assert max(map(abs, technology.rom.residuals())) <= rom
    assert max(map(abs, technology.sram.residuals())) <= sram


def test_compiler_density_grows_with_depth() -> None:
    rom = load_technology("n7-compiler").rom
    densities = [rom.mbit_per_mm2(words, 64) for words in (1024, 2048, 4096, 8192)]
    assert densities == pytest.approx([21.6, 34.4, 47.1, 57.8], rel=0.015)


def test_wider_macro_is_instances_side_by_side() -> None:
    sram = load_technology("n7-compiler").sram
    assert sram.mid_um2(4096, 192) == pytest.approx(3 * sram.mid_um2(4096, 64))
    assert sram.mid_um2(16384, 64) == pytest.approx(2 * sram.mid_um2(8192, 64))


def test_logic_rom_is_linear_between_measured_points_and_ends_at_nothing() -> None:
    shared = load_technology("asap7").logic_rom["shared"]
    assert shared.area_per_bit(0.71).mid == 0.00706
    assert shared.area_per_bit(0.3).mid == 0.00797
    assert shared.area_per_bit(0.60).mid == pytest.approx(0.00797 - (0.00797 - 0.00761) * 2 / 3)
    assert shared.area_per_bit(0.969).mid == pytest.approx(0.00260 / 2)
    assert shared.area_per_bit(1.0).mid == 0.0
    values = [shared.area_per_bit(share / 100).mid for share in range(101)]
    assert values == sorted(values, reverse=True)


def test_bank_of_the_ternary_chip_has_the_published_density() -> None:
    plain = load_technology("asap7").logic_rom["plain"]
    assert 1e6 / plain.area_per_bit(0.70).mid / 8 / 2**20 == pytest.approx(15.2, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_range_unit_source_and_grade(name: str) -> None:
    technology = load_technology(name)
    assert technology.facts
    facts = [*technology.facts.values(), technology.rom.bit_cell, technology.sram.band]
    for fact in facts:
        assert 0 < fact.low <= fact.mid <= fact.high < math.inf, fact
        assert fact.unit, fact
        assert fact.source, fact
        assert fact.grade in GRADES, fact
    for macro in (technology.rom, technology.sram):
        for one in macro.instances:
            assert one.source, one
            assert one.grade in GRADES, one
    assert technology.cell_source


@pytest.mark.parametrize("name", NAMES)
def test_what_was_quoted_from_memory_is_graded_assumed(name: str) -> None:
    for fact in load_technology(name).facts.values():
        if "unverified" in fact.source:
            assert fact.grade == "assumed", fact


@pytest.mark.parametrize("name", NAMES)
def test_constants_survive_json(name: str) -> None:
    values = load_technology(name).to_json()
    assert json.loads(json.dumps(values, allow_nan=False))["name"] == name


def test_scaled_technology_names_the_factor_and_grades_down() -> None:
    base, scaled = load_technology("n7-compiler"), load_technology("n5")
    lane, fact = base["lane.int4_mxint8"], scaled["lane.int4_mxint8"]
    assert fact.mid == pytest.approx(lane.mid * 0.556)
    assert fact.grade == "assumed"  # ASAP7's to N7's scale is
    assert "x 0.556" in fact.source
    assert scaled.cell_um2["FAx1"] == pytest.approx(base.cell_um2["FAx1"] * 0.556)


def test_energy_of_a_lane_scales_with_energy_and_not_with_area() -> None:
    base, scaled = load_technology("n7-compiler"), load_technology("n5")

    def lane(technology: object) -> float:
        t = load_technology(str(technology))
        return t["lane.int8_mxint8"].mid * t["energy.logic_per_um2"].mid

    assert lane(scaled.name) == pytest.approx(lane(base.name) * 0.75)


def test_clock_of_a_path_has_wires_and_overhead() -> None:
    technology = load_technology("asap7")
    assert technology.clock_period_ps(20).mid == pytest.approx((20 * 1.5 + 4) * 18.3)


def test_unknown_fact_is_named_with_what_there_is() -> None:
    with pytest.raises(
        SpecError,
        match=r"^Technology 'asap7' must have the fact 'leakage\.dram', but it has leakage\.rom, "
        r"leakage\.sram, leakage\.logic, leakage\.gated_share$",
    ):
        load_technology("asap7")["leakage.dram"]
    with pytest.raises(
        SpecError,
        match=r"^Technology 'asap7' must have the fact 'x\.y', but it has no such section$",
    ):
        load_technology("asap7")["x.y"]


def test_ranges_add_and_multiply() -> None:
    one, two = Range(1, 2, 3), Range(2, 4, 8)
    assert one + two == Range(3, 6, 11)
    assert one * 2 == Range(2, 4, 6)
    assert one.times(two) == Range(2, 8, 24)
    assert one.over(two) == Range(1 / 8, 2 / 4, 3 / 2)
    assert sum_ranges([one, two, two]) == Range(5, 10, 19)
    assert sum_ranges([]) == Range(0, 0, 0)
