from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from romsim_compiler import store
from romsim_compiler.digest import file_digest
from romsim_compiler.store import Folder, replace_folder, write_json
from romsim_models.errors import DescriptionError


def fill(folder: Folder, text: str = "new") -> None:
    folder.text("a.txt", text)
    folder.json("b.json", {"z": 1, "a": [1, 2]})
    folder.seal({"schema_version": 1, "name": text})


def make(target: Path, text: str = "new") -> None:
    with replace_folder(target) as folder:
        fill(folder, text)


def break_off(target: Path, error: BaseException) -> None:
    with replace_folder(target) as folder:
        fill(folder)
        raise error


def names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def refused(target: Path, message: str) -> None:
    before = names(target.parent) if target.parent.is_dir() else []
    with (
        pytest.raises(DescriptionError, match=rf"^{re.escape(message)}$"),
        replace_folder(target),
    ):
        raise AssertionError("must not get so far")
    assert (names(target.parent) if target.parent.is_dir() else []) == before


def test_manifest_lists_size_and_digest_of_every_other_file(tmp_path: Path) -> None:
    with replace_folder(tmp_path / "x") as folder:
        (folder.path / "sub").mkdir()
        (folder.path / "sub" / "c.bin").write_bytes(b"\x00\x01")
        fill(folder)
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    assert sorted(manifest["files"]) == ["a.txt", "b.json", "sub/c.bin"]
    # Of b"\x00\x01", by sha256sum.
    digest = "b413f47d13ee2fe6c845b2ee141af81de858df4ec549a58b7970bb96645bc8d2"
    assert manifest["files"]["sub/c.bin"] == {"bytes": 2, "sha256": digest}
    assert file_digest(tmp_path / "x" / "sub" / "c.bin") == digest
    assert manifest["name"] == "new"


def test_json_is_sorted_and_ends_with_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "j", {"b": 1, "a": {"d": "é", "c": [1]}})
    assert (tmp_path / "j").read_bytes() == (
        b'{\n "a": {\n  "c": [\n   1\n  ],\n  "d": "\\u00e9"\n },\n "b": 1\n}\n'
    )


def test_no_number_that_json_has_not_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^Out of range float values are not JSON compliant: nan$"
    ):
        write_json(tmp_path / "j", {"a": float("nan")})


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "x"
    with replace_folder(target) as folder:
        fill(folder)
        assert not target.exists()
    assert names(target) == ["a.txt", "b.json", "manifest.json"]
    assert names(target.parent) == ["x", "x/a.txt", "x/b.json", "x/manifest.json"]
    assert target.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [RuntimeError("half way"), KeyboardInterrupt()])
def test_failure_in_the_middle_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        break_off(tmp_path / "deep" / "er" / "x", error)
    assert names(tmp_path) == []


def test_failure_in_the_middle_keeps_the_earlier_description(tmp_path: Path) -> None:
    make(tmp_path / "x", "old")
    with pytest.raises(KeyboardInterrupt):
        break_off(tmp_path / "x", KeyboardInterrupt())
    assert (tmp_path / "x" / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["x", "x/a.txt", "x/b.json", "x/manifest.json"]


def test_failed_rename_brings_the_earlier_description_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "x", "old")
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if target == tmp_path / "x" and self.name != "was":
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    message = (
        f"Output {tmp_path / 'x'} must have room and be writable, not 'No space left on device'; "
        f"free space or choose another -o"
    )
    with pytest.raises(DescriptionError, match=rf"^{re.escape(message)}$"):
        make(tmp_path / "x", "new")
    assert (tmp_path / "x" / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["x", "x/a.txt", "x/b.json", "x/manifest.json"]


def test_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, values: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_json", full)
    message = (
        f"Output {tmp_path / 'p' / 'x'} must have room and be writable, not 'No space left on "
        f"device'; free space or choose another -o"
    )
    with pytest.raises(DescriptionError, match=rf"^{re.escape(message)}$"):
        make(tmp_path / "p" / "x")
    assert names(tmp_path) == []


def test_earlier_description_and_empty_folder_are_replaced(tmp_path: Path) -> None:
    make(tmp_path / "x", "old")
    make(tmp_path / "x", "new")
    assert (tmp_path / "x" / "a.txt").read_text() == "new"
    (tmp_path / "y").mkdir()
    make(tmp_path / "y")
    assert names(tmp_path / "y") == ["a.txt", "b.json", "manifest.json"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_in_the_working_folder_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("x"))
    assert names(tmp_path / "x") == ["a.txt", "b.json", "manifest.json"]


@pytest.mark.parametrize(
    "manifest", [None, "{", '{"manifest_version": 3}', "[]", '{"schema_version": 1, "files": 3}']
)
def test_foreign_folder_is_refused(tmp_path: Path, manifest: str | None) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "diary.txt").write_text("kept")
    if manifest is not None:
        (target / "manifest.json").write_text(manifest)
    refused(
        target,
        f"Output {target} must be a new or an earlier description, not another file or folder; "
        f"choose another -o",
    )
    assert (target / "diary.txt").read_text() == "kept"


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_file_is_refused(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "x"
    if kind == "file":
        target.write_text("kept")
    else:
        target.symlink_to(tmp_path / "nowhere")
    refused(
        target,
        f"Output {target} must be a new or an earlier description, not another file or folder; "
        f"choose another -o",
    )


def test_description_with_files_of_the_user_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "x"
    make(target)
    (target / "notes").mkdir()
    (target / "notes" / "a.md").write_text("kept")
    (target / "z.png").write_text("kept")
    refused(
        target,
        f"Output {target} must hold nothing but an earlier description, not 'notes/a.md' (2 such "
        f"files), which replacing it would delete; move it away or choose another -o",
    )


def test_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "x"
    refused(target, f"Output {target} must be writable, not 'Not a directory'; choose another -o")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_parent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fixed").mkdir()
    (tmp_path / "fixed").chmod(0o555)
    target = tmp_path / "fixed" / "x"
    refused(target, f"Output {target} must be writable, not 'Permission denied'; choose another -o")


def test_unwritable_parent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdtemp(prefix: str, dir: Path) -> str:
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr("tempfile.mkdtemp", mkdtemp)
    target = tmp_path / "deep" / "x"
    refused(target, f"Output {target} must be writable, not 'Permission denied'; choose another -o")
    assert names(tmp_path) == []
