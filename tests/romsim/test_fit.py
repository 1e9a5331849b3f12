from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import romsim
from romsim import fit
from romsim.area import chip_area_mm2
from romsim.fit import DEFAULT_CONTEXT, candidates, fit_target
from romsim.rates import decode_rates
from romsim_compiler.pipeline import CompileOptions, compile_model
from romsim_compiler.target_file import load_target
from romsim_models.checkpoint import Checkpoint
from romsim_models.errors import CapacityError, RomsimError, SpecError
from romsim_models.registry import open_model
from tests.tiny_chips import sized_target

TEMPLATE = load_target("roma-7nm-g32")
OPTIONS = CompileOptions(context=200)


@pytest.fixture(scope="module")
def model() -> Checkpoint:
    return open_model("tiny-int4")


def refused(error: type[RomsimError], sentence: str, **options: Any) -> None:
    arguments = {"options": OPTIONS, **options}
    with pytest.raises(error, match=rf"^{re.escape(sentence)}$"):
        fit_target(open_model("tiny-int4"), TEMPLATE, **arguments)


def test_every_candidate_holds_the_model(model: Checkpoint, tmp_path: Path) -> None:
    found = candidates(model, TEMPLATE, options=OPTIONS, rank=3)
    assert len({(c.target.array.n_tiles, c.target.array.n_cells) for c in found}) > 10
    for number, candidate in enumerate(found[:: len(found) // 6]):
        chip = compile_model(model, candidate.target, tmp_path / str(number), options=OPTIONS)
        assert chip.context == 200
        rom = chip.manifest["rom"]
        assert rom["words_used"] == rom["words_available"]  # not a word more than needed
        assert decode_rates(chip, [100])[0]["cycles"] == candidate.cycles
        assert chip_area_mm2(candidate.target, model.spec) == candidate.area_mm2
        assert candidate.cost == candidate.area_mm2 * candidate.cycles


def test_best_of_all_without_a_limit_fastest_within_one(model: Checkpoint) -> None:
    found = candidates(model, TEMPLATE, options=OPTIONS)
    best = fit_target(model, TEMPLATE, options=OPTIONS)
    least = min(c.area_mm2 * c.cycles for c in found)
    chosen = [c for c in found if _same(c.target, best)]
    assert [c.area_mm2 * c.cycles for c in chosen] == [least]
    areas = sorted(c.area_mm2 for c in found)
    limit = areas[len(areas) // 2]
    fastest = fit_target(model, TEMPLATE, options=OPTIONS, area_mm2=limit)
    allowed = [c for c in found if c.area_mm2 <= limit]
    (taken,) = [c for c in allowed if _same(c.target, fastest)]
    assert taken.cycles == min(c.cycles for c in allowed)
    assert min(c.area_mm2 for c in allowed if c.cycles == taken.cycles) == taken.area_mm2


def _same(target: Any, fitted: Any) -> bool:
    return bool(replace(target, name=fitted.name, summary=fitted.summary) == fitted)


def test_fitted_target_says_what_it_is_for_and_is_written(tmp_path: Path) -> None:
    chip = romsim.compile(
        "tiny-int4", tmp_path / "c", target="roma-7nm-g32", fit=True, context=200, rank=4
    )
    assert chip.manifest["fitted"]
    assert chip.target.name == "roma-7nm-g32-fit"
    assert chip.target.summary == ("roma-7nm-g32 sized for tiny-int4, 200 tokens, LoRA rank 4")
    again = load_target(chip.path / "target.toml")
    assert again == chip.target
    bytes_of_rank_4 = 4 * (64 * 8 + 8 * 2 + (128 * 5 + 64 * 4 + 2 * 192 * 2) * 8)
    free = chip.manifest["memory"]["tile_sram_bytes"] - chip.manifest["memory"]["kv_bytes"]
    assert free > bytes_of_rank_4 / 8


def test_context_is_2048_or_what_the_model_knows(model: Checkpoint) -> None:
    plain = CompileOptions()
    known = fit_target(model, TEMPLATE, options=plain)
    assert known.summary.endswith("sized for tiny-int4, 512 tokens, LoRA rank 0")
    llama = fit_target(open_model("llama-3.2-1b"), TEMPLATE, options=plain)
    assert llama.summary.endswith(f"{DEFAULT_CONTEXT} tokens, LoRA rank 0")


def test_room_for_a_rank_takes_sram(model: Checkpoint) -> None:
    def kib(rank: int) -> list[int]:
        found = candidates(model, TEMPLATE, options=OPTIONS, rank=rank)
        return [c.target.attention.sram_kib for c in found]

    assert all(a <= b for a, b in zip(kib(0), kib(64), strict=True))
    assert sum(kib(64)) > sum(kib(0))


def test_impossible_numbers_are_refused() -> None:
    refused(SpecError, "LoRA rank to leave room for must be at least 0, not -1", rank=-1)
    for context in (0, -5):
        refused(
            SpecError,
            f"Context must be at least 1 token, not {context}",
            options=CompileOptions(context=context),
        )
    for area in (0, -1.5, math.nan):
        refused(
            SpecError, f"Area limit must be a positive number of mm2, not {area!r}", area_mm2=area
        )


def test_area_that_is_too_small_is_refused_with_the_smallest(model: Checkpoint) -> None:
    smallest = min(c.area_mm2 for c in candidates(model, TEMPLATE, options=OPTIONS))
    refused(
        CapacityError,
        f"Area limit must be at least {smallest:.2f} mm2 for 'tiny-int4' on the template "
        f"'roma-7nm-g32', not 0.001; raise --area, lower --context, or use fewer bits",
        area_mm2=0.001,
    )


def test_model_that_fits_in_no_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_MOST_ROWS", 2)
    refused(
        CapacityError,
        "Model 'tiny-int4' must fit 2 words a cell on the template 'roma-7nm-g32' in some size, "
        "but it fits in none; use fewer bits or a template with more tiles",
    )


def test_model_that_cannot_run_is_refused(model: Checkpoint) -> None:
    bare = sized_target("small-ternary", scale_bits=0)
    with pytest.raises(
        SpecError,
        match=r"^Format 'int8g32' of tensor 'token_embd\.weight' must have one scale for the whole",
    ):
        fit_target(model, bare, options=OPTIONS)
