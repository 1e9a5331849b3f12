"""Files of a report: whole folders, determinism, refusals, the command and the example."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jsonschema
import pytest

import romsim
from reports.example_report import OUT, examples
from romsim.report.html import render_html
from romsim.report.markdown import render_markdown
from romsim.report.model import Report
from romsim.report.numbers import plain, quantity, span
from romsim.report.output import render_json, write_report
from romsim.report.pictures import render_picture
from romsim.report.plot_report import arranged, report_plots
from romsim.report.plots import SpanPlot
from romsim.report.squarify import squarify
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, FormatError, SpecError
from tests.command_line import run_command
from tests.tiny_chips import tree

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def report(tiny: Description) -> Report:
    return romsim.build_report(tiny)


def test_example_is_current() -> None:
    # python reports/example_report.py
    for name, text in examples().items():
        assert (OUT / name).read_text(encoding="utf-8") == text, name


@pytest.mark.slow
def test_folder_holds_every_form_and_the_same_twice(tiny: Description, tmp_path: Path) -> None:
    names = write_report(romsim.build_report(tiny), tmp_path / "a")
    files = tree(tmp_path / "a")
    # An earlier report may be replaced, and nothing else.
    write_report(romsim.build_report(Description.load(tiny.path)), tmp_path / "a")
    assert files == tree(tmp_path / "a")
    assert set(files) == set(names)
    pictures = {n.partition(".")[0] for n in names if n.startswith("figures/")}
    assert len(pictures) == 12
    for name in pictures:
        assert files[f"{name}.png"].startswith(b"\x89PNG\r\n\x1a\n")
        assert ElementTree.fromstring(files[f"{name}.svg"]).tag.endswith("svg")
        assert b"<dc:date>" not in files[f"{name}.svg"]
    (tmp_path / "a" / "mine.txt").write_text("mine")
    with pytest.raises(SpecError, match=r"not one that holds 'mine.txt'; move it away or choose"):
        write_report(romsim.build_report(tiny), tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_picture_has_the_same_bytes_twice(report: Report) -> None:
    (plot,) = report_plots(report)["rates"]
    assert render_picture(plot, "png") == render_picture(plot, "png")
    assert render_picture(plot, "svg") == render_picture(plot, "svg")


def test_output_that_is_something_else_is_refused(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(SpecError) as caught:
        write_report(report, file)
    assert str(caught.value) == (
        f"Output {file} must end in .html, .json, .md or be a folder, not a file; choose another -o"
    )
    folder = tmp_path / "folder.html"
    folder.mkdir()
    with pytest.raises(SpecError) as caught:
        write_report(report, folder)
    assert str(caught.value) == (f"Output {folder} must be a file, not a folder; choose another -o")
    (folder / "mine").write_text("mine")
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", ["report.html", "pages"])
def test_nothing_is_written_into_a_description(
    report: Report, tiny: Description, name: str
) -> None:
    with pytest.raises(SpecError) as caught:
        write_report(report, tiny.path / name)
    assert str(caught.value) == (
        f"Output {tiny.path / name} must lie outside of {tiny.path}, which holds what was compiled "
        f"and nothing else; choose another -o"
    )
    assert not (tiny.path / name).exists()


def test_command_prints_figures_and_writes_a_page(
    capsys: Capture, tiny: Description, tmp_path: Path
) -> None:
    page = tmp_path / "new" / "report.html"
    done = run_command(capsys, "report", tiny.path, "-o", page)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "tiny-int4 on small"
    assert "tokens/s  one stream, 96 tokens of context" in lines[1]
    assert lines[-1] == f"written: {page}"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [p.name for p in page.parent.iterdir()] == ["report.html"]


def test_command_prints_json_by_its_schema(
    capsys: Capture, tiny: Description, shape: Description
) -> None:
    done = run_command(capsys, "report", tiny.path, shape.path, "--context", 64, "--json")
    assert (done.code, done.err) == (0, "")
    schema = Path(romsim.__file__).parent / "schemas" / "report.schema.json"
    values = done.json()
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(values)
    assert [c["letter"] for c in values["chips"]] == ["A", "B"]
    assert values == json.loads(render_json(romsim.build_report(tiny, shape, context=64)))


def test_command_without_an_output_is_refused(capsys: Capture, tiny: Description) -> None:
    done = run_command(capsys, "report", tiny.path)
    assert done.code == 2
    assert done.sentence() == (
        "romsim: Report must have an output, not none; add -o report.html, or --json"
    )


REFERENCE: dict[str, object] = {
    "passed": True,
    "n_tokens": 4,
    "n_values": 30600,
    "n_mismatches": 0,
    "first": None,
    "tainted": [],
    "saturations": 0,
    "values_by_operator": {"L0.q": 400, "logits": 1152},
}


def test_verification_stands_in_the_report(tiny: Description, tmp_path: Path) -> None:
    result = tmp_path / "verify.json"
    part = {
        "name": "chip",
        "chip": "2 tiles",
        "waves": None,
        "passed": False,
        "n_programs": 3,
        "n_tokens": 4,
        "n_logits": 1152,
        "n_writes": 900,
        "n_events": 160,
        "n_mismatches": 2,
        "n_cycles": 9000,
        "first": {"sentence": "Write of K differs."},
        "writes_by_memory": {},
        "writes_by_operator": {},
    }
    values = {
        "level": "chip",
        "passed": False,
        "n_mismatches": 2,
        "reference": REFERENCE,
        "rtl": [part],
        "notes": ["One token at a time."],
        "not_covered": ["Adapters."],
        "whole": None,
    }
    result.write_text(json.dumps(values))
    report = romsim.build_report(tiny, verify=[result])
    table = report.table("verify_1")
    assert table is not None
    assert table.title == "Verification, level chip: DIFFERENT"
    assert report.notes[0] == "Verification, level chip: DIFFERENT."
    assert table.texts("verdict") == ("equal", "DIFFERENT")
    assert table.numbers("values") == (30600, 0)
    assert table.numbers("writes") == (0, 900)
    assert table.texts("first") == ("none", "Write of K differs.")
    operators = report.table("verify_1_operators")
    assert operators is not None
    assert operators.rows == (("L0.q", 400), ("logits", 1152))
    notes = report.table("verify_1_notes")
    assert notes is not None
    assert notes.rows == (("note", "One token at a time."), ("not covered", "Adapters."))
    assert report.commands[-1].endswith("--verify verify.json -o report.html")
    assert "DIFFERENT" in render_html(report, with_plotly=False)
    assert "## Verification" in render_markdown(report)


@pytest.mark.slow
def test_verification_as_the_command_prints_it_is_understood(
    tiny: Description, tmp_path: Path
) -> None:
    result = tmp_path / "verify.json"
    done = romsim.verify(tiny, tokens=[1, 2], n_new=1, level="values").to_json()
    result.write_text(json.dumps(done))
    table = romsim.build_report(tiny, verify=[result]).table("verify_1")
    assert table is not None
    assert table.numbers("values") == (done["reference"]["n_values"],)
    assert table.texts("verdict") == ("equal",)


def test_comparison_with_gpus_stands_in_the_report(tiny: Description, tmp_path: Path) -> None:
    result = tmp_path / "compare.json"
    values = romsim.compare(tiny, gpus=["H100", "Jetson Orin"]).to_json()
    result.write_text(json.dumps(values))
    report = romsim.build_report(tiny, compare=[result])
    table = report.table("compare_1_rows")
    assert table is not None
    chip = f"{values['model']['name']} on {tiny.target.name}"  # which of several chips it is
    assert table.title.startswith(f"{chip} beside GPU decode at ")
    for row, one in zip(values["rows"], table.rows, strict=True):
        assert one[1] == row["device"]
        assert one[7:10] == tuple(row["tokens_per_s"][end] for end in ("low", "mid", "high"))
    assert table.numbers("single_mid")[0] == report.chips[0].figure("tokens_per_s").value
    cost = report.table("compare_1_cost")
    assert cost is not None
    assert cost.title == f"Cost of {chip}: a calculation, no quote"
    assert len(cost.rows) == len(values["cost"]["rows"])
    plots = report_plots(report)["comparison"]
    assert len(plots) == 4
    for plot in plots:
        assert isinstance(plot, SpanPlot)
        assert plot.title.startswith(f"{chip}: ")
        assert plot.groups.count("chip") == 1
        assert len(plot.labels) == len(set(plot.labels)) > 2
        for low, value, high in zip(plot.low, plot.values, plot.high, strict=True):
            assert 0 < low <= value <= high
    page = render_html(report, with_plotly=False)
    assert 'href="#gpus"' in page
    assert 'href="#gpus"' not in render_html(romsim.build_report(tiny), with_plotly=False)


def test_results_of_another_kind_are_refused(tiny: Description, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text("{}")
    with pytest.raises(FormatError) as caught:
        romsim.build_report(tiny, compare=[result])
    assert str(caught.value) == (
        "Result of `romsim compare` must be what this version prints with --json, not one with "
        "KeyError: 'rows'; run it again"
    )
    with pytest.raises(FormatError) as caught:
        romsim.build_report(tiny, verify=[result])
    assert str(caught.value) == (
        "Result of `romsim verify` must be what this version prints with --json, not one with "
        "KeyError: 'reference'; run it again"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1]", "must be a JSON object, not list; write it with --json"),
        (
            "{",
            "must be the JSON that a command prints with --json, not what it holds (Expecting "
            "property name enclosed in double quotes: line 1 column 2 (char 1)); write it again",
        ),
        (None, "must be a readable file, not FileNotFoundError; write it with --json"),
    ],
)
def test_a_result_that_is_none_is_refused(
    tiny: Description, tmp_path: Path, text: str | None, sentence: str
) -> None:
    result = tmp_path / "result.json"
    if text is not None:
        result.write_text(text)
    with pytest.raises(FormatError) as caught:
        romsim.build_report(tiny, verify=[result])
    assert str(caught.value) == f"Result {result} {sentence}"


def test_contexts_and_numbers_of_chips_that_cannot_be_are_refused(tiny: Description) -> None:
    with pytest.raises(CapacityError) as caught:
        romsim.build_report(tiny, context=97)
    assert str(caught.value) == (
        f"Context must be at most 96 tokens in {tiny.path}, not 97; lower --context, or compile "
        f"with a larger one"
    )
    with pytest.raises(SpecError, match=r"^Context must be at least 1 token, not 0$"):
        romsim.build_report(tiny, context=0)
    with pytest.raises(SpecError, match=r"^Descriptions of one report must be 1 to 4, not 5$"):
        romsim.build_report(*[tiny] * 5)


def test_equal_chips_are_told_apart(tiny: Description) -> None:
    report = romsim.build_report(tiny, tiny)
    assert [c.label for c in report.chips] == ["tiny-int4 on small (1)", "tiny-int4 on small (2)"]
    assert [c.letter for c in report.chips] == ["A", "B"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.000106839, "J", "107 µJ"),
        (5.378e-07, "J", "538 nJ"),
        (0.0, "J", "0 J"),
        (27135.569, "tokens/s", "27,136 tokens/s"),
        (0.5, "tokens/s", "0.5 tokens/s"),
        (134479872, "weights", "134 M weights"),
        (16089350144, "bit", "16.1 Gbit"),
        (35.806, "mm²", "35.8 mm²"),
        (585.004, "mm²", "585 mm²"),
        (2048, "tokens", "2,048 tokens"),
        (99.86, "%", "99.9 %"),
        (2.125, "1", "2.12"),
        (5.736842, "bit/weight", "5.737 bit/weight"),
        (3.2e13, "1/s", "32 T/s"),
    ],
)
def test_quantities_as_people_read_them(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_ends_of_a_range_share_a_prefix() -> None:
    assert span(6.7563e-05, 0.00023886, "J", like=0.000106839) == "67.6 – 239 µJ"
    assert span(0.9, 1100.0, "W", like=20.0) == "0.9 – 1,100 W"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00001234, "1.23e-05"),
        (0.0123456, "0.0123"),
        (12.3456, "12.3"),
        (999.5, "1,000"),
        (-3, "-3"),
    ],
)
def test_plain_numbers_keep_three_digits(value: float, text: str) -> None:
    assert plain(value) == text


def test_squares_fill_their_box() -> None:
    values = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0]
    boxes = squarify(values, (0.0, 0.0, 6.0, 4.0))
    for value, (x, y, w, h) in zip(values, boxes, strict=True):
        assert w * h == pytest.approx(value)
        assert x >= -1e-12
        assert y >= -1e-12
        assert x + w <= 6 + 1e-9
        assert y + h <= 4 + 1e-9
    # The example of the paper: its first row is the two largest, one above the other.
    assert boxes[0] == pytest.approx((0.0, 0.0, 3.0, 2.0))
    assert boxes[1] == pytest.approx((0.0, 2.0, 3.0, 2.0))


def test_plots_of_two_chips_stand_side_by_side(tiny: Description, shape: Description) -> None:
    plots = report_plots(romsim.build_report(tiny, shape))
    assert [whole for _, whole in arranged([plots["layers"], plots["energy_context"]])] == [
        False,
        False,
        True,
    ]
    one = report_plots(romsim.build_report(tiny))
    assert [whole for _, whole in arranged([one["rates"], one["ttft"], one["published"]])] == [
        False,
        False,
        True,
    ]
