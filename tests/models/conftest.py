"""Fixtures of the models' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from romsim_models.errors import FormatError
from romsim_models.registry import find


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Return the default model's file, or skip."""
    try:
        return find("smollm2")
    except FormatError as error:
        pytest.skip(str(error))
