# amaranth: UnusedElaboratable=no
"""Whole chips of other shapes, and what no chip can be built for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from romsim.verify_rtl import compare_rtl
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.driver_build import BuildOptions
from romsim_rtl.top import Top
from tests.tiny_chips import compile_tiny, sized_target

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_tiny("tiny-int4", tmp_path_factory.mktemp("top") / "build")


def changed(chip: Description, section: str, **values: Any) -> Description:
    """The description with another target, nothing compiled anew."""
    target = chip.manifest["target"]
    part = {**target[section], **values} if section else None
    manifest = {**chip.manifest}
    manifest["target"] = {**target, **values} if part is None else {**target, section: part}
    return replace(chip, manifest=manifest)


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (
            "",
            {"executable": False},
            "Target 'small' must be executable to be built as RTL, but its formats are for area "
            "and timing only; compile for an executable target",
        ),
        (
            "latency",
            {"token": 4},
            "latency.token of target 'small' must be 6, the RTL's, not 4; leave it out of the "
            "target",
        ),
        (
            "latency",
            {"matvec": 8},
            "latency.matvec of target 'small' must be 11, the RTL's depth, not 8; leave it out of "
            "the target",
        ),
        (
            "schedule",
            {"n_slots": 2},
            "schedule.n_slots of an RTL target must be 1 with KV layout 'contiguous', not 2; "
            "compile with --kv layout=paged",
        ),
        ("schedule", {"n_batch": 4}, "schedule.n_batch of an RTL target must be 1, not 4"),
        ("array", {"scale_bits": 8}, "scale_bits of an RTL target must be 16, not 8"),
        ("array", {"min_bits": 8}, "min_bits of an RTL target must be 0 or 16, not 8"),
        (
            "network",
            {"collect_cycles": 0},
            "collect_cycles of an RTL target must be at least 1, not 0",
        ),
    ],
)
def test_targets_that_the_rtl_has_no_hardware_for_are_refused(
    chip: Description, section: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        Top(description=changed(chip, section, **values))


def test_head_outside_the_rom_is_refused(tmp_path: Path) -> None:
    target = sized_target("small", head="off-chip")
    built = compile_tiny("tiny-int4", tmp_path / "build", target=target)
    message = (
        "Target 'small' must keep the LM head in ROM to be built as RTL; set head = \"rom\" in its "
        "[embedding]"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        Top(description=built)


# Each takes a minute to build: the first runs always, with what the others have not: ternary
# lanes, split groups, sub-norms, ReLU².
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "ternary": ("tiny-ternary", {}),
    "an embedding with one scale": ("tiny-ternary", {"quantize": ["token_embd.weight=ternary"]}),
    "2 bits": ("tiny-int2", {}),
    "two lane groups, four tiles, slow wires": (
        "tiny-int4",
        {"n_lanes": 64, "n_tiles": 4, "broadcast_cycles": 3, "collect_cycles": 2},
    ),
    "cells that share rows": ("tiny-int4", {"n_cells": 16, "word_codes": 32, "n_tiles": 1}),
    "words of 64, three heads at a time": (
        "tiny-int4",
        {"word_codes": 64, "n_lanes": 64, "scale_group": 32, "heads_parallel": 3, "word_elems": 64},
    ),
    "one token in flight": ("tiny-int4", {"n_inflight": 1}),
}


@pytest.mark.verilator
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "ternary" else [pytest.mark.slow]) for n in SHAPES],
)
def test_chip_equals_the_cycle_model(name: str, tmp_path: Path) -> None:
    model, changes = SHAPES[name]
    options: dict[str, Any] = {}
    if "quantize" in changes:
        options = changes
    elif changes:
        options["target"] = sized_target("small", **changes)
    built = compile_tiny(model, tmp_path / "build", **options)
    report = compare_rtl(built, PROMPT, n_new=3, options=BuildOptions(opt="-O0"), sram_seed=3)
    assert report.first is None, report.first.sentence()
    assert report.passed
    assert report.n_writes > 10_000
    assert report.n_events > 100
