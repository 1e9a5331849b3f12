"""What the outcome of a mutant depends on besides the design: its tests and what they import."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["digest_of", "files_of"]

REPOSITORY = Path(__file__).resolve().parent.parent
_FOLLOWED = ("tests", "benchmarks")
_FOLDERS = {"romsim_rtl": "rtl", "romsim_compiler": "compiler", "romsim_models": "models"}


def files_of(modules: Sequence[str]) -> list[Path]:
    """Give the files of modules and of what they import.

    Imports of the tests and benchmarks are followed; of the packages only what these import
    themselves counts, since the design is known by its netlist.

    Parameters
    ----------
    modules
        Names such as ``tests.rtl.test_recip``.

    Returns
    -------
    list
        In the order of their names.
    """
    found: set[Path] = set()
    pending = list(modules)
    while pending:
        module = pending.pop()
        path = _path(module)
        if path is None or path in found:
            continue
        found.add(path)
        if module.startswith(_FOLLOWED):
            pending += _imports(path)
    return sorted(found)


def _path(module: str) -> Path | None:
    top = module.partition(".")[0]
    base = REPOSITORY / _FOLDERS.get(top, "") / module.replace(".", "/")
    if top not in (*_FOLLOWED, *_FOLDERS):
        return None
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def digest_of(modules: Sequence[str]) -> str:
    """SHA-256 over the files' names and contents, in hexadecimal."""
    digest = hashlib.sha256()
    for path in files_of(modules):
        digest.update(f"{path.relative_to(REPOSITORY)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
