"""The documentation names what is there, and nothing that is not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from reports.architecture import rewrite_tables

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = ["romsim", "compiler/romsim_compiler", "models/romsim_models", "rtl/romsim_rtl"]


def tracked(pattern: str) -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z", pattern],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [REPOSITORY / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def dotted(path: Path) -> str:
    """Give a module's name as it is imported: romsim_models.spec, romsim.cycle."""
    for folder in FOLDERS:
        root = (REPOSITORY / folder).parent
        if path.is_relative_to(REPOSITORY / folder):
            parts = path.relative_to(root).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    raise AssertionError(path)


MODULES = sorted(dotted(path) for folder in FOLDERS for path in tracked(f"{folder}/*.py"))
PAGES = tracked("*.md")


def test_there_are_modules_and_pages() -> None:
    assert {"romsim", "romsim_models.spec", "romsim_rtl.toolchain"} <= set(MODULES)
    assert REPOSITORY / "README.md" in PAGES


def test_architecture_page_names_every_module() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"\bromsim(?:_\w+)?(?:\.\w+)*", text))
    missing = [name for name in MODULES if name not in named]
    assert not missing, "\n".join(missing)


def test_tables_of_the_architecture_page_are_the_docstrings() -> None:
    # python reports/architecture.py
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    assert rewrite_tables(text) == text


def test_architecture_page_names_no_module_that_is_gone() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    # In backquotes and with a dot: a module, or a name in one.
    names = re.findall(r"`(romsim(?:_\w+)?\.[\w.]+)`", text)
    known = set(MODULES)
    gone = [name for name in names if name not in known and name.rpartition(".")[0] not in known]
    assert not gone, "\n".join(gone)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text())
    broken = [link for link in links if not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_make_commands_in_pages_are_targets(page: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    named = re.findall(r"(?:^|`|\$ )make ([a-z-]+)", page.read_text(), re.M)
    assert set(named) <= targets
