"""The headline figures of a chip: what a reader looks for first, each with its range."""

from __future__ import annotations

from romsim.area import AreaReport
from romsim.design_point import DesignPoint
from romsim.energy import EnergyReport
from romsim.report.model import Figure, worst_grade
from romsim.report.zero_bits import ZeroBits
from romsim.rtl_clock import rtl_clock
from romsim.throughput import decode_rates, time_to_first_token
from romsim_compiler.technology import Range

_LONGEST = {
    "all": "KV words of the tiles' SRAM beside adapters, at most what the model knows",
    "stream": "position register: the first tokens and a window are kept",
    "h2o": "KV words of the tiles' SRAM beside adapters: heavy hitters and a window are kept",
}

__all__ = ["headline_figures"]

_CLOCK = "docs/machine.md for the cycles; the target's clock, which no timing analysis backs"
_ACCESS = {"flop": "", "rom": " + ROM access", "sram": " + SRAM access"}
_PLACEMENT = "the description's placement"


def headline_figures(
    point: DesignPoint,
    area: AreaReport,
    energy: EnergyReport,
    *,
    context: int,
    limit: int,
    zeros: ZeroBits | None,
    has_adapters: bool = False,
) -> tuple[Figure, ...]:
    """Return the figures.

    Parameters
    ----------
    energy
        A token's at ``context``, idle units held.
    context
        Tokens that attention reads, and length of the prompt.
    limit
        Tokens that a sequence may have.
    has_adapters
        Whether the chip has hardware for adapters.
    """
    return (
        *_speed(point, context),
        *_silicon(point, area, zeros),
        *_clock(point, has_adapters),
        *_energy(point, area, energy),
        *_limits(point, limit),
    )


def _speed(point: DesignPoint, context: int) -> list[Figure]:
    first, now = decode_rates(point, [1, context])
    (prompt,) = time_to_first_token(point, [context])
    clock = {"source": _CLOCK, "grade": "assumed"}
    megahertz = f"{point.target.clock_mhz:g} MHz"
    return [
        Figure.exact(
            "tokens_per_s",
            f"one stream, {context:,} tokens of context",
            "tokens/s",
            now.tokens_per_s,
            formula=f"{megahertz} ÷ {now.cycles:,} cycles",
            **clock,
        ),
        Figure.exact(
            "tokens_per_s_first",
            "one stream, first token",
            "tokens/s",
            first.tokens_per_s,
            formula=f"{megahertz} ÷ {first.cycles:,} cycles",
            **clock,
        ),
        Figure.exact(
            "tokens_per_s_aggregate",
            f"all streams, {context:,} tokens of context",
            "tokens/s",
            now.aggregate_tokens_per_s,
            formula=f"{megahertz} ÷ {now.cycles:,} cycles; sequences take turns",
            **clock,
        ),
        Figure.exact(
            "ttft_s",
            f"first token after a prompt of {context:,}",
            "s",
            prompt.seconds,
            formula=f"{prompt.cycles:,} cycles ÷ {megahertz}, "
            f"{point.target.schedule.n_inflight} tokens in flight",
            **clock,
        ),
    ]


def _silicon(point: DesignPoint, area: AreaReport, zeros: ZeroBits | None) -> list[Figure]:
    grade = worst_grade(*(row.grade for row in area.rows))
    die = area.total_mm2
    stored = point.weight_bits / 1e6
    figures = [
        Figure.ranged(
            "area_mm2",
            "die area",
            "mm²",
            die,
            formula="sum over components of count × area of one (area table)",
            source=f"technology {area.technology}, component by component",
            grade=grade,
        ),
        Figure.ranged(
            "density",
            "weight bits over the die",
            "Mbit/mm²",
            Range(stored / die.high, stored / die.mid, stored / die.low),
            formula=f"{point.weight_bits:,} bits of codes, scales and minima ÷ die area",
            source=f"{_PLACEMENT}; area table",
            grade=grade,
        ),
    ]
    if zeros is not None:
        figures.append(
            Figure.exact(
                "zero_bits",
                "zero bits in ROM",
                "%",
                100 * zeros.total,
                formula="1 − set bits ÷ bits of written words, padding included",
                source="ROM images of the description, every written word counted",
                grade="measured",
            )
        )
    return figures


def _clock(point: DesignPoint, has_adapters: bool) -> list[Figure]:
    """Return the clock that the target's own RTL reaches; none where it has no RTL."""
    clock = rtl_clock(point.target, has_adapters=has_adapters)
    if clock is None:
        return []
    slowest = clock.paths[0]
    return [
        Figure.ranged(
            "rtl_mhz",
            "clock that its own RTL reaches",
            "MHz",
            clock.max_mhz,
            formula=f"1 ÷ period of {slowest.module} ({slowest.built_for}): "
            f"({slowest.depth_fo4:.4g} FO4 × wire factor + overhead) × FO4{_ACCESS[slowest.start]}",
            source="tables/synthesis_asap7.toml, romsim.rtl_clock",
            grade="assumed",
        )
    ]


def _energy(point: DesignPoint, area: AreaReport, energy: EnergyReport) -> list[Figure]:
    grade = worst_grade(*(row.grade for row in energy.rows))
    shared = {
        "source": f"technology {area.technology}, event by event (energy table)",
        "grade": grade,
    }
    at = f"{energy.context:,} tokens of context"
    power = energy.power_w
    return [
        Figure.ranged(
            "token_j",
            f"energy of a token, {at}",
            "J",
            energy.token_pj * 1e-12,
            formula="events × energy of one + registers × cycles + leakage × time; idle units held",
            **shared,
        ),
        Figure.ranged(
            "power_w",
            f"power while decoding, {at}",
            "W",
            power,
            formula=f"energy of a token × {energy.clock_hz / 1e6:g} MHz ÷ {energy.cycles:,} cycles",
            **shared,
        ),
        Figure.ranged(
            "power_density",
            "power over the die",
            "W/mm²",
            power.over(area.total_mm2),
            formula="power ÷ die area",
            source=shared["source"],
            grade=grade,
        ),
    ]


def _limits(point: DesignPoint, limit: int) -> list[Figure]:
    place = {"source": _PLACEMENT, "grade": "derived"}
    array = point.target.array
    return [
        Figure.exact(
            "context_limit",
            "longest sequence",
            "tokens",
            limit,
            formula=_LONGEST[point.target.kv.retention],
            **place,
        ),
        Figure.exact(
            "weights",
            "weights in ROM",
            "weights",
            point.n_weights,
            formula="Σ rows × columns",
            **place,
        ),
        Figure.exact(
            "bits_per_weight",
            "bits of a weight",
            "bit/weight",
            point.weight_bits / max(1, point.n_weights),
            formula="(codes + scales + minima) ÷ weights",
            **place,
        ),
        Figure.exact(
            "rom_bits",
            "ROM capacity",
            "bit",
            array.rom_bits,
            formula="tiles × cells × words × word bits",
            source="the target",
            grade="derived",
        ),
        Figure.exact(
            "rom_used",
            "ROM words used",
            "%",
            100 * point.rom_words / array.rom_rows,
            formula=f"{point.rom_words:,} of {array.rom_rows:,} words in every cell",
            **place,
        ),
    ]
