"""What the synthesis of a chip's RTL reports: modules, units beside the estimate, the clock."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from romsim_compiler.technology import Range

__all__ = ["ModuleRow", "SynthesisReport", "UnitRow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """One module without what the modules inside it hold; memories are black boxes.

    ``gates`` and ``depth_fo4`` are of the path that bounds the clock, which begins at ``start``
    (``flop``, ``sram`` or ``rom``) and runs from ``first`` to ``last``, named as in the design
    where it names them. A module without a path that ends inside has none.
    """

    module: str
    unit: str
    count: int  # in the chip
    n_cells: int
    n_flops: int
    cell_um2: float  # of one
    memory_bits: int
    gates: int
    depth_fo4: float
    start: str | None
    first: str
    last: str
    period_ps: Range | None

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """Logic of one unit of the chip: synthesised and placed, beside the estimate from parts."""

    unit: str
    placed_um2: Range
    estimated_um2: float

    @property
    def ratio(self) -> float | None:
        """Synthesised over estimated."""
        return self.placed_um2.mid / self.estimated_um2 if self.estimated_um2 else None

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True, kw_only=True)
class SynthesisReport:
    """Modules of a chip as cells, and whether its clock is reached.

    Totals and clock are of the modules listed; only units without a module left out are.
    """

    description: str
    target: str
    technology: str
    mapping: str
    clock_mhz: float
    utilisation: Range
    modules: tuple[ModuleRow, ...]
    units: tuple[UnitRow, ...]
    left_out: tuple[str, ...]  # modules of the chip that were not asked for

    @property
    def slowest(self) -> ModuleRow:
        """The module that bounds the clock."""
        timed = [row for row in self.modules if row.period_ps is not None]
        return max(timed, key=lambda row: row.period_ps.mid if row.period_ps else 0.0)

    @property
    def period_ps(self) -> Range:
        """The shortest period of the chip."""
        period = self.slowest.period_ps
        assert period is not None, "rows without a path are left out"
        return period

    @property
    def max_mhz(self) -> Range:
        """The highest clock: low where paths are slowest."""
        period = self.period_ps
        return Range(1e6 / period.high, 1e6 / period.mid, 1e6 / period.low)

    @property
    def meets_clock(self) -> bool:
        """Whether the middle period is within the target's clock."""
        return self.period_ps.mid <= 1e6 / self.clock_mhz

    @property
    def cell_um2(self) -> float:
        """Cell area of all modules."""
        return sum(row.cell_um2 * row.count for row in self.modules)

    @property
    def placed_um2(self) -> Range:
        """Cell area over the utilisation."""
        return Range.exact(self.cell_um2).over(self.utilisation)

    def verdict(self) -> str:
        """Say whether the target's clock is reached, and what bounds it."""
        reached, row = self.max_mhz, self.slowest
        path = f"from {row.first or '?'} to {row.last or '?'}, {row.gates} gates"
        clock = f"{self.clock_mhz:g} MHz of target {self.target!r}"
        if self.left_out:
            path += f"; {len(self.left_out)} modules were left out"
        if self.meets_clock:
            return f"{clock} are reached: {reached.mid:.0f} MHz, bound by {row.module} ({path})"
        return (
            f"{clock} are NOT reached by its own RTL: {reached.mid:.0f} MHz "
            f"({reached.low:.0f} to {reached.high:.0f}), bound by {row.module} ({path})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "description": self.description,
            "target": self.target,
            "technology": self.technology,
            "mapping": self.mapping,
            "modules": [row.to_json() for row in self.modules],
            "left_out": list(self.left_out),
            "units": [row.to_json() for row in self.units],
            "total": {
                "cell_um2": self.cell_um2,
                "utilisation": asdict(self.utilisation),
                "placed_um2": asdict(self.placed_um2),
            },
            "clock": {
                "target_mhz": self.clock_mhz,
                "max_mhz": asdict(self.max_mhz),
                "period_ps": asdict(self.period_ps),
                "module": self.slowest.module,
                "is_met": self.meets_clock,
                "verdict": self.verdict(),
            },
        }
