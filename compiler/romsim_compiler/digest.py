"""Digests of a description's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["MANIFEST", "file_digest", "manifest_digest"]

MANIFEST = "manifest.json"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's values, its own ``sha256`` left out."""
    values = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
