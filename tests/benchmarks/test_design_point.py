from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest

from benchmarks.design_point import evaluate, main, scalesim_seconds, sweep_seconds, targets
from romsim_compiler.formats import parse_format
from romsim_compiler.target_file import load_target
from romsim_models.errors import RomsimError
from romsim_models.shapes import SHAPES


def test_variants_of_a_target_are_many_and_the_same_every_time() -> None:
    base = load_target("rtl-1k")
    first, again = (list(targets(base, 50)) for _ in range(2))
    assert first == again
    assert len(set(first)) == 50
    assert len({t.array.n_tiles for t in first}) == 6


def test_point_has_area_power_and_cycles() -> None:
    for target in targets(load_target("rtl-1k"), 20):
        area, power, cycles = evaluate(SHAPES["smollm2"], target, parse_format("int4g32"))
        assert 0 < area < math.inf
        assert 0 < power < math.inf
        assert cycles > 0


def test_only_the_sweep_is_timed() -> None:
    readings = iter([10.0, 12.5])
    seconds = sweep_seconds(
        SHAPES["smollm2"], load_target("rtl-1k"), 3, clock=lambda: next(readings)
    )
    assert seconds == 2.5
    with pytest.raises(StopIteration):
        next(readings)


def test_missing_peer_is_said_and_nothing_else_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--points", "3", "--json", "--scalesim-python", sys.executable]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["points"] == 3
    assert result["point_s"] == pytest.approx(result["sweep_s"] / 3)
    assert "install it with `pip install scalesim" in result["scalesim_missing"]
    assert main(arguments[:2] + arguments[3:]) == 0
    printed = capsys.readouterr().out
    assert "3 design points of smollm2 in " in printed
    assert "SCALE-Sim must run with " in printed


def test_peer_that_is_not_installed_is_refused_with_the_remedy() -> None:
    message = (
        rf"^SCALE-Sim must run with {re.escape(sys.executable)}, but it failed "
        r"\(ModuleNotFoundError: No module named 'scalesim'\); install it with `pip install "
        r"scalesim 'numpy<2\.3' 'pandas<3'` in an environment of its own$"
    )
    with pytest.raises(RomsimError, match=message):
        scalesim_seconds(SHAPES["smollm2"], sys.executable, ["o"])


def test_peers_seconds_and_the_ratios_are_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    peer = tmp_path / "python"
    peer.write_text("#!/bin/sh\necho 'seconds 12.500000 2.250000' >&2\n")
    peer.chmod(0o755)
    assert scalesim_seconds(SHAPES["smollm2"], str(peer), ["qkv", "o"]) == (12.5, 2.25)
    arguments = ["--points", "3", "--scalesim-python", str(peer)]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ratio"] == pytest.approx(12.5 / result["point_s"])
    assert result["processor_ratio"] == pytest.approx(2.25 / result["point_processor_s"])
    assert main(arguments) == 0
    assert "SCALE-Sim, o of one layer: 12.50 s, 2.25 s of the processor; ratio at least " in (
        capsys.readouterr().out
    )


def test_unknown_matrix_is_refused() -> None:
    with pytest.raises(RomsimError, match=r"^Matrix must be one of qkv, o, gu, down, not 'head'$"):
        scalesim_seconds(SHAPES["smollm2"], sys.executable, ["head"])
