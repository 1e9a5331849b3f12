"""Our figure for each row of the published-chips table, computed from targets and technology."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from romsim.area import AreaReport, estimate_area
from romsim.area_parts import WEIGHT_LOGIC, ZERO_BITS, Item, Part
from romsim.design_point import DesignPoint
from romsim.energy import EnergyReport, Gating, estimate_energy
from romsim.energy_prices import Price
from romsim_compiler.formats import parse_format
from romsim_compiler.groups import layer_shapes
from romsim_compiler.memory_map import kv_bytes_per_token
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_compiler.technology import Range
from romsim_compiler.technology_file import load_technology
from romsim_models.shapes import SHAPES
from romsim_models.spec import ModelSpec

__all__ = [
    "FIGURES",
    "Chip",
    "adapter_bytes",
    "rom_bytes",
    "roma_calibrated",
    "roma_power",
    "tom_calibrated",
    "tom_power",
]

_MIB = 2.0**20
_GIB = 2.0**30

# ROMA's own figures, arXiv:2503.12988 (published.toml names the sources).
_FUSED_CELL_UM2 = 22_500.0
_VECTOR_MM2, _OTHER_MM2 = 7.05, 24.2
_FUSED_CELL_W = 6.8e-3
# TOM's own, arXiv:2602.20662.
_COMPUTE_MM2 = 10.24
_ZERO_BITS = 0.70


class Chip:
    """A published chip: a target, its model and the constants that were fitted to it.

    Parameters
    ----------
    target, spec, weights
        Chip, model and format of its weights.
    constants
        Fitted figures that are no parameter of the target.
    """

    def __init__(
        self, target: Target, spec: ModelSpec, weights: str, constants: dict[str, float]
    ) -> None:
        self.target = target
        self.spec = spec
        self.point = DesignPoint.uniform(spec, target, parse_format(weights))
        self.constants = constants
        self.technology = load_technology(target.technology)

    @property
    def clock(self) -> float:
        """Cycles per second."""
        return self.target.clock_mhz * 1e6

    def rate(self, context: int, rank: int = 0) -> float:
        """Return tokens/s of decoding with ``context`` tokens to attend to."""
        return self.clock / self.point.decode_cycles([context - 1], rank=rank)[0]

    def first_token_ms(self, prompt: int, rank: int = 0) -> float:
        """Return the time to the first token in ms."""
        return 1e3 * self.point.prefill_cycles(prompt, rank=rank) / self.clock

    def bottom_up(self) -> AreaReport:
        """Return the area from our own parts."""
        return estimate_area(self.target, spec=self.spec)


def adapter_bytes(spec: ModelSpec, rank: int) -> int:
    """Return bytes of an adapter of one byte a weight on all seven projections."""
    return spec.n_layers * sum(rank * (r + c) for r, c in layer_shapes(spec).values())


def rom_bytes(spec: ModelSpec, bits: float, *, head: bool) -> float:
    """Return bytes of the layers' matrices, and of the LM head if it is in ROM."""
    weights = spec.n_layers * sum(r * c for r, c in layer_shapes(spec).values())
    return (weights + head * spec.vocab_size * spec.dim) * bits / 8


def _mm2(report: AreaReport, *units: str) -> float:
    areas = report.by_unit()
    return sum(areas[u].mid for u in units) * 1e-6


def _known(name: str, mm2: float, kind: str = "logic") -> Item:
    part = Part(Range.exact(mm2 * 1e6), f"{mm2:g} mm2, published", "the chip's paper", "published")
    return (name, name, 1, Part(part.area, part.formula, part.source, part.grade, kind))


def roma_calibrated(chip: Chip) -> AreaReport:
    """Return ROMA's area with the paper's fused cells, vector units and rest, and our H-units."""
    array = chip.target.array
    cells = array.n_tiles * array.n_cells * _FUSED_CELL_UM2 * 1e-6
    ours = tuple(item for item in chip.bottom_up().items if item[0] == "H-units")
    items = (
        _known("L-units", cells, "rom"),
        *ours,
        _known("vector unit", _VECTOR_MM2),
        _known("other", _OTHER_MM2),
    )
    return AreaReport(chip.target.name, chip.technology.name, items)


