from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kv_speed import main
from tests.tiny_chips import compile_tiny


def test_a_line_for_each_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip")
    arguments = [str(chip.path), "--context", "20", "--configs", "int4", "h2o,heavy=4,window=4"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["int8", "int4", "h2o,heavy=4,window=4"]
    assert lines[0].endswith(" ms a token at 20 tokens")
    assert all(line.endswith(" of the plain speed") for line in lines[1:])
