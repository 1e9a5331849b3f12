"""Fixtures of the integer reference's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from romsim_models.errors import FormatError
from romsim_models.registry import find


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, which then only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Return the default model's file, or skip."""
    try:
        return find("smollm2")
    except FormatError as error:
        pytest.skip(str(error))
