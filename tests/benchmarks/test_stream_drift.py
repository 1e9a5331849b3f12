from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.stream_drift import Drift, main, measure_drift
from romsim_compiler.kv import parse_kv
from romsim_models.errors import SpecError
from tests.romsim.kv_chips import logits_of, text, with_kv
from tests.tiny_chips import compile_tiny


def test_t1_11_late_and_early_losses_are_those_of_decoding_token_by_token(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip")
    name, tokens = "streaming-llm,sinks=4,window=12", text(1056)
    drift = measure_drift(chip, parse_kv(name), tokens, times=1, passages=2)
    assert (drift.capacity, drift.slots, drift.n_stream, drift.n_scored) == (1024, 16, 1056, 32)

    def losses(run: list[int], first: int) -> list[float]:
        logits = logits_of(with_kv(chip, name, context=1056), run) / 65536.0
        return [
            float(np.log(np.exp(logits[t - 1]).sum()) - logits[t - 1, run[t]])
            for t in range(first, len(run))
        ]

    late = losses(tokens, 1024)
    starts = (1024, 1040)
    own = [x for s in starts for x in losses(tokens[s - 16 : s + 16], 16)]
    early = [x for s in starts for x in losses(tokens[:4] + tokens[s - 12 : s + 16], 16)]
    assert drift.late_perplexity == pytest.approx(np.exp(np.mean(late)), rel=1e-9)
    assert drift.early_perplexity == pytest.approx(np.exp(np.mean(early)), rel=1e-9)
    for scores, percent, wanted in (
        (early, drift.change_percent, drift.error_percent),
        (own, drift.own_percent, drift.own_error_percent),
    ):
        more = np.array(late) - np.array(scores)
        ratio = np.exp(more.mean())
        assert percent == pytest.approx(100 * (ratio - 1), rel=1e-6)
        error = 100 * ratio * more.std(ddof=1) / np.sqrt(32)
        assert wanted == pytest.approx(error, rel=1e-9)
    assert drift.saturations == 0
    assert "1.0 times the 1024 that the SRAM holds; 32 tokens scored" in drift.sentence()


def test_text_and_retention_are_checked(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip")

    def refused(sentence: str, kv: str) -> None:
        with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
            measure_drift(chip, parse_kv(kv), text(50), times=10, passages=1)

    refused("KV retention of a stream must be 'stream', not 'all'", "int8")
    refused(
        "Text must have at least 10256 tokens, not 50; give a longer one with --text, or lower "
        "--times",
        "streaming-llm,sinks=4,window=12",
    )


def test_command_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip")
    book = tmp_path / "book"
    book.write_text("It is a truth universally acknowledged. " * 60, encoding="utf-8")
    table = tmp_path / "drift.json"
    arguments = [str(chip.path), "--kv", "streaming-llm,sinks=4,window=12", "--times", "1"]
    assert main([*arguments, "--text", str(book), "--passages", "1", "--json", str(table)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    values = json.loads(table.read_text())
    assert line == Drift(**values).sentence()
