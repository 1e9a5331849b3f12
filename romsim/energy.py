"""Energy of a token: events times energy per event, clocks, and leakage times time.

Three columns: ``switching`` (nothing is gated: clocks run, and every bank of a ROM made of logic
switches at every cycle), ``isolated`` (clocks stop in idle units, the addresses of idle banks are
held), and ``gated`` (idle banks are cut from their supply as well).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from romsim.area import AreaReport, estimate_area
from romsim.area_parts import WEIGHT_LOGIC
from romsim.design_point import DesignPoint, adapter_ranks
from romsim.energy_prices import Price, event_prices
from romsim.events import EVENT_UNITS, Events, count_events
from romsim_compiler.issue import is_woken, issue_times, rom_operand
from romsim_compiler.technology import Range
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError

__all__ = ["GATING", "EnergyReport", "EnergyRow", "Gating", "estimate_energy"]

Gating = Literal["switching", "isolated", "gated"]
GATING: tuple[Gating, ...] = ("switching", "isolated", "gated")

Item = tuple[str, str, float, str, Price]
"""Unit, event, count, unit of the count, and the energy of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyRow:
    """Energy of one kind of event in one token."""

    unit: str  # "L", "H", "V", "network", "clock", "leakage"
    event: str
    count: float
    count_unit: str
    energy_pj: Range  # of all of them
    formula: str
    source: str
    grade: str


@dataclass(frozen=True)
class EnergyReport:
    """Energy of one token.

    Parameters
    ----------
    target, technology
        Names.
    context
        Tokens that attention reads.
    gating
        Which column this is.
    cycles, clock_hz
        The token's time.
    items
        What the rows are made from.
    by_block
        (first layer, number of layers, dynamic energy of one in pJ); -1 is outside the layers.
    """

    target: str
    technology: str
    context: int
    gating: str
    cycles: int
    clock_hz: float
    items: tuple[Item, ...]
    by_block: tuple[tuple[int, int, float], ...]

    @cached_property
    def rows(self) -> tuple[EnergyRow, ...]:
        """Energies by unit and event; they sum to the total."""
        return tuple(
            EnergyRow(
                unit=unit,
                event=event,
                count=count,
                count_unit=count_unit,
                energy_pj=price.pj * count,
                formula=f"{count:.6g} {count_unit} x {price.formula}",
                source=price.source,
                grade=price.grade,
            )
            for unit, event, count, count_unit, price in self.items
        )

    @cached_property
    def token_pj(self) -> Range:
        """Energy of the token in pJ."""
        low = mid = high = 0.0
        for _, _, count, _, price in self.items:
            one = price.pj
            low, mid, high = low + one.low * count, mid + one.mid * count, high + one.high * count
        return Range(low, mid, high)

    @property
    def power_w(self) -> Range:
        """Mean power while tokens are decoded one after another, in W."""
        return self.token_pj * (1e-12 * self.clock_hz / self.cycles)

    def by_unit(self) -> dict[str, Range]:
        """Return the energy of each unit in pJ."""
        units: dict[str, Range] = {}
        for row in self.rows:
            known = units.get(row.unit)
            units[row.unit] = row.energy_pj if known is None else known + row.energy_pj
        return units

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "target": self.target,
            "technology": self.technology,
            "context": self.context,
            "gating": self.gating,
            "cycles": self.cycles,
            "clock_hz": self.clock_hz,
            "token_pj": asdict(self.token_pj),
            "power_w": asdict(self.power_w),
            "units_pj": {k: asdict(v) for k, v in self.by_unit().items()},
            "blocks": [
                {"first_layer": first, "n_layers": count, "dynamic_pj": energy}
                for first, count, energy in self.by_block
            ],
            "rows": [asdict(row) for row in self.rows],
        }


