from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from romsim import cli
from romsim_models.errors import SpecError
from tests.command_line import run_command

COMMANDS = list(cli._COMMANDS)
HEAVY = {"numpy", "torch", "numba", "networkx", "pydantic", "tokenizers", "jinja2", "amaranth"}


def loaded_by(repository: Path, *arguments: str) -> tuple[set[str], str]:
    """Modules that a fresh process holds after a command, and what it printed."""
    paths = [str(repository / part) for part in (".", "compiler", "models", "rtl")]
    script = (
        "import sys, json\n"
        "from romsim.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in json.loads(done.stderr)}, done.stdout


def test_help_loads_nothing_heavy(repository: Path) -> None:
    modules, out = loaded_by(repository, "--help")
    assert modules & HEAVY == set()
    assert "romsim_models" in modules
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\S", out, re.M), name


@pytest.mark.parametrize("arguments", [["models"], ["simulate", "--help"], ["compile", "-h"]])
def test_light_commands_load_nothing_heavy(arguments: list[str], repository: Path) -> None:
    assert loaded_by(repository, *arguments)[0] & HEAVY == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_has_json(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_command(capsys, name, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: romsim {name} ")
    assert "--json" in done.out
    command: Any = import_module(cli._COMMANDS[name][0]).command
    assert command.name == name


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_command(capsys, "--version")
    assert done.code == 0
    assert re.fullmatch(r"romsim, version \d+\.\d+\.\d+\n", done.out)


@pytest.mark.parametrize(
    ("word", "hint"),
    [("complie", "; did you mean 'compile'?"), ("verfy", "; did you mean 'verify'?"), ("xyz", "")],
)
def test_misspelt_command_is_refused_with_the_nearest(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_command(capsys, word, "x")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == (
        f"Error: Command must be one of {', '.join(COMMANDS)}, not {word!r}{hint}"
    )


def test_misspelt_option_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_command(capsys, "compile", "tiny-int4", "--targt", "small", "-o", "x")
    assert (done.code, done.out) == (2, "")
    line = done.err.splitlines()[-1]
    assert line.startswith("Error: No such option")
    assert "--targt" in line
    assert "--target" in line


def test_missing_argument_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_command(capsys, "compile", "tiny-int4")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == "Error: Missing option '-o' / '--out'."


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_command(capsys)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: romsim [OPTIONS] COMMAND [ARGS]...")


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("romsim_models.registry.named_models", fail)


def test_user_s_error_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, SpecError("Thing must be so, not otherwise; change it"))
    for more in ([], ["--json"]):
        done = run_command(capsys, "models", *more)
        assert done.code == 2
        assert done.sentence() == "romsim: Thing must be so, not otherwise; change it"


def test_error_of_the_system_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, OSError(28, "No space left on device", "x.bin"))
    done = run_command(capsys, "models")
    assert done.code == 2
    assert done.sentence() == (
        "romsim: [Errno 28] No space left on device: 'x.bin'; check the file and the space on its "
        "disk"
    )


def test_fault_of_our_own_says_so_and_is_neither_1_nor_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    done = run_command(capsys, "models")
    assert done.code == cli.INTERNAL_ERROR == 70
    assert done.sentence() == (
        "romsim: internal error (ZeroDivisionError: division by zero); this is a fault of romsim, "
        "not yours: run `romsim --debug ...` and report what it prints"
    )


@pytest.mark.parametrize(
    "error", [SpecError("so"), OSError(28, "full"), ZeroDivisionError("nothing")]
)
def test_debug_lets_every_error_through(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, error)
    with pytest.raises(type(error)) as caught:
        cli.main(["--debug", "models"])
    assert caught.value is error


def test_interruption_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    done = run_command(capsys, "models")
    assert (done.code, done.out) == (130, "")
    assert done.err.strip() == "romsim: interrupted; nothing half-made is left behind"


def test_handler_of_signals_is_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run_command(capsys, "models")
    assert signal.getsignal(signal.SIGTERM) is before


def test_reader_that_stops_reading_is_no_error(repository: Path) -> None:
    paths = [str(repository / part) for part in (".", "compiler", "models", "rtl")]
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m romsim.cli targets --json | head -c 1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("{", "")
