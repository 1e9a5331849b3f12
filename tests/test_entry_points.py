"""What starts everything: the check of the system's packages, and CI's one command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def write_program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def check_system(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, str(REPOSITORY / ".ci" / "system-packages"), python],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def run_ci(tmp_path: Path, make: str) -> subprocess.CompletedProcess[str]:
    write_program(tmp_path / "bin", "make", make)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(REPOSITORY / ".ci" / "run")],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    for name in ("g++", "make", "perl"):
        write_program(folder, name, "true")
    return folder


def test_complete_system_passes_in_silence(tools: Path) -> None:
    done = check_system(tools, sys.executable)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("g++", "  g++ (compiles Verilated models): Debian package g++\n"),
        ("make", "  make (builds Verilated models): Debian package make\n"),
        ("perl", "  perl (runs the verilator script): Debian package perl\n"),
    ],
)
def test_missing_tool_is_named_with_its_package(name: str, line: str, tools: Path) -> None:
    (tools / name).unlink()
    done = check_system(tools, sys.executable)
    heading = "Set-up must find these on the system, and they are missing:\n"
    assert (done.returncode, done.stderr) == (2, heading + line)


def test_missing_python_is_named(tools: Path) -> None:
    done = check_system(tools, "")
    assert done.returncode == 2
    assert "python >= 3.11 (none found as python3.11 or python3; or give make PYTHON=...)" in (
        done.stderr
    )


def test_old_python_is_named_with_its_version(tools: Path) -> None:
    write_program(tools, "old-python", 'test "$1" = -V && { echo "Python 3.9.2"; exit; }; exit 1')
    done = check_system(tools, "old-python")
    assert done.returncode == 2
    assert "  python >= 3.11 (old-python is Python 3.9.2): Debian package python3.11\n" in (
        done.stderr
    )


def test_python_without_venv_is_named_with_the_package(tools: Path) -> None:
    write_program(tools, "bare-python", 'case "$2" in *venv*) exit 1;; esac')
    done = check_system(tools, "bare-python")
    assert done.returncode == 2
    assert done.stderr.endswith("  the venv module of bare-python: Debian package python3-venv\n")


@pytest.mark.parametrize(("status", "word"), [(0, "12 passed"), (2, "1 failed, 11 passed")])
def test_ci_ends_with_the_closing_line_and_status_of_the_tests(
    status: int, word: str, tmp_path: Path
) -> None:
    closing = f"==== {word} in 3.21s ===="
    done = run_ci(tmp_path, f"echo set up; echo '{closing}'; echo after; exit {status}")
    assert done.returncode == status
    assert done.stdout.splitlines() == ["set up", closing, "after", closing]


def test_ci_in_which_no_test_ran_fails(tmp_path: Path) -> None:
    done = run_ci(tmp_path, "echo nothing to do")
    assert done.returncode == 1
    assert done.stderr == "pytest printed no closing line\n"


def test_ci_runs_the_tests(tmp_path: Path) -> None:
    done = run_ci(tmp_path, 'echo "$@"; pwd; echo 1 passed in 0.01s')
    assert done.stdout.splitlines()[:2] == ["test", str(REPOSITORY)]
