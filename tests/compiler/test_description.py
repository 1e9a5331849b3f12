from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romsim_compiler.description import Description, group_from_json, group_to_json
from romsim_compiler.numerics import Numerics
from romsim_models.errors import DescriptionError
from tests.tiny_chips import RomFile, compile_tiny, copied, sized_target, tiny_spec


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    target = sized_target("small", n_inflight=3)
    return compile_tiny("tiny-int4", tmp_path_factory.mktemp("d") / "chip", target=target)


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Description:
    import romsim

    folder = tmp_path_factory.mktemp("s") / "chip"
    return romsim.compile("llama-3.2-1b", folder, target="roma-7nm-g32", fit=True, context=64)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(DescriptionError, match=rf"^{re.escape(message)}$"):
        Description.load(folder)


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    return folder


def test_folder_gives_back_what_was_compiled(chip: Description) -> None:
    assert (chip.name, chip.context, chip.has_images) == ("tiny-int4", 96, True)
    assert chip.spec == tiny_spec("tiny-int4")
    assert chip.target == sized_target("small", n_inflight=3)
    assert chip.numerics == Numerics(attn_block=16)
    assert list(chip.groups)[:4] == ["L0.qkv", "L0.o", "L0.gu", "L0.down"]
    assert list(chip.groups)[-1] == "head"
    assert list(chip.gains) == [
        f"blk.{n}.{kind}" for n in (0, 1) for kind in ("attn_norm", "ffn_norm")
    ] + ["output_norm"]
    assert chip.phase_increments.shape == (16,)
    assert chip.query_scale == round(2**20 * np.log2(np.e) / np.sqrt(32))
    assert {name: len(t) for name, t in chip.tables.items()} == {
        "SIN": 257, "EXP": 257, "SIG": 1025, "RSQ": 96, "RCP": 128,
    }  # fmt: skip
    assert chip.loras == {}
    assert chip.tokenizer_file() == chip.path / "tokenizer.json"


def test_groups_survive_json(chip: Description) -> None:
    for group in chip.groups.values():
        assert group_from_json(json.loads(json.dumps(group_to_json(group)))) == group


def test_words_are_those_of_the_file(chip: Description) -> None:
    group = chip.groups["L1.o"]
    words = chip.rom_words(group.base, 3)
    array = chip.target.array
    assert words.shape == (3, array.n_tiles, array.n_cells, array.word_bytes)
    stride = array.n_tiles * array.n_cells * array.word_bytes
    data = bytes(RomFile(chip.path).data)
    assert words.tobytes() == data[group.base * stride : (group.base + 3) * stride]
    assert len(data) == chip.placement["n_words"] * stride


def test_programs(chip: Description) -> None:
    assert (chip.decode.kind, chip.decode.n_tokens) == ("decode", 1)
    assert chip.prefill(1, True) == chip.decode
    assert (chip.prefill(3, False).n_tokens, chip.prefill(3, False).kind) == (3, "prefill")
    heads = [i for i in chip.prefill(3, True).instructions if i.operand == "head" and i.unit == "L"]
    assert [i.token for i in heads] == [2]
    assert not any(
        i.operand == "head" and i.unit == "L" for i in chip.prefill(1, False).instructions
    )
    sentence = f"{chip.path}: number of interleaved tokens must be 1 or 3, not 2"
    with pytest.raises(DescriptionError, match=rf"^{re.escape(sentence)}$"):
        chip.prefill(2, True)


def test_shape_has_no_words(shape: Description) -> None:
    assert not shape.has_images
    assert not (shape.path / "rom.bin").exists()
    sentence = (
        f"{shape.path} must have ROM images, but it was compiled from a shape without weights; "
        f"compile a model with weights, or use --engine timing"
    )
    with pytest.raises(DescriptionError, match=rf"^{re.escape(sentence)}$"):
        shape.rom_words(0, 1)
    assert shape.tokenizer_file() is None


