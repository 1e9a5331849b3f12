"""Results of ``romsim kv-eval`` in a report: table, front, plot, refusal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import romsim
from romsim.report.kv_results import kv_plots, kv_tables
from romsim.report.output import write_report
from romsim_compiler.description import Description
from romsim_models.errors import FormatError
from tests.command_line import run_command

Capture = pytest.CaptureFixture[str]


def row(config: str, size: float, perplexity: float, slots: int | None = None) -> dict[str, Any]:
    return {
        "config": config, "bits_per_element": size / 10, "bytes_per_token": size, "slots": slots,
        "tokens_fit": None if slots else 500, "tokens_per_s": 1000.0, "perplexity": perplexity,
        "change_percent": 100 * (perplexity / 10 - 1), "change_error_percent": 0.5,
        "agreement": 0.9, "saturations": 0,
    }  # fmt: skip


VALUES = {
    "n_tokens": 96, "n_scored": 80, "window": 48, "skip": 8, "context": 48,
    "float_perplexity": 9.9,
    "rows": [row("fp16", 160, 10), row("int8", 80, 10.1), row("int4", 50, 12),
             row("kivi-4bit", 50, 10.4), row("h2o", 160, 10.6, 12), row("window", 160, 25, 12)],
}  # fmt: skip


def test_the_front_is_what_nothing_beats() -> None:
    (table,) = kv_tables(1, VALUES)
    front = dict(zip(table.texts("config"), table.texts("front"), strict=True))
    assert front == {
        "fp16": "on the front", "int8": "on the front", "int4": "beaten",
        "kivi-4bit": "on the front", "h2o": "on the front", "window": "beaten",
    }  # fmt: skip
    held = dict(zip(table.texts("config"), table.numbers("held_bytes"), strict=True))
    assert (held["int8"], held["h2o"]) == (80 * 48, 160 * 12)


def test_page_and_plot_show_what_was_measured(
    tiny: Description, tmp_path: Path, capsys: Capture
) -> None:
    result = tmp_path / "kv-eval.json"
    done = romsim.kv_eval(
        tiny, n_tokens=96, window=48, skip=8, configs=("int8", "h2o,heavy=6,window=6")
    )
    result.write_text(json.dumps(done.to_json()))
    page = tmp_path / "report.md"
    outcome = run_command(capsys, "report", tiny.path, "--kv-eval", result, "-o", page)
    assert outcome.code == 0
    text = page.read_text()
    assert "Quality and room of KV caches" in text
    assert "romsim report build/a --context 96 --kv-eval kv-eval.json -o report.html" in text
    report = romsim.build_report(tiny, kv_eval=[result])
    (plot,) = kv_plots(report)
    sizes = {r.config: r.bytes_per_token * min(r.slots or 48, 48) for r in done.rows}
    order = sorted(sizes, key=lambda name: sizes[name])
    assert [label.rpartition(",")[0] for label in plot.labels] == order
    changes = {r.config: r.change_percent for r in done.rows}
    errors = {r.config: r.change_error_percent for r in done.rows}
    assert list(plot.values) == [changes[name] for name in order]
    assert plot.high[0] - plot.values[0] == pytest.approx(errors[order[0]])
    write_report(report, tmp_path / "report.html")
    assert "KV caches from the smallest" in (tmp_path / "report.html").read_text()
    assert kv_plots(romsim.build_report(tiny)) == ()


def test_another_commands_result_is_refused() -> None:
    sentence = (
        "Result of `romsim kv-eval` must be what this version prints with --json, not one with "
        "KeyError: 'window'; run it again"
    )
    with pytest.raises(FormatError, match=f"^{re.escape(sentence)}$"):
        kv_tables(1, {"rows": []})
