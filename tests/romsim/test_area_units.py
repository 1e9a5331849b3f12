"""Units around the tiles: the fit against points not used for it, and what it is made from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from romsim.area_units import (
    group_um2,
    hside_um2,
    lside_um2,
    row_sum_um2,
    sequencer_um2,
    tile_um2,
    vector_um2,
)
from romsim.synthesis_chips import UNITS, chip_points, sizes_of
from romsim.synthesis_table import module_um2, table
from romsim_compiler.target_file import load_target

FITS: dict[str, Callable[[dict[str, int]], float]] = {
    "ltile": lambda s: tile_um2(s["cells"]) + module_um2("x_port", blocks=1),
    "lside": lambda s: lside_um2(s["tiles"], s["cells"], s["groups"], s["collect"]),
    "hside": lambda s: hside_um2(s["tiles"], s["groups"], s["collect"]),
    "vector": lambda s: vector_um2(s["groups"], s["broadcast"]),
    "sequencer": lambda s: sequencer_um2(s["inflight"]) - module_um2("top"),
}
"""Of chips in which each row has a cell of its own."""
ERRORS = {
    "ltile of 8": -0.118,
    "ltile of 16": 0.047,
    "lside": 0.03,
    "lside of 16": -0.047,
    "hside": 0.009,
    "hside of one group": 0.003,
    "vector": 0.001,
}
LARGE = {"tiles": 8, "cells": 8, "groups": 2, "broadcast": 2, "collect": 2}


def test_fits_give_back_what_they_are_made_from() -> None:
    for chip in chip_points():
        sizes = sizes_of(chip.target)
        if sizes["cells"] < 16 and not LARGE.items() <= sizes.items() and not chip.is_timed:
            for unit in set(chip.units) & set(FITS):
                assert FITS[unit](sizes) == pytest.approx(module_um2(unit, **sizes)), (unit, sizes)
    sixteen = module_um2("lside", tiles=16, cells=16)
    assert lside_um2(16, 16, 1, 1, sources=6) == pytest.approx(sixteen)


def test_fits_hold_for_chips_that_they_do_not_use() -> None:
    """The errors that docs/area.md states."""
    ports = module_um2("x_port", blocks=1)
    found = {
        # two cells a row or one: 4 sums, two ports of x; four cells a row or two: 12 and four
        "ltile of 8": (tile_um2(8) + 4 * row_sum_um2() + 2 * ports, "ltile", LARGE),
        "ltile of 16": (
            tile_um2(16) + 12 * row_sum_um2() + 4 * ports, "ltile", {"tiles": 16, "cells": 16}
        ),
        "lside": (lside_um2(8, 8, 2, 2, sources=2), "lside", LARGE),
        "lside of 16": (lside_um2(8, 16, 1, 1, sources=2), "lside", {"tiles": 8, "cells": 16}),
        "hside": (hside_um2(8, 2, 2), "hside", LARGE),
        "hside of one group": (hside_um2(8, 1, 1), "hside", {"tiles": 8, "groups": 1}),
        "vector": (vector_um2(2, 2), "vector", LARGE),
    }  # fmt: skip
    errors = {
        name: round(fit / module_um2(unit, **keys) - 1, 3)
        for name, (fit, unit, keys) in found.items()
    }
    assert errors == ERRORS


def test_lanes_of_a_group_are_alike() -> None:
    eight = module_um2("vector_group", activation="silu", lanes=8)  # not fitted
    assert group_um2("silu", 8) / eight == pytest.approx(1.0, abs=0.0005)
    for lanes in (2, 4):
        measured = module_um2("vector_group", activation="silu", lanes=lanes)
        assert group_um2("silu", lanes) == pytest.approx(measured)
    relu2 = module_um2("vector_group", activation="relu2", lanes=4)
    assert group_um2("relu2", 4) == pytest.approx(relu2)
    # and of the whole group, as `romsim synth` takes it cell by cell
    assert module_um2("vector_group", lanes=32) == pytest.approx(group_um2("silu"), rel=1e-3)


def test_every_further_size_adds_area() -> None:
    base = {"tiles": 2, "cells": 2, "groups": 1, "broadcast": 1, "collect": 1, "inflight": 1}
    for unit, sizes in (
        ("ltile", ("cells",)),
        ("lside", ("tiles", "cells", "groups", "collect")),
        ("hside", ("tiles", "groups", "collect")),
        ("vector", ("groups", "broadcast")),
        ("sequencer", ("inflight",)),
    ):
        for size in sizes:
            areas = [FITS[unit](base | {size: n}) for n in (1, 2, 4, 64)]
            assert areas == sorted(areas), (unit, size)
            assert 0 < areas[0] < areas[-1]


def test_table_lists_every_chip_that_is_measured() -> None:
    measured = [p for p in table()["points"] if p["module"] in UNITS]
    expected = [(u, sizes_of(chip.target)) for chip in chip_points() for u in chip.units]
    assert [(p["module"], {k: p[k] for k in sizes}) for p, (_, sizes) in
            zip(measured, expected, strict=True)] == expected  # fmt: skip
    assert sizes_of(load_target("small")) == expected[0][1]
