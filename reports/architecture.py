"""The tables of docs/architecture.md, written anew from the first lines of the modules' docstrings.

``python reports/architecture.py`` rewrites the rows; every other line of the page stays as it is.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

__all__ = ["rewrite_tables"]

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "architecture.md"
HEAD = ["| module | one line |", "|---|---|"]


def rewrite_tables(page: str) -> str:
    """Give the page with the table under each ``## `folder` `` heading made from its modules."""
    lines = page.splitlines()
    result: list[str] = []
    folder = ""
    position = 0
    while position < len(lines):
        line = lines[position]
        if line.startswith("## `"):
            folder = line.split("`")[1]
        if lines[position : position + 2] == HEAD:
            result += HEAD + list_modules(folder)
            position += 2
            while position < len(lines) and lines[position].startswith("|"):
                position += 1
            continue
        result.append(line)
        position += 1
    return "\n".join(result) + "\n"


def list_modules(folder: str) -> list[str]:
    """Give a row for every tracked module of a package's folder, in the order of their names."""
    root = (REPOSITORY / folder).parent
    done = subprocess.run(
        ["git", "ls-files", "-z", f"{folder}/*.py"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {}
    for name in done.stdout.split("\0"):
        path = REPOSITORY / name
        if not name or not path.is_file():
            continue
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if len(parts) == 1:
            continue  # the package itself: the heading speaks of it
        text = ast.get_docstring(ast.parse(path.read_text()))
        summary = text.splitlines()[0].rstrip(".") if text else ""
        rows[".".join(parts)] = f"| `{'.'.join(parts)}` | {summary} |"
    return [rows[name] for name in sorted(rows)]


if __name__ == "__main__":
    PAGE.write_text(rewrite_tables(PAGE.read_text()))