def roma_power(chip: Chip) -> EnergyReport:
    """Return ROMA's energy with the paper's power of a fused cell, which holds ROM and lanes."""
    per_mac = _FUSED_CELL_W / chip.clock / chip.target.array.word_codes * 1e12
    cell = Price(
        Range.exact(per_mac), f"{per_mac:.4g} pJ, 6.8 mW a cell", "ROMA, Fig. 12", "published"
    )
    none = Price(Range.exact(0.0), "in the fused cell", "ROMA, Fig. 12", "published")
    report = estimate_energy(
        chip.point,
        1,
        area=roma_calibrated(chip),
        prices={"weight_macs": cell, "rom_bits": none, "scale_products": none},
    )
    kept = tuple(item for item in report.items if item[1] != "registers of L")
    return EnergyReport(
        report.target,
        report.technology,
        report.context,
        report.gating,
        report.cycles,
        report.clock_hz,
        kept,
        report.by_block,
    )


def _roma_tokens(chip: Chip, mib: int, rank: int) -> float:
    free = mib * _MIB - adapter_bytes(chip.spec, rank)
    granule = int(chip.constants["kv_granule_tokens"])
    return max(0, int(free // kv_bytes_per_token(chip.spec, 8)) // granule * granule)


def _cell_with_compiler_rom(chip: Chip) -> float:
    report = chip.bottom_up()
    n_cells = chip.target.array.n_tiles * chip.target.array.n_cells
    return _mm2(report, "L-units") * 1e3 / n_cells


def tom_calibrated(chip: Chip) -> AreaReport:
    """Return TOM's area: its density of ROM as we synthesise it, our SRAM, its compute."""
    rom = _tom_rom_bytes(chip) * 8 * _tom_um2_per_bit(chip) * 1e-6
    items = (
        _known("ROM", rom / chip.constants["tom_utilisation"], "rom"),
        _known("SRAM", _tom_sram_mm2(chip), "sram"),
        _known("compute", _COMPUTE_MM2),
    )
    return AreaReport(chip.target.name, chip.technology.name, items)


def _tom_rom_bytes(chip: Chip) -> float:
    spec = chip.spec
    norms = 3 * spec.dim + spec.hidden_dim  # input, post-attention, attention sub, feed-forward sub
    gains = (spec.n_layers * norms + spec.dim) * 4
    return rom_bytes(spec, 2, head=False) + gains


def _tom_um2_per_bit(chip: Chip) -> float:
    return chip.technology.logic_rom["plain"].area_per_bit(_ZERO_BITS).mid


def _tom_pattern_density(chip: Chip) -> float:
    table = chip.technology.logic_rom[WEIGHT_LOGIC]
    return 1e6 / table.area_per_bit(ZERO_BITS["ternary"]).mid / 8 / _MIB


def _tom_sram_mm2(chip: Chip) -> float:
    report = chip.bottom_up()
    return sum(
        report.component("H-units", name).area_um2.mid * 1e-6 for name in ("K bank", "V bank")
    )


def _tom_compute_mm2(chip: Chip) -> float:
    report = chip.bottom_up()
    rom = report.component("L-units", "ROM").area_um2.mid * 1e-6
    return report.total_mm2.mid - rom - _tom_sram_mm2(chip)


def tom_power(chip: Chip, gating: Gating) -> float:
    """Return TOM's power with its compute's energy a lane as fitted."""
    pj = chip.constants["tom_lane_pj"]
    lane = Price(Range.exact(pj), f"{pj:g} pJ, fitted to 5.33 W", "TOM, Fig. 12", "derived")
    area = tom_calibrated(chip)
    report = estimate_energy(
        chip.point,
        1024,
        gating=gating,
        area=area,
        prices={"weight_macs": lane, "kv_macs": lane},
    )
    return report.power_w.mid


@cache
def _tom_with_head() -> Chip:
    return Chip(load_target("tom-7nm-int8"), SHAPES["bitnet-2b-4t"], "ternary", {})


def _roma_8b(_: Chip) -> float:
    return rom_bytes(SHAPES["llama-3-8b"], 2 + 16 / 128, head=True) / _GIB


def _capacity(chip: Chip) -> float:
    array = chip.target.array
    word = array.word_codes * array.lane_bits + array.n_scales * array.scale_bits
    return array.n_tiles * array.n_cells * array.rom_rows * word / 8 / _GIB


FIGURES: dict[str, Callable[[Chip], float]] = {
    "bottom_up_area": lambda c: c.bottom_up().total_mm2.mid,
    "bottom_up_l_units": lambda c: _mm2(c.bottom_up(), "L-units"),
    "bottom_up_h_units": lambda c: _mm2(c.bottom_up(), "H-units"),
    "bottom_up_vector": lambda c: _mm2(c.bottom_up(), "vector unit"),
    "bottom_up_other": lambda c: _mm2(c.bottom_up(), "network", "sequencer", "periphery"),
    "bottom_up_rom": lambda c: c.bottom_up().component("L-units", "ROM").area_um2.mid * 1e-6,
    "roma_area": lambda c: roma_calibrated(c).total_mm2.mid,
    "roma_l_units": lambda c: _mm2(roma_calibrated(c), "L-units"),
    "roma_vector": lambda c: _VECTOR_MM2,
    "roma_other": lambda c: _OTHER_MM2,
    "roma_cell_compiler": _cell_with_compiler_rom,
    "roma_rom_3b": lambda c: c.point.weight_bits / 8 / _GIB,
    "roma_rom_8b": _roma_8b,
    "roma_rom_capacity": _capacity,
    "roma_decode_empty": lambda c: c.rate(1),
    "roma_decode_1k": lambda c: c.rate(1025),
    "roma_ttft_256_r16": lambda c: c.first_token_ms(256, 16),
    "roma_ttft_4k_r16": lambda c: c.first_token_ms(4096, 16),
    "roma_length_256": lambda c: c.rate(257, 16),
    "roma_length_512": lambda c: c.rate(513, 16),
    "roma_length_1k": lambda c: c.rate(1025, 16),
    "roma_length_2k": lambda c: c.rate(2049, 16),
    "roma_power": lambda c: roma_power(c).power_w.mid,
    "roma_power_bottom_up": lambda c: estimate_energy(c.point, 1).power_w.mid,
    "roma_lora_16": lambda c: adapter_bytes(c.spec, 16) / _MIB,
    "roma_tokens_64": lambda c: _roma_tokens(c, 64, 16),
    "roma_tokens_64_r64": lambda c: _roma_tokens(c, 64, 64),
    "roma_tokens_128": lambda c: _roma_tokens(c, 128, 16),
    "roma_tokens_256": lambda c: _roma_tokens(c, 256, 16),
    "tom_rom": lambda c: _tom_rom_bytes(c) / _MIB,
    "tom_sram": lambda c: 1024 * kv_bytes_per_token(c.spec, 8) / _MIB,
    "tom_density": lambda c: 1e6 / _tom_um2_per_bit(c) / 8 / _MIB,
    "tom_density_patterns": _tom_pattern_density,
    "tom_area": lambda c: tom_calibrated(c).total_mm2.mid,
    "tom_rom_area": lambda c: _mm2(tom_calibrated(c), "ROM"),
    "tom_sram_area": _tom_sram_mm2,
    "tom_compute_area": lambda c: _COMPUTE_MM2,
    "tom_compute_bottom_up": _tom_compute_mm2,
    "tom_decode": lambda c: c.rate(1024),
    "tom_power_gated": lambda c: tom_power(c, "gated"),
    "tom_power_isolated": lambda c: tom_power(c, "isolated"),
    "tom_power_switching": lambda c: tom_power(c, "switching"),
    "tom_power_bottom_up": lambda c: estimate_energy(c.point, 1024, gating="gated").power_w.mid,
    "tom_with_head": lambda c: _tom_with_head().rate(1024),
    "tom_with_head_area": lambda c: _tom_with_head().bottom_up().total_mm2.mid,
}
"""What each row's ``ours`` and ``bottom_up`` name."""
