"""Files with what other commands printed as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from romsim_models.errors import FormatError

__all__ = ["read_result"]


def read_result(path: str | Path) -> dict[str, Any]:
    """Read what a command printed with ``--json``.

    Raises
    ------
    FormatError
        If the file cannot be read or holds no JSON object.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(
            f"Result {path} must be a readable file, not {type(error).__name__}; "
            f"write it with --json"
        ) from None
    except ValueError as error:
        raise FormatError(
            f"Result {path} must be the JSON that a command prints with --json, not what it holds "
            f"({error}); write it again"
        ) from None
    if not isinstance(values, dict):
        raise FormatError(
            f"Result {path} must be a JSON object, not {type(values).__name__}; write it with "
            f"--json"
        )
    return values
