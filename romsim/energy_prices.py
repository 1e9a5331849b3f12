"""Energy of one event of each kind, on a chip of a certain technology and size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from romsim.area_kv import KvValues, kv_values, reads_per_word
from romsim.area_parts import Part, parts_of
from romsim.area_synthesised import has_rtl, rtl_parts_of
from romsim_compiler.target import Array, Formats, Target
from romsim_compiler.technology import GRADES, Fact, Range, Technology

__all__ = ["Price", "event_prices"]


@dataclass(frozen=True, slots=True)
class Price:
    """Energy of one event in pJ, with how it comes about."""

    pj: Range
    formula: str
    source: str
    grade: str

    @classmethod
    def of(cls, fact: Fact, factor: float = 1.0, note: str = "") -> Price:
        """Return the price that a fact states, times a factor that ``note`` explains."""
        formula = f"{fact.mid:.4g} {fact.unit}{note}"
        return cls(fact.range * factor, formula, fact.source, fact.grade)


def event_prices(technology: Technology, target: Target, side_mm: float) -> dict[str, Price]:
    """Return the energy of each event.

    Parameters
    ----------
    side_mm
        Side of the die, which sets how far bits travel.
    """
    kv = kv_values(target), reads_per_word(target.kv)
    prices = dict(_local_prices(technology, target.array, target.formats, has_rtl(target), kv))
    # A tree that reaches every tile: a trunk along the die and a branch for each row of tiles.
    tree = side_mm * max(1.0, target.array.n_tiles**0.5)
    wire = technology["energy.wire_bit_mm"]
    prices["broadcast_bits"] = Price.of(wire, tree, f" x {tree:.4g} mm of tree")
    half = side_mm / 2
    prices["collect_bits"] = Price.of(wire, half, f" x {half:.4g} mm, half the side of the die")
    return prices


@lru_cache(maxsize=256)
def _local_prices(
    tech: Technology, array: Array, formats: Formats, is_rtl: bool, kv: tuple[KvValues, int]
) -> dict[str, Price]:
    parts = parts_of(tech)
    per_um2 = tech["energy.logic_per_um2"]
    utilisation = tech["logic.utilisation"].mid

    def switched(part: Part, name: str) -> Price:
        um2 = part.area.mid * utilisation  # of cells, without the space between them
        return Price(
            per_um2.range * um2,
            f"{um2:.4g} um2 of {name} x {per_um2.mid:.4g} {per_um2.unit}",
            f"{part.source}; {per_um2.source}",
            max(part.grade, per_um2.grade, key=GRADES.index),
        )

    activation = formats.activation
    weight = parts.lane(array.encoding, activation, lane_bits=array.lane_bits)
    # Adapters run on the attention's lanes, whatever their own format.
    attention = parts.lane(formats.kv, formats.kv, lane_bits=8)
    prices = {
        "weight_macs": switched(weight, "lane"),
        "kv_macs": switched(attention, "lane"),
        "lora_macs": switched(attention, "lane"),
        "exponentials": switched(parts.exponential(), "exponential"),
        "rom_bits": Price.of(tech["energy.rom_read_bit"]),
        "vector_ops": Price.of(tech["energy.vector_op"]),
        "sram_read_bits": Price.of(tech["energy.sram_read_bit"]),
        "sram_write_bits": Price.of(tech["energy.sram_write_bit"]),
        "buffer_read_bits": Price.of(tech["energy.buffer_read_bit"]),
        "buffer_write_bits": Price.of(tech["energy.buffer_write_bit"]),
    }
    if array.scale_bits:
        prices["scale_products"] = switched(parts.scale(array, activation), "scale")
    if is_rtl:  # what the RTL has around its lanes switches with them
        rtl = rtl_parts_of(tech)
        prices["weight_macs"] = switched(rtl.weight_lane(array), "cell a lane")
        prices["kv_macs"] = switched(rtl.kv_lane(*kv), "tile a lane")
        for event, of in (("scale_products", "weight_macs"), ("exponentials", "kv_macs")):
            source, grade = prices[of].source, prices[of].grade
            prices[event] = Price(Range.exact(0.0), f"in {of}: gates of the RTL", source, grade)
    return prices
