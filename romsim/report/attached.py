"""Results of other commands, read from their JSON and shown as they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from romsim.report.model import Column, Table
from romsim_models.errors import FormatError

__all__ = ["attached_tables", "read_result"]

_MAX_LISTED = 60


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


def attached_tables(kind: str, number: int, values: dict[str, Any]) -> tuple[Table, ...]:
    """Return a result's values as tables of text, exactly as the command wrote them.

    Parameters
    ----------
    kind
        The command: ``verify`` or ``compare``.
    number
        Which of several results, from 1.
    values
        The command's object.
    """
    scalars: list[tuple[str, str]] = []
    tables: list[Table] = []
    _walk("", values, scalars, tables, f"{kind}_{number}", f"`romsim {kind}`")
    head = Table(
        key=f"{kind}_{number}",
        title=f"Result {number} of `romsim {kind}`",
        note="As the command wrote it.",
        columns=(Column(key="name", label="name"), Column(key="value", label="value")),
        rows=tuple(scalars),
        listed=len(scalars) <= _MAX_LISTED,
    )
    return (head, *tables)


def _walk(
    path: str,
    value: Any,
    scalars: list[tuple[str, str]],
    tables: list[Table],
    key: str,
    title: str,
) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _walk(f"{path}.{name}" if path else str(name), inner, scalars, tables, key, title)
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        names = list(dict.fromkeys(name for one in value for name in one))
        tables.append(
            Table(
                key=f"{key}_{path.replace('.', '_')}",
                title=f"{title}: {path}",
                note="As the command wrote it.",
                columns=tuple(Column(key=n, label=n.replace("_", " ")) for n in names),
                rows=tuple(tuple(_text(one.get(n)) for n in names) for one in value),
                listed=len(value) <= _MAX_LISTED,
            )
        )
    else:
        scalars.append((path, _text(value) or "–"))


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True)
    return str(value)
