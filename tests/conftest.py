"""Fixtures and switches shared by every test folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, and none fails for the machine's being busy.
settings.register_profile("romsim", derandomize=True, deadline=None)
settings.load_profile("romsim")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the folder that holds ``pyproject.toml``."""
    return REPOSITORY


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``: rewrite golden files instead of comparing with them."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        default=False,
        help="rewrite the golden files with what was produced (never in CI)",
    )


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))
