"""Tables of a chip's energy: by event, by unit and gating, and against context."""

from __future__ import annotations

from romsim.area import AreaReport
from romsim.design_point import DesignPoint
from romsim.energy import GATING, EnergyReport, Gating, estimate_energy
from romsim.report.model import Cell, Column, Table, worst_grade
from romsim.report.speed import ladder

__all__ = [
    "GATING_NAMES",
    "UNIT_NAMES",
    "energies",
    "energy_context_table",
    "energy_layer_table",
    "energy_table",
    "energy_unit_table",
]

GATING_NAMES: dict[Gating, str] = {
    "switching": "nothing gated",
    "isolated": "idle units and banks held",
    "gated": "idle ROM banks without power",
}
UNIT_NAMES = {
    "L": "ROM and lanes",
    "H": "attention",
    "V": "vector unit",
    "network": "network",
    "clock": "clocked registers",
    "leakage": "leakage",
}
_EVENTS = "events of the token × energy of one, clocked registers, leakage × time"
_SOURCE = "energies of the technology file, event by event in the energy table"


def energies(point: DesignPoint, area: AreaReport, context: int) -> dict[Gating, EnergyReport]:
    """Return a token's energy with each gating."""
    return {g: estimate_energy(point, context, gating=g, area=area) for g in GATING}


def _grade(energy: EnergyReport) -> str:
    """Return the weakest grade among the events."""
    return worst_grade(*(row.grade for row in energy.rows))


def energy_table(energy: EnergyReport) -> Table:
    """Return a token's energy event by event; the rows sum to the token."""
    total = energy.token_pj.mid
    return Table(
        key="energy",
        title=f"Energy of a token at {energy.context:,} tokens, by event",
        note=f"Gating: {GATING_NAMES['isolated']}. The rows sum to the token.",
        columns=(
            Column(key="unit", label="unit"),
            Column(key="event", label="event"),
            Column(key="low_j", label="low", unit="J"),
            Column(key="mid_j", label="mid", unit="J"),
            Column(key="high_j", label="high", unit="J"),
            Column(key="share", label="share of mid", unit="%"),
            Column(key="formula", label="formula"),
            Column(key="source", label="source"),
            Column(key="grade", label="grade"),
        ),
        rows=tuple(
            (
                UNIT_NAMES[row.unit],
                row.event.replace("_", " "),
                row.energy_pj.low * 1e-12,
                row.energy_pj.mid * 1e-12,
                row.energy_pj.high * 1e-12,
                100 * row.energy_pj.mid / total,
                row.formula,
                row.source,
                row.grade,
            )
            for row in energy.rows
        ),
    )


def energy_unit_table(reports: dict[Gating, EnergyReport]) -> Table:
    """Return a token's energy by unit, with and without gating."""
    grade = _grade(reports["isolated"])
    shared = {"formula": _EVENTS, "source": _SOURCE, "grade": grade}
    rows = []
    for gating, energy in reports.items():
        units = energy.by_unit()
        parts = [(name, units[key]) for key, name in UNIT_NAMES.items() if key in units]
        for name, part in (*parts, ("total", energy.token_pj)):
            rows.append(
                (
                    GATING_NAMES[gating],
                    name,
                    part.low * 1e-12,
                    part.mid * 1e-12,
                    part.high * 1e-12,
                    100 * part.mid / energy.token_pj.mid,
                )
            )
    return Table(
        key="energy_units",
        title=f"Energy of a token at {reports['isolated'].context:,} tokens, by unit and gating",
        note=(
            "Nothing gated: clocks run in idle units, and every bank of a ROM made of logic "
            "switches. Held: clocks stop and addresses rest. Without power: idle ROM banks keep "
            "only the gated share of their leakage. What gating gains is to be read against held."
        ),
        columns=(
            Column(key="gating", label="gating"),
            Column(key="unit", label="unit"),
            Column(key="low_j", label="low", unit="J", **shared),
            Column(key="mid_j", label="mid", unit="J", **shared),
            Column(key="high_j", label="high", unit="J", **shared),
            Column(key="share", label="share of mid", unit="%", **shared),
        ),
        rows=tuple(rows),
    )


def energy_context_table(point: DesignPoint, area: AreaReport, limit: int) -> Table:
    """Return energy and power against context, with each gating."""
    rows = []
    grade = "derived"
    for gating in GATING:
        for context in ladder(limit):
            energy = estimate_energy(point, context, gating=gating, area=area)
            grade = worst_grade(grade, _grade(energy))
            token, power = energy.token_pj, energy.power_w
            rows.append(
                (
                    GATING_NAMES[gating],
                    context,
                    token.low * 1e-12,
                    token.mid * 1e-12,
                    token.high * 1e-12,
                    power.low,
                    power.mid,
                    power.high,
                )
            )
    shared = {"source": _SOURCE, "grade": grade}
    token_formula = {"formula": _EVENTS, **shared}
    power_formula = {"formula": "energy of a token × tokens/s", **shared}
    return Table(
        key="energy_context",
        title="Energy and power against context",
        note="Power is the mean while tokens are decoded one after another.",
        columns=(
            Column(key="gating", label="gating"),
            Column(
                key="tokens",
                label="context",
                unit="tokens",
                formula="chosen, up to what the chip holds",
                source="the description's memory map",
                grade="derived",
            ),
            Column(key="low_j", label="token, low", unit="J", **token_formula),
            Column(key="mid_j", label="token, mid", unit="J", **token_formula),
            Column(key="high_j", label="token, high", unit="J", **token_formula),
            Column(key="low_w", label="power, low", unit="W", **power_formula),
            Column(key="mid_w", label="power, mid", unit="W", **power_formula),
            Column(key="high_w", label="power, high", unit="W", **power_formula),
        ),
        rows=tuple(rows),
    )


def energy_layer_table(energy: EnergyReport) -> Table:
    """Return the energy of events by layer; clocks and leakage belong to no layer."""
    grade = _grade(energy)
    rows: list[tuple[Cell, ...]] = []
    whole = energy.token_pj.mid
    events = 0.0
    for first, count, dynamic in energy.by_block:
        last = first + count - 1
        name = "outside" if first < 0 else f"{first} to {last}" if count > 1 else f"{first}"
        events += dynamic * count
        rows.append((name, count, dynamic * 1e-12, 100 * dynamic * count / whole))
    rest = whole - events
    rows.append(("clocks and leakage", 1, rest * 1e-12, 100 * rest / whole))
    shared = {"source": _SOURCE, "grade": grade}
    return Table(
        key="energy_layers",
        title=f"Energy of a token at {energy.context:,} tokens, by layer",
        note="Mid values; equal layers in one row.",
        columns=(
            Column(key="layers", label="layers"),
            Column(key="count", label="count", unit="1", formula="equal layers", **shared),
            Column(
                key="one_j",
                label="one of them",
                unit="J",
                formula="events × energy of one",
                **shared,
            ),
            Column(
                key="share",
                label="all of them",
                unit="%",
                formula="count × one ÷ energy of the token",
                **shared,
            ),
        ),
        rows=tuple(rows),
    )
