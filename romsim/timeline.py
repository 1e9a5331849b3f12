"""One token's timeline: Chrome/Perfetto trace or CSV."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import cast

from romsim.rates import adapter_ranks, timing_model
from romsim.whole_file import write_text
from romsim_compiler.description import Description
from romsim_compiler.issue import is_woken, rom_operand
from romsim_models.errors import CapacityError, SpecError

__all__ = ["check_timeline_path", "timeline_rows", "write_timeline"]

_UNITS = {"V": "vector unit", "L": "L-units", "H": "H-units"}


def timeline_rows(
    description: Description, position: int = 0, *, adapter: str | None = None
) -> list[dict[str, object]]:
    """Return issue, idle and duration of every instruction of a token at ``position``.

    Where the target's ROM banks are gated, ``wake_cycle`` is that in which those of the matrix that
    an instruction reads are switched on; ``None`` where it reads none, or the same as before.

    Raises
    ------
    CapacityError
        If the position is outside the context.
    SpecError
        If the adapter is not resident.
    """
    if not 0 <= position < description.context:
        raise CapacityError(
            f"Position must be from 0 to {description.context - 1} in {description.path}, not "
            f"{position}"
        )
    program = description.decode
    ranks = adapter_ranks(description, adapter)
    times = timing_model(description).run(program, position, ranks).times
    rows: list[dict[str, object]] = [
        {
            "index": index,
            "op": instruction.op,
            "unit": instruction.unit,
            "layer": instruction.layer,
            "operand": instruction.operand,
            "issue_cycle": issue,
            "idle_cycle": idle,
            "cycles": idle - issue,
        }
        for index, (instruction, (issue, idle)) in enumerate(
            zip(program.instructions, times, strict=True)
        )
    ]
    if description.target.power.wake_cycles:
        switched = 0
        woken = is_woken(program.instructions)
        for row, instruction, wakes in zip(rows, program.instructions, woken, strict=True):
            row["wake_cycle"] = switched if wakes else None
            if rom_operand(instruction):
                switched = cast("int", row["issue_cycle"])
    return rows


def check_timeline_path(path: Path) -> None:
    """Refuse a file name whose ending names no form of timeline.

    Raises
    ------
    SpecError
        With the endings that there are.
    """
    if path.suffix not in (".json", ".csv"):
        raise SpecError(f"Timeline file must end in .json or .csv, not {path.suffix!r}")


def write_timeline(
    description: Description, path: Path, position: int = 0, *, adapter: str | None = None
) -> None:
    """Write the timeline of a token; the file name's ending says which form.

    Raises
    ------
    SpecError
        If the ending is neither ``.json`` nor ``.csv``, the adapter is not resident, or the file
        cannot be written.
    """
    check_timeline_path(path)
    rows = timeline_rows(description, position, adapter=adapter)
    if path.suffix == ".csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = buffer.getvalue()
    else:
        text = json.dumps(_trace(description, rows)) + "\n"
    write_text(path, text, what="Timeline")


def _trace(description: Description, rows: list[dict[str, object]]) -> dict[str, object]:
    """Return Chrome trace events; one trace microsecond is one cycle."""
    threads = list(_UNITS)
    wake_cycles = description.target.power.wake_cycles
    names = {**_UNITS, **({"banks": "ROM banks waking"} if wake_cycles else {})}
    events: list[dict[str, object]] = [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": 1,
            "tid": number,
            "args": {"name": name},
        }
        for number, name in enumerate(names.values())
    ]
    events += [
        {
            "name": f"{row['op']} {row['operand']}".strip(),
            "ph": "X",
            "pid": 1,
            "tid": threads.index(str(row["unit"])),
            "ts": row["issue_cycle"],
            "dur": row["cycles"],
            "args": {"layer": row["layer"], "index": row["index"]},
        }
        for row in rows
    ]
    events += [
        {
            "name": str(row["operand"]),
            "ph": "X",
            "pid": 1,
            "tid": len(threads),
            "ts": row["wake_cycle"],
            "dur": wake_cycles,
            "args": {"layer": row["layer"], "index": row["index"]},
        }
        for row in rows
        if row.get("wake_cycle") is not None
    ]
    other = {"clock_mhz": description.target.clock_mhz, "unit": "1 us = 1 cycle"}
    return {"traceEvents": events, "otherData": other}
