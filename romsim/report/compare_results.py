"""What ``romsim compare`` found, as tables with units: the chip beside GPU decode, and cost."""

from __future__ import annotations

from typing import Any

from romsim.report.model import Cell, Column, Table
from romsim_models.errors import FormatError

__all__ = ["compare_tables"]

_FORMULAS = {
    "compiled program": "clock ÷ cycles of the compiled program",
    "roofline": "bandwidth × share that decoders reach ÷ bytes of a step",
    "measured": "median of the turns measured on that device",
    "published": "as published",
}
_FASTER = "; times: the chip's over this one's, joules the other way round"
_COST = "purchase or rent, and electricity, over tokens; inputs with sources: `romsim compare`"


def compare_tables(number: int, values: dict[str, Any]) -> tuple[Table, ...]:
    """Return the tables of one result.

    Parameters
    ----------
    number
        Which of several results, from 1.
    values
        What ``romsim compare --json`` printed.

    Raises
    ------
    FormatError
        If it is not what that command prints.
    """
    try:
        tables = [_rows(number, values), _cost(number, values)]
        chip = _chip(values)
        notes = (*values["missing"], *values["notes"], values["kv"]["sentence"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"Result of `romsim compare` must be what this version prints with --json, not one "
            f"with {type(error).__name__}: {error}; run it again"
        ) from None
    told = Table(
        key=f"compare_{number}_notes",
        title=f"What to know of the comparison of {chip}",
        note="As `romsim compare` says it.",
        columns=(Column(key="note", label="note"),),
        rows=tuple((str(note),) for note in dict.fromkeys(notes)),
    )
    return (*tables, told)


def _chip(values: dict[str, Any]) -> str:
    """Name the chip of a result as the report names its own."""
    return f"{values['model']['name']} on {values['chip']['target']}"


def _span(value: dict[str, float] | None) -> tuple[Cell, Cell, Cell]:
    return (None, None, None) if value is None else (value["low"], value["mid"], value["high"])


def _mid(value: dict[str, float] | None) -> Cell:
    return None if value is None else value["mid"]


def _rows(number: int, values: dict[str, Any]) -> Table:
    rows = []
    for row in values["rows"]:
        kind = str(row["kind"])
        rows.append(
            (
                str(row["side"]),
                str(row["device"]),
                kind,
                str(row["framework"]),
                str(row["weight_format"]),
                str(row["streams"]),
                row["batch"],
                *_span(row["tokens_per_s"]),
                *_span(row["aggregate_tokens_per_s"]),
                *_span(row["joules_per_token"]),
                _mid(row["chip_times_faster"]),
                _mid(row["chip_times_aggregate"]),
                _mid(row["chip_times_joules"]),
                "; ".join([str(row["joules_basis"]), *row["warnings"]]),
                _FORMULAS[kind] + _FASTER,
                str(row["source"]),
                str(row["grade"]),
            )
        )
    spans = [
        Column(key=f"{key}_{end}", label=f"{label}, {end}", unit=unit)
        for key, label, unit in (
            ("single", "one sequence", "tokens/s"),
            ("aggregate", "all sequences", "tokens/s"),
            ("token_j", "a token", "J"),
        )
        for end in ("low", "mid", "high")
    ]
    return Table(
        key=f"compare_{number}_rows",
        title=f"{_chip(values)} beside GPU decode at {values['context']:,} tokens",
        note=(
            "One sequence and all sequences of a batch are different figures. Rooflines are limits "
            "with the share of bandwidth that decoders reach; no server stands behind them."
        ),
        columns=(
            Column(key="side", label="side"),
            Column(key="device", label="device"),
            Column(key="kind", label="kind"),
            Column(key="framework", label="framework"),
            Column(key="format", label="weights"),
            Column(key="streams", label="streams"),
            Column(key="batch", label="batch", unit="sequences"),
            *spans,
            Column(key="faster", label="chip faster, one", unit="×"),
            Column(key="faster_all", label="chip faster, all", unit="×"),
            Column(key="joules_less", label="joules, this over the chip's", unit="×"),
            Column(key="note", label="basis of joules, warnings"),
            Column(key="formula", label="formula"),
            Column(key="source", label="source"),
            Column(key="grade", label="grade"),
        ),
        rows=tuple(rows),
    )


def _cost(number: int, values: dict[str, Any]) -> Table:
    shared = {"formula": _COST, "source": "inputs of `romsim compare`", "grade": "assumed"}
    ends = ("low", "mid", "high")
    return Table(
        key=f"compare_{number}_cost",
        title=f"Cost of {_chip(values)}: a calculation, no quote",
        note="; ".join(str(note) for note in values["cost"]["notes"]),
        columns=(
            Column(key="side", label="side"),
            Column(key="device", label="device"),
            Column(key="format", label="weights"),
            Column(key="streams", label="streams"),
            Column(key="basis", label="basis"),
            *(
                Column(key=f"million_{e}", label=f"a million tokens, {e}", unit="USD", **shared)
                for e in ends
            ),
            *(Column(key=f"year_{e}", label=f"a year, {e}", unit="USD", **shared) for e in ends),
        ),
        rows=tuple(
            (
                str(row["side"]),
                str(row["device"]),
                str(row["format"]),
                str(row["streams"]),
                str(row["basis"]),
                *_span(row["usd_per_million_tokens"]),
                *_span(row["usd_per_year"]),
            )
            for row in values["cost"]["rows"]
        ),
    )
