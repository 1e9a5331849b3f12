"""Ternary files of every layout become one chip, which computes what the reference computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import romsim
from romsim.comparison import compare_values
from romsim_compiler.description import Description
from romsim_models.errors import FormatError, SpecError
from romsim_models.registry import open_model
from tests.models.gguf_files import Written
from tests.models.ternary_files import (
    LAYOUTS,
    SCALE,
    TQ2_0,
    i2_s,
    in_halves,
    signs,
    tq,
    write_bitnet_gguf,
)
from tests.tiny_chips import sized_target

pytest.importorskip("gguf", reason="writes TQ1_0 and TQ2_0 (extra 'oracle')")


def compiled(folder: Path, layout: str, **options: Any) -> tuple[Description, Path]:
    path = LAYOUTS[layout](folder)
    weights = "ternary" if layout == "hf-values" else None
    target = sized_target("small-ternary", rom_rows=16384)
    options = {"target": target, "context": 16, "weights": weights, **options}
    return romsim.compile(path, folder / "chip", **options), path


def check(chip: Description, path: Path) -> None:
    checkpoint = open_model(path)
    assert romsim.audit(chip, model=str(path)).n_differences == 0
    report = compare_values(chip, checkpoint, [5, 9], n_new=1)
    assert report.passed, report.first
    assert report.n_values > 5000


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compiled(tmp_path_factory.mktemp("other"), "i2_s")[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chip_of_every_layout_equals_the_reference_and_the_others(
    tmp_path: Path, layout: str, other: Description
) -> None:
    chip, path = compiled(tmp_path, layout)
    check(chip, path)
    groups = {name: group for name, group in chip.groups.items() if name.startswith("L0")}
    assert all(group.kind == "ternary" and not group.group for group in groups.values())
    assert chip.manifest["accuracy"]["quantisation_error"].keys() == {"token_embd.weight"}
    first = max(chip.groups["head"].base, 1)
    words = chip.rom_words(0, first)
    np.testing.assert_array_equal(words, other.rom_words(0, first))
    for name, group in groups.items():
        value = group.multiplier * 2.0**group.multiplier_exp
        assert value == SCALE, name


@pytest.mark.parametrize("layout", ["tq1_0", "tq2_0"])
def test_groups_with_scales_of_their_own_are_unsigned_codes(tmp_path: Path, layout: str) -> None:
    chip, path = compiled(tmp_path, layout, target=sized_target("small", rom_rows=16384))
    check(chip, path)
    assert {g.group for n, g in chip.groups.items() if n.startswith("L0")} == {256}
    assert chip.manifest["model"]["choices"].keys() == {"token_embd.weight"}


def test_shipped_codes_can_be_made_ternary_or_anything_else_by_a_rule(tmp_path: Path) -> None:
    for rule in ("blk.*=ternary", "blk.*=int4g32"):
        chip, path = compiled(tmp_path, "i2_s", quantize=[rule])
        check(chip, path)


def different_scales(folder: Path) -> Path:
    def change(tensors: dict[str, Written]) -> None:
        values = in_halves("blk.0.ffn_up.weight", signs()["blk.0.ffn_up.weight"])
        upper, lower = tq(values[:128], TQ2_0, 0.5), tq(values[128:], TQ2_0, 0.25)
        tensors["blk.0.ffn_up.weight"] = Written((256, 256), TQ2_0, upper.raw + lower.raw)

    return write_bitnet_gguf(folder / "m.gguf", lambda v: tq(v, TQ2_0), change=change)


def test_groups_that_differ_are_refused_by_words_without_scales(tmp_path: Path) -> None:
    path = different_scales(tmp_path)
    column = int(np.flatnonzero(signs()["blk.0.ffn_up.weight"][128])[0])
    value = 0.25 * int(signs()["blk.0.ffn_up.weight"][128, column])
    message = (
        f"Element [128, {column}] of tensor 'blk.0.ffn_up.weight' must be 0 or 0.5 in magnitude, "
        f"as those before it, to have one scale for the whole matrix, not {value}; its tq2_0 "
        "groups differ in scale: use a target whose words hold scales and unsigned codes, such as "
        "'small'"
    )
    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        romsim.compile(path, tmp_path / "chip", target="small-ternary", context=16)
    target = sized_target("small", rom_rows=16384)
    check(romsim.compile(path, tmp_path / "chip", target=target, context=16), path)


def test_floats_that_are_not_ternary_are_refused_as_such(tmp_path: Path) -> None:
    path = LAYOUTS["hf-values"](tmp_path)
    raw = bytearray((path / "model.safetensors").read_bytes())
    header = int.from_bytes(raw[:8], "little")
    raw[8 + header + 4 * 300 : 8 + header + 4 * 301] = np.float32(0.3).tobytes()  # row 1, column 44
    (path / "model.safetensors").write_bytes(raw)
    message = (
        "Element [2, 44] of tensor 'blk.0.attn_q.weight' must be 0 or 0.0625 in magnitude, as "
        "those before it, to be taken as ternary, not 0.30000001192092896; give a rule such as "
        "--quantize 'blk.*=ternary' to make it ternary"
    )
    with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
        romsim.compile(path, tmp_path / "c", target="small-ternary", context=16, weights="ternary")
    chip = romsim.compile(path, tmp_path / "c", target="small-ternary", context=16)
    assert chip.manifest["model"]["choices"]["blk.0.attn_q.weight"] == "ternary"
    assert chip.manifest["accuracy"]["quantisation_error"]["blk.0.attn_q.weight"] > 0.1


def test_codes_that_are_not_ternary_are_refused_as_such(tmp_path: Path) -> None:
    message = (
        r"Element \[0, 1\] of tensor 'blk\.0\.attn_q\.weight' must be 0 or [0-9.]+ in magnitude, "
        r"as those before it, to be taken as ternary, not [-0-9.]+; give a rule such as --quantize "
        r"'blk\.\*=ternary' to make it ternary"
    )
    with pytest.raises(FormatError, match=rf"^{message}$"):
        romsim.compile(
            "stories-int4", tmp_path / "c", target="small-ternary", context=16, weights="ternary"
        )


def test_ternary_codes_need_a_ternary_target(tmp_path: Path) -> None:
    path = write_bitnet_gguf(tmp_path / "m.gguf", i2_s)
    message = (
        "Target 'small' must have array.encoding 'ternary' for the ternary tensor "
        "'blk.0.attn_q.weight', not 'unsigned'; use a target such as 'tom-7nm-int8' or "
        "'small-ternary', or int2 codes"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(message)}$"):
        romsim.compile(path, tmp_path / "chip", target="small", context=16)
