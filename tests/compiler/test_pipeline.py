from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from romsim_compiler.choices import parse_rules, shape_formats
from romsim_compiler.formats import parse_format
from romsim_compiler.groups import tensor_shapes
from romsim_compiler.pipeline import (
    CompileOptions,
    check_adapter_names,
    check_model,
    compile_model,
    format_histogram,
)
from romsim_compiler.target_file import load_target, parse_target
from romsim_models.errors import CapacityError, SpecError
from romsim_models.registry import open_model
from romsim_models.shapes import SHAPES, TINY
from romsim_models.synthetic import synthetic_checkpoint
from tests.tiny_chips import TARGETS, compile_tiny, sized_target, tiny_spec, tree, write_adapter

SPEC = TINY["tiny-int4"]
SMALL = load_target("small")


def refused(sentence: str, spec: Any, target: Any = SMALL) -> None:
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        check_model(spec, target)


def test_axes_that_do_not_fit_the_template_are_refused() -> None:
    refused(
        "head_dim of model 'tiny-int4' must be a multiple of 32 on target 'small', not 16: a KV "
        "word holds whole blocks of 32; use a target that is not executable for timing alone",
        replace(SPEC, head_dim=16),
    )
    for axis, spec in (
        ("dim", replace(SPEC, dim=80)),
        ("hidden_dim", replace(SPEC, hidden_dim=80)),
    ):
        refused(
            f"{axis} of model 'tiny-int4' must be a multiple of 32 on target 'small', not 80: "
            f"activations are quantised in blocks of 32",
            spec,
        )
    refused(
        "Normalised vectors of model 'tiny-int4' must have at most 16384 elements, not 16416",
        replace(SPEC, dim=16416),
    )
    refused(
        "Normalised vectors of model 'tiny-ternary' must have at most 16384 elements, not 16416",
        replace(TINY["tiny-ternary"], hidden_dim=16416),
    )


def test_axes_matter_only_where_values_are_computed() -> None:
    check_model(replace(SPEC, head_dim=16, dim=80), load_target("roma-7nm"))
    check_model(replace(SPEC, hidden_dim=16416), SMALL)  # without a sub-norm it is not normalised


