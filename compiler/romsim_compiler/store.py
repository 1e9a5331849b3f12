"""Writing a description: files aside, digests, then one rename.

So it appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from romsim_models.errors import DescriptionError

__all__ = ["Folder", "file_digest", "replace_folder", "write_json"]

MANIFEST = "manifest.json"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        """Write the manifest, with size and digest of every other file."""
        files = sorted(p for p in self.path.rglob("*") if p.is_file())
        listed = {
            p.relative_to(self.path).as_posix(): {
                "bytes": p.stat().st_size,
                "sha256": file_digest(p),
            }
            for p in files
        }
        write_json(self.path / MANIFEST, {**manifest, "files": listed})


@contextmanager
def replace_folder(target: Path) -> Iterator[Folder]:
    """Give a folder to write into; move it to ``target`` when the block ends without an error.

    Raises
    ------
    DescriptionError
        If ``target`` exists and is no description, or its parent cannot be written.
    """
    if target.exists() and not (target.is_dir() and _is_ours(target)):
        raise DescriptionError(
            f"Output {target} must be a new or an earlier description, not another file or folder; "
            f"choose another -o"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        aside.chmod(0o755)
    except OSError as error:
        raise DescriptionError(
            f"Output {target} must be writable, not {error.strerror!r}; choose another -o"
        ) from None
    try:
        yield Folder(aside)
        old = None
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            target.rename(old / "was")
        aside.rename(target)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise DescriptionError(
            f"Output {target} must have room and be writable, not {error.strerror!r}; free space "
            f"or choose another -o"
        ) from None
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _is_ours(path: Path) -> bool:
    return (path / MANIFEST).is_file() or not any(path.iterdir())
