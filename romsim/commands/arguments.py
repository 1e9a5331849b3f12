"""What several commands read from their arguments in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from romsim_models.errors import SpecError

__all__ = ["adapter_folders", "token_ids"]


def adapter_folders(texts: Sequence[str]) -> dict[str, str]:
    """Return name to folder of ``NAME=FOLDER``; a folder alone gives its own name.

    Raises
    ------
    SpecError
        If a name is given twice.
    """
    adapters: dict[str, str] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not equals:
            name, folder = Path(text).name, text
        if name in adapters:
            raise SpecError(f"Adapter name must be given once, not twice: {name!r}")
        adapters[name] = folder
    return adapters


def token_ids(option: str, text: str | None) -> list[int] | None:
    """Return the integers of a list with commas, or ``None`` where the option was not given.

    Raises
    ------
    SpecError
        If a part is no integer.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"{option} must be integers separated by commas, not {text!r}") from None
