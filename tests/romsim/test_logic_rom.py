from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import romsim
from romsim.logic_rom_sampling import (
    Estimate,
    estimate_total,
    fit_area,
    student_t,
    sum_estimates,
)
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.model_banks import bank_bits, bank_places, stored_columns
from tests.command_line import run_command
from tests.tiny_chips import compile_tiny

SCHEMA = Path(romsim.__file__).parent / "schemas" / "logic-rom.schema.json"


@pytest.fixture(scope="module")
def ternary(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_tiny("tiny-ternary", tmp_path_factory.mktemp("ternary") / "chip")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROMSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_banks_hold_every_word_once(ternary: Description) -> None:
    places = bank_places(ternary, 128)
    seen: set[tuple[int, int, int]] = set()
    for name, banks in places.items():
        group = ternary.groups[name]
        for place in banks:
            start = place.block * 128 + place.first
            assert group.base <= start < start + place.rows <= group.base + group.mapping.n_words
            assert place.first + place.rows <= 128
            words = {(place.tile, place.cell, start + i) for i in range(place.rows)}
            assert not words & seen
            seen |= words
    n_cells = ternary.target.array.n_tiles * ternary.target.array.n_cells
    assert len(seen) == ternary.placement["n_words"] * n_cells


def test_bits_are_the_image_and_others_than_the_stored_are_zero(ternary: Description) -> None:
    for banks in bank_places(ternary).values():
        place = banks[-1]
        group = ternary.groups[place.group]
        bits = bank_bits(ternary, place)
        words = ternary.rom_words(place.block * 1024 + place.first, place.rows)
        mine = words[:, place.tile, place.cell]
        assert bits[:, 9].tolist() == (mine[:, 1] >> 1 & 1).tolist()
        columns = stored_columns(group, ternary.target.array)
        assert not np.delete(bits, columns, axis=1).any()


def test_report_of_a_ternary_model(ternary: Description) -> None:
    report = romsim.logic_rom(ternary, sample=2)
    jsonschema.validate(report.to_json(), json.loads(SCHEMA.read_text()))
    assert report.n_weights == 331_776
    q = report.matrices[0]
    codes = np.concatenate([bank_bits(ternary, p)[:, :64] for p in bank_places(ternary)["L0.q"]])
    weights = codes.reshape(-1, 2)
    assert q.zero_weights is not None
    assert q.zero_weights == pytest.approx((weights == 0).all(axis=1).mean())
    assert q.zero_bits == pytest.approx((weights == 0).mean())
    assert q.zero_weights + (1 - q.zero_weights) / 2 == pytest.approx(q.zero_bits)
    assert report.zero_weights is None  # the head's codes are cut into planes
    assert q.area.half_width is not None
    assert q.area.half_width > 0
    assert (q.n_banks, q.n_sampled, q.bank_rows, q.bank_width) == (4, 2, 128, 64)
    assert report.dense_um2 > 1.1 * report.area.total
    assert report.placed_mm2.mid == pytest.approx(report.cell_area_um2 * 1e-6 / 0.75)
    assert report.fit is not None
    assert report.fit.zero_bits < 0
    assert 10 < report.depth_fo4 < 40
    assert report.period_ps.mid == pytest.approx((report.depth_fo4 * 1.5 + 4) * 18.3)
    assert report.meets_clock
    fast = replace(report, clock_mhz=1.01e6 / report.period_ps.mid)
    assert not fast.meets_clock
    again = romsim.logic_rom(ternary.path, sample=2)
    assert again.to_json() == report.to_json()


@pytest.mark.slow
def test_all_banks_leave_nothing_to_chance(ternary: Description) -> None:
    sampled = romsim.logic_rom(ternary, sample=2)
    report = romsim.logic_rom(ternary, sample=0)
    assert {m.n_sampled == m.n_banks for m in report.matrices} == {True}
    assert report.area.half_width == 0
    assert sampled.area.half_width is not None
    assert abs(sampled.area.total - report.area.total) < 2 * sampled.area.half_width


def test_encodings_of_ternary_weights(ternary: Description) -> None:
    report = romsim.logic_rom(ternary, sample=1, with_encodings=True)
    jsonschema.validate(report.to_json(), json.loads(SCHEMA.read_text()))
    rows = {e.encoding: e for e in report.encodings}
    assert list(rows) == ["sign-one-hot", "two's complement", "base 3"]
    burnt = sum(m.area.total for m in report.matrices if m.name != "head")
    assert rows["sign-one-hot"].area.total == pytest.approx(burnt)
    assert rows["sign-one-hot"].zero_bits > rows["two's complement"].zero_bits
    assert [e.decoder_um2 > 0 for e in report.encodings] == [False, False, True]
    assert rows["base 3"].bits_per_weight == 1.6


def test_command(ternary: Description, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_command(capsys, "logic-rom", str(ternary.path), "--sample", "1", "--json")
    values = done.json()
    jsonschema.validate(values, json.loads(SCHEMA.read_text()))
    assert values["total"]["half_width_um2"] is None
    done = run_command(capsys, "logic-rom", str(ternary.path), "--sample", "1", "--encodings")
    assert done.code == 0
    assert "30.4%" in done.out
    assert "+- unknown" in done.out
    assert "base 3" in done.out
    done = run_command(capsys, "logic-rom", str(ternary.path), "--style", "gates")
    assert done.code == 2
    assert done.sentence() == (
        "romsim: Logic ROM style must be one of plain, shared2, shared3, patterns, not 'gates'"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": -1}, "Banks to sample must be 0 (all) or more, not -1"),
        ({"bank_words": 100}, "Words of a bank must be a power of two, 2 or more, not 100"),
        ({"jobs": 0}, "Jobs must be 1 or more, not 0"),
    ],
)
def test_refused_options(ternary: Description, options: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        romsim.logic_rom(ternary, **options)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_shape_has_nothing_to_synthesise(ternary: Description) -> None:
    shape = replace(ternary, manifest={**ternary.manifest, "has_images": False})
    with pytest.raises(SpecError) as caught:
        romsim.logic_rom(shape)
    assert str(caught.value) == (
        f"{ternary.path} must have ROM images to be synthesised, but it was compiled from a shape "
        f"without weights; compile a model with weights"
    )


def test_codes_without_other_encodings(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int2", tmp_path / "chip")
    with pytest.raises(SpecError) as caught:
        romsim.logic_rom(chip, with_encodings=True)
    assert str(caught.value) == (
        "Encodings must be of matrices of ternary codes, or of codes of 4 bits in one word each, "
        "not of unsigned codes of 2 bits, unsigned codes of 8 bits; leave the encodings out"
    )


def test_interval_holds_the_total_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(50, 100, 40)
    areas = sizes * random.normal(1, 0.1, 40)
    hits = 0
    for _ in range(400):
        drawn = random.choice(40, 6, replace=False)
        estimate = estimate_total(
            areas[drawn].tolist(), sizes[drawn].tolist(), 40, int(sizes.sum())
        )
        assert estimate.half_width is not None
        hits += abs(estimate.total - areas.sum()) <= estimate.half_width
    assert 0.91 < hits / 400 < 0.985


def test_estimates() -> None:
    assert estimate_total([3.0], [2], 1, 2) == Estimate(3.0, 0.0)
    assert estimate_total([3.0], [2], 5, 10) == Estimate(15.0, None)
    assert sum_estimates([Estimate(1, 3.0), Estimate(2, 4.0)]) == Estimate(3, 5.0)
    assert sum_estimates([Estimate(1, 3.0), Estimate(2, None)]) == Estimate(3, None)


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.706), (10, 2.228), (12, 2.179), (30, 2.042), (1000, 1.962)]
)
def test_student(degrees: int, quantile: float) -> None:
    assert student_t(degrees) == pytest.approx(quantile, abs=2e-3)


def test_fit_finds_a_plane_and_refuses_a_line() -> None:
    zeros, words = [0.5, 0.6, 0.7, 0.8], [64, 256, 64, 1024]
    y = [0.02 - 0.01 * z - 0.001 * np.log2(w) for z, w in zip(zeros, words, strict=True)]
    fit = fit_area(y, zeros, words)
    assert fit is not None
    assert (fit.constant, fit.zero_bits, fit.doubling) == pytest.approx((0.02, -0.01, -0.001))
    assert fit.r2 == pytest.approx(1)
    assert fit_area(y, zeros, [64] * 4) is None
    assert fit_area(y[:3], zeros[:3], words[:3]) is None
    assert fit_area(y, zeros, [2 ** round(10 * z) for z in zeros]) is None
