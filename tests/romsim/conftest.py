"""Descriptions that several test modules read; none of them may change one."""

from __future__ import annotations

from pathlib import Path

import pytest

import romsim
from romsim_compiler.description import Description
from tests.tiny_chips import compile_tiny, sized_target, tiny_spec, write_adapter


@pytest.fixture(scope="session")
def adapter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("peft") / "story", tiny_spec("tiny-int4"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, adapter_folder: Path) -> Description:
    """tiny-int4 with one adapter, three prompt tokens in flight and a context of 96."""
    return compile_tiny(
        "tiny-int4",
        tmp_path_factory.mktemp("tiny") / "chip",
        target=sized_target("small", n_inflight=3),
        adapters={"story": adapter_folder},
    )


@pytest.fixture(scope="session")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Description:
    """LLaMA-3.2-1B without weights, on a target that could be executed."""
    folder = tmp_path_factory.mktemp("shape") / "chip"
    return romsim.compile("llama-3.2-1b", folder, target="roma-7nm-g32", fit=True, context=600)


@pytest.fixture(scope="session")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Description:
    """BitNet's shape on TOM as published, which cannot be executed."""
    folder = tmp_path_factory.mktemp("paper") / "chip"
    return romsim.compile("bitnet-2b-4t", folder, target="tom-7nm", context=128)
