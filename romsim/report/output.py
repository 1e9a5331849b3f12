"""Writing a report: one file, or a folder with every form of it; whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from romsim.report.csv_tables import csv_of
from romsim.report.html import render_html
from romsim.report.markdown import render_markdown
from romsim.report.model import Report, Table
from romsim.report.pictures import render_picture
from romsim.report.plot_report import report_plots
from romsim_compiler.digest import MANIFEST
from romsim_models.errors import SpecError

__all__ = ["FORMS", "render_json", "write_report"]

FORMS = (".html", ".json", ".md")
"""Endings of single files; any other output is a folder."""

_MARK = "report.json"


def render_json(report: Report) -> str:
    """Return the report as JSON text, as ``schemas/report.schema.json`` has it; a row a line."""
    return _pretty(json.loads(json.dumps(report.to_json())), "") + "\n"


def _pretty(value: Any, indent: str) -> str:
    """Return JSON with sorted keys, in which a list of plain values takes one line."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        pairs = [f"{inner}{json.dumps(k)}: {_pretty(v, inner)}" for k, v in sorted(value.items())]
        return "{\n" + ",\n".join(pairs) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        items = [inner + _pretty(one, inner) for one in value]
        return "[\n" + ",\n".join(items) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def write_report(
    report: Report, out: str | Path, *, progress: Callable[[str, float], None] | None = None
) -> tuple[str, ...]:
    """Write a report and return the names of the files.

    Parameters
    ----------
    out
        A file that ends in ``.html``, ``.json`` or ``.md``, or a folder for all of them with CSV
        tables and pictures: a new one, an empty one or an earlier report's.
    progress
        Called with a stage and the finished fraction.

    Raises
    ------
    SpecError
        If the output cannot be written, or holds something else.
    """
    target = Path(out).absolute()
    for parent in target.parents:
        if (parent / MANIFEST).is_file():
            raise SpecError(
                f"Output {out} must lie outside of {parent}, which holds what was compiled and "
                f"nothing else; choose another -o"
            )
    try:
        if target.suffix in FORMS:
            _write_file(report, target)
            return (target.name,)
        return _write_folder(report, target, progress)
    except OSError as error:
        raise SpecError(
            f"Output {out} must be writable, not {error.strerror!r}; choose another -o"
        ) from None


def _write_file(report: Report, target: Path) -> None:
    if target.is_dir():
        raise SpecError(f"Output {target} must be a file, not a folder; choose another -o")
    render = {".html": render_html, ".json": render_json, ".md": render_markdown}[target.suffix]
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(render(report))
        Path(aside).chmod(0o644)
        Path(aside).replace(target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _write_folder(
    report: Report, target: Path, progress: Callable[[str, float], None] | None
) -> tuple[str, ...]:
    _check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    aside.chmod(0o755)
    try:
        files = _contents(report, aside, progress)
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return files


def _contents(
    report: Report, folder: Path, progress: Callable[[str, float], None] | None
) -> tuple[str, ...]:
    (folder / "tables").mkdir()
    (folder / "figures").mkdir()
    texts = {
        "report.html": render_html(report),
        "report.md": render_markdown(report),
        **{f"tables/{name}.csv": csv_of(table) for name, table in _tables(report).items()},
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    names = list(texts)
    plots = [plot for group in report_plots(report).values() for plot in group]
    for number, plot in enumerate(plots):
        if progress is not None:
            progress("drawing", number / len(plots))
        (folder / f"figures/{plot.key}.png").write_bytes(render_picture(plot, "png"))
        (folder / f"figures/{plot.key}.svg").write_bytes(render_picture(plot, "svg"))
        names += [f"figures/{plot.key}.png", f"figures/{plot.key}.svg"]
    (folder / _MARK).write_text(render_json(report), encoding="utf-8", newline="\n")
    return (*sorted(names), _MARK)


def _tables(report: Report) -> dict[str, Table]:
    """Return all tables by the name of their file."""
    several = len(report.chips) > 1
    named = {
        table.key + (f"-{chip.letter.lower()}" if several else ""): table
        for chip in report.chips
        for table in chip.tables
    }
    return {**named, **{table.key: table for table in report.tables}}


def _check_replaceable(target: Path) -> None:
    """Refuse to replace what this program did not write."""
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir():
        raise SpecError(
            f"Output {target} must end in {', '.join(FORMS)} or be a folder, not a file; choose "
            f"another -o"
        )
    found = sorted(p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file())
    known = {"report.html", "report.md", _MARK}
    foreign = [f for f in found if f not in known and f.split("/")[0] not in ("tables", "figures")]
    if foreign or (found and _MARK not in found):
        raise SpecError(
            f"Output {target} must be a new folder or an earlier report's, not one that holds "
            f"{(foreign or found)[0]!r}; move it away or choose another -o"
        )
