from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import romsim
from romsim.published import (
    TAGS,
    chips,
    contradictions,
    fit_all,
    fitted_constants,
    main,
    other_chips,
    published_rows,
    render_markdown,
    to_json,
)
from romsim.published_figures import adapter_bytes, roma_calibrated, tom_calibrated
from romsim_models.shapes import SHAPES
from tests.command_line import run_command

# Known not to fit, and why; nothing else may be left out of the tolerances.
UNEXPLAINED = {
    "rate at input length 256",
    "rate at input length 512",
    "rate at input length 1,024",
    "rate at input length 2,048",
    "tokens in 128 MiB, rank 16",
    "tokens in 256 MiB, rank 16",
}

TOLERANCES = {
    ("ROMA", "total area"): 0.02,
    ("ROMA", "ROM, 3B at 4 bits"): 0.001,
    ("ROMA", "ROM, 8B at 2 bits"): 0.001,
    ("ROMA", "ROM capacity"): 0.01,
    ("ROMA", "decode, empty cache"): 0.05,
    ("ROMA", "decode, 1,024 tokens in the cache"): 0.05,
    ("ROMA", "TTFT, 256 tokens, adapter of rank 16"): 0.15,
    ("ROMA", "TTFT, 4,096 tokens, adapter of rank 16"): 0.15,
    ("ROMA", "power, empty cache"): 0.15,
    ("ROMA", "adapter of rank 16"): 0.001,
    ("ROMA", "tokens in 64 MiB, rank 16"): 0.0,
    ("ROMA", "tokens in 64 MiB, rank 64"): 0.0,
    ("TOM", "ROM"): 0.001,
    ("TOM", "SRAM"): 0.001,
    ("TOM", "ROM density at 70 % zero bits"): 0.05,
    ("TOM", "total area"): 0.03,
    ("TOM", "decode, context 1,024"): 0.05,
    ("TOM", "power, workload-aware gating"): 0.05,
    ("TOM", "power, before gating"): 0.15,
}


def test_every_row_with_a_tolerance_is_within_it() -> None:
    rows = {(r.chip, r.quantity): r for r in published_rows() if r.tolerance is not None}
    assert {key: row.tolerance for key, row in rows.items()} == TOLERANCES
    outside = {
        key: (row.theirs, row.ours, row.tolerance) for key, row in rows.items() if not row.within
    }
    assert outside == {}


def test_rows_that_do_not_fit_are_known_by_name() -> None:
    found = {r.quantity for r in published_rows() if r.tag == "unexplained"}
    assert found == UNEXPLAINED
    assert all(r.within is None for r in published_rows() if r.tag == "unexplained")


def test_no_constant_is_fitted_unseen() -> None:
    counts = {
        chip: sorted(f.name for f in fitted_constants() if f.chip == chip)
        for chip in contradictions()
    }
    assert {chip: len(names) for chip, names in counts.items()} == {"ROMA": 10, "TOM": 11}
    assert "published.tom_lane_pj" in counts["TOM"]
    assert "schedule.n_inflight" in counts["ROMA"]


def test_published_figures_are_the_papers() -> None:
    theirs = {(r.chip, r.quantity): r.theirs for r in published_rows()}
    assert theirs["ROMA", "total area"] == 503.7
    assert theirs["ROMA", "decode, empty cache"] == 31800
    assert theirs["ROMA", "decode, 1,024 tokens in the cache"] == 24600
    assert theirs["ROMA", "TTFT, 256 tokens, adapter of rank 16"] == 5.6
    assert theirs["ROMA", "TTFT, 4,096 tokens, adapter of rank 16"] == 140.2
    assert theirs["ROMA", "power, empty cache"] == 33.1
    assert theirs["ROMA", "tokens in 64 MiB, rank 16"] == 736
    assert theirs["TOM", "total area"] == 56.9
    assert theirs["TOM", "decode, context 1,024"] == 3306
    assert theirs["TOM", "power, before gating"] == 25.813
    assert theirs["TOM", "power, workload-aware gating"] == 5.33


def test_capacities_follow_from_the_shapes() -> None:
    ours = {(r.chip, r.quantity): r.ours for r in published_rows()}
    assert ours["ROMA", "ROM, 3B at 4 bits"] == pytest.approx(1.5427, abs=1e-4)
    assert ours["ROMA", "ROM, 8B at 2 bits"] == pytest.approx(1.8565, abs=1e-4)
    assert adapter_bytes(SHAPES["llama-3.2-3b"], 16) == 24_313_856
    assert ours["ROMA", "tokens in 64 MiB, rank 16"] == 736
    assert ours["TOM", "ROM"] == pytest.approx(498.555, abs=1e-3)
    assert ours["TOM", "SRAM"] == 37.5


def test_parts_of_calibrated_areas_sum_to_the_totals() -> None:
    for report in (roma_calibrated(chips()["roma"]), tom_calibrated(chips()["tom"])):
        parts = sum(area.mid for area in report.by_unit().values())
        assert parts == pytest.approx(report.total_um2.mid, rel=1e-12)


