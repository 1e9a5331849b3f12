"""Digests of a description's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["MANIFEST", "file_digest"]

MANIFEST = "manifest.json"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
