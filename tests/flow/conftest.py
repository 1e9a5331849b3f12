"""Descriptions that the flow tests share; none of them may change one."""

from __future__ import annotations

from pathlib import Path

import pytest

from romsim_compiler.description import Description
from tests.tiny_chips import TARGETS, compile_tiny, tiny_spec, write_adapter


@pytest.fixture(scope="session")
def adapter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("peft") / "story", tiny_spec("tiny-int4"))


@pytest.fixture(scope="session")
def chips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Description]:
    folder = tmp_path_factory.mktemp("chips")
    return {name: compile_tiny(name, folder / name) for name in TARGETS}


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory, adapter_folder: Path) -> Description:
    """tiny-int4 with two resident adapters: of all projections, and of two in one layer."""
    folder = tmp_path_factory.mktemp("adapted")
    small = write_adapter(
        folder / "small", tiny_spec("tiny-int4"), rank=4, parts=("attn_q", "ffn_down"), layers=[1],
        seed=1, use_rslora=True,
    )  # fmt: skip
    return compile_tiny(
        "tiny-int4", folder / "chip", adapters={"story": adapter_folder, "small": small}
    )