@pytest.mark.parametrize("name", ["", "a/b", "..", "-a", "a b", "é"])
def test_adapter_that_cannot_name_a_folder_is_refused(name: str) -> None:
    sentence = (
        f"Adapter name must be letters, digits, '.', '_' and '-' and begin with a letter or digit, "
        f"not {name!r}; give one with --lora NAME=FOLDER"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        check_adapter_names(["good-1.0_x", name])


def test_adapter_names_are_given_once() -> None:
    check_adapter_names(["a", "A", "a.1"])
    with pytest.raises(SpecError, match=r"^Adapter name must be given once, not twice: 'a'$"):
        check_adapter_names(["a", "b", "a"])


def test_histogram_counts_scales_and_minima() -> None:
    spec = replace(SPEC, n_layers=1)
    choices = shape_formats(spec, SMALL, parse_format("int4g32"))
    choices["token_embd.weight"] = replace(
        choices["token_embd.weight"], fmt=parse_format("int8g32"), requantised=True
    )
    histogram = format_histogram(choices, tensor_shapes(spec))
    n_layer = 64 * (128 + 64 + 64) + 128 * 64 + 3 * 64 * 192
    n_embedding = 288 * 64
    assert histogram == {
        "weights": {"int4g32": n_layer, "int8g32": n_embedding},
        "bits_per_weight": round((n_layer * 5 + n_embedding * 8.5) / (n_layer + n_embedding), 6),
        "requantised": ["token_embd.weight"],
    }


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    import romsim_compiler

    folder = Path(romsim_compiler.__file__).parent / "schemas"
    values: dict[str, Any] = json.loads((folder / "manifest.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(values)
    return values


@pytest.mark.parametrize("name", TARGETS)
def test_manifest_is_as_its_schema_says(name: str, schema: dict[str, Any], tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", tiny_spec(name), rank=4)
    chip = compile_tiny(name, tmp_path / "chip", adapters={"a": adapter})
    manifest = json.loads((chip.path / "manifest.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(manifest)
    files = tree(chip.path)
    assert set(manifest["files"]) == set(files) - {"manifest.json"}
    for key in schema["properties"]:
        broken = {k: v for k, v in manifest.items() if k != key}
        assert not validator.is_valid(broken), key
    assert not validator.is_valid({**manifest, "made": "today"})


@pytest.mark.parametrize(
    ("name", "target"), [("llama-3.2-1b", "roma-7nm"), ("bitnet-2b-4t", "tom-7nm")]
)
def test_shape_gives_a_description_without_images(
    name: str, target: str, schema: dict[str, Any], tmp_path: Path
) -> None:
    chip = load_target(target)
    rows = replace(chip, array=replace(chip.array, rom_rows=1 << 24))
    description = compile_model(open_model(name), rows, tmp_path / "chip")
    jsonschema.Draft202012Validator(schema).validate(description.manifest)
    assert sorted(tree(description.path)) == [
        "manifest.json", "placement.json", "prefill.json", "program.json", "tables.json",
        "target.toml",
    ]  # fmt: skip
    assert not description.has_images
    assert description.manifest["accuracy"] == {}
    assert description.manifest["model"]["source"]["kind"] == "shape"
    assert len(description.groups) >= 4 * SHAPES[name].n_layers


def test_weights_for_a_target_without_values_give_no_images(tmp_path: Path) -> None:
    target = replace(sized_target("small", activation="fp8_e4m3"), name="paper", executable=False)
    chip = compile_model(synthetic_checkpoint(SPEC), target, tmp_path / "chip")
    assert not chip.has_images
    assert not (chip.path / "rom.bin").exists()


def test_target_in_the_folder_is_the_one_in_the_manifest(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip")
    text = (chip.path / "target.toml").read_text()
    assert parse_target(text, "target.toml") == chip.target == SMALL


def test_ratios_of_the_rom_follow_from_its_bits(tmp_path: Path) -> None:
    rom = compile_tiny("tiny-int4", tmp_path / "chip").manifest["rom"]
    array = SMALL.array
    cells = array.n_tiles * array.n_cells
    assert rom["bits_used"] == rom["words_used"] * cells * array.word_bits
    assert rom["bits_available"] == array.rom_rows * cells * array.word_bits
    assert rom["utilisation"] == round(rom["bits_of_model"] / rom["bits_available"], 6)
    assert rom["padding"] == round(1 - rom["bits_of_model"] / rom["bits_used"], 6)
    n_layer = 64 * (128 + 64 + 64) + 128 * 64 + 3 * 64 * 192
    assert rom["bits_of_model"] == 2 * n_layer * 5 + 288 * 64 * 8.5


def test_model_that_does_not_fit_is_refused_with_sizes_and_remedy(tmp_path: Path) -> None:
    target = sized_target("small", rom_rows=1000)
    with pytest.raises(
        CapacityError,
        match=r"^Model must fit the ROM of target 'small': it needs 99840 bytes \(1248 words in "
        r"each of 4 cells\), not the 80000 available \(1000 words\); largest: head 0\.023 MB, "
        r"L0\.gu 0\.0154 MB, L1\.gu 0\.0154 MB; raise array\.rom_rows to 1248, use fewer bits, or "
        r"let --fit size the chip$",
    ):
        compile_tiny("tiny-int4", tmp_path / "chip", target=target)
    assert list(tmp_path.iterdir()) == []


def test_context_is_the_user_s_or_the_model_s_or_what_fits(tmp_path: Path) -> None:
    assert compile_tiny("tiny-int4", tmp_path / "a", context=7).context == 7
    assert compile_tiny("tiny-int4", tmp_path / "b", context=None).context == SPEC.max_seq_len
    tight = sized_target("small", sram_kib=16)
    limit = compile_tiny("tiny-int4", tmp_path / "c", target=tight, context=None).context
    # 264 bytes of KV a token: 2 layers x 2 (K, V) x 2 heads x 33.
    assert limit == 2 * (16 * 1024 // 264)
    with pytest.raises(SpecError, match=r"^Context must be at least 1 token, not 0$"):
        compile_tiny("tiny-int4", tmp_path / "d", context=0)


def test_slots_share_the_sram(tmp_path: Path) -> None:
    target = sized_target("small", sram_kib=16, n_slots=3)
    chip = compile_tiny("tiny-int4", tmp_path / "c", target=target, context=None)
    assert chip.context == 2 * (16 * 1024 // (3 * 264))
    memory = chip.manifest["memory"]
    assert memory["kv_bytes"] == chip.context * 3 * 264 <= memory["tile_sram_bytes"]


def test_rules_reach_the_rom(tmp_path: Path) -> None:
    options = CompileOptions(context=32, rules=parse_rules(["blk.*=int2g64"]))
    chip = compile_model(synthetic_checkpoint(SPEC), SMALL, tmp_path / "c", options=options)
    assert {g.code_bits for n, g in chip.groups.items() if n != "head"} == {2}
    assert chip.manifest["model"]["choices"]["blk.0.ffn_up.weight"] == "int2g64"
    words = np.asarray(chip.rom_words(chip.groups["L0.o"].base, 4))
    assert words[..., :16].max() <= 0x33  # lanes of 4 bits that hold codes of 2
