# amaranth: UnusedElaboratable=no
"""``romsim verify`` with real RTL: each level, a difference with its waves, a chip by parts."""

from __future__ import annotations

import re
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import romsim
from romsim.cycle import CycleModel
from romsim.verification import Waves
from romsim_compiler.description import Description
from romsim_rtl.driver_build import BuildOptions
from tests.tiny_chips import compile_tiny, copied, reseal, sized_target, tiny_spec, write_adapter

pytestmark = pytest.mark.verilator

OPTIONS = BuildOptions(opt="-O0", trace=True)
IDS = [1, 5, 9, 20, 7]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # the chip of test_driver.py, so that the two share a build
    parts = ("attn_q", "attn_v", "ffn_gate", "ffn_up", "ffn_down")
    folder = tmp_path_factory.mktemp("levels") / "poet"
    return write_adapter(folder, tiny_spec("tiny-int4"), parts=parts, layers=[1])


@pytest.fixture(scope="module")
def chip(adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Description:
    folder = tmp_path_factory.mktemp("levels") / "chip"
    return compile_tiny("tiny-int4", folder, adapters={"poet": adapter})


@pytest.mark.parametrize("level", ["unit", "layer", "chip"])
def test_three_machines_agree(level: str, chip: Description, adapter: Path) -> None:
    loras = {"poet": adapter}
    report = romsim.verify(
        chip, tokens=IDS, n_new=2, level=level, adapter="poet", loras=loras, options=OPTIONS
    )
    assert report.passed
    # the layers' adapters differ in shape: one has none
    pieces = {
        "unit": ["instructions of layer 0 one by one", "instructions of layer 1 one by one"],
        "layer": ["layer 0", "layer 1"],
        "chip": ["whole chip"],
    }[level]
    assert [part.name for part in report.rtl] == pieces
    kinds = Counter(
        f"{i.op} {i.operand.rpartition('.')[2]}".strip() for i in chip.decode.instructions
    )
    seen = {name for part in report.rtl for name in part.report.by_operator}
    silent = {"sincos", "matvec head"}  # write no memory that both machines have
    assert seen >= set(kinds) - silent - {"lora o"}
    for part in report.rtl:
        assert part.report.n_tokens == 7
        assert part.report.n_events > 0
        assert min(part.report.by_memory.values()) > 0


def test_a_chip_of_several_sequences_lets_them_fork(tmp_path: Path) -> None:
    target = sized_target("small", n_tiles=1, n_cells=1, heads_parallel=1, n_slots=3)
    kv = "int8,layout=paged,block=4"
    forking = compile_tiny("tiny-int4", tmp_path / "chip", target=target, kv=kv, context=16)
    report = romsim.verify(forking, tokens=IDS, n_new=3, level="chip", options=OPTIONS)
    assert [part.name for part in report.rtl] == ["whole chip", "sequences that fork"]
    assert report.passed
    assert report.rtl[1].report.by_operator["copy of a page"] > 0
    values = report.to_json()["rtl"]
    assert [part["n_mismatches"] for part in values] == [0, 0]


def test_instructions_one_by_one_never_overlap(chip: Description) -> None:
    from romsim_compiler.reduced import one_layer

    model = CycleModel(one_layer(chip, 0, is_serial=True))
    step = model.step(3)
    for (_, _, idle), (_, issue, _) in zip(step.timeline, step.timeline[1:], strict=False):
        assert issue >= idle


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fst", "vcd"])
def test_waves_of_a_difference_show_what_the_rtl_wrote(
    form: str, chip: Description, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(chip.path, tmp_path / "flipped")
    array, group = chip.target.array, chip.groups["L0.down"]
    shape = (chip.placement["n_words"], array.n_tiles, array.n_cells, array.word_bytes)
    words = np.memmap(folder / "rom.bin", np.uint8, "r+", shape=shape)
    words[group.base, 1, 0, 3] ^= 0x10
    words.flush()
    flipped = Description.load(reseal(folder))
    monkeypatch.setattr("romsim.verify_rtl.CycleModel", lambda _, **more: CycleModel(chip, **more))
    plain: dict[str, Any] = {"tokens": IDS[:1], "n_new": 1, "level": "chip", "options": OPTIONS}
    first = romsim.verify(flipped, **plain).rtl[0].report.first
    assert first is not None
    waves = Waves(form=form, first=first.chip_cycle - 9, last=first.chip_cycle, folder=tmp_path)
    (part,) = romsim.verify(flipped, waves=waves, **plain).rtl
    assert part.waves == tmp_path / f"whole-chip.{form}"
    assert part.report.first == first
    data = part.waves.read_bytes()
    if form == "fst":
        begin, end, names = fst_facts(data)
    else:
        begin, end, names = vcd_facts(data.decode())
        # the wrong word on its way into Y, in the last cycle shown
        assert f"{first.got & 0xFFFFFFFF:032b}" in data.decode().replace(" ", "\n")
    assert (begin, end) == (2 * waves.first, 2 * waves.last + 1)
    assert {"romsim_top", "event_start", "logit_data"} <= names


def fst_facts(data: bytes) -> tuple[int, int, set[str]]:
    """First and last time, and the names of scopes and signals (GTKWave's FST, blocks 0 and 6)."""
    assert data[0] == 0
    begin, end = struct.unpack_from(">QQ", data, 9)
    at, names = 0, set()
    while at < len(data):
        (size,) = struct.unpack_from(">Q", data, at + 1)
        if data[at] == 6:  # LZ4, of literals alone: a token, lengths, bytes
            (plain,) = struct.unpack_from(">Q", data, at + 9)
            block = data[at + 17 : at + 1 + size]
            words = re.findall(rb"[A-Za-z_]\w+", block[len(block) - plain :])
            names = {word.decode() for word in words}
        at += 1 + size
    assert at == len(data)
    return begin, end, names


def vcd_facts(text: str) -> tuple[int, int, set[str]]:
    lines = text.splitlines()
    times = [int(line[1:]) for line in lines if line.startswith("#")]
    words = [line.split() for line in lines if line.strip().startswith(("$scope", "$var"))]
    return times[0], times[-1], {w[2] if w[0] == "$scope" else w[4] for w in words}


@pytest.mark.slow
def test_large_chip_is_verified_by_parts(tmp_path: Path) -> None:
    target = sized_target("small", n_tiles=8, n_lanes=64)
    large = compile_tiny("tiny-int4", tmp_path / "large", target=target)
    report = romsim.verify(large, tokens=IDS, n_new=2, options=OPTIONS, max_lanes=300)
    assert report.passed
    assert [part.name for part in report.rtl] == [
        "full-width tile, instructions of layer 0 one by one",
        "scaled target, whole chip",
    ]
    assert report.whole is not None
    assert not report.whole.fits
    assert len(report.not_covered) == 2


def test_a_description_in_a_folder_with_spaces_and_accents(
    chip: Description, tmp_path: Path
) -> None:
    folder = tmp_path / "meine Prüfung"
    shutil.copytree(chip.path, folder)
    report = romsim.verify(folder, tokens=IDS[:2], n_new=1, level="chip", options=OPTIONS)
    assert report.passed
