"""Area of the RTL's own logic: the fit against points not used for it, and where it applies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from romsim import synthesis_points
from romsim.area import estimate_area
from romsim.area_synthesised import cell_um2, has_rtl, htile_um2, rtl_parts_of
from romsim.rtl_clock import rtl_clock
from romsim.synthesis_points import MAXIMA_TILES, SUMS_TILES, cell_points, main, measure, render
from romsim.synthesis_table import module_um2, table
from romsim_compiler.target_file import load_target
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError

PLAIN_CELL = "encoding int4, blocks 1, has_minima True, may_round False, max_planes 1"
UNITS_OF_RTL = {
    "vector unit": ["lane groups", "control and scalars"],
    "network": ["unit L's side", "unit H's side"],
    "sequencer": ["control"],
}
EXECUTABLE = ("roma-7nm-g32", "roma-7nm-int8", "rtl-1k", "small", "small-ternary", "tom-7nm-int8")


def test_fit_holds_for_cells_that_it_does_not_use() -> None:
    """Four blocks of 4 bits, and two ternary ones without minima: within 1 %."""
    wide = cell_um2("int4", 4, has_minima=True, may_round=False, has_planes=False)
    assert wide / module_um2("cell", encoding="int4", blocks=4) == pytest.approx(1, abs=0.01)
    bare = cell_um2("ternary", 2, has_minima=False, may_round=False, has_planes=False)
    assert bare / module_um2("cell", encoding="ternary", blocks=2) == pytest.approx(1, abs=0.01)
    # a tile of two blocks and one head, from tiles of one block
    tile = htile_um2(2, 1) / module_um2("htile", blocks=2, heads=1)
    assert tile == pytest.approx(1.02, abs=0.001)
    # where terms may round: what the page of RtlParts.cell says
    plain, rounds = (
        module_um2("cell", encoding="int4", blocks=1, may_round=r, has_minima=True, max_planes=1)
        for r in (False, True)
    )
    assert rounds / plain == pytest.approx(1.093, abs=0.005)
    # and gives back what it is made from
    for blocks in (1, 2):
        made = cell_um2("int4", blocks, has_minima=True, may_round=False, has_planes=False)
        assert made == pytest.approx(module_um2("cell", encoding="int4", blocks=blocks))


def test_wider_lanes_take_more_than_narrow_ones() -> None:
    areas = [
        cell_um2(encoding, 2, has_minima=True, may_round=False, has_planes=False)
        for encoding in ("ternary", "int2", "int4", "int8")
    ]
    assert areas == sorted(areas)


@pytest.mark.parametrize("name", EXECUTABLE)
def test_executable_targets_have_the_logic_of_their_rtl(name: str) -> None:
    target = load_target(name)
    report = estimate_area(target)
    cells = report.component("L-units", "cells")
    assert cells.count == target.array.n_tiles * target.array.n_cells
    assert cells.source == table()["source"]
    assert {row.component for row in report.rows if row.unit == "L-units"} == {
        "ROM",
        "cells",
        "rows",
        "x registers",
        "row-sum tree",
        "x buffers",
        "tile control",
    }
    assert {row.component for row in report.rows if row.unit == "H-units"} == {
        "K bank",
        "V bank",
        "query buffer",
        "score buffer",
        "sum buffer",
        "tile logic",
    }
    for unit in ("vector unit", "network", "sequencer"):
        logic = [row for row in report.rows if row.unit == unit and "RTL" in row.source]
        assert [row.component for row in logic] == UNITS_OF_RTL[unit]
        others = {row.component for row in report.rows if row.unit == unit} - {
            row.component for row in logic
        }
        assert others <= {"activation SRAM", "program ROM", "slot state"}


@pytest.mark.parametrize("name", ["roma-7nm", "tom-7nm"])
def test_published_chips_have_no_rtl_and_are_counted_from_parts(name: str) -> None:
    target = load_target(name)
    assert not has_rtl(target)
    assert rtl_clock(target) is None
    assert estimate_area(target).items == estimate_area(target, logic="parts").items


def test_what_the_rtl_cannot_have_is_counted_from_parts() -> None:
    one = load_target("roma-7nm-g32")
    assert has_rtl(one)
    assert not has_rtl(replace(one, schedule=replace(one.schedule, n_batch=4)))
    assert not has_rtl(replace(one, array=replace(one.array, scale_bits=0, min_bits=0)))


def test_area_is_cells_over_utilisation_scaled_like_lanes() -> None:
    small = load_target("small")
    um2 = cell_um2("int4", 1, has_minima=True, may_round=False, has_planes=True)
    part = rtl_parts_of(load_technology("asap7")).cell(small)
    assert part.area.mid == pytest.approx(um2 / 0.75)
    assert part.area.low == pytest.approx(um2 / 0.80)
    assert part.area.high == pytest.approx(1.3 * um2 / 0.70)
    assert part.grade == "assumed"  # the utilisation is
    scaled = rtl_parts_of(load_technology("n7-compiler")).cell(small)
    assert scaled.area.mid == pytest.approx(0.7 * um2 / 0.75)
    assert scaled.area.high == pytest.approx(1.3 * um2 / 0.70)


def test_clock_of_the_rtl_is_told_with_what_bounds_it() -> None:
    target = load_target("rtl-1k")
    clock = rtl_clock(target)
    assert clock is not None
    slowest = max(clock.paths, key=lambda path: path.period_ps.mid)
    assert clock.paths[0] is slowest
    assert (slowest.module, slowest.start) == ("vector_group", "sram")
    period = (slowest.depth_fo4 * 1.5 + 4) * 18.3 + 500
    assert clock.max_mhz.mid == pytest.approx(1e6 / period)
    (word,) = [path for path in clock.paths if path.built_for == PLAIN_CELL]
    # it has a register of its own behind the ROM, whatever that is
    assert word.start == "flop"
    assert word.period_ps.mid == pytest.approx((word.depth_fo4 * 1.5 + 4) * 18.3)
    (read,) = [path for path in clock.paths if (path.module, path.start) == ("top", "rom")]
    # logic ROM has its register behind the bank
    assert read.period_ps.mid == pytest.approx((read.depth_fo4 * 1.5 + 4) * 18.3)
    assert clock.is_met == (clock.max_mhz.mid >= 500)
    fast = rtl_clock(replace(target, clock_mhz=1.01 * clock.max_mhz.mid))
    assert fast is not None
    assert not fast.is_met
    assert "are NOT reached by its own RTL: " in fast.verdict()
    assert all("8 tiles" not in path.built_for for path in clock.paths)  # it has fewer
    macros = rtl_clock(replace(target, technology="n7-compiler"))
    assert macros is not None
    (read,) = [path for path in macros.paths if (path.module, path.start) == ("top", "rom")]
    assert read.period_ps.mid == pytest.approx((read.depth_fo4 * 1.5 + 4) * 18.3 + 787)


def depths_of(module: str) -> dict[int, float]:
    """Return the depths of a tree over the tiles, by their number."""
    points = [point for point in table()["points"] if point["module"] == module]
    return {point["tiles"]: point["depth_fo4"][1] for point in points}


def test_maxima_of_many_tiles_have_registers_between_their_levels() -> None:
    depths = depths_of("maxima")
    assert list(depths) == list(MAXIMA_TILES) == [8, 16, 64, 256]
    assert set(depths.values()) == {depths[8]}  # three comparisons
    target = load_target("rtl-1k")
    for tiles in (4, 16, 32, 256, 512):
        clock = rtl_clock(replace(target, array=replace(target.array, n_tiles=tiles)))
        assert clock is not None
        (path,) = [path for path in clock.paths if path.module == "maxima"]
        assert (path.depth_fo4, path.built_for) == (depths[8], f"of {tiles} tiles")
        # of 512 tiles the sum, in one piece, takes longer
        assert clock.is_met == (tiles <= 256)


def test_sums_of_many_tiles_are_those_of_the_next_larger_measured_number() -> None:
    depths = depths_of("sums")
    assert list(depths) == list(SUMS_TILES) == [16, 64, 256]
    assert sorted(depths.values()) == list(depths.values())
    target = load_target("rtl-1k")
    for tiles, expected in (
        (2, depths[16]), (32, depths[64]), (256, depths[256]), (512, depths[256] * 9 / 8),
    ):  # fmt: skip
        clock = rtl_clock(replace(target, array=replace(target.array, n_tiles=tiles)))
        assert clock is not None
        (path,) = [path for path in clock.paths if path.module == "sums"]
        assert path.depth_fo4 == pytest.approx(expected)


def test_a_module_that_was_not_measured_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"^Synthesised module must be one of the points of synthesis_asap7\.toml, not 'row' "
        r"with \{'choices': 9\}; measure it with python -m romsim\.synthesis_points$",
    ):
        module_um2("row", choices=9)


def test_table_lists_every_cell_that_is_measured() -> None:
    measured = [p for p in table()["points"] if p["module"] == "cell"]
    keys = [keys for keys, _ in cell_points()]
    assert [{k: p[k] for k in key} for p, key in zip(measured, keys, strict=True)] == keys


def test_page_has_the_ratio_to_the_count_from_parts(repository: Path) -> None:
    page = (repository / "docs" / "area.md").read_text(encoding="utf-8")
    for name in EXECUTABLE:
        for units in (("L-units", "H-units"), ("vector unit", "network", "sequencer")):
            cells = [f"`{name}`"]
            for unit in units:
                parts, rtl = (logic_mm2(name, unit, logic) for logic in ("parts", "rtl"))
                cells += [f"{parts:.3g}", f"{rtl:.3g}", f"{rtl / parts:.2f}"]
            line = f"| {' | '.join(cells)} |"
            assert (line in page) == (name != "small"), line  # which is rtl-1k's cell


def test_page_has_the_clocks_that_are_reached(repository: Path) -> None:
    page = (repository / "docs" / "area.md").read_text(encoding="utf-8").replace("\n", " ")
    reached: dict[str, list[str]] = {}
    for name in EXECUTABLE:
        clock = rtl_clock(load_target(name))
        assert clock is not None
        assert clock.is_met
        reached.setdefault(f"{clock.max_mhz.mid:.0f} MHz", []).append(f"`{name}`")
    for megahertz, (*names, last) in reached.items():
        assert f"{', '.join(names)}{' and ' if names else ''}{last} {megahertz}" in page


def logic_mm2(target: str, unit: str, logic: str) -> float:
    items = estimate_area(load_target(target), logic=logic).items
    return 1e-6 * sum(
        part.area.mid * count for u, _, count, part in items if u == unit and part.kind == "logic"
    )


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)  # whole chips of every KV codec, each mapped twice
def test_table_is_what_synthesis_gives(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All points anew: a quarter of an hour, and hours where none is in the cache."""
    points = measure()
    text = render(points)
    kept = repository / "romsim" / "tables" / "synthesis_asap7.toml"
    assert kept.read_text(encoding="utf-8") == text, (
        "run: python -m romsim.synthesis_points --write romsim/tables/synthesis_asap7.toml"
    )
    monkeypatch.setattr(synthesis_points, "measure", lambda _: points)
    assert main(["--write", str(tmp_path / "table.toml")]) == 0
    assert (tmp_path / "table.toml").read_text(encoding="utf-8") == text
