"""Standard output that is closed, full, or read to its first line only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from romsim_compiler.audit import audit_description
from romsim_models.errors import DescriptionError
from romsim_models.registry import open_model
from tests.tiny_chips import compile_tiny, sized_target

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def romsim(*arguments: str, **streams: int) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "romsim.cli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        timeout=300,
        **streams,  # type: ignore[call-overload]
    )
    return done.returncode, done.stderr


def test_reader_that_goes_away_ends_the_command_without_a_word() -> None:
    """1 would say that values differ, 0 that everything was told."""
    read, write = os.pipe()
    os.close(read)
    try:
        assert romsim("models", stdout=write) == (141, "")
    finally:
        os.close(write)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_full_output_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        code, errors = romsim("models", stdout=full.fileno())
    assert code == 2
    assert errors.startswith("romsim: [Errno 28] No space left on device;")


def test_run_without_standard_output_ends_well(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip")
    command = [sys.executable, "-m", "romsim.cli", "simulate", str(chip.path), "--token-ids", "1,2"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command, "--max-tokens", "2"],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_audit_of_a_chip_without_images_is_refused(tmp_path: Path) -> None:
    target = sized_target("small", executable=False)
    chip = compile_tiny("tiny-int4", tmp_path / "chip", target=target)
    message = (
        f"{chip.path} must have ROM images, but it was compiled from a shape without weights; "
        "compile a model with weights, or use --engine timing"
    )
    with pytest.raises(DescriptionError, match=rf"^{re.escape(message)}$"):
        audit_description(chip, open_model("tiny-int4"))