def estimate_energy(
    point: DesignPoint,
    context: int,
    *,
    rank: int = 0,
    gating: Gating = "isolated",
    area: AreaReport | None = None,
    prices: Mapping[str, Price] | None = None,
) -> EnergyReport:
    """Return the energy of the token that attends to ``context`` tokens, itself included.

    Parameters
    ----------
    rank
        Rank of an adapter on all projections; 0 for none.
    gating
        What idle parts do.
    area
        The chip's area, whose leakage and wire lengths are taken; estimated when left out.
    prices
        Energy per event that replaces ours, by event: a published chip's own.

    Raises
    ------
    SpecError
        If the context is less than 1, the gating none of the three, or a price's event unknown.
    """
    if context < 1:
        raise SpecError(f"Context must be at least 1 token, not {context!r}")
    if gating not in GATING:
        raise SpecError(f"Gating must be one of {', '.join(GATING)}, not {gating!r}")
    for event in prices or {}:
        if event not in EVENT_UNITS:
            raise SpecError(f"Event must be one of {', '.join(EVENT_UNITS)}, not {event!r}")
    silicon = area if area is not None else estimate_area(point.target, spec=point.spec, rank=rank)
    return _Account(point, silicon, gating, prices or {}).report(context, rank)


class _Account:
    """Counts, prices and adds up."""

    def __init__(
        self, point: DesignPoint, area: AreaReport, gating: Gating, prices: Mapping[str, Price]
    ) -> None:
        self.point = point
        self.area = area
        self.gating = gating
        self.technology = load_technology(area.technology)
        side_mm = (area.total_um2.mid * 1e-6) ** 0.5
        self.prices = event_prices(self.technology, point.target, side_mm)
        self.prices.update(prices)

    def report(self, context: int, rank: int) -> EnergyReport:
        """Return the report."""
        point, prices = self.point, self.prices
        ranks = adapter_ranks(rank)
        (cycles,) = point.decode_cycles([context - 1], rank=rank)
        (attention,) = point.attention([context - 1])
        mids = {event: price.pj.mid for event, price in prices.items()}
        counts: dict[tuple[str, str], float] = {}
        busy = {"V": 0, "L": 0, "H": 0}
        blocks: list[tuple[int, int, float]] = []
        for block in point.blocks():
            dynamic, times = 0.0, block.repetitions
            for one in block.instructions:
                unit = one.unit
                events: Events = count_events(point, one, position=context - 1, ranks=ranks)
                for event, count in events.items():
                    if count:
                        key = (unit, event)
                        counts[key] = counts.get(key, 0.0) + count * times
                        dynamic += count * mids[event]
                is_attention = one.op == "attn"
                duration = attention if is_attention else point.duration(one, ranks)
                busy[unit] += duration * times
            blocks.append((block.first_layer, times, dynamic))
        items: list[Item] = [
            (unit, event, count, "bit" if event.endswith("bits") else "event", prices[event])
            for (unit, event), count in _by_owner(counts).items()
        ]
        items += self._rom_switching(cycles)
        items += self._clocks(cycles, busy)
        items += self._leakage(cycles, context, ranks)
        items += self._waking()
        return EnergyReport(
            target=point.target.name,
            technology=self.technology.name,
            context=context,
            gating=self.gating,
            cycles=cycles,
            clock_hz=point.target.clock_mhz * 1e6,
            items=tuple(items),
            by_block=tuple(blocks),
        )

    def _rom_switching(self, cycles: int) -> list[Item]:
        """Return what idle banks of a logic ROM take where their addresses are not held."""
        if self.gating != "switching" or self.technology.rom_style != "logic":
            return []
        array = self.point.target.array
        table = self.technology.logic_rom[WEIGHT_LOGIC]
        banks = -(-array.rom_rows // table.words) * array.n_cells * array.n_tiles
        count = float(banks) * array.word_bits * cycles
        price = Price.of(self.technology["energy.rom_read_bit"])
        return [("L", "all banks switching", count, "bit", price)]

    def _clocks(self, cycles: int, busy: dict[str, int]) -> list[Item]:
        price = Price.of(self.technology["energy.flop_cycle"])
        items: list[Item] = []
        for unit, flops in _flops(self.point).items():
            on = cycles if self.gating == "switching" else min(busy.get(unit, cycles), cycles)
            items.append(("clock", f"registers of {unit}", float(flops) * on, "flop cycle", price))
        return items

    def _leakage(self, cycles: int, context: int, ranks: dict[str, tuple[int, ...]]) -> list[Item]:
        seconds = cycles / (self.point.target.clock_mhz * 1e6)
        items: list[Item] = []
        for kind, area in self.area.by_kind().items():
            price = Price.of(self.technology[f"leakage.{kind}"], 1e12, " x 1e12 pJ/J")
            if kind == "rom" and self.gating == "gated":
                price = self._gated(price, self._share_on(cycles, context, ranks))
            items.append(("leakage", kind, area.mid * 1e-6 * seconds, "mm2 s", price))
        return items

    def _share_on(self, cycles: int, context: int, ranks: dict[str, tuple[int, ...]]) -> float:
        """Return the share of ROM words under power, mean over the token.

        A matrix is switched on when the one before it is first read, and off when it is read; where
        waking takes no time, it is on while it is read.
        """
        point, words = self.point, 0.0
        wake = point.target.power.wake_cycles
        program = [i for b in point.blocks() for _ in range(b.repetitions) for i in b.instructions]
        (attention,) = point.attention([context - 1])
        durations = [attention if i.op == "attn" else point.duration(i, ranks) for i in program]
        switched = 0
        times = issue_times(program, durations, wake_cycles=wake)
        for one, (issue, idle) in zip(program, times, strict=True):
            if matrix := rom_operand(one):
                on = idle - (switched if wake else issue)
                words += on * point.mappings[matrix].n_words
                switched = issue
        return min(1.0, words / (cycles * point.target.array.rom_rows))

    def _waking(self) -> list[Item]:
        """Return what it takes to charge the rails of all matrices that a token reads."""
        if self.gating != "gated":
            return []
        point = self.point
        read = [i for b in point.blocks() for _ in range(b.repetitions) for i in b.instructions]
        words = sum(
            point.mappings[rom_operand(one)].n_words
            for one, wakes in zip(read, is_woken(read), strict=True)
            if wakes
        )
        um2 = self.area.by_kind()["rom"].mid * words / point.target.array.rom_rows
        price = Price.of(self.technology["energy.wake_per_um2"])
        return [("leakage", "banks woken", um2, "um2", price)]

    def _gated(self, price: Price, share: float) -> Price:
        """Return the leakage of a ROM of which a share is under power."""
        rest = self.technology["leakage.gated_share"]
        kept = Range(*(share + (1 - share) * x for x in (rest.low, rest.mid, rest.high)))
        return Price(
            price.pj.times(kept),
            f"{price.formula} x {kept.mid:.3g} (share under power, and {rest.mid:g} of the rest)",
            f"{price.source}; {rest.source}",
            "assumed",
        )


def _by_owner(counts: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Return counts by the unit that an event happens in, rather than the instruction's."""
    owned: dict[tuple[str, str], float] = {}
    for (unit, event), count in counts.items():
        key = (EVENT_UNITS[event] or unit, event)
        owned[key] = owned.get(key, 0.0) + count
    return owned


def _flops(point: DesignPoint) -> dict[str, int]:
    """Return the registers of each unit, as :mod:`romsim.area` counts them."""
    target = point.target
    array, att, lanes = target.array, target.attention, target.vector.n_lanes
    batch = target.schedule.n_batch
    cell = array.word_bits + batch * (array.word_codes * 8 + 64 * (1 + array.n_scales))
    word = att.word_elems * 8 + (att.word_elems // 32 * 8)
    tile = 2 * word + att.heads_parallel * (att.word_elems * 64 + 64)
    hops = target.network.broadcast_cycles + target.network.collect_cycles
    return {
        "L": array.n_tiles * array.n_cells * cell,
        "H": array.n_tiles * tile,
        "V": lanes * 192 + 256,
        "network": lanes * 64 * hops + array.n_tiles * lanes * 8,
    }
