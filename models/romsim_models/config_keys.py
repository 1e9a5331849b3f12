"""Reading a model's configuration key by key, so that none is defaulted or ignored in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from romsim_models.errors import FormatError, SpecError
from romsim_models.spec import ModelSpec

__all__ = ["ConfigKeys", "build_spec", "read_json_object", "read_text"]


class ConfigKeys:
    """Keys and values of one configuration; every key that is used is ticked off.

    Parameters
    ----------
    values
        The configuration. A ``None`` (JSON ``null``) counts as a missing key.
    where
        File, for messages.
    prefix
        Put before a key in messages.
    """

    def __init__(self, values: Mapping[str, Any], *, where: str, prefix: str = "") -> None:
        self.notes: list[str] = []
        self._values = {key: value for key, value in values.items() if value is not None}
        self._unused = set(self._values)
        self._where = where
        self._file = Path(where).name  # notes are written into descriptions: no paths in them
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def full(self, key: str) -> str:
        """Key as the file has it."""
        return self._prefix + key

    def required(self, key: str) -> Any:
        """Value of a key that must be there.

        Raises
        ------
        FormatError
            If it is not.
        """
        if key not in self._values:
            raise FormatError(
                f"{self._where}: key {self.full(key)!r} must be present, not missing; "
                "get or convert the model again"
            )
        return self.peek(key)

    def optional(self, key: str, default: Any, reason: str) -> Any:
        """Value of a key, or a default, which is then noted with its reason."""
        if key not in self._values:
            shown = json.dumps(default)
            self.notes.append(
                f"{self._file}: key {self.full(key)!r} is missing; taken as {shown} ({reason})"
            )
        return self.peek(key, default)

    def peek(self, key: str, default: Any = None) -> Any:
        """Value of a key whose absence says nothing."""
        self._unused.discard(key)
        return self._values.get(key, default)

    def require_neutral(self, neutral: Mapping[str, tuple[Any, ...]], reason: str) -> None:
        """Refuse keys that would change the arithmetic.

        Raises
        ------
        FormatError
            If one of ``neutral``'s keys has another value than those listed for it.
        """
        for key, allowed in neutral.items():
            value = self.peek(key, allowed[0])
            if value not in allowed:
                listed = " or ".join(json.dumps(each) for each in allowed)
                raise FormatError(
                    f"{self._where}: key {self.full(key)!r} must be {listed}, not {value!r}; "
                    f"{reason}"
                )

    def finish(self, silent: frozenset[str]) -> tuple[str, ...]:
        """Note the keys that were not used, except ``silent`` ones; return all notes."""
        for key in sorted(self._unused - silent):
            self.notes.append(f"{self._file}: key {self.full(key)!r} is not used")
        return tuple(self.notes)


def build_spec(values: dict[str, Any], *, where: str, keys: Mapping[str, str]) -> ModelSpec:
    """Make a `ModelSpec`, with the file's own key names in the message if it is refused.

    Parameters
    ----------
    values
        Arguments of `ModelSpec`. Of the name, characters that cannot be printed (a new line, an
        escape sequence, bytes of a folder's name that are no UTF-8) become U+FFFD.
    where
        File, for messages.
    keys
        Our field name to the file's key.

    Raises
    ------
    FormatError
        If `ModelSpec` refuses the values.
    """
    name = "".join(c if c.isprintable() else "\ufffd" for c in str(values["name"]))
    try:
        return ModelSpec(**{**values, "name": name})
    except SpecError as error:
        fields = "|".join(sorted(keys, key=len, reverse=True))
        message = re.sub(rf"\b({fields})\b", lambda match: keys[match[0]], str(error))
        raise FormatError(f"{where}: {message}") from None


def read_text(path: Path) -> str:
    """Read a text file in UTF-8.

    Raises
    ------
    FormatError
        If the file is unreadable, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FormatError(
            f"{path}: file must be readable, not {error.strerror!r}; check that the directory is "
            "complete"
        ) from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: file must be UTF-8, not {error.reason!r}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises
    ------
    FormatError
        If the file is unreadable, is no JSON (with line and column), holds something else than an
        object, or has a key twice.
    """
    text = read_text(path)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise FormatError(f"{path}: key {key!r} must stand once, not twice")
            found[key] = value
        return found

    try:
        values = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{path}: file must be JSON, not text with an error in line {error.lineno}, "
            f"column {error.colno}: {error.msg}"
        ) from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise FormatError(
            f"{path}: file must be JSON of sane depth and numbers, not brackets within thousands "
            "of brackets or a number of thousands of digits; the file is corrupt"
        ) from None
    if not isinstance(values, dict):
        raise FormatError(f"{path}: file must hold a JSON object, not {type(values).__name__!r}")
    return values
