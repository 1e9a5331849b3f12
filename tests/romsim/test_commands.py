"""Every command: what it prints, its JSON against the published schema, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import romsim
from romsim import cli
from romsim.cli import main
from romsim.commands.output import Progress
from romsim.comparison import ValueReport
from romsim.rates import decode_rates
from romsim.simulate import load_tokenizer
from romsim.verification import Verification
from romsim_compiler.description import Description
from romsim_compiler.target_file import list_targets, parse_target
from romsim_models.registry import named_models
from tests.command_line import Outcome, run_command
from tests.tiny_chips import compile_tiny, tree

SCHEMAS = Path(romsim.__file__).parent / "schemas"
Capture = pytest.CaptureFixture[str]


def checked(done: Outcome, schema: str, code: int = 0) -> Any:
    """The JSON of a command, as its schema says, and nothing else printed."""
    assert (done.code, done.err) == (code, "")
    values = done.json()
    assert isinstance(values, dict)
    text = (SCHEMAS / f"{schema}.schema.json").read_text()
    jsonschema.Draft202012Validator(json.loads(text)).validate(values)
    return values


def refused(done: Outcome, sentence: str) -> None:
    assert done.code == 2
    assert done.sentence() == f"romsim: {sentence}"


def test_every_command_has_a_schema_and_each_is_one() -> None:
    there = {path.name.removesuffix(".schema.json") for path in SCHEMAS.iterdir()}
    assert set(cli._COMMANDS) <= there
    for name in there:
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"{name}.schema.json"
        assert schema["type"] == "object"


def test_models(capsys: Capture) -> None:
    values = checked(run_command(capsys, "models", "--json"), "models")
    assert list(values) == sorted(named_models())
    assert values["smollm2"]["layers"] == 30
    done = run_command(capsys, "models")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[: len(values)]] == list(named_models())
    assert lines[-1] == "A GGUF file or a Hugging Face folder can be compiled too."


@pytest.mark.parametrize(
    "arguments", [["get", "m", "--json"], ["--json", "get", "m"], ["get", "m"]]
)
def test_models_get(
    arguments: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"12345")
    monkeypatch.setattr("romsim_models.registry.fetch", lambda name: tmp_path / f"{name}.gguf")
    done = run_command(capsys, "models", *arguments)
    if "--json" in arguments:
        assert checked(done, "models-get") == {"name": "m", "file": "m.gguf", "bytes": 5}
    else:
        assert (done.code, done.out) == (0, "m: m.gguf, 5 bytes, digest checked\n")


def test_models_get_what_has_no_file(capsys: Capture) -> None:
    refused(
        run_command(capsys, "models", "get", "tiny-int4"),
        "model to fetch must be one with a file, not 'tiny-int4' (seeded random weights meant for "
        "int4, for tests and RTL); it needs no download",
    )


def test_targets(capsys: Capture) -> None:
    values = checked(run_command(capsys, "targets", "--json"), "targets")
    assert list(values) == sorted(list_targets())
    done = run_command(capsys, "targets")
    assert [line.split()[0] for line in done.out.splitlines()] == list(list_targets())
    assert "(timing, capacity and area only)" in done.out


def test_one_target(capsys: Capture) -> None:
    values = checked(run_command(capsys, "targets", "small", "--json"), "target")
    done = run_command(capsys, "targets", "small")
    assert (done.code, done.err) == (0, "")
    assert parse_target(done.out, "x").to_json() == values
    names = ", ".join(list_targets())
    refused(
        run_command(capsys, "targets", "smal"),
        f"Target must be one of {names} or a .toml file, not 'smal'; did you mean 'small'?",
    )


def test_compile(capsys: Capture, tmp_path: Path) -> None:
    arguments = ["compile", "tiny-int4", "--target", "small", "--context", 50]
    out = tmp_path / "a"
    values = checked(run_command(capsys, *arguments, "-o", out, "--json"), "compile")
    manifest = romsim.load(out).manifest
    assert values["path"] == str(out)
    assert (values["context"], values["target"]) == (50, "small")
    assert values["rom"] == manifest["rom"]
    done = run_command(capsys, *arguments, "-o", tmp_path / "b")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "tiny-int4 on small (2 tiles, 128 lanes, 500 MHz)"
    assert lines[1] == (
        "  weights   int4g32 0.1 M, int8g32 0.0 M; 5.457 bits per weight with scales"
    )
    assert lines[3].startswith("  context   50 tokens, KV 0.01 MB of 0.52 MB tile SRAM")
    assert lines[-1] == f"  written   {tmp_path / 'b'}"
    assert any("15 tensors quantised here; worst relative error 7.7 %" in line for line in lines)
    assert tree(out) == tree(tmp_path / "b")


def test_context_that_the_model_was_not_made_for_is_noted(capsys: Capture, tmp_path: Path) -> None:
    arguments = ["compile", "opt-13b-mha", "--fit", "-o", tmp_path / "a"]
    done = run_command(capsys, *arguments, "--context", 2049)
    assert done.out.splitlines()[0] == (
        "note: a context of 2049 tokens is more than the 2048 that the model was made for"
    )
    done = run_command(capsys, *arguments, "--context", 2048)
    assert done.out.startswith("opt-13b-mha on ")


def test_compile_a_shape(capsys: Capture, tmp_path: Path) -> None:
    arguments = ["compile", "llama-3.2-1b", "--fit", "--context", 64, "-o", tmp_path / "a"]
    values = checked(run_command(capsys, *arguments, "--json"), "compile")
    assert (values["has_images"], values["fitted"], values["accuracy"]) == (False, True, {})
    done = run_command(capsys, *arguments)
    assert "  no weights: only --engine timing and area can be had" in done.out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--quantize", "blk.*"],
            "Quantisation rule must be PATTERN=FORMAT such as 'blk.*.ffn_down.weight=int4g32', not "
            "'blk.*'",
        ),
        (
            ["--quantize", "blk.*=int5"],
            "Weight format must be int2, int4 or int8 with an optional group such as int4g64, "
            "ternary or ternary-exact, not 'int5'",
        ),
        (["--context", "0"], "Context must be at least 1 token, not 0"),
        (["--rank", "4"], "--rank and --area must be used with --fit, not alone; add --fit"),
        (["--fit", "--rank", "-1"], "LoRA rank to leave room for must be at least 0, not -1"),
        (["--fit", "--area", "0"], "Area limit must be a positive number of mm2, not 0.0"),
        (
            ["--target", "rtl1k"],
            f"Target must be one of {', '.join(list_targets())} or a .toml file, not 'rtl1k'; did "
            f"you mean 'rtl-1k'?",
        ),
    ],
)
def test_compile_refuses(
    arguments: list[str], sentence: str, capsys: Capture, tmp_path: Path
) -> None:
    target = [] if "--target" in arguments else ["--target", "small"]
    for more in ([], ["--json"]):
        done = run_command(
            capsys, "compile", "tiny-int4", *target, "-o", tmp_path / "c", *arguments, *more
        )
        refused(done, sentence)
    assert list(tmp_path.iterdir()) == []


def test_audit(tiny: Description, capsys: Capture) -> None:
    values = checked(run_command(capsys, "audit", tiny.path, "--json"), "audit")
    assert (values["n_differences"], values["differences"]) == (0, [])
    done = run_command(capsys, "audit", tiny.path)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"{values['n_codes']} codes, {values['n_scales']} scales, {values['n_minima']} minima, "
        f"{values['n_gains']} gains compared: 0 differences\n"
    )


def test_verify(tiny: Description, capsys: Capture) -> None:
    arguments = ["verify", tiny.path, "--chat", "Hi", "--tokens", 2, "--level", "values"]
    whole = checked(run_command(capsys, *arguments, "--json"), "verify")
    assert (whole["level"], whole["passed"], whole["rtl"]) == ("values", True, [])
    values = whole["reference"]
    assert values["first"] is None
    done = run_command(capsys, *arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"equal: {values['n_values']:,} values of {values['n_tokens']} tokens compared, 0 "
        f"mismatches, 0 saturations\n"
    )


def test_verify_of_nothing_fails(
    tiny: Description, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = ValueReport(
        n_tokens=0, n_values=0, n_mismatches=0, first=None, tainted=(), saturations=0, counts={}
    )
    done_so = Verification(level="values", reference=empty)
    monkeypatch.setattr("romsim.verification.verify", lambda *a, **k: done_so)
    done = run_command(capsys, "verify", tiny.path)
    assert (done.code, done.out) == (
        1,
        "DIFFERENT: 0 values of 0 tokens compared, 0 mismatches, 0 saturations\n",
    )
    assert not checked(run_command(capsys, "verify", tiny.path, "--json"), "verify", 1)["passed"]


def test_audit_of_nothing_fails(
    tiny: Description, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from romsim_compiler.audit_report import Tally

    monkeypatch.setattr("romsim.api.audit", lambda *a, **k: Tally().report())
    assert run_command(capsys, "audit", tiny.path).code == 1


def test_simulate(tiny: Description, capsys: Capture) -> None:
    arguments = ["simulate", tiny.path, "--prompt", "Once", "--max-tokens", 6, "--ignore-eos"]
    values = checked(run_command(capsys, *arguments, "--json"), "simulate")
    assert len(values["tokens"]) == 6
    assert len(values["token_cycles"]) == 5
    assert values["text"] == load_tokenizer(tiny).decode(values["tokens"])
    done = run_command(capsys, *arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Once" + values["text"] + "\n")
    chip, joules = done.out.splitlines()[-3:-1]
    energy = values["energy"]
    assert energy["context"] == 4 + 5
    for figure in ("token_j", "power_w"):
        assert 0 < energy[figure]["low"] <= energy[figure]["mid"] <= energy[figure]["high"]
    token = {k: 1e3 * v for k, v in energy["token_j"].items()}
    assert joules == (
        f"      {token['mid']:.3g} mJ a token ({token['low']:.2g} to {token['high']:.2g}), "
        f"{energy['power_w']['mid']:.2g} W at 9 tokens of context: an estimate (asap7)"
    )
    mean = sum(values["token_cycles"]) // 5
    assert chip == (
        f"chip: {values['tokens_per_s']:,.0f} tokens/s at 500 MHz ({mean:,} cycles a token), first "
        f"token after {1e6 * values['ttft_s']:,.0f} us (4 prompt tokens), 0 saturations"
    )
    assert done.out.splitlines()[-1].startswith("host: ")


def test_simulate_is_seeded(tiny: Description, capsys: Capture) -> None:
    def said(*more: object) -> list[int]:
        arguments = ["simulate", tiny.path, "--token-ids", "40,41", "--max-tokens", 12, "--json"]
        tokens: list[int] = run_command(capsys, *arguments, *more).json()["tokens"]
        return tokens

    warm = ["--temperature", 1.5, "--top-k", 50, "--ignore-eos"]
    assert said(*warm, "--seed", 1) == said(*warm, "--seed", 1)
    assert said(*warm, "--seed", 1) != said(*warm, "--seed", 2)


def test_simulate_on_the_reference_has_no_clock(tiny: Description, capsys: Capture) -> None:
    arguments = ["simulate", tiny.path, "--token-ids", "40", "--max-tokens", 2]
    done = run_command(capsys, *arguments, "--engine", "reference", "--json")
    values = checked(done, "simulate")
    assert (values["prefill_cycles"], values["token_cycles"]) == (None, [])
    assert values["energy"] is None
    assert values["tokens"] == run_command(capsys, *arguments, "--json").json()["tokens"]
    done = run_command(capsys, *arguments, "--engine", "reference")
    assert done.out.splitlines()[-2] == "chip: 0 saturations"


@pytest.mark.parametrize("name", ["tiny", "shape", "paper"])
def test_timing(name: str, request: pytest.FixtureRequest, capsys: Capture) -> None:
    chip: Description = request.getfixturevalue(name)
    done = run_command(capsys, "simulate", chip.path, "--engine", "timing", "--json")
    values = checked(done, "timing")
    assert values["rows"] == decode_rates(chip)
    assert values["clock_hz"] == chip.target.clock_mhz * 1e6
    done = run_command(capsys, "simulate", chip.path, "--engine", "timing", "--positions", "5,0")
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["context", "cycles", "tokens/s"]
    assert [int(line[0]) for line in lines[1:]] == [5, 0]


def test_timing_of_a_cache_that_is_encoded_by_windows_says_so(
    tmp_path: Path, capsys: Capture
) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip", kv="kivi-2bit,residual=32")
    done = run_command(capsys, "simulate", chip.path, "--engine", "timing", "--positions", "30,31")
    before, at, note = done.out.splitlines()[-3:]
    assert int(at.split()[1]) > 1.2 * int(before.split()[1])
    assert note == "the KV cache encodes 32 tokens at once: one token in 32 takes longer"


def test_trace_is_written_after_a_run_and_not_before(
    tiny: Description, shape: Description, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    arguments = ["simulate", tiny.path, "--max-tokens", 1, "--trace", path, "--json"]
    assert run_command(capsys, *arguments, "--prompt", "").code == 2
    assert not path.exists()
    checked(run_command(capsys, *arguments, "--prompt", "a"), "simulate")
    assert path.read_text().startswith("index,op,unit,layer,operand,")
    timing = ["simulate", shape.path, "--engine", "timing", "--json"]
    checked(run_command(capsys, *timing, "--trace", tmp_path / "t.json"), "timing")
    assert (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Prompt must be given once, as --prompt, --chat or --token-ids, not 0 times"),
        (["--prompt", ""], "Prompt must have at least one token, not none; give a text"),
        (["--token-ids", "1,x"], "--token-ids must be integers separated by commas, not '1,x'"),
        (["--token-ids", ""], "--token-ids must be integers separated by commas, not ''"),
        (["--token-ids", "300"], "Token id must be from 0 to 287, not 300"),
        (["--prompt", "a", "--max-tokens", "0"], "Number of new tokens must be at least 1, not 0"),
        (
            ["--prompt", "a" * 120],
            "Prompt of 120 tokens and 64 new ones must fit the context of 96 tokens, not 183; "
            "shorten the prompt, or compile with a larger --context",
        ),
        (
            ["--prompt", "a", "--engine", "cicle"],
            "Engine must be one of cycle, reference, rtl, timing, not 'cicle'; did you mean "
            "'cycle'?",
        ),
        (
            ["--prompt", "a", "--temperature", "-1"],
            "Temperature must be a finite number of at least 0, not -1.0",
        ),
        (
            ["--prompt", "a", "--top-k", "5"],
            "--top-k must be used with a --temperature above 0, not with greedy choice",
        ),
        (
            ["--prompt", "a", "--seed", "5"],
            "--seed must be used with a --temperature above 0, not with greedy choice",
        ),
        (
            ["--prompt", "a", "--positions", "1"],
            "--positions must be used with --engine timing, not with values",
        ),
        (
            ["--engine", "timing", "--prompt", "a"],
            "--prompt must be used with --engine cycle or reference, not with timing",
        ),
        (
            ["--engine", "timing", "--max-tokens", "64"],
            "--max-tokens must be used with --engine cycle or reference, not with timing",
        ),
        (
            ["--engine", "timing", "--positions", "1;2"],
            "--positions must be integers separated by commas, not '1;2'",
        ),
        (
            ["--prompt", "a", "--model", "tiny-int4"],
            "--model must be used with --engine reference, not with cycle, which runs from the "
            "description alone",
        ),
        (
            ["--prompt", "a", "--max-tokens", "1", "--trace", "t.png"],
            "Timeline file must end in .json or .csv, not '.png'",
        ),
    ],
)
def test_simulate_refuses(
    arguments: list[str], sentence: str, tiny: Description, capsys: Capture
) -> None:
    refused(run_command(capsys, "simulate", tiny.path, "--json", *arguments), sentence)


def test_simulate_refuses_an_adapter_that_is_not_there(tiny: Description, capsys: Capture) -> None:
    for engine in ("cycle", "reference", "timing"):
        prompt = [] if engine == "timing" else ["--prompt", "a"]
        refused(
            run_command(
                capsys, "simulate", tiny.path, "--engine", engine, "--adapter", "x", *prompt
            ),
            f"Adapter must be one that is resident in {tiny.path} (story), not 'x'; compile with "
            f"--lora x=FOLDER",
        )


def test_shape_is_refused_by_all_that_need_values(shape: Description, capsys: Capture) -> None:
    rest = (
        f"must have ROM images, but {shape.path} has none: it was compiled from a shape without "
        f"weights; compile a model with weights, or use --engine timing"
    )
    for arguments, subject in (
        (["simulate", shape.path, "--prompt", "a"], "Engine 'cycle'"),
        (["simulate", shape.path, "--prompt", "a", "--engine", "reference"], "Engine 'reference'"),
        (["verify", shape.path], "Comparison of values"),
        (["audit", shape.path], "Audit"),
    ):
        refused(run_command(capsys, *arguments), f"{subject} {rest}")


@pytest.mark.parametrize("command", ["audit", "verify", "simulate"])
def test_folder_that_is_no_description_is_refused(
    command: str, tmp_path: Path, capsys: Capture
) -> None:
    refused(
        run_command(capsys, command, tmp_path),
        f"{tmp_path} must be a compiled description with a manifest.json, which cannot be read; "
        f"make one with `romsim compile MODEL -o {tmp_path}`",
    )


def test_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_command(capsys, "doctor", "--json")
    values = checked(done, "doctor", done.code)
    assert done.code == (0 if values["is_ok"] else 2)
    assert run_command(capsys, "doctor").code == done.code


class Terminal:
    """A standard error that shows what is written to it."""

    def __init__(self, *, is_live: bool) -> None:
        self.text = ""
        self._is_live = is_live

    def isatty(self) -> bool:
        return self._is_live

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """Nothing is held back."""


def test_progress_is_a_line_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(is_live=True)
    monkeypatch.setattr("sys.stderr", terminal)
    times = iter([0.0, 5.0, 5.05, 10.0, 20.0])
    progress = Progress(clock=lambda: next(times))
    progress("burning L0.o", 0.01)
    assert terminal.text == "\r\x1b[Kburning L0.o: 1 %"
    progress("burning L0.o", 0.02)  # a twentieth of a second later: not shown
    assert terminal.text == "\r\x1b[Kburning L0.o: 1 %"
    progress("burning head", 0.25)
    assert terminal.text.endswith("\r\x1b[Kburning head: 25 %, 30 s left")
    progress("done", 1.0)
    assert terminal.text.endswith("\r\x1b[Kdone: 100 %, 0 s left\r\x1b[K")
    progress.clear()
    assert terminal.text.endswith("\r\x1b[K\r\x1b[K")


def test_no_progress_stays_before_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(is_live=True)
    monkeypatch.setattr("sys.stderr", terminal)
    with pytest.raises(SystemExit) as end:
        main(["targets", "smal"])
    assert end.value.code == 2
    assert terminal.text.startswith("\r\x1b[Kromsim: Target must be one of")


def test_progress_is_silent_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(is_live=False)
    monkeypatch.setattr("sys.stderr", terminal)
    progress = Progress(clock=lambda: 1.0)
    progress("burning", 0.5)
    progress.clear()
    assert terminal.text == ""
