"""``romsim kv-eval``: rows, their order, JSON and CSV, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import romsim
from reports.kv_quality import MEASURED, add_rows, compile_chip, rewrite_page
from romsim.comparison import make_reference
from romsim.kv_quality import KvEvaluation
from romsim.kv_windows import WindowScorer
from romsim_compiler.description import Description
from romsim_compiler.kv import parse_kv
from romsim_models.errors import SpecError
from romsim_models.registry import open_model
from tests.command_line import run_command
from tests.romsim.kv_chips import logits_of, text, with_kv

Capture = pytest.CaptureFixture[str]
CONFIGS = (
    "int8",
    "kivi-2bit,residual=8,group=8",
    "h2o,heavy=6,window=6",
    "streaming-llm,window=12",
)


@pytest.fixture(scope="module")
def done(tiny: Description) -> KvEvaluation:
    return romsim.kv_eval(tiny, n_tokens=100, window=48, skip=8, configs=("fp16", *CONFIGS))


def test_first_row_is_the_baseline_and_the_others_keep_their_order(done: KvEvaluation) -> None:
    assert [row.config for row in done.rows] == ["fp16", *CONFIGS]
    first = done.rows[0]
    assert (first.change_percent, first.agreement) == (0, 1)
    assert (done.n_tokens, done.n_scored) == (96, 80)  # 4 tokens are no window to score
    for row in done.rows:
        assert row.change_percent == pytest.approx(100 * (row.perplexity / first.perplexity - 1))
        assert row.saturations == 0
    assert first.change_error_percent == 0
    assert all(row.change_error_percent > 0 for row in done.rows[2:])


def test_a_stopped_run_goes_on_with_the_windows_that_are_kept(
    tiny: Description, tmp_path: Path
) -> None:
    def run(tokens: int, *configs: str) -> tuple[KvEvaluation, list[str], list[float]]:
        rows: list[str] = []
        fractions: list[float] = []
        done = romsim.kv_eval(
            tiny, n_tokens=tokens, window=32, skip=8, configs=configs, keep=tmp_path / "kept",
            progress=lambda stage, fraction: fractions.append(fraction),
            done=lambda row: rows.append(row.config),
        )  # fmt: skip
        return done, rows, fractions

    _, rows, fractions = run(64, "h2o,heavy=6,window=6")
    assert rows == ["fp16", "h2o,heavy=6,window=6"]
    assert fractions == [0, 1 / 5, 2 / 5, 3 / 5, 4 / 5]  # two windows each, and the float decoder
    files = {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    assert len(files) == 4
    more, _, fractions = run(96, "h2o,heavy=6,window=6")
    assert fractions == [0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 2 / 3]
    assert {path: path.read_bytes() for path in files} == files
    assert len(list((tmp_path / "kept").iterdir())) == 6
    alone = romsim.kv_eval(tiny, n_tokens=96, window=32, skip=8, configs=("h2o,heavy=6,window=6",))
    assert more == alone
    # Where slots lie changes no value, so that a page's size needs no window anew.
    run(96, "h2o,heavy=6,window=6,layout=paged,block=4")
    assert len(list((tmp_path / "kept").iterdir())) == 6
    broken = next(iter(files))
    broken.write_text('{"losses": [], "likeliest": [], "saturations": 0}')
    sentence = (
        f"Scores {broken} must be as they were written, not changed: 0 losses for 31 tokens; "
        f"delete the file"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        run(96, "h2o,heavy=6,window=6")


def test_windows_at_once_score_what_single_tokens_score(tiny: Description) -> None:
    """The reference's whole window and the cycle model's decoding, token by token."""
    tokens = text(60, seed=3)
    decoder = make_reference(tiny, open_model("tiny-int4"))
    scorer = WindowScorer(tiny, decoder, context=60)
    for name in ("kivi-2bit,residual=8,group=4", "streaming-llm,sinks=3,window=9", "int4"):
        kv = parse_kv(name)
        whole = scorer(kv, tokens)
        logits = logits_of(with_kv(tiny, name), tokens)[:-1].astype(np.float64) / 65536
        assert whole.likeliest == logits.argmax(axis=1).tolist()
        top = logits.max(axis=1)
        sums = np.log(np.exp(logits - top[:, None]).sum(axis=1))
        expected = top + sums - logits[np.arange(59), tokens[1:]]
        np.testing.assert_allclose(whole.losses, expected, rtol=0, atol=1e-12)


def test_baseline_is_the_chips_perplexity_with_16_bit_words(
    done: KvEvaluation, tiny: Description
) -> None:
    """Whole windows, scored from their second token, are what `romsim perplexity` scores."""
    one = romsim.kv_eval(tiny, n_tokens=96, window=48, skip=1, configs=("int8",))
    quality = romsim.perplexity(tiny, n_tokens=96, window=48)
    assert one.rows[1].perplexity == pytest.approx(quality.chip_perplexity, rel=1e-12)
    assert one.float_perplexity == pytest.approx(quality.float_perplexity, rel=1e-6)
    assert done.float_perplexity != one.float_perplexity


def test_room_and_rate_are_those_of_a_chip_compiled_so(
    done: KvEvaluation, tiny: Description
) -> None:
    fp16, int8, kivi, h2o, stream = done.rows
    assert (int8.bits_per_element, kivi.bits_per_element) == (8.25, 2 + 32 / 8)
    assert int8.bytes_per_token == 2 * 2 * 2 * 32 * 8.25 / 8
    assert fp16.tokens_fit is not None
    assert int8.tokens_fit is not None
    assert fp16.tokens_fit < int8.tokens_fit
    assert (h2o.slots, h2o.tokens_fit, stream.slots, stream.tokens_fit) == (13, None, 16, None)
    assert int8.tokens_per_s > fp16.tokens_per_s


def test_a_window_that_holds_everything_costs_nothing(tiny: Description) -> None:
    done = romsim.kv_eval(tiny, n_tokens=48, window=48, skip=8, configs=("h2o,heavy=24,window=24",))
    assert done.rows[1].perplexity == pytest.approx(done.rows[0].perplexity, rel=1e-12)
    assert done.rows[1].agreement == 1


def test_json_and_csv(
    done: KvEvaluation, tiny: Description, tmp_path: Path, capsys: Capture
) -> None:
    table = tmp_path / "rows.csv"
    outcome = run_command(
        capsys, "kv-eval", str(tiny.path), "--tokens", "96", "--window", "48", "--skip", "8",
        "--configs", "int8", "--csv", str(table), "--json", "--keep", str(tmp_path / "kept"),
    )  # fmt: skip
    told = outcome.err.splitlines()
    assert [line.partition(":")[0] for line in told] == ["fp16", "int8"]
    assert told[1] == done.rows[1].sentence()
    values = json.loads(outcome.out)
    schema = Path(romsim.__file__).parent / "schemas" / "kv-eval.schema.json"
    jsonschema.validate(values, json.loads(schema.read_text()))
    assert values["rows"][1]["perplexity"] == done.rows[1].perplexity
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["config"] for row in rows] == ["fp16", "int8"]
    assert float(rows[1]["perplexity"]) == done.rows[1].perplexity
    assert rows[1]["slots"] == ""
    lines = done.lines()
    assert len(lines) == 2 + len(done.rows)
    assert lines[0].startswith("96 tokens in windows of 48, 80 scored; float decoder ")
    assert "no end" in lines[-1]


def test_what_cannot_be_measured_is_refused(tiny: Description, tmp_path: Path) -> None:
    def refused(sentence: str, **options: object) -> None:
        with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
            romsim.kv_eval(tiny, **options)  # type: ignore[arg-type]

    refused("Tokens to skip must be 1 to 1023, not 1024", skip=1024)
    refused("Tokens to read must be at least 2, not -4", n_tokens=-4)
    refused("Window must be at least 2 tokens, not 0", window=0)
    refused(
        "Windows must have at most the 512 tokens that model 'tiny-int4' was made for, not 600; "
        "lower --window",
        n_tokens=600,
    )
    refused(
        "Text must have more than 256 tokens, not 100; give a longer one, or lower --skip",
        n_tokens=100,
    )
    refused(
        "kv.group must divide head_dim of model 'tiny-int4', 32, not 64: values share a scale per "
        "64 channels (rule 5)",
        configs=("int4-g64",),
    )
    nowhere = tmp_path / "no" / "folder"
    refused(
        f"Folder {nowhere} for finished windows must be one that can be made, not 'No such file or "
        f"directory'; choose another one",
        n_tokens=300,
        keep=nowhere,
    )
    missing = tmp_path / "missing"
    refused(
        f"Text {missing} must be a readable UTF-8 file, not [Errno 2] No such file or directory: "
        f"'{missing}'",
        text=missing,
    )


@pytest.mark.slow
def test_t1_10_t1_11_t1_12_orders_hold_on_the_real_model(tmp_path: Path) -> None:
    """SmolLM2 on one window of 640 tokens: what stands far apart keeps its order."""
    chip = romsim.compile(
        "smollm2", tmp_path / "chip", target="roma-7nm-g32", fit=True, context=1024
    )
    configs = (
        "int8", "int4", "kivi-2bit-sinks", "kivi-2bit",
        "h2o,heavy=64,window=64", "streaming-llm,window=124", "window,window=128",
    )  # fmt: skip
    done = romsim.kv_eval(chip, n_tokens=640, window=640, skip=256, configs=configs)
    change = {row.config: row.change_percent for row in done.rows}
    assert change["int8"] < change["int4"] < change["kivi-2bit-sinks"] < change["kivi-2bit"]
    h2o, stream, window = (change[name] for name in configs[4:])
    assert h2o < stream < window
    assert window > 50
    assert all(row.saturations == 0 for row in done.rows)


def test_document_is_current(repository: Path, tmp_path: Path) -> None:
    page = (repository / "docs" / "kv.md").read_text(encoding="utf-8")
    tables = json.loads(MEASURED.read_text(encoding="utf-8"))
    chip = compile_chip(tmp_path / "chip")
    assert page == rewrite_page(page, tables, chip), "run: python reports/kv_quality.py"
    with pytest.raises(ValueError, match=r"^tables of the page must be the 3 measured, not 2$"):
        rewrite_page(page, [*tables, tables[0]], chip)


def test_a_new_run_replaces_the_rows_of_its_table(done: KvEvaluation) -> None:
    tables: list[dict[str, Any]] = []
    add_rows(tables, done.to_json())
    (table,) = tables
    assert [row["config"] for row in table["rows"]] == ["fp16", *CONFIGS]
    first, int8, *_, last = table["rows"]
    again = {**done.to_json(), "rows": [first, {**last, "agreement": 0.5}]}
    add_rows(tables, again)
    assert [row["config"] for row in table["rows"]] == ["fp16", *CONFIGS]
    assert (table["rows"][1], table["rows"][-1]["agreement"]) == (int8, 0.5)
    add_rows(tables, {**again, "n_tokens": 7})
    assert [len(one["rows"]) for one in tables] == [5, 2]
    with pytest.raises(ValueError, match=r"^perplexity of fp16 must be "):
        add_rows(tables, {**again, "rows": [{**first, "perplexity": 2.0}]})
