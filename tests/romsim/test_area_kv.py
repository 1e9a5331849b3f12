"""Area, clock and energy of KV hardware: the fit against points it does not use, and its use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from romsim.area import estimate_area
from romsim.area_kv import (
    kv_control_um2,
    kv_group_um2,
    kv_side_um2,
    kv_tile_um2,
    kv_values,
    kv_vector_um2,
    why_no_kv_area,
)
from romsim.area_synthesised import htile_um2
from romsim.area_units import hside_um2, sequencer_um2, vector_um2
from romsim.energy_prices import event_prices
from romsim.rtl_clock import rtl_clock
from romsim.synthesis_kv import HELD_OUT, KV_CHIPS, KV_UNITS, kv_chip_points, kv_sizes_of
from romsim.synthesis_table import module_um2, table
from romsim_compiler.kv import parse_kv
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_compiler.technology_file import load_technology
from romsim_models.shapes import SHAPES

SPEC = SHAPES["smollm2"]
NOT_ON_TWO = "the RTL has KIVI on tiles that divide its groups and plain sinks, not on 2"


def with_kv(name: str, text: str, n_slots: int = 1) -> Target:
    target = load_target(name)
    schedule = replace(target.schedule, n_slots=n_slots)
    return replace(target, kv=parse_kv(text), schedule=schedule)


def fit(unit: str, values: tuple[str, ...], sizes: dict[str, int]) -> float:
    """What the area model makes of a unit of the small target."""
    tiles, groups, hops = sizes["tiles"], sizes["groups"], sizes["hops"]
    if unit == "htile":
        blocks, heads = sizes["blocks"], sizes["heads"]
        return htile_um2(blocks, heads) + kv_tile_um2(values, blocks, heads)
    if unit == "hside":
        return hside_um2(tiles, groups, hops) + kv_side_um2(values, tiles, groups, hops)
    if unit == "vector":
        return vector_um2(groups, hops) + kv_vector_um2(values, groups, hops)
    assert unit == "control"
    return sequencer_um2(2) + kv_control_um2(values)


def test_every_value_of_the_rtl_is_measured() -> None:
    named = {name for point in table()["points"] for name in [point.get("kv")] if name}
    assert named == set(KV_CHIPS) | set(HELD_OUT)
    for name, (text, n_slots) in KV_CHIPS.items():
        assert kv_values(with_kv("small", text, n_slots)) == (name,)


def test_fit_gives_back_its_points() -> None:
    for chip in kv_chip_points():
        sizes = kv_sizes_of(chip.target)
        if chip.kv in HELD_OUT or sizes["tiles"] == 8:
            continue
        values = (chip.kv,)
        for unit in set(chip.units) & {"hside", "vector"}:
            measured = module_um2(f"{unit}_kv", kv=chip.kv, **sizes)
            assert fit(unit, values, sizes) == pytest.approx(measured), (unit, chip.kv, sizes)
        if "htile" in chip.units:
            blocks, heads = sizes["blocks"], sizes["heads"]
            plain = module_um2("htile", blocks=blocks, heads=heads)
            measured = module_um2("htile_kv", kv=chip.kv, **sizes)
            assert plain + kv_tile_um2(values, blocks, heads) == pytest.approx(measured)
    assert KV_UNITS == ("htile", "hside", "vector", "sequencer", "top")


def test_kivi_of_two_widths_has_two_encoders() -> None:
    both = kv_values(with_kv("small", "kivi-2bit,value_bits=4"))
    assert both == kv_values(with_kv("small", "kivi-k4v2")) == ("kivi-k4v2",)
    sides = {name: kv_side_um2((name,), 2, 1, 1) for name in KV_CHIPS if name.startswith("kivi")}
    assert sides["kivi-k4v2"] > 1.5 * max(sides["kivi-k2v2"], sides["kivi-k4v4"])


@pytest.mark.parametrize(
    ("text", "n_slots", "values"),
    [
        ("int8", 1, ()),
        ("vllm", 1, ("fp16", "paged")),
        ("vllm", 4, ("fp16", "forks")),
        ("window,codec=int4", 1, ("int4", "window")),
        ("streaming-llm", 1, ("fp16", "sinks")),
        ("h2o,codec=int2", 1, ("int2", "h2o")),
        ("commvq-2bit,layout=paged,block=16", 1, ()),
    ],
)
def test_choices_of_a_cache_are_told_apart(
    text: str, n_slots: int, values: tuple[str, ...]
) -> None:
    assert kv_values(with_kv("small", text, n_slots)) == values


@pytest.mark.parametrize(
    ("text", "n_slots", "why"),
    [
        ("int4", 1, None),
        ("vllm", 2, None),
        ("commvq-2bit", 1, "the RTL has no codec 'commvq'"),
        ("kvc-q", 1, "the RTL has no codec 'tiered'"),
        ("kivi-2bit,group=64", 1, "the RTL has KIVI in groups of 32, not 64"),
        ("kivi-2bit,plain_sinks=1", 1, NOT_ON_TWO),
        ("int4-g64", 1, "the RTL has groups that divide its 32 vector lanes, not of 64"),
        ("fp16", 2, "the RTL has 2 sequences in pages alone, without h2o and kivi"),
        ("h2o,layout=paged", 3, "the RTL has 3 sequences in pages alone, without h2o and kivi"),
    ],
)
def test_what_the_rtl_has_no_cache_for_says_so(text: str, n_slots: int, why: str | None) -> None:
    assert why_no_kv_area(with_kv("small", text, n_slots)) == why


def test_hardware_of_the_cache_is_counted() -> None:
    plain = estimate_area(load_target("rtl-1k"), spec=SPEC)
    coded = estimate_area(with_kv("rtl-1k", "kivi-2bit"), spec=SPEC)
    changed = [
        (b.unit, b.component)
        for a, b in zip(plain.rows, coded.rows, strict=True)
        if a.area_um2 != b.area_um2
    ]
    assert changed == [
        ("H-units", "tile logic"),
        ("vector unit", "lane groups"),
        ("vector unit", "control and scalars"),
        ("network", "unit H's side"),
        ("periphery", "host port, clock, pads"),
    ]
    row = coded.component("H-units", "tile logic")
    assert ", KV kivi-k2v2 +" in row.formula
    assert coded.total_um2.mid == pytest.approx(sum(r.area_um2.mid for r in coded.rows))
    # what the RTL does not have is taken to be the plain cache's
    other = estimate_area(with_kv("rtl-1k", "kvc-q"), spec=SPEC)
    assert other.component("H-units", "tile logic") == plain.component("H-units", "tile logic")


def test_words_of_16_bits_cost_more_energy_than_codes() -> None:
    technology = load_technology("asap7")
    pj = {
        text: event_prices(technology, with_kv("rtl-1k", text), 1.0)["kv_macs"].pj.mid
        for text in ("int8", "int4", "fp16")
    }
    assert pj["int8"] < pj["fp16"]
    assert pj["int4"] < pj["fp16"]


def test_clock_is_that_of_units_with_the_caches_choices() -> None:
    plain, coded = (rtl_clock(with_kv("rtl-1k", text)) for text in ("int8", "int4"))
    assert plain is not None
    assert coded is not None
    of_kv = {path.module for path in coded.paths if path.module.endswith("_kv")}
    assert of_kv == {"vector_group_kv", *(f"{unit}_kv" for unit in KV_UNITS)}
    assert not {path.module for path in plain.paths} & of_kv
    assert not {path.module for path in coded.paths} & {"htile", "vector_group"}
    kinds = {path.built_for for path in coded.paths if path.module == "htile_kv"}
    assert kinds == {"KV int4, on a chip of 2 tiles"}


def test_choices_add_up_in_area_and_the_slowest_bounds_the_clock() -> None:
    """Whole chips of several choices at once, and of a parameter that no point has."""
    errors = {}
    for chip in kv_chip_points():
        if chip.kv not in HELD_OUT:
            continue
        values, sizes = kv_values(chip.target), kv_sizes_of(chip.target)
        own = {"kv": chip.kv, **sizes}
        for unit in ("htile", "hside", "vector"):
            errors[chip.kv, unit] = fit(unit, values, sizes) / module_um2(f"{unit}_kv", **own)
        control = sum(module_um2(f"{unit}_kv", **own) for unit in ("sequencer", "top"))
        errors[chip.kv, "control"] = fit("control", values, sizes) / control
        lanes = {"lanes": 32}
        plain = module_um2("vector_group", activation="silu", **lanes)
        group = module_um2("vector_group_kv", kv=chip.kv, **lanes)
        errors[chip.kv, "group"] = (plain + kv_group_um2(values)) / group
        clock = rtl_clock(chip.target)
        assert clock is not None
        for point in table()["points"]:
            if point.get("kv") == chip.kv and "depth_fo4" in point:
                known = [
                    path.depth_fo4
                    for path in clock.paths
                    if (path.module, path.start) == (point["module"], "flop")
                ]
                # a choice's chip has units of the plain kind that another choice replaces
                assert -0.2 < max(known) - point["depth_fo4"][1] < 1.5, point
    off = {key: round(ratio - 1, 3) for key, ratio in errors.items()}
    assert {key: ratio for key, ratio in off.items() if ratio} == {
        ("fp16 paged forks", "htile"): -0.002,
        ("int4 sinks paged", "control"): 0.001,
        ("int4 sinks paged", "hside"): 0.001,
    }


def test_fit_holds_for_large_chips() -> None:
    errors = {
        (chip.kv, unit): round(
            fit(unit, kv_values(chip.target), kv_sizes_of(chip.target))
            / module_um2(f"{unit}_kv", kv=chip.kv, **kv_sizes_of(chip.target))
            - 1,
            3,
        )
        for chip in kv_chip_points()
        if kv_sizes_of(chip.target)["tiles"] == 8
        for unit in chip.units
    }
    assert errors == {
        ("fp16", "htile"): -0.022,
        ("fp16", "hside"): 0.002,
        ("fp16", "vector"): 0.001,
        ("int4", "htile"): -0.044,
        ("int4", "hside"): 0.006,
        ("int4", "vector"): 0.001,
        ("kivi-k2v2", "htile"): -0.019,
        ("kivi-k2v2", "hside"): -0.007,
        ("kivi-k2v2", "vector"): 0.001,
        ("h2o", "htile"): -0.032,
        ("h2o", "hside"): 0.004,
        ("h2o", "vector"): 0.001,
    }


def test_the_page_states_what_the_model_gives(repository: Path) -> None:
    """The table of docs/area.md, section "KV caches"."""
    page = (repository / "docs" / "area.md").read_text(encoding="utf-8")
    found = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in page.partition("## KV caches")[2].partition("\n## ")[0].splitlines()
        if line.startswith("| `")
    }
    assert found == {f"`{text}`{named}": page_row(text, n) for text, n, named in PAGE}


PAGE = (
    ("fp16", 1, ""),
    ("int4", 1, ""),
    ("int2", 1, ""),
    ("kivi-2bit", 1, ""),
    ("kivi-k4v2", 1, ""),
    ("kivi-4bit", 1, ""),
    ("window,codec=int8", 1, ""),
    ("streaming-llm,codec=int8", 1, ""),
    ("h2o,codec=int8", 1, ""),
    ("int8,layout=paged,block=16", 1, ""),
    ("int8,layout=paged,block=16", 2, ", two sequences"),
)
COMPONENTS = {
    "tiles": [("H-units", "tile logic")],
    "unit V": [("vector unit", "lane groups"), ("vector unit", "control and scalars")],
    "side": [("network", "unit H's side"), ("sequencer", "control")],
}


def page_row(text: str, n_slots: int) -> list[str]:
    """Cells of a row: mm2 in tiles, unit V and beside, and MHz on rtl-1k; mm2 on ROMA."""

    def added(name: str) -> list[float]:
        target = with_kv(name, text, n_slots)
        with_it, plain = (
            estimate_area(one, spec=SPEC) for one in (target, replace(target, kv=parse_kv("int8")))
        )
        return [
            1e-6
            * sum(
                with_it.component(*one).area_um2.mid - plain.component(*one).area_um2.mid
                for one in names
            )
            for names in COMPONENTS.values()
        ]

    small = added("rtl-1k")
    clock = rtl_clock(with_kv("rtl-1k", text, n_slots))
    assert clock is not None
    large = "no RTL"
    if why_no_kv_area(with_kv("roma-7nm-g32", text, n_slots)) is None:
        large = f"{round(sum(added('roma-7nm-g32')), 2) + 0.0:+.2f}"
    shown = [f"{round(mm2, 4) + 0.0:+.4f}" for mm2 in (*small, sum(small))]  # no -0
    return [*shown, f"{clock.max_mhz.mid:.0f}", large]
