"""Whole or not at all: whatever stops a compilation, nothing half-made is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import romsim
from romsim_compiler import pipeline
from romsim_models.errors import FormatError
from tests.command_line import run_command
from tests.tiny_chips import compile_tiny, tree

# Stops for good in the middle of burning, after telling that it is there.
SCRIPT = """
import sys, time
from romsim_compiler import burn
from romsim.cli import main
packed = burn.iter_packed
def stuck(tensors, mapping, array):
    yield from packed(tensors, mapping, array)
    if tensors[0].name.startswith("blk.1."):
        print("here", flush=True)
        time.sleep(600)
burn.iter_packed = stuck
main(["compile", "tiny-int4", "--target", "small", "-o", sys.argv[1]])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_compilation_leaves_nothing(
    number: signal.Signals, repository: Path, tmp_path: Path
) -> None:
    paths = [str(repository / part) for part in (".", "compiler", "models", "rtl")]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "deep" / "chip")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    assert len(list((tmp_path / "deep").iterdir())) == 1  # the folder aside
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.strip() == "romsim: interrupted; nothing half-made is left behind"
    assert list(tmp_path.iterdir()) == []


def test_fault_while_burning_leaves_the_earlier_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(compile_tiny("tiny-int4", tmp_path / "chip").path)

    def fail(*arguments: object) -> None:
        raise FormatError("Weight must be finite, not nan")

    monkeypatch.setattr(pipeline, "burn", fail)
    with pytest.raises(FormatError, match=r"^Weight must be finite, not nan$"):
        compile_tiny("tiny-int2", tmp_path / "chip")
    assert tree(tmp_path / "chip") == before
    assert [p.name for p in tmp_path.iterdir()] == ["chip"]
    with pytest.raises(FormatError, match=r"^Weight must be finite, not nan$"):
        compile_tiny("tiny-int2", tmp_path / "new" / "chip")
    assert [p.name for p in tmp_path.iterdir()] == ["chip"]


def test_foreign_folder_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thesis.tex").write_text("kept")
    monkeypatch.delattr(pipeline, "burn")
    done = run_command(capsys, "compile", "tiny-int4", "--target", "small", "-o", tmp_path)
    assert done.code == 2
    assert done.sentence() == (
        f"romsim: Output {tmp_path} must be a new or an earlier description, not another file or "
        f"folder; choose another -o"
    )
    assert (tmp_path / "thesis.tex").read_text() == "kept"


def test_finished_description_is_the_one_that_is_loaded(tmp_path: Path) -> None:
    compile_tiny("tiny-int2", tmp_path / "chip")
    compile_tiny("tiny-int4", tmp_path / "chip")
    assert romsim.load(tmp_path / "chip").name == "tiny-int4"
