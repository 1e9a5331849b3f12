"""Writing a description: files aside, digests, then one rename.

So it appears whole or not at all.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from romsim_compiler.digest import MANIFEST, file_digest, manifest_digest
from romsim_models.errors import DescriptionError

__all__ = ["Folder", "replace_folder", "write_json"]


def write_json(path: Path, values: Any) -> None:
    """Write values as JSON with sorted keys and a final newline: same values, same bytes."""
    text = json.dumps(values, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


class Folder:
    """A description that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def json(self, name: str, values: Any) -> None:
        """Write one JSON file."""
        write_json(self.path / name, values)

    def text(self, name: str, text: str) -> None:
        """Write one text file."""
        (self.path / name).write_text(text, encoding="utf-8", newline="\n")

    def seal(self, manifest: dict[str, Any]) -> None:
        """Write the manifest, with size and digest of every other file, and its own digest."""
        files = sorted(p for p in self.path.rglob("*") if p.is_file())
        listed = {
            p.relative_to(self.path).as_posix(): {
                "bytes": p.stat().st_size,
                "sha256": file_digest(p),
            }
            for p in files
        }
        values = {**manifest, "files": listed}
        write_json(self.path / MANIFEST, {**values, "sha256": manifest_digest(values)})


@contextmanager
def replace_folder(target: Path) -> Iterator[Folder]:
    """Give a folder to write into; move it to ``target`` when the block ends without an error.

    Whatever ends the block early, an interruption too, leaves ``target`` and its parents as they
    were.

    Raises
    ------
    DescriptionError
        If ``target`` exists and is no description, or its parent cannot be written.
    """
    target = target.absolute()
    _check_replaceable(target)
    made: list[Path] = []
    try:
        for parent in reversed([p for p in target.parents if not p.exists()]):
            parent.mkdir()
            made.append(parent)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        aside.chmod(0o755)
    except OSError as error:
        _remove_empty(made)
        raise DescriptionError(
            f"Output {target} must be writable, not {error.strerror!r}; choose another -o"
        ) from None
    try:
        yield Folder(aside)
        _swap(aside, target)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        _remove_empty(made)
        raise DescriptionError(
            f"Output {target} must have room and be writable, not {error.strerror!r}; free space "
            f"or choose another -o"
        ) from None
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        _remove_empty(made)
        raise


def _swap(aside: Path, target: Path) -> None:
    """Put the finished folder in place; if that fails, the earlier one stands there again."""
    if not target.exists():
        aside.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    was = old / "was"
    try:
        target.rename(was)
        aside.rename(target)
    except BaseException:
        if was.exists() and not target.exists():
            was.rename(target)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with suppress(OSError):  # somebody else put something into it
            folder.rmdir()


def _check_replaceable(target: Path) -> None:
    """Refuse to replace what this program did not write."""
    if not target.exists() and not target.is_symlink():
        return
    if not (target.is_dir() and _is_ours(target)):
        raise DescriptionError(
            f"Output {target} must be a new or an earlier description, not another file or folder; "
            f"choose another -o"
        )
    if not any(target.iterdir()):
        return
    listed = {MANIFEST, *json.loads((target / MANIFEST).read_text(encoding="utf-8"))["files"]}
    found = sorted(p.relative_to(target).as_posix() for p in target.rglob("*") if not p.is_dir())
    foreign = [name for name in found if name not in listed]
    if foreign:
        raise DescriptionError(
            f"Output {target} must hold nothing but an earlier description, not {foreign[0]!r} "
            f"({len(foreign)} such files), which replacing it would delete; move it away or choose "
            f"another -o"
        )


def _is_ours(path: Path) -> bool:
    """Whether a folder is empty, or has the manifest of a description."""
    if not any(path.iterdir()):
        return True
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(manifest, dict)
        and "schema_version" in manifest
        and isinstance(manifest.get("files"), dict)
    )
