# amaranth: UnusedElaboratable=no
"""Ternary adapters in the adder arrays of RTL: every write, issue, logit and token as in C."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import romsim
from romsim.verify_rtl import RtlPrompt, compare_rtl_prompts
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.adder_sizes import AdderSizes, run_entries
from romsim_rtl.driver_build import BuildOptions
from romsim_rtl.emit import TOP_MODULE, emit_rtl
from romsim_rtl.toolchain import lint
from tests.tiny_chips import sized_target, tiny_spec, write_adapter

SPEC = tiny_spec("tiny-ternary")
PROMPTS = [
    RtlPrompt(tokens=(3, 200, 77), n_new=1, adapter="all"),
    RtlPrompt(tokens=(9,), n_new=1, adapter="some", begin=False),
    RtlPrompt(tokens=(41, 5), n_new=1),
    RtlPrompt(tokens=(17,), n_new=1, adapter="one"),
    RtlPrompt(tokens=(250, 6, 3, 8), n_new=2, adapter="all"),
]


def adapted(folder: Path, **sizes: Any) -> Description:
    """A chip with an adapter of all matrices, and some of rank 1 and in two and three blocks."""
    adapters = {"all": write_adapter(folder / "all", SPEC, is_ternary=True)}
    for name, rank, parts in (
        ("some", 72, ("attn_k", "ffn_up")),
        ("other", 40, ("attn_output", "ffn_down", "attn_v")),
        ("one", 1, ("attn_q", "ffn_gate")),
    ):
        adapters[name] = write_adapter(
            folder / name, SPEC, is_ternary=True, rank=rank, parts=parts, layers=[1], seed=rank
        )
    return romsim.compile(
        "tiny-ternary",
        folder / "chip",
        target=sized_target("small-ternary", **sizes),
        context=32,
        adapters=adapters,
        lora_path="adders",
    )


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return adapted(tmp_path_factory.mktemp("adders"))


def compared(chip: Description, prompts: list[RtlPrompt]) -> None:
    report = compare_rtl_prompts(chip, prompts, options=BuildOptions(opt="-O0"), sram_seed=7)
    assert report.first is None
    assert report.passed
    for operator in ("lora qkv", "lora o", "lora gu", "lora down"):
        assert report.by_operator[operator] > 0
    assert report.by_memory["ZB0"] > 0
    assert report.by_memory["D"] > 0


@pytest.mark.verilator
def test_adapters_switched_between_prompts(chip: Description) -> None:
    compared(chip, PROMPTS)


@pytest.mark.slow
@pytest.mark.verilator
@pytest.mark.parametrize(
    "sizes",
    [
        {
            "n_tiles": 4, "n_cells": 4, "word_codes": 64, "n_lanes": 64, "n_inflight": 3,
            "broadcast_cycles": 2, "collect_cycles": 3, "rom_rows": 8192,
        },
        {"n_tiles": 1, "n_cells": 1, "n_inflight": 1, "n_lanes": 64},
    ],
)  # fmt: skip
def test_other_sizes(sizes: dict[str, int], tmp_path: Path) -> None:
    other = RtlPrompt(tokens=(1, 2), n_new=1, adapter="other")
    compared(adapted(tmp_path, **sizes), [*PROMPTS, other])


@pytest.mark.slow
@pytest.mark.verilator
@pytest.mark.parametrize("level", ["layer", "unit"])
def test_levels_of_the_verification(level: str, chip: Description, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "all", SPEC, is_ternary=True)
    result = romsim.verify(
        chip, tokens=[7, 8], n_new=1, level=level, adapter="all", loras={"all": folder}
    )
    assert result.passed


@pytest.mark.slow
@pytest.mark.verilator
def test_lint_has_nothing_to_say(chip: Description, tmp_path: Path) -> None:
    emission = emit_rtl(chip, tmp_path / "rtl")
    report = lint([emission.folder / name for name in emission.verilog], TOP_MODULE)
    assert report.messages == ()
    ports = {p["name"]: p for p in json.loads((tmp_path / "rtl/ports.json").read_text())["ports"]}
    assert ports["cfg_kind"]["meaning"].endswith("2 of a word of trits")


def test_table_entries_say_what_the_runs_are(chip: Description) -> None:
    image = chip.loras["some"].groups["L1.gu"]
    zero, down, up = run_entries(image, chip, base=100, n_lanes=32)
    n_rows = SPEC.hidden_dim
    # gate has no adapter: its rows of D become 0
    assert {**zero, "enable": 1, "is_up": 1, "n_rows": n_rows, "first_row": 0, "base": 0} == zero
    assert zero.get("multiplier", 0) == 0
    assert (down["is_up"], down["n_blocks"], down["n_rows"], down["base"]) == (0, 3, 96, 100)
    assert (up["is_up"], up["first_row"], up["is_last"]) == (1, n_rows, 1)
    assert up["base"] == 100 + down["steps"] * down["wpc"]
    factor = image.ternary[0].b
    assert up["out_shift"] == -factor.exponent - factor.pre_shift
    assert up["multiplier"] == factor.multiplier


def test_sizes_that_the_configuration_port_cannot_name_are_refused(chip: Description) -> None:
    sizes = AdderSizes.of(chip)
    assert sizes is not None
    sizes.check_fits(n_tiles=256, n_cells=1 << 20 - (sizes.bank_words - 1).bit_length())
    with pytest.raises(
        SpecError, match=r"^n_tiles of the RTL must be at most 256 with adapters, not 257$"
    ):
        sizes.check_fits(n_tiles=257, n_cells=1)
    sentence = (
        f"Adapters of the RTL must have words and cells that 20 bits name, not 21 for "
        f"{sizes.bank_words} words beside {1 << 21 - (sizes.bank_words - 1).bit_length()} cells; "
        f"lower the rank or leave out an adapter"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        sizes.check_fits(n_tiles=1, n_cells=1 << 21 - (sizes.bank_words - 1).bit_length())


def test_rows_that_do_not_begin_at_a_beat_are_refused(tmp_path: Path) -> None:
    chip = adapted(tmp_path, n_lanes=128, n_tiles=8, n_cells=32, rom_rows=1024)
    sentence = (
        "First row of matrix 1 of 'L1.qkv' must be a multiple of the 96 rows of a beat for an "
        "adapter in RTL, not 128; choose fewer vector lanes"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        run_entries(chip.loras["all"].groups["L1.qkv"], chip, base=0, n_lanes=96)
