"""What ``romsim kv-eval`` found, as a table and a plot: perplexity against room, what is best."""

from __future__ import annotations

from typing import Any

from romsim.report.model import Cell, Column, Report, Table
from romsim.report.plots import COLOURS, Axis, SpanPlot
from romsim_models.errors import FormatError

__all__ = ["kv_plots", "kv_tables"]

_BEST, _BEATEN = "on the front", "beaten"
_SCORED = {
    "formula": "losses of the scored tokens, with the chip's arithmetic",
    "source": "`romsim kv-eval`",
    "grade": "measured",
}
_CLOSED = {
    "formula": "closed forms of docs/kv.md, sections 7 and 8",
    "source": "`romsim kv-eval`",
    "grade": "derived",
}
_COLUMNS = (
    Column(key="config", label="KV cache"),
    Column(key="front", label="Pareto"),
    Column(key="bits", label="bits an element", unit="bits", **_CLOSED),
    Column(key="token_bytes", label="a token", unit="B", **_CLOSED),
    Column(key="held_bytes", label="a window's tokens", unit="B", **_CLOSED),
    Column(key="tokens_fit", label="tokens that fit", unit="tokens", **_CLOSED),
    Column(key="rate", label="one sequence", unit="tokens/s", **_CLOSED),
    Column(key="perplexity", label="perplexity", unit="1", **_SCORED),
    Column(key="change", label="change", unit="%", **_SCORED),
    Column(key="error", label="standard error", unit="%", **_SCORED),
    Column(key="agreement", label="same token", unit="%", **_SCORED),
    Column(key="saturations", label="saturations", unit="values", **_SCORED),
)


def kv_tables(number: int, values: dict[str, Any]) -> tuple[Table, ...]:
    """Return the table of one result.

    Parameters
    ----------
    number
        Which of several results, from 1.
    values
        What ``romsim kv-eval --json`` printed.

    Raises
    ------
    FormatError
        If it is not what that command prints.
    """
    try:
        window = int(values["window"])
        rows = [_row(row, window) for row in values["rows"]]
        note = (
            f"{values['n_scored']:,} of {values['n_tokens']:,} tokens scored, windows of "
            f"{window:,}; change against {values['rows'][0]['config']}. On the front: no other "
            f"holds a window in as few bytes at as low a perplexity; tokens/s before "
            f"{values['context']:,}; no entry of tokens that fit: no end."
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FormatError(
            f"Result of `romsim kv-eval` must be what this version prints with --json, not one "
            f"with {type(error).__name__}: {error}; run it again"
        ) from None
    points = [(row[3], row[6]) for row in rows]
    told = [(row[0], _BEST if _is_best(p, points) else _BEATEN, *row[1:]) for row, p in
            zip(rows, points, strict=True)]  # fmt: skip
    return (
        Table(
            key=f"kv_eval_{number}",
            title="Quality and room of KV caches",
            note=note,
            columns=_COLUMNS,
            rows=tuple(told),
        ),
    )


def _row(row: dict[str, Any], window: int) -> tuple[Any, ...]:
    held = window if row["slots"] is None else min(window, int(row["slots"]))
    fit: Cell = None if row["tokens_fit"] is None else int(row["tokens_fit"])
    return (
        str(row["config"]),
        float(row["bits_per_element"]),
        float(row["bytes_per_token"]),
        float(row["bytes_per_token"]) * held,
        fit,
        float(row["tokens_per_s"]),
        float(row["perplexity"]),
        float(row["change_percent"]),
        float(row["change_error_percent"]),
        100 * float(row["agreement"]),
        int(row["saturations"]),
    )


def _is_best(point: tuple[float, float], points: list[tuple[float, float]]) -> bool:
    """Whether no other point is as low in both and lower in one."""
    return not any(
        other[0] <= point[0] and other[1] <= point[1] and other != point for other in points
    )


def kv_plots(report: Report) -> tuple[SpanPlot, ...]:
    """Return the plot of every result of ``romsim kv-eval`` in the report, the smallest first."""
    found = []
    for table in report.tables:
        if not table.key.startswith("kv_eval_"):
            continue
        names, fronts = table.texts("config"), table.texts("front")
        sizes, changes = table.numbers("held_bytes"), table.numbers("change")
        errors = table.numbers("error")
        order = sorted(range(len(names)), key=lambda n: (sizes[n], n))
        found.append(
            SpanPlot(
                key=f"kv_quality-{table.key.rpartition('_')[2]}",
                title="KV caches from the smallest: perplexity against room",
                caption="The line is one standard error; a cache is beaten where another is both "
                "smaller and better.",
                x=Axis(title="change of perplexity, %", unit="%"),
                labels=tuple(f"{names[n]}, {sizes[n] / 1e6:.2f} MB" for n in order),
                values=tuple(changes[n] for n in order),
                low=tuple(changes[n] - errors[n] for n in order),
                high=tuple(changes[n] + errors[n] for n in order),
                groups=tuple(fronts[n] for n in order),
                colours={_BEST: COLOURS["rom"], _BEATEN: COLOURS["host"]},
            )
        )
    return tuple(found)
