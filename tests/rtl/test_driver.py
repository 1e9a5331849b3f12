# amaranth: UnusedElaboratable=no
"""A whole tiny chip, Verilated, against the cycle model: every value, write, issue and cycle."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from romsim.cycle import CycleModel
from romsim.engines import make_engine
from romsim.mutate import mutate
from romsim.verify_rtl import compare_rtl
from romsim_compiler.description import Description
from romsim_compiler.target import Array
from romsim_models.errors import CapacityError, SpecError
from romsim_rtl.driver import RtlRun
from romsim_rtl.driver_build import BuildOptions
from romsim_rtl.driver_trace import TraceReader
from romsim_rtl.toolchain import ToolError
from tests.command_line import run_command
from tests.tiny_chips import RomFile, compile_tiny, copied, reseal, tiny_spec, write_adapter

pytestmark = pytest.mark.verilator

OPTIONS = BuildOptions(opt="-O0", trace=True)
PROMPT = [1, 5, 9, 20, 7]


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    folder = tmp_path_factory.mktemp("driver")
    parts = ("attn_q", "attn_v", "ffn_gate", "ffn_up", "ffn_down")
    adapter = write_adapter(folder / "poet", tiny_spec("tiny-int4"), parts=parts, layers=[1])
    return compile_tiny("tiny-int4", folder / "build", adapters={"poet": adapter})


@pytest.fixture
def run(chip: Description) -> Iterator[RtlRun]:
    with RtlRun(chip, options=OPTIONS, limit=1_000_000) as made:
        yield made


@pytest.mark.parametrize("adapter", [None, "poet"])
def test_chip_equals_the_cycle_model_in_every_write_and_cycle(
    chip: Description, adapter: str | None
) -> None:
    report = compare_rtl(chip, PROMPT, n_new=3, adapter=adapter, options=OPTIONS, sram_seed=11)
    assert report.first is None, report.first.sentence()
    assert report.passed
    assert (report.n_programs, report.n_tokens) == (6, 8)
    assert (
        report.n_events
        == 2 * 2 * len(chip.decode.instructions) + 4 * len(chip.decode.instructions) - 2 * 2 * 2
    )
    memories = {"K", "O", "OL", "Q", "V", "X", "XB0", "Y"} | ({"D"} if adapter else set())
    assert set(report.by_memory) == memories
    assert min(report.by_memory.values()) > 0
    assert report.to_json()["passed"] is True


def test_prompt_after_prompt_with_and_without_an_adapter(chip: Description, run: RtlRun) -> None:
    model = CycleModel(chip)
    for adapter, tokens in (("poet", [3, 4]), (None, [3, 4, 6]), ("poet", [3])):
        run.use_adapter(adapter)
        model.reset()
        expected = model.prefill(tokens, adapter=adapter)
        results = run.prefill(tokens, begin=True)
        assert np.array_equal(results[-1].logits, expected.logits)
        assert [r.cycles for r in results] == [c.cycles for c in expected.chunks]
        step, got = model.step(7, adapter=adapter), run.step(7)
        assert np.array_equal(got.logits, step.logits)
        assert (got.token, got.cycles) == (step.next_token, step.cycles)
        assert run.position == model.position()


def test_a_flipped_rom_bit_is_found_and_named(
    chip: Description, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(chip.path, tmp_path / "flipped")
    group = chip.groups["L0.down"]
    array = chip.target.array
    words = np.memmap(
        folder / "rom.bin", np.uint8, "r+", shape=(chip.placement["n_words"], *_word_shape(array))
    )
    words[group.base, 1, 0, 3] ^= 0x10
    words.flush()
    flipped = Description.load(reseal(folder))
    monkeypatch.setattr("romsim.verify_rtl.CycleModel", lambda _, **more: CycleModel(chip, **more))
    report = compare_rtl(flipped, PROMPT[:1], n_new=1, options=OPTIONS)
    assert not report.passed
    assert report.n_mismatches > 100
    row = array.n_cells // group.mapping.ks  # the first of tile 1
    assert report.first is not None
    assert report.first.what == "value of L0.matvec down to Y"
    assert (report.first.program, report.first.position, report.first.index) == (0, 0, row)
    assert (report.first.layer, report.first.operator) == (0, "matvec down")
    assert (report.first.tile, report.first.lane) == (-1, row % chip.target.vector.n_lanes)
    assert report.first.chip_cycle > report.first.cycle
    lane = row % chip.target.vector.n_lanes
    where = rf"value of L0\.matvec down to Y\[{row}\], lane {lane}"
    place = rf"{where}, cycle \d+ of program 0 at position 0"
    values = r"cycle model -?\d+ \(0x[0-9a-f]+\), RTL -?\d+ \(0x[0-9a-f]+\)"
    assert re.fullmatch(rf"{place}: {values}", report.first.sentence())


def test_injected_faults_are_found(chip: Description, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ("code", "scale", "program", "heads")
    report = mutate(chip, tokens=PROMPT[:3], n_new=1, count=2, kinds=kinds, options=OPTIONS)
    assert report.passed, report.to_text()
    assert report.by_kind() == dict.fromkeys(kinds, (2, 2, 2))
    # the lowest bits of a gain are below what 8 bits of its product show on most prompts
    arguments = ["mutate", chip.path, "--kinds", "gain", "--count", 4, "--token-ids", "1,5"]
    arguments += ["--max-tokens", 0, "--opt", OPTIONS.opt, "--json"]
    done = run_command(capsys, *arguments)
    assert (done.code, done.err) == (0, "")
    values = done.json()
    schema = json.loads((files("romsim") / "schemas" / "mutate.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(values)
    (gains,) = values["by_kind"].values()
    assert gains["faults"] == gains["found"] == 4 > gains["found_on_prompt"]
    directed = [fault["what"] for fault in values["faults"] if fault["stimulus"] == "epsilon"]
    assert len(directed) == 4 - gains["found_on_prompt"]
    assert all(int(what.split()[1]) < 16 for what in directed)


def test_images_of_the_chip_itself_must_verify_before_faults_count(
    chip: Description, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(chip.path, tmp_path / "flipped")
    rom = RomFile(folder)
    rom.flip_code_bit("L0.down", 3, 5)
    rom.save()
    flipped = Description.load(reseal(folder))
    monkeypatch.setattr(
        "romsim.verify_rtl.CycleModel", lambda _, **more: CycleModel(flipped, **more)
    )
    message = (
        rf"^RTL of '{chip.name}' must equal its cycle model before faults are injected, not "
        r"differ in .*: cycle model .*, RTL .*$"
    )
    with pytest.raises(SpecError, match=message):
        mutate(chip, tokens=PROMPT[:1], n_new=0, count=1, options=OPTIONS)


def _word_shape(array: Array) -> tuple[int, int, int]:
    return array.n_tiles, array.n_cells, array.word_bytes


def test_engine_of_the_command_line_gives_logits_and_cycles(
    chip: Description, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("romsim_rtl.driver.BuildOptions", lambda: OPTIONS)
    monkeypatch.setattr("romsim_rtl.driver_build.BuildOptions", lambda: OPTIONS)
    stages: list[str] = []
    engine: Any = make_engine("rtl", chip, progress=lambda stage, _: stages.append(stage))
    model = CycleModel(chip)
    assert np.array_equal(engine.prefill(PROMPT), model.prefill(PROMPT).logits)
    assert np.array_equal(engine.step(2), model.step(2).logits)
    assert engine.saturations == model.saturations == 0
    assert engine.cycles is not None
    engine.close()
    assert stages[0] == "writing Verilog"
    assert stages[-1] == "compiling"


def test_trace_has_every_issue_of_a_program(chip: Description, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    with RtlRun(chip, options=OPTIONS, trace=file) as run:
        reader = TraceReader(file)
        run.run("decode", [1], begin=True)
        (program,) = reader.read()
        assert reader.read() == []
    assert [i.unit for i in program.issues] == [i.unit for i in chip.decode.instructions]
    assert all(i.issue < i.idle for i in program.issues)


def test_programs_and_tokens_that_there_are_not_are_refused(chip: Description, run: RtlRun) -> None:
    def refused(message: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
            run.run(*arguments, **options)

    names = "decode, prefill_1, prefill_n, prefill_n_head"
    refused(f"Program must be one of {names}, not 'encode'", "encode", [1])
    refused("Program 'prefill_n' must be given 2 tokens, not 3", "prefill_n", [1, 2, 3])
    vocab = chip.spec.vocab_size
    refused(f"Token must be 0 to {vocab - 1}, not {vocab}", "decode", [vocab])
    with pytest.raises(SpecError, match=r"^Prompt must have at least 1 token, not 0$"):
        run.prefill([])
    with pytest.raises(SpecError, match=r"^Adapter must be a resident one: poet; not 'prose'$"):
        run.use_adapter("prose")


def test_full_context_works_and_one_token_more_is_refused(chip: Description, run: RtlRun) -> None:
    model = CycleModel(chip)
    tokens = [(7 * k) % chip.spec.vocab_size for k in range(chip.context)]
    expected = model.prefill(tokens)
    results = run.prefill(tokens, begin=True)
    assert np.array_equal(results[-1].logits, expected.logits)
    assert sum(r.cycles for r in results) == expected.cycles
    message = (
        f"Sequence must fit the KV cache of {chip.context} tokens, not 1 more than the "
        f"{chip.context} that are in it; begin a new one or compile with a larger context"
    )
    with pytest.raises(CapacityError, match=f"^{re.escape(message)}$"):
        run.step(1)


def test_a_chip_that_hangs_is_an_error_and_not_a_wait(chip: Description) -> None:
    with RtlRun(chip, options=OPTIONS, limit=100) as run:
        message = (
            f"Simulation of {chip.name!r} must go on until it is closed, not end with status 3; it "
            f"said 'Program must end within 100 cycles, but the chip hangs'"
        )
        with pytest.raises(ToolError, match=f"^{re.escape(message)}$"):
            run.run("decode", [1])


def test_memories_begin_with_anything(chip: Description, monkeypatch: pytest.MonkeyPatch) -> None:
    # an adapter that nobody loads: its table and factors are what the memories begin with
    monkeypatch.setattr(RtlRun, "_load_adapters", lambda _: None)

    def logits(sram_seed: int | None, adapter: str | None) -> list[int] | str:
        with RtlRun(chip, options=OPTIONS, sram_seed=sram_seed, limit=200_000) as run:
            run.use_adapter(adapter)
            try:
                return [int(x) for x in run.run("decode", [5], begin=True).logits]
            except ToolError:
                return "hangs"

    plain = logits(None, None)
    assert logits(None, "poet") == logits(3, None) == plain
    assert logits(3, "poet") != plain


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("trace", "trace=False", Path("file")),
        ("waves", "waves=None", (Path("file"), 0, 1)),
        ("sram_seed", "trace=False", 3),
    ],
)
def test_what_the_build_cannot_do_is_refused(
    chip: Description, name: str, option: str, value: Any
) -> None:
    message = (
        f"{name} must be asked of a build that has it, not of one with {option}; set "
        f"BuildOptions({option.replace('False', 'True').replace('None', repr('fst'))})"
    )
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        RtlRun(chip, **arguments)


def test_a_shape_without_weights_is_refused(chip: Description) -> None:
    shape = replace(chip, manifest={**chip.manifest, "has_images": False})
    message = (
        f"{chip.path} must have ROM images to be simulated as RTL, but it was compiled from a "
        f"shape without weights; compile a model with weights"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        RtlRun(shape)
