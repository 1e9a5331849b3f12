"""Table of resident adapters: their SRAM, and what they cost in speed."""

from __future__ import annotations

from romsim.rates import decode_rates
from romsim.report.model import Cell, Column, Table
from romsim_compiler.description import Description

__all__ = ["adapter_table"]


_NOTES = {
    "int8": "An adapter runs beside the matrices and costs time only where it takes longer.",
    "adders": "An adapter runs in the adder arrays, after the matrix that it extends.",
}


def adapter_table(description: Description, context: int) -> Table | None:
    """Return speed without and with each resident adapter; ``None`` where there is none.

    Parameters
    ----------
    context
        Tokens that attention reads, the new one included.
    """
    if not description.loras:
        return None
    rows: list[tuple[Cell, ...]] = []
    (plain,) = decode_rates(description, [context - 1])
    for name in (None, *sorted(description.loras)):
        (rate,) = decode_rates(description, [context - 1], adapter=name)
        ranks = [] if name is None else description.loras[name].groups.values()
        widest = max((max(group.ranks) for group in ranks), default=0)
        rows.append(
            (
                "none" if name is None else name,
                widest,
                rate["cycles"],
                rate["tokens_per_s"],
                100 * (rate["cycles"] / plain["cycles"] - 1),
            )
        )
    timing = {
        "source": "docs/machine.md, sections 4 and 5; the description's program",
        "grade": "derived",
    }
    clock = {"source": "cycles as before; the target's own clock", "grade": "assumed"}
    return Table(
        key="adapters",
        title=f"Resident adapters at {context:,} tokens of context",
        note=_NOTES[description.target.lora.path] + " All other figures are without one.",
        columns=(
            Column(key="adapter", label="adapter"),
            Column(
                key="rank", label="padded rank", unit="1", formula="whole blocks of rows", **timing
            ),
            Column(key="cycles", label="a token", unit="cycles", formula="issue rule", **timing),
            Column(
                key="rate",
                label="one stream",
                unit="tokens/s",
                formula="clock ÷ cycles a token",
                **clock,
            ),
            Column(
                key="slower",
                label="longer by",
                unit="%",
                formula="cycles ÷ cycles without one − 1",
                **timing,
            ),
        ),
        rows=tuple(rows),
    )