def test_what_is_no_description_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        refused(
            folder,
            f"{folder} must be a compiled description with a manifest.json, which cannot be read; "
            f"make one with `romsim compile MODEL -o {folder}`",
        )
    path = tmp_path / "manifest.json"
    path.write_text('{"a": 1')
    with pytest.raises(
        DescriptionError,
        match=rf"^{re.escape(str(path))} must be JSON, not what it holds \(Expecting ',' "
        r"delimiter: line 1 column 8 \(char 7\)\); compile again$",
    ):
        Description.load(tmp_path)
    path.write_text("[]")
    refused(tmp_path, f"{path} must be a JSON object, not list; compile again")
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(DescriptionError, match=r"manifest\.json must be JSON, not what it holds"):
        Description.load(tmp_path)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_other_schema_version_is_refused(
    version: object, chip: Description, tmp_path: Path
) -> None:
    folder = copied(chip.path, tmp_path / "c")
    edit(folder, lambda manifest: manifest.update(schema_version=version))
    refused(
        folder,
        f"{folder / 'manifest.json'}: schema_version must be 1, not {version!r}; compile again "
        f"with this version of romsim",
    )


@pytest.mark.parametrize("key", ["files", "context", "target", "adapters", "dies"])
def test_missing_key_is_refused(key: str, chip: Description, tmp_path: Path) -> None:
    folder = copied(chip.path, tmp_path / "c")
    edit(folder, lambda manifest: manifest.pop(key))
    refused(
        folder,
        f"{folder / 'manifest.json'}: key {key!r} must be present, not missing; compile again",
    )


def test_changed_manifest_is_refused(chip: Description, tmp_path: Path) -> None:
    folder = copied(chip.path, tmp_path / "c")
    edit(folder, lambda manifest: manifest["target"].update(clock_mhz=9000.0))
    refused(
        folder,
        f"{folder / 'manifest.json'} must have the values that were compiled (SHA-256 "
        f"{chip.manifest['sha256']}), not others; it was changed: compile again",
    )


@pytest.mark.parametrize("name", ["rom.bin", "gains.bin", "program.json", "prefill.json"])
def test_file_that_is_not_listed_is_refused(name: str, chip: Description, tmp_path: Path) -> None:
    folder = copied(chip.path, tmp_path / "c")
    edit(folder, lambda manifest: manifest["files"].pop(name))
    refused(
        folder,
        f"{folder / 'manifest.json'}: file {name!r} must be listed, not missing; compile again",
    )


def test_missing_file_is_refused(chip: Description, tmp_path: Path) -> None:
    folder = copied(chip.path, tmp_path / "c")
    (folder / "gains.bin").unlink()
    refused(folder, f"{folder / 'gains.bin'} must exist, but it is missing; compile again")


def test_longer_file_is_refused(chip: Description, tmp_path: Path) -> None:
    folder = copied(chip.path, tmp_path / "c")
    size = (folder / "gains.bin").stat().st_size
    with (folder / "gains.bin").open("ab") as file:
        file.write(b"\n")
    sentence = f"{folder / 'gains.bin'} must have {size} bytes, not {size + 1}; compile again"
    refused(folder, sentence)
    with pytest.raises(DescriptionError, match=rf"^{re.escape(sentence)}$"):
        Description.load(folder, verify=False)


@pytest.mark.parametrize("name", ["rom.bin", "gains.bin", "tables.json", "target.toml"])
def test_one_bit_is_found_by_its_digest(name: str, chip: Description, tmp_path: Path) -> None:
    folder = copied(chip.path, tmp_path / "c")
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(
        DescriptionError,
        match=rf"^{re.escape(str(folder / name))} must have the SHA-256 [0-9a-f]{{64}} of the "
        r"manifest, not [0-9a-f]{64}; it was changed: compile again$",
    ):
        Description.load(folder)
    Description.load(folder, verify=False)
