"""Targets that cannot be built, and audits of what is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import romsim
from romsim_compiler.choices import choose_formats
from romsim_compiler.rom_image import pack_group, unpack_fields
from romsim_compiler.target_file import list_targets, load_target, parse_target, write_target
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES
from romsim_models.tensors import expected_shapes
from tests.compiler.rom_arrays import make_array, make_format, make_mapping, random_tensor
from tests.tiny_chips import compile_tiny, copied, reseal

SMALL = write_target(load_target("small"))


def refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=rf"^{re.escape(message)}$"):
        parse_target(text, "chip.toml")


def test_technology_that_does_not_exist_is_refused_before_anything_is_compiled() -> None:
    refused(
        SMALL.replace('technology = "asap7"', 'technology = "asap8"'),
        "chip.toml: technology must be one of 28nm, asap7, n5, n6, n7-compiler, sky130, not "
        "'asap8'; did you mean 'asap7'?",
    )


def test_executable_target_without_a_head_is_refused() -> None:
    refused(
        SMALL.replace('head = "rom"', 'head = "off-chip"'),
        "chip.toml: embedding.head must be 'rom' in an executable target, not 'off-chip': logits "
        'are the chip\'s output; set head = "rom" or executable = false',
    )


def test_target_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chip.toml"
    path.write_bytes(b"name = \xff")
    message = f"Target file {path} must be TOML in UTF-8, not bytes with an error at byte 7; check "
    with pytest.raises(SpecError, match=rf"^{re.escape(message)}the path$"):
        load_target(path)


def test_target_with_a_zero_byte_in_its_name_is_refused() -> None:
    message = (
        f"Target must be one of {', '.join(list_targets())} or a .toml file, not 'a\\x00.toml'"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(message)}$"):
        load_target("a\0.toml")


@pytest.mark.parametrize("summary", ["new\nline", "\0\x1b\x7f", 'quote " and \\', "modèle 🎉", ""])
def test_any_summary_survives_writing_and_reading(summary: str) -> None:
    target = replace(load_target("small"), summary=summary)
    assert parse_target(write_target(target), "x.toml") == target


def test_weights_that_stay_off_the_chip_need_no_format_of_its_rom() -> None:
    """TOM as published keeps BitNet's tied embedding off chip: it may be in any format."""
    spec, target = SHAPES["bitnet-2b-4t"], load_target("tom-7nm")
    assert (target.embedding.input, target.embedding.head) == ("off-chip", "off-chip")
    shipped = dict.fromkeys(expected_shapes(spec), "bf16")
    choices = choose_formats(spec, shipped, target)
    assert choices["token_embd.weight"].fmt.name == "int8g64"
    assert choices["blk.0.attn_q.weight"].fmt.name == "ternary"


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_tiny("tiny-int4", tmp_path_factory.mktemp("audit") / "chip").path


def forged(chip: Path, folder: Path, change: Callable[[Any], None]) -> Path:
    """A copy whose placement was changed and sealed again."""
    copied(chip, folder)
    path = folder / "placement.json"
    placement = json.loads(path.read_text())
    change(placement)
    path.write_text(json.dumps(placement))
    return reseal(folder)


def test_whole_chip_has_no_differences(chip: Path) -> None:
    assert romsim.audit(chip).n_differences == 0


def test_matrix_that_is_not_placed_is_found(chip: Path, tmp_path: Path) -> None:
    def drop(placement: Any) -> None:
        placement["groups"] = [g for g in placement["groups"] if g["name"] != "L0.down"]

    report = romsim.audit(forged(chip, tmp_path / "chip", drop))
    assert [str(d) for d in report.differences] == [
        "number of places of 'blk.0.ffn_down.weight' must be 1 as in the model file, not 0"
    ]


def test_matrix_that_is_placed_twice_is_found(chip: Path, tmp_path: Path) -> None:
    def repeat(placement: Any) -> None:
        down = next(g for g in placement["groups"] if g["name"] == "L0.down")
        placement["groups"].append({**down, "name": "L0.down2"})

    report = romsim.audit(forged(chip, tmp_path / "chip", repeat))
    assert [str(d) for d in report.differences] == [
        "number of places of 'blk.0.ffn_down.weight' must be 1 as in the model file, not 2"
    ]


def test_gain_that_is_not_there_is_found(chip: Path, tmp_path: Path) -> None:
    def drop(placement: Any) -> None:
        del placement["gains"]["output_norm"]

    report = romsim.audit(forged(chip, tmp_path / "chip", drop))
    assert [str(d) for d in report.differences] == [
        "number of places of 'output_norm.weight' must be 1 as in the model file, not 0"
    ]


def test_every_bit_of_a_word_of_an_odd_number_of_bytes_is_read() -> None:
    """3 bits of zero point round a word of 10 bytes up to 11: the last is padding, not a field."""
    fmt, array = (
        make_format("int8g64"),
        make_array(n_tiles=1, n_cells=1, lane_bits=2, min_bits=0, encoding="ternary", zero_bits=3),
    )
    tensor = random_tensor(np.random.default_rng(0), "t", 1, 64, fmt)
    mapping = make_mapping(1, 64, fmt, array, 1)
    words = pack_group([tensor], mapping, array)
    assert words.shape[-1] == 11
    before = unpack_fields(words, mapping, array, fmt, 1, 64)
    flat = words.reshape(-1)
    for at in range(8 * words.size):
        flat[at >> 3] ^= 1 << (at & 7)
        after = unpack_fields(words, mapping, array, fmt, 1, 64)
        assert after.n_stray or not (
            np.array_equal(before.codes, after.codes)
            and np.array_equal(before.scales, after.scales)
        ), at
        flat[at >> 3] ^= 1 << (at & 7)
