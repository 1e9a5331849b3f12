from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from romsim.rates import decode_rates
from romsim.timeline import timeline_rows, write_timeline
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, SpecError
from tests.tiny_chips import compile_tiny, sized_target


def test_rows_are_the_program_in_time(tiny: Description) -> None:
    rows = timeline_rows(tiny, 30)
    assert [row["op"] for row in rows] == [i.op for i in tiny.decode.instructions]
    end = max(int(str(row["idle_cycle"])) for row in rows)
    (rate,) = decode_rates(tiny, [30])
    assert end + tiny.target.latency.token == rate["cycles"]
    busy: dict[object, int] = defaultdict(int)
    last = -1
    for row in rows:
        issue, idle = int(str(row["issue_cycle"])), int(str(row["idle_cycle"]))
        assert issue > last
        assert issue >= busy[row["unit"]]
        assert row["cycles"] == idle - issue
        busy[row["unit"]], last = idle, issue


def test_csv_holds_the_rows(tiny: Description, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_timeline(tiny, path, 3)
    with path.open(newline="") as file:
        read = list(csv.DictReader(file))
    wanted = [{k: str(v) for k, v in row.items()} for row in timeline_rows(tiny, 3)]
    assert read == wanted
    assert b"\r" not in path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def test_trace_is_one_that_perfetto_reads(tiny: Description, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write_timeline(tiny, path)
    trace = json.loads(path.read_text())
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names == {0: "vector unit", 1: "L-units", 2: "H-units"}
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    rows = timeline_rows(tiny)
    assert [(e["ts"], e["dur"]) for e in events] == [
        (row["issue_cycle"], row["cycles"]) for row in rows
    ]
    unit = {"V": 0, "L": 1, "H": 2}
    assert [e["tid"] for e in events] == [unit[str(row["unit"])] for row in rows]
    assert "matvec L1.gu" in {e["name"] for e in events}
    assert trace["otherData"] == {"clock_mhz": 500.0, "unit": "1 us = 1 cycle"}


def test_shape_has_a_timeline(shape: Description, tmp_path: Path) -> None:
    write_timeline(shape, tmp_path / "t.json", shape.context - 1)
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) == (
        3 + len(shape.decode.instructions)
    )


@pytest.mark.parametrize(("name", "ending"), [("t.txt", ".txt"), ("t", ""), (".csv", "")])
def test_other_ending_is_refused(name: str, ending: str, tiny: Description, tmp_path: Path) -> None:
    sentence = f"Timeline file must end in .json or .csv, not {ending!r}"
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        write_timeline(tiny, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("where", "reason"),
    [("none/t.csv", "No such file or directory"), ("file/t.json", "Not a directory")],
)
def test_unwritable_file_is_refused(
    where: str, reason: str, tiny: Description, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    path = tmp_path / where
    sentence = f"Timeline {path} must be writable, not {reason!r}; choose another file"
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        write_timeline(tiny, path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_folder_in_the_way_is_refused_and_nothing_is_left(
    tiny: Description, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.mkdir()
    sentence = f"Timeline {path} must be writable, not 'Is a directory'; choose another file"
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        write_timeline(tiny, path)
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("position", [-1, 96])
def test_position_outside_the_context_is_refused(position: int, tiny: Description) -> None:
    sentence = f"Position must be from 0 to 95 in {tiny.path}, not {position}"
    with pytest.raises(CapacityError, match=rf"^{re.escape(sentence)}$"):
        timeline_rows(tiny, position)


def test_a_matrix_is_switched_on_when_the_one_before_is_read(tmp_path: Path) -> None:
    chip = compile_tiny(
        "tiny-int4", tmp_path / "chip", target=sized_target("small", wake_cycles=40)
    )
    rows = [row for row in timeline_rows(chip, 3) if row["op"] in ("embed", "matvec")]
    assert [row["wake_cycle"] for row in rows] == [0, *(row["issue_cycle"] for row in rows[:-1])]
    for row in rows:
        assert int(str(row["issue_cycle"])) >= int(str(row["wake_cycle"])) + 40
    assert {r["wake_cycle"] for r in timeline_rows(chip, 3) if r["unit"] == "H"} == {None}
    path = tmp_path / "t.json"
    write_timeline(chip, path, 3)
    events = json.loads(path.read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"][3] == "ROM banks waking"
    waking = [e for e in events if e["ph"] == "X" and e["tid"] == 3]
    assert [(e["name"], e["ts"], e["dur"]) for e in waking] == [
        (row["operand"], row["wake_cycle"], 40) for row in rows
    ]
    with_banks_on = timeline_rows(compile_tiny("tiny-int4", tmp_path / "on"), 3)
    assert "wake_cycle" not in with_banks_on[0]
    paid = int(str(timeline_rows(chip, 3)[-1]["idle_cycle"]))
    assert paid > int(str(with_banks_on[-1]["idle_cycle"]))
