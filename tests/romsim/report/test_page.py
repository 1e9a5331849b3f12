"""The HTML page: what stands in it, that it needs nothing else, and how a browser shows it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import romsim
from romsim.report.csv_tables import csv_of
from romsim.report.html import render_html
from romsim.report.model import Report
from romsim.report.plot_report import report_plots
from romsim_compiler.description import Description
from romsim_models.errors import SpecError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """Ids, attributes and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._script = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._script = str(dict(attrs).get("id") or "") if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def values(self, name: str) -> list[str]:
        return [a[name] or "" for _, a in self.elements if name in a]


@pytest.fixture(scope="module")
def report(tiny: Description) -> Report:
    return romsim.build_report(tiny)


@pytest.fixture(scope="module")
def pair(tiny: Description, shape: Description) -> Report:
    return romsim.build_report(tiny, shape)


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return render_html(report)


def test_page_needs_nothing_but_itself(text: str) -> None:
    page = Page(text)
    for name in ("src", "srcset", "action", "poster"):
        assert page.values(name) == []
    links = [h for h in page.values("href") if not h.startswith(("#", "data:"))]
    assert links == []
    assert not any(tag in ("link", "iframe", "object") for tag, _ in page.elements)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_page_is_small_enough(text: str) -> None:
    assert len(text.encode()) <= 8_000_000


def test_same_report_same_bytes(tiny: Description, text: str) -> None:
    again = render_html(romsim.build_report(Description.load(tiny.path)))
    assert again == text
    assert str(tiny.path) not in text


def test_ids_are_unique_and_lead_somewhere(pair: Report) -> None:
    page = Page(render_html(pair, with_plotly=False))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for link in page.values("href"):
        if link.startswith("#"):
            assert link[1:] in ids


def test_every_plot_has_its_place_and_something_to_show(pair: Report) -> None:
    page = Page(render_html(pair, with_plotly=False))
    figures: dict[str, Any] = json.loads(page.scripts["plots"])
    wanted = [plot.key for group in report_plots(pair).values() for plot in group]
    assert sorted(page.values("data-plot")) == sorted(wanted) == sorted(figures)
    assert len(wanted) == 18  # 7 for each chip but the shape's ROM map, and 5 shared
    for key, figure in figures.items():
        assert figure["data"], key
        for trace in figure["data"]:
            sizes = [len(trace[n]) for n in ("x", "y", "z", "values") if n in trace]
            assert sizes, (key, trace.get("name"))
            assert all(sizes), (key, trace.get("name"))
        layout = figure["layout"]
        if "xaxis" in layout and key != "published":
            assert layout["xaxis"]["title"]["text"], key


def test_every_table_can_be_downloaded_as_csv(report: Report, text: str) -> None:
    page = Page(text)
    files = {
        str(a["download"]): unquote(str(a["href"]).partition(",")[2])
        for tag, a in page.elements
        if tag == "a" and str(a.get("href")).startswith("data:text/csv")
    }
    tables = [*report.chips[0].tables, *report.tables]
    assert files == {f"{table.key}.csv": csv_of(table) for table in tables}
    for table in tables:
        rows = list(csv.reader(io.StringIO(files[f"{table.key}.csv"])))
        assert len(rows) == 1 + len(table.rows)
        assert {len(row) for row in rows} == {len(table.columns)}


def test_every_figure_tells_formula_source_and_grade(text: str) -> None:
    tips = Page(text).values("data-tip")
    assert len(tips) > 100
    for tip in tips:
        assert re.fullmatch(r"(?s)Formula: .+\nSource: .+\nGrade: \w+", tip), tip


def test_names_from_a_model_cannot_become_elements(report: Report) -> None:
    from dataclasses import replace

    evil = "</script><script>alert(1)</script><b>"
    chip = replace(report.chips[0], label=evil, name=evil, model=evil)
    page = render_html(replace(report, title=evil, chips=(chip,)), with_plotly=False)
    assert "<script>alert" not in page
    assert Page(page).scripts["data"]


def test_without_plotly_a_page_is_refused_in_a_sentence(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(SpecError) as caught:
        render_html(report)
    assert str(caught.value) == (
        "Report page must have plotly, which is not installed; install romsim[report], or write "
        ".json or .md"
    )


def browse(page: Path, profile: Path, *options: str) -> tuple[str, list[str]]:
    """The page as a browser has it after its scripts, and what they said on the console."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run(
        [*command, *options, page.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, said


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: Debian package chromium")
@pytest.mark.parametrize("width", [1400, 500])
def test_browser_draws_every_plot_without_a_word(pair: Report, tmp_path: Path, width: int) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_html(pair), encoding="utf-8")
    shown, said = browse(page, tmp_path / "profile", f"--window-size={width},3000")
    assert said == []
    root = re.search(r"<html[^>]*>", shown)
    assert root is not None
    assert "data-errors" not in root[0]
    plots = [plot.key for group in report_plots(pair).values() for plot in group]
    assert f'data-plots="{len(plots)}"' in root[0]
    pieces = re.split(r"(?=<figure)", shown)
    for key in plots:
        (piece,) = [p for p in pieces if f'id="plot-{key}"' in p]
        # Marks, not only axes: lines, bars, tiles, an image.
        marks = re.findall(r'class="(?:js-line|point|slice|scatterlayer|hm|surface)|<image', piece)
        assert len(marks) >= 2 or "<image" in piece, key


def test_browser_is_looked_for_by_name() -> None:
    assert CHROMIUM is None or Path(CHROMIUM).is_file()
