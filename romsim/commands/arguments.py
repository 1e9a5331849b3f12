"""What several commands read from their arguments in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from romsim_models.errors import SpecError

__all__ = ["adapter_folders", "integers_option", "read_integers"]


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


def integers_option(name: str, help: str) -> Callable[[Any], Any]:
    """Return an option whose value is a list of integers, or ``None`` where it is not given.

    A value that is none is refused as a `SpecError`.
    """
    return click.option(name, callback=_integers, help=help)


def _integers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> list[int] | None:
    return None if text is None else read_integers(text, parameter.opts[0])


def read_integers(text: str, name: str) -> list[int]:
    """Return the integers of an option's value.

    Raises
    ------
    SpecError
        If it is something else, with the option's name.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"{name} must be integers separated by commas, not {text!r}") from None
