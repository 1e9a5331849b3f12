"""Files that appear whole or not at all: written aside, then renamed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from romsim_models.errors import SpecError

__all__ = ["check_folder", "write_json", "write_text"]


def write_text(path: Path, text: str, *, what: str) -> None:
    """Write a text file.

    Parameters
    ----------
    what
        What the file is, for the message: ``"Table"``.

    Raises
    ------
    SpecError
        If it cannot be written; nothing is left then.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise SpecError(
            f"{what} {path} must be writable, not {error.strerror!r}; choose another file"
        ) from None


def write_json(path: Path, values: Any, *, what: str) -> None:
    """Write JSON with sorted keys, so that equal values are equal bytes; as :func:`write_text`."""
    text = json.dumps(values, indent=1, sort_keys=True, allow_nan=False)
    write_text(path, text + "\n", what=what)


def check_folder(path: Path, *, what: str) -> None:
    """Refuse a file whose folder is not there, before the work that it is to keep.

    Raises
    ------
    SpecError
        With the folder.
    """
    if not path.parent.is_dir() or path.is_dir():
        raise SpecError(f"{what} {path} must be a file in a folder that exists; choose another one")
