# amaranth: UnusedElaboratable=no
"""Area of adapters' hardware: the fit against points it does not use, and where it is counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from romsim.area import estimate_area
from romsim.area_adapters import lora_side_um2, lora_tile_um2, why_no_adapter_area
from romsim.area_adders import adder_side_um2, adder_tile_um2
from romsim.area_memories import ADDER_ENTRY_BITS, LORA_ENTRY_BITS
from romsim.rtl_clock import rtl_clock
from romsim.synthesis_table import module_um2
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES
from romsim_rtl.adder_sizes import RUNS_LOG2, AdderSizes
from romsim_rtl.lora_sizes import ENTRY_BITS

SPEC = SHAPES["smollm2"]
COMPONENTS = [
    ("H-units", "adapter x buffer"),
    ("H-units", "adapter z buffer"),
    ("H-units", "adapter outputs"),
    ("H-units", "adapter table"),
    ("H-units", "adapter logic"),
    ("network", "adapters' side"),
]


def added(target: Target, rank: int) -> float:
    """Return the mm2 that adapters add."""
    with_them, without = (estimate_area(target, spec=SPEC, rank=r) for r in (rank, 0))
    return with_them.total_mm2.mid - without.total_mm2.mid


def test_fit_gives_back_its_points_and_holds_for_others() -> None:
    for elems, lanes, rank in (
        (32, 32, 16), (64, 32, 16), (32, 64, 16), (64, 64, 16), (32, 32, 32),
    ):  # fmt: skip
        measured = module_um2("lora_tile", elems=elems, lanes=lanes, rank=rank)
        assert lora_tile_um2(elems, lanes, rank) == pytest.approx(measured)
    for tiles, groups, broadcast, collect in (
        (2, 1, 1, 1), (4, 1, 1, 1), (2, 2, 1, 1), (4, 2, 1, 1), (2, 1, 1, 2), (2, 1, 2, 1),
        (2, 2, 2, 1),
    ):  # fmt: skip
        sizes = {"tiles": tiles, "groups": groups, "broadcast": broadcast, "collect": collect}
        measured = module_um2("lora_side", **sizes, rank=16)
        assert lora_side_um2(tiles, groups, broadcast, collect) == pytest.approx(measured)
    tile = lora_tile_um2(64, 128, 32) / module_um2("lora_tile", elems=64, lanes=128, rank=32)
    side = lora_side_um2(8, 2, 2, 2) / module_um2("lora_side", tiles=8, groups=2, broadcast=2)
    wide = lora_side_um2(2, 1, 1, 1) / module_um2("lora_side", tiles=2, rank=32)
    assert tile == pytest.approx(0.977, abs=0.001)
    assert side == pytest.approx(0.988, abs=0.001)
    assert wide == pytest.approx(1, abs=0.001)


def test_hardware_of_adapters_is_counted_where_the_rtl_has_it() -> None:
    target = load_target("roma-7nm-g32")
    plain, adapted = (estimate_area(target, spec=SPEC, rank=rank) for rank in (0, 16))
    names = [(row.unit, row.component) for row in adapted.rows]
    assert [name for name in names if "adapter" in name[1]] == COMPONENTS
    assert not [row for row in plain.rows if "adapter" in row.component]
    row = adapted.component("H-units", "adapter logic")
    assert row.count == 256
    assert row.formula.startswith("words of 64 codes, 512 lanes, rank 16 = ")
    assert adapted.total_mm2.mid == pytest.approx(
        sum(row.area_um2.mid for row in adapted.rows) * 1e-6
    )
    assert LORA_ENTRY_BITS == ENTRY_BITS


def test_more_of_anything_takes_more() -> None:
    small = load_target("rtl-1k")
    areas = [added(small, rank) for rank in (1, 8, 16, 32, 64)]
    assert all(a < b for a, b in pairwise([0.0, *areas]))
    wider = replace(small, attention=replace(small.attention, word_elems=128))
    lanes = replace(small, vector=replace(small.vector, n_lanes=64))
    tiles = replace(small, array=replace(small.array, n_tiles=8))
    hops = replace(small, network=replace(small.network, collect_cycles=2, broadcast_cycles=2))
    assert all(added(more, 16) > added(small, 16) for more in (wider, lanes, tiles, hops))


def test_what_the_rtl_has_no_adapters_for_says_so() -> None:
    small = load_target("small")
    assert why_no_adapter_area(small, 32) is None
    assert why_no_adapter_area(small, 64) == (
        "the RTL has ranks up to attention.word_elems, 32, not 64"
    )
    many = load_target("tom-7nm-int8")
    assert why_no_adapter_area(many, 16) == (
        "the RTL has adapters on at most as many tiles as lanes, 64, not on 160"
    )
    assert added(many, 16) == 0
    adders = load_target("small-ternary").with_lora_path("adders")
    assert why_no_adapter_area(adders, 16) is None
    wide = replace(adders, array=replace(adders.array, n_tiles=512))
    assert why_no_adapter_area(wide, 16) == (
        "the RTL has adapters in the adder arrays of at most 256 tiles, not of 512"
    )
    # lanes counted from parts are shared with attention
    roma = load_target("roma-7nm")
    assert estimate_area(roma, spec=SPEC, rank=16).items == estimate_area(roma, spec=SPEC).items


@pytest.mark.parametrize(("rank", "spec"), [(-1, SPEC), (16, None)])
def test_a_rank_needs_a_model(rank: int, spec: object) -> None:
    with pytest.raises(
        SpecError,
        match=rf"^Adapter rank must be 0, or more with the model that it extends, not {rank}$",
    ):
        estimate_area(load_target("small"), spec=spec, rank=rank)  # type: ignore[arg-type]


def test_a_chip_with_adapters_reaches_the_same_clock() -> None:
    adders = load_target("small-ternary").with_lora_path("adders")
    for target, modules in (
        (load_target("roma-7nm-g32"), {"lora_tile", "lora_side"}),
        (load_target("rtl-1k"), {"lora_tile", "lora_side"}),
        (load_target("small"), {"lora_tile", "lora_side"}),
        (adders, {"adder_tile", "adder_side"}),
    ):
        plain, adapted = (rtl_clock(target, has_adapters=has) for has in (False, True))
        assert plain is not None
        assert adapted is not None
        assert adapted.max_mhz == plain.max_mhz
        mine = {path.module for path in adapted.paths} - {path.module for path in plain.paths}
        assert mine == modules


def test_adders_fit_gives_back_its_points_and_holds_for_others() -> None:
    def added(module: str, **keys: int) -> float:
        there, without = (module_um2(module, **keys, adapters=has) for has in (True, False))
        return there - without

    for cells, ports, blocks in ((2, 1, 1), (4, 1, 1), (2, 2, 1)):
        measured = added("adder_tile", cells=cells, ports=ports, blocks=blocks)
        assert adder_tile_um2(cells, ports, blocks) == pytest.approx(measured)
    for groups, broadcast, rank in ((1, 1, 32), (2, 1, 32), (1, 2, 32), (1, 1, 64)):
        sizes = {"tiles": 2, "groups": groups, "broadcast": broadcast, "collect": 1, "rank": rank}
        assert adder_side_um2(groups, broadcast, rank) == pytest.approx(
            added("adder_side", **sizes)
        )
    assert adder_side_um2(1, 1, 8) == adder_side_um2(1, 1, 32)  # whole blocks
    errors = {
        "two blocks": adder_tile_um2(2, 1, 2) / added("adder_tile", cells=2, ports=1, blocks=2),
        "four of two": adder_tile_um2(4, 4, 2) / added("adder_tile", cells=4, ports=4, blocks=2),
        "four tiles": adder_side_um2(1, 1, 32) / added("adder_side", tiles=4, rank=32),
        "two stages back": adder_side_um2(1, 1, 32) / added("adder_side", collect=2, rank=32),
        "large": adder_side_um2(2, 2, 64) / added("adder_side", tiles=8),
    }
    assert {name: round(ratio - 1, 3) for name, ratio in errors.items()} == {
        "two blocks": -0.001,
        "four of two": 0.003,
        "four tiles": 0.005,
        "two stages back": 0.0,
        "large": 0.007,
    }


def test_adapters_in_the_adder_arrays_are_counted() -> None:
    target = load_target("small-ternary").with_lora_path("adders")
    adapted = estimate_area(target, spec=SPEC, rank=16)
    assert [(r.unit, r.component) for r in adapted.rows if "adapter" in r.component] == [
        ("L-units", "adapter z buffer"),
        ("L-units", "adapter outputs"),
        ("L-units", "adapter table"),
        ("L-units", "adapter logic"),
        ("network", "adapters' side"),
    ]
    row = adapted.component("L-units", "adapter logic")
    assert row.count == 2
    assert row.formula.startswith("2 cells and ports of 1 blocks = ")
    areas = [added(target, rank) for rank in (16, 64, 128)]
    assert all(a < b for a, b in pairwise([0.0, *areas]))
    sizes = AdderSizes(
        bank_words=1024, n_groups=4, max_rank=32, z_words=1, n_rows=1, n_inflight=1,
        broadcast_cycles=1,
    )  # fmt: skip
    assert sizes.n_chunks * sizes.chunk_bits == ADDER_ENTRY_BITS
    assert 1 << RUNS_LOG2 == 8
