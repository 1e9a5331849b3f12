"""Tables of published chips: our figure beside theirs, what was fitted, and other chips."""

from __future__ import annotations

from romsim.published import contradictions, fitted_constants, other_chips, published_rows
from romsim.report.model import Column, Table

__all__ = ["published_tables"]

_TAGS = {
    "input": "published",
    "fitted": "derived",
    "predicted": "derived",
    "unexplained": "assumed",
}


def published_tables() -> tuple[Table, ...]:
    """Return the tables of published chips."""
    return _rows(), _fitted(), _others(), _contradictions()


def _rows() -> Table:
    rows = []
    for row in published_rows():
        difference = None if row.difference is None else 100 * row.difference
        tolerance = None if row.tolerance is None else 100 * row.tolerance
        rows.append(
            (
                row.chip,
                row.quantity,
                row.unit,
                row.tag,
                row.theirs,
                row.ours,
                difference,
                tolerance,
                row.bottom_up,
                row.ratio,
                row.note,
                "ours: the same models on the chip's target; difference: ours ÷ theirs − 1",
                row.source,
                _TAGS[row.tag],
            )
        )
    return Table(
        key="published",
        title="Published chips: theirs and ours",
        note=(
            "Input: copied from the same paper. Fitted: a parameter that is not published was "
            "chosen for it. Predicted: follows from the rest. Unexplained: known not to fit, and "
            "left out of the tolerances by name. Values are in the row's own unit."
        ),
        columns=(
            Column(key="chip", label="chip"),
            Column(key="quantity", label="quantity"),
            Column(key="unit", label="unit"),
            Column(key="tag", label="tag"),
            Column(key="theirs", label="theirs", unit="row's unit"),
            Column(key="ours", label="ours", unit="row's unit"),
            Column(key="difference", label="difference", unit="%"),
            Column(key="tolerance", label="tolerance", unit="%"),
            Column(key="bottom_up", label="bottom-up", unit="row's unit"),
            Column(key="ratio", label="bottom-up ÷ theirs", unit="1"),
            Column(key="note", label="note"),
            Column(key="formula", label="formula"),
            Column(key="source", label="source"),
            Column(key="grade", label="grade"),
        ),
        rows=tuple(rows),
    )


def _fitted() -> Table:
    return Table(
        key="fitted",
        title="Fitted constants",
        note="Parameters that a paper leaves out, with the value chosen; none is hidden.",
        columns=(
            Column(key="chip", label="chip"),
            Column(key="name", label="parameter"),
            Column(
                key="value",
                label="value",
                unit="parameter's unit",
                formula="search over the parameters that the paper leaves out",
                source="`python -m romsim.published --fit`",
                grade="derived",
            ),
        ),
        rows=tuple((one.chip, one.name, float(one.value)) for one in fitted_constants()),
    )


def _others() -> Table:
    rows = []
    for one in other_chips():
        formula = "as published; per area and per token: quotients of the columns before"
        rows.append(
            (
                one.name,
                one.kind,
                one.node,
                one.area_mm2,
                one.single_tokens_per_s,
                one.aggregate_tokens_per_s,
                one.power_w,
                one.tokens_per_s_mm2,
                None if one.mj_per_token is None else 1e-3 * one.mj_per_token,
                one.mbit_per_mm2,
                one.note,
                formula,
                one.source,
                "published",
            )
        )
    return Table(
        key="other_chips",
        title="Other chips",
        note="No instances of the template. One stream and many are different figures.",
        columns=(
            Column(key="chip", label="chip"),
            Column(key="kind", label="kind"),
            Column(key="node", label="node"),
            Column(key="area", label="area", unit="mm²"),
            Column(key="single", label="one stream", unit="tokens/s"),
            Column(key="aggregate", label="many streams", unit="tokens/s"),
            Column(key="power", label="power", unit="W"),
            Column(key="rate_density", label="rate over area", unit="tokens/s/mm²"),
            Column(key="token", label="a token", unit="J"),
            Column(key="density", label="stored over die", unit="Mbit/mm²"),
            Column(key="note", label="note"),
            Column(key="formula", label="formula"),
            Column(key="source", label="source"),
            Column(key="grade", label="grade"),
        ),
        rows=tuple(rows),
    )


def _contradictions() -> Table:
    return Table(
        key="contradictions",
        title="Where published figures contradict each other or us",
        note="From reading the papers against themselves.",
        columns=(
            Column(key="chip", label="chip"),
            Column(key="contradiction", label="contradiction"),
        ),
        rows=tuple((chip, note) for chip, notes in contradictions().items() for note in notes),
    )
