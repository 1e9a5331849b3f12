from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import romsim
from romsim.kv_check import VERDICTS, KvReport, check, kv_models, kv_report
from romsim.kv_formulas import FORMULAS, Figure, decode_limit, kivi_ratio, kv_bytes
from romsim.kv_page import render_markdown
from romsim_compiler.memory_map import kv_bytes_per_token
from romsim_models.shapes import SHAPES
from tests.command_line import run_command

SCHEMA = Path(romsim.__file__).parent / "schemas" / "kv-check.schema.json"
Capture = pytest.CaptureFixture[str]


def test_all_errata_are_there_in_order() -> None:
    errata = check()
    assert [e.id for e in errata] == [f"E{n:02d}" for n in range(1, 64)]
    assert all(e.verdict in VERDICTS and e.claim and e.correct for e in errata)
    assert {e.id for e in errata} >= set(FORMULAS)


@pytest.mark.parametrize("erratum", check(), ids=lambda e: e.id)
def test_stated_figures_are_what_their_formulas_give(erratum: object) -> None:
    figures = erratum.figures  # type: ignore[attr-defined]
    assert [f for f in figures if not f.agrees] == []


def test_most_errata_that_are_arithmetic_are_recomputed() -> None:
    assert len(FORMULAS) >= 39
    assert sum(len(figures) for figures in FORMULAS.values()) >= 80


def test_a_wrong_figure_would_be_noticed() -> None:
    assert not Figure("70 %", "1 / 0.3", 1 / 0.3, 4.0, "x").agrees
    assert not Figure("70B", "2 * 80 * 64 * 128 * 2", 2621440.0, 327680, "B", 0.0).agrees


@pytest.mark.parametrize("model", kv_models(), ids=lambda m: m.name)
def test_bytes_per_token_are_the_exact_integers(model: object) -> None:
    assert model.recomputed == model.bytes_per_token  # type: ignore[attr-defined]


def test_bytes_per_token_of_the_built_in_shapes() -> None:
    expected = {
        "smollm2": 23040,
        "llama-3.2-1b": 32768,
        "llama-3.2-3b": 114688,
        "llama-3-8b": 131072,
        "llama-3-70b": 327680,
        "bitnet-2b-4t": 76800,
        "opt-13b-mha": 819200,
    }
    assert {name: kv_bytes_per_token(SHAPES[name], 16) for name in expected} == expected


def test_heads_of_a_model_with_shared_heads_cannot_be_mistaken() -> None:
    """The specification knows its KV heads; the size of a model without sharing needs another."""
    spec = SHAPES["llama-3-70b"]
    shared = kv_bytes(layers=80, kv_heads=spec.n_kv_heads, head_dim=128)
    assert kv_bytes_per_token(spec, 16) == shared
    assert kv_bytes(layers=80, kv_heads=spec.n_heads, head_dim=128) == 8 * shared


def test_kivi_with_its_window_is_the_closed_form() -> None:
    # 1,154,048 bits a head at 1,000 tokens of 128: the vector of the reference implementation.
    ratio = kivi_ratio(1000, bits=2, group=32, residual=128)
    assert 2 * 1000 * 128 * 16 / ratio == pytest.approx(1_154_048)


def test_no_request_fits_where_the_weights_do_not() -> None:
    assert decode_limit(weights=90e9, kv_per_request=1e9, memory=80e9, bandwidth=3e12) == (0, 0.0)


def test_corrections_name_the_figure_that_matters() -> None:
    by_id = {e.id: e for e in check()}
    assert "327,680" in by_id["E29"].correct
    assert by_id["E29"].verdict == "wrong"
    assert by_id["E33"].verdict == "impossible"
    assert by_id["E24"].figures[0].value == pytest.approx(3.333, abs=1e-3)


def wrong_report() -> KvReport:
    """One wrong figure and one wrong model."""
    (erratum,) = kv_report(["E29"]).errata
    figure = replace(erratum.figures[0], stated=2621440)
    model = replace(kv_models()[0], bytes_per_token=1)
    return KvReport(errata=(replace(erratum, figures=(figure,)),), models=(model,))


def test_report_is_json_by_its_schema() -> None:
    for report, passed in ((kv_report(), True), (wrong_report(), False)):
        values = json.loads(json.dumps(report.to_json(), allow_nan=False))
        jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(values)
        assert values["passed"] is passed
        assert values["n_figures"] == report.n_figures
    assert len(kv_report().to_json()["errata"]) == 63


def test_each_figure_that_differs_is_told() -> None:
    assert wrong_report().disagreements() == (
        "E29: Llama-3-70B is stated as 2.62144e+06 B, but 2 * 80 * 8 * 128 * 2 gives 327680 B",
        "OPT-13B, Llama-2-13B: KV per token is stated as 1 B, but 2 x 40 x 40 x 128 x 2 gives "
        "819,200 B",
    )
    assert kv_report().disagreements() == ()


def test_page_is_current(repository: Path) -> None:
    page = repository / "docs" / "kv-arithmetic.md"
    assert page.read_text(encoding="utf-8") == render_markdown(kv_report()), (
        "run: romsim kv-check --write docs/kv-arithmetic.md"
    )


def test_command_prints_every_entry_and_the_count(capsys: Capture) -> None:
    done = run_command(capsys, "kv-check")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[-1] == f"63 errata, {kv_report().n_figures} figures recomputed, 0 different"
    assert [line[:3] for line in lines if line[:1] == "E"] == [e.id for e in check()]


def test_command_prints_one_entry(capsys: Capture) -> None:
    done = run_command(capsys, "kv-check", "e29")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "E29  wrong       B: 2 x 80 x 8192 x 2 = 2.6 MB per token of Llama-3-70B\n"
        "                 8 times too much: 8 KV heads of 128, 327,680 B\n"
        "                   Llama-3-70B: 2 * 80 * 8 * 128 * 2 = 327680 B (stated: 327680)\n"
        "                   too much by: 2621440 / 327680 = 8 x (stated: 8)\n"
        "1 errata, 2 figures recomputed, 0 different\n"
    )
    done = run_command(capsys, "kv-check", "E29", "--json")
    assert (done.code, done.err) == (0, "")
    assert [e["id"] for e in done.json()["errata"]] == ["E29"]


def test_command_fails_if_a_figure_differs(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("romsim.kv_check.kv_report", lambda ids: wrong_report())
    done = run_command(capsys, "kv-check")
    assert done.code == 1
    assert "(DIFFERENT, stated: 2.62144e+06)" in done.out
    assert "DIFFERENT: 1 stated" in done.out
    assert done.out.splitlines()[-1] == "1 errata, 2 figures recomputed, 2 different"
    assert run_command(capsys, "kv-check", "--json").code == 1


def test_command_writes_the_page(capsys: Capture, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = run_command(capsys, "kv-check", "--write", page)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{page}: 63 errata, {kv_report().n_figures} figures\n"
    assert page.read_text() == render_markdown(kv_report())
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["E99"], "Erratum must be one of E01 to E63, not 'E99'; did you mean 'E59'?"),
        (["70B"], "Erratum must be one of E01 to E63, not '70B'"),
        (["E29", "--write", "x.md"], "--write must be used with all errata, not with E29"),
        (
            ["--write", "none/x.md"],
            "Page none/x.md must be writable, not 'No such file or directory'; choose another file",
        ),
    ],
)
def test_command_refuses(
    arguments: list[str],
    sentence: str,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_command(capsys, "kv-check", *arguments)
    assert done.code == 2
    assert done.sentence() == f"romsim: {sentence}"
    assert list(tmp_path.iterdir()) == []
