"""What the synthesis of a model's logic ROM reports: matrices, encodings, totals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from romsim.logic_rom_sampling import CONFIDENCE, AreaFit, Estimate, sum_estimates
from romsim_compiler.technology import Range

__all__ = ["EncodingArea", "LogicRomReport", "MatrixArea"]

_MEBIBYTE = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixArea:
    """One matrix group: counts are exact, areas estimated from the sampled banks (cell area)."""

    name: str
    n_weights: int
    n_bits: int  # stored, padding included
    zero_weights: float | None  # share; None where a minimum makes no code a zero
    zero_bits: float
    n_banks: int
    n_sampled: int
    bank_rows: int  # of the largest bank
    bank_width: int
    area: Estimate
    dense: float  # the same banks with random bits, um2

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        return {
            "name": self.name,
            "n_weights": self.n_weights,
            "n_bits": self.n_bits,
            "zero_weights": self.zero_weights,
            "zero_bits": self.zero_bits,
            "n_banks": self.n_banks,
            "n_sampled": self.n_sampled,
            "bank_rows": self.bank_rows,
            "bank_width": self.bank_width,
            "cell_area_um2": self.area.total,
            "half_width_um2": self.area.half_width,
            "um2_per_bit": self.area.total / self.n_bits,
            "um2_per_weight": self.area.total / self.n_weights,
            "dense_um2": self.dense,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingArea:
    """All matrices in one encoding: bits and cell area, decoders apart."""

    encoding: str
    summary: str
    bits_per_weight: float
    zero_bits: float  # of the sampled banks' codes
    area: Estimate
    decoder_um2: float
    um2_per_weight: float  # decoders included

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        values = asdict(self)
        area = values.pop("area")
        return values | {"cell_area_um2": area["total"], "half_width_um2": area["half_width"]}


@dataclass(frozen=True, kw_only=True)
class LogicRomReport:
    """Logic ROM of a whole description.

    ``depth_fo4`` is the slowest sampled bank's, the gates that join banks included; ``period_ps``
    the shortest period with it between two registers; ``clock_mhz`` the target's clock.
    """

    description: str
    technology: str
    style: str
    bank_words: int
    matrices: tuple[MatrixArea, ...]
    joining_um2: float
    utilisation: Range
    depth_fo4: float
    period_ps: Range
    clock_mhz: float
    fit: AreaFit | None
    encodings: tuple[EncodingArea, ...]

    @property
    def area(self) -> Estimate:
        """Cell area of all banks in um2."""
        return sum_estimates(m.area for m in self.matrices)

    @property
    def cell_area_um2(self) -> float:
        """Cell area of the banks and of the gates that join them."""
        return self.area.total + self.joining_um2

    @property
    def placed_mm2(self) -> Range:
        """Placed area: cell area over the utilisation."""
        return Range.exact(self.cell_area_um2 * 1e-6).over(self.utilisation)

    @property
    def n_weights(self) -> int:
        """Weights of all matrices."""
        return sum(m.n_weights for m in self.matrices)

    @property
    def n_bits(self) -> int:
        """Bits stored."""
        return sum(m.n_bits for m in self.matrices)

    @property
    def zero_bits(self) -> float:
        """Share of bits that are 0."""
        return sum(m.zero_bits * m.n_bits for m in self.matrices) / self.n_bits

    @property
    def zero_weights(self) -> float | None:
        """Share of weights that are 0."""
        total = 0.0
        for m in self.matrices:
            if m.zero_weights is None:
                return None
            total += m.zero_weights * m.n_weights
        return total / self.n_weights

    @property
    def dense_um2(self) -> float:
        """Cell area of banks of the same shapes with random bits."""
        return sum(m.dense for m in self.matrices)

    @property
    def meets_clock(self) -> bool:
        """Whether the word is there within the target's clock, by the middle period."""
        return self.period_ps.mid <= 1e6 / self.clock_mhz

    @property
    def mib_per_mm2(self) -> float:
        """Density of the banks' cells in MiB per mm2."""
        return self.n_bits / _MEBIBYTE / (self.area.total * 1e-6)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "description": self.description,
            "technology": self.technology,
            "style": self.style,
            "bank_words": self.bank_words,
            "confidence": CONFIDENCE,
            "matrices": [m.to_json() for m in self.matrices],
            "total": {
                "n_weights": self.n_weights,
                "n_bits": self.n_bits,
                "zero_weights": self.zero_weights,
                "zero_bits": self.zero_bits,
                "n_banks": sum(m.n_banks for m in self.matrices),
                "n_sampled": sum(m.n_sampled for m in self.matrices),
                "bank_um2": self.area.total,
                "half_width_um2": self.area.half_width,
                "joining_um2": self.joining_um2,
                "cell_area_um2": self.cell_area_um2,
                "um2_per_weight": self.area.total / self.n_weights,
                "mib_per_mm2": self.mib_per_mm2,
                "utilisation": asdict(self.utilisation),
                "placed_mm2": asdict(self.placed_mm2),
            },
            "baseline": {
                "dense_um2": self.dense_um2,
                "dense_over_model": self.dense_um2 / self.area.total,
            },
            "clock": {
                "depth_fo4": self.depth_fo4,
                "period_ps": asdict(self.period_ps),
                "target_mhz": self.clock_mhz,
                "is_met": self.meets_clock,
            },
            "fit": None if self.fit is None else self.fit.to_json(),
            "encodings": [e.to_json() for e in self.encodings],
        }