def test_bottom_up_figure_and_ratio_stand_beside_each_calibrated_area() -> None:
    for row in published_rows():
        if row.unit == "mm2" and row.theirs is not None:
            assert row.bottom_up is not None, row
            assert row.ratio is not None
            assert row.ratio == pytest.approx(row.bottom_up / row.theirs)
            assert 0.4 < row.ratio < 2


def test_rows_are_tagged_sourced_and_finite() -> None:
    for row in published_rows():
        assert row.tag in TAGS
        assert row.source
        assert row.unit
        assert math.isfinite(row.ours)
        assert row.tag != "fitted" or row.theirs is not None
    json.dumps(to_json(), allow_nan=False)


def test_rates_of_one_sequence_and_of_many_stand_apart() -> None:
    others = {o.name: o for o in other_chips()}
    hnlpu = others["HNLPU"]
    assert hnlpu.single_tokens_per_s is None
    assert hnlpu.aggregate_tokens_per_s == 249_960
    assert hnlpu.tokens_per_s_mm2 == pytest.approx(18.9, abs=0.05)
    hc1 = others["Taalas HC1"]
    assert hc1.tokens_per_s_mm2 == pytest.approx(20.8, abs=0.05)
    assert hc1.mj_per_token == pytest.approx(11.8, abs=0.05)
    assert hc1.mbit_per_mm2 == pytest.approx(8 * 4.31, abs=0.05)  # 4.31 MB/mm2 of the whole die
    sequential = others["ankhdjet, BitNet-2B-4T, sequential"]
    pipelined = others["ankhdjet, BitNet-2B-4T, pipelined"]
    assert sequential.single_tokens_per_s == 6905
    assert sequential.aggregate_tokens_per_s is None
    assert pipelined.single_tokens_per_s is None
    assert pipelined.aggregate_tokens_per_s == 1_338_091
    groq = others["Groq LPU v1, Llama-2-7B"]
    assert groq.tokens_per_s_mm2 is None  # the rate takes several chips
    assert {"Cerebras WSE-3, Llama-3.1-8B", "BitROM, Falcon3-1B at 14 nm"} <= set(others)


def test_papers_that_contradict_themselves_are_told_of() -> None:
    notes = {chip: " ".join(found) for chip, found in contradictions().items()}
    assert "sums to 96.0 %" in notes["ROMA"]
    assert "labels swapped" in notes["TOM"]
    assert "have no room on the chip" in notes["TOM"]


def test_document_is_current(repository: Path) -> None:
    document = repository / "docs" / "published-chips.md"
    assert document.read_text(encoding="utf-8") == render_markdown(), (
        "run: python -m romsim.published --write docs/published-chips.md"
    )


def test_table_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--write", str(tmp_path / "table.md")]) == 0
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == render_markdown()
    assert main([]) == 0
    assert capsys.readouterr().out == render_markdown()


def test_fit_finds_nothing_much_better_than_what_the_targets_have() -> None:
    roma, tom, lane = fit_all()
    for fit in (roma, tom):
        assert fit.worst <= fit.current <= 1
        assert fit.n_evaluated >= 100
    assert roma.current < roma.worst + 0.1
    assert tom.current < tom.worst + 0.3
    (used,) = (f.value for f in fitted_constants() if f.name == "published.tom_lane_pj")
    assert lane == pytest.approx(used, abs=0.02)


def test_fit_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fit"]) == 0
    printed = capsys.readouterr().out
    assert "roma: 320 evaluated; worst share of a tolerance 0." in printed
    assert "tom: published.tom_lane_pj = 0.3" in printed


def test_command_prints_the_page_and_json_by_its_schema(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_command(capsys, "published")
    assert (done.code, done.err, done.out) == (0, "", render_markdown().rstrip() + "\n")
    done = run_command(capsys, "published", "--json")
    assert (done.code, done.err) == (0, "")
    schema = Path(romsim.__file__).parent / "schemas" / "published.schema.json"
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(done.json())
    (total, *rest) = published_rows()
    outside = (replace(total, ours=2 * total.ours), *rest)
    monkeypatch.setattr("romsim.published.published_rows", lambda: outside)
    assert run_command(capsys, "published").code == 1
    assert run_command(capsys, "published", "--json").code == 1


def test_note_on_rates_by_length_has_the_falls_of_the_rows() -> None:
    (note,) = [n for n in contradictions()["ROMA"] if n.startswith("The rates by input length")]
    rows = {r.quantity: r for r in published_rows() if r.chip == "ROMA"}
    first, last = (rows[f"rate at input length {n}"] for n in ("256", "2,048"))
    values = [first.theirs, last.theirs, first.ours, last.ours]
    a, b, c, d = (value for value in values if value is not None)
    theirs, ours = 1 - b / a, 1 - d / c
    assert f"They fall by {100 * theirs:.0f} % where" in note
    assert f"loses {100 * ours:.0f} %." in note
