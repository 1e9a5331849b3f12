"""Cost of a token on a chip of ROM and on a GPU: a calculation from inputs that stand in a file.

Every cost is calculated three times: with all inputs at their favourable ends, at mid, and at their
other ends. The ends are therefore wide, and no more than that: nobody has quoted these prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from romsim.cost_inputs import CASES, Case, CostInputs
from romsim.gpu_roofline import GpuDecode
from romsim_compiler.technology import Range
from romsim_models.errors import SpecError

__all__ = [
    "NOTES",
    "ChipBill",
    "TokenCost",
    "chip_bill",
    "chip_token_cost",
    "die_yield",
    "dies_per_wafer",
    "gpu_token_costs",
]

NOTES = (
    "A calculation from the inputs listed, not a quote: low has every input at its favourable end, "
    "high at its other end.",
    "Utilisation is the same on both sides; energy is that of the tokens alone: nothing idle is "
    "counted, nor staff, space, or capital.",
    "A GPU draws its rated power here, which is an upper limit; a rented one's rent includes it.",
    "One sequence and the best batch are different products: compare within a column.",
)
_SECONDS_PER_YEAR = 365.25 * 24 * 3600
_J_PER_KWH = 3.6e6
_OPPOSITE: dict[Case, Case] = {"low": "high", "mid": "mid", "high": "low"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipBill:
    """What one chip costs, in US dollars."""

    n_dies: int  # of equal area; above 1 where the chip is larger than the reticle's field
    dies_per_wafer: Range
    yield_share: Range
    silicon_usd: Range  # good dies
    package_usd: Range
    board_usd: Range
    masks_usd: Range  # share of one chip
    development_usd: Range  # share of one chip
    total_usd: Range

    def to_json(self) -> dict[str, Any]:
        """Return the bill as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """Cost of decoding on one device, in US dollars."""

    side: str  # "chip" or "gpu"
    device: str
    format: str  # of the weights
    basis: str  # "owned" or "rented"
    streams: str  # "one sequence" or "best batch"
    batch: int
    tokens_per_year: Range
    capital_usd_per_year: Range
    electricity_usd_per_year: Range
    usd_per_year: Range
    usd_per_million_tokens: Range

    def to_json(self) -> dict[str, Any]:
        """Return the cost as JSON-ready values."""
        return asdict(self)


def dies_per_wafer(area_mm2: float, *, diameter: float, edge: float, scribe: float) -> float:
    """Return the whole dies of a wafer: the usual formula for square dies.

    ``pi (d/2)^2 / A - pi d / sqrt(2 A)``, with ``d`` the diameter less the edge on both sides and
    ``A`` the die with its scribe lines.

    Parameters
    ----------
    area_mm2
        Area of a die in mm2.
    diameter, edge, scribe
        Wafer, unused rim and scribe line in mm.
    """
    d = diameter - 2 * edge
    a = (math.sqrt(area_mm2) + scribe) ** 2
    return max(0.0, math.floor(math.pi * (d / 2) ** 2 / a - math.pi * d / math.sqrt(2 * a)))


def die_yield(area_mm2: float, *, model: str, d0: float, alpha: float) -> float:
    """Return the share of good dies.

    Parameters
    ----------
    area_mm2
        Area of a die in mm2.
    model
        ``"poisson"``: ``exp(-n)``; ``"murphy"``: ``((1 - exp(-n)) / n)^2``;
        ``"negative-binomial"``: ``(1 + n / alpha)^-alpha``; ``n`` the defects of a die.
    d0
        Defects per cm2.
    alpha
        Clustering, for the last of them.

    Raises
    ------
    SpecError
        If the model is none of them.
    """
    n = area_mm2 / 100 * d0
    if model == "poisson":
        return math.exp(-n)
    if model == "murphy":
        return (-math.expm1(-n) / n) ** 2 if n else 1.0
    if model == "negative-binomial":
        return float((1 + n / alpha) ** -alpha)
    raise SpecError(f"Yield model must be one of murphy, poisson, negative-binomial, not {model!r}")


def _ends(calculate: Callable[[Case], float]) -> Range:
    low, mid, high = (calculate(case) for case in CASES)
    return Range(min(low, high), mid, max(low, high))


def _dear(value: Range, case: Case) -> float:
    """Return the figure of one case, of something that makes tokens dearer."""
    return {"low": value.low, "mid": value.mid, "high": value.high}[case]


def _cheap(value: Range, case: Case) -> float:
    return {"low": value.high, "mid": value.mid, "high": value.low}[case]


def chip_bill(area_mm2: Range, inputs: CostInputs) -> ChipBill:
    """Return what one chip costs.

    Parameters
    ----------
    area_mm2
        Area of the chip in mm2. One whose high end is above the reticle's field is cut into equal
        dies, with nothing added for links between them.

    Raises
    ------
    SpecError
        If a wafer has no whole die of that size.
    """
    at = {case: inputs.at(case) for case in CASES}
    n_dies = math.ceil(area_mm2.high / at["high"]["wafer.reticle"])
    die = {c: _dear(area_mm2, c) / n_dies for c in CASES}

    def count(case: Case) -> float:
        x = at[case]
        found = dies_per_wafer(
            die[case], diameter=x["wafer.diameter"], edge=x["wafer.edge"], scribe=x["wafer.scribe"]
        )
        if found < 1:
            raise SpecError(
                f"Wafer must hold a whole die, but none of {die[case]:.0f} mm2 fits "
                f"{x['wafer.diameter']:g} mm; change [wafer] in the cost file"
            )
        return found

    def good(case: Case) -> float:
        x = at[case]
        return die_yield(
            die[case], model=inputs.yield_model, d0=x["yield.d0"], alpha=x["yield.alpha"]
        )

    def silicon(case: Case) -> float:
        return n_dies * at[case]["wafer.price"] / (count(case) * good(case))

    def masks(case: Case) -> float:
        x = at[case]
        sets = 1 + (x["chip.models"] - 1) * x["chip.model_masks"]
        return x["chip.mask_set"] * sets / (x["chip.models"] * x["chip.volume"])

    def development(case: Case) -> float:
        x = at[case]
        return x["chip.development"] / (x["chip.models"] * x["chip.volume"])

    parts: dict[str, Callable[[Case], float]] = {
        "silicon_usd": silicon,
        "package_usd": lambda c: at[c]["chip.package"],
        "board_usd": lambda c: at[c]["chip.board"],
        "masks_usd": masks,
        "development_usd": development,
    }
    return ChipBill(
        n_dies=n_dies,
        dies_per_wafer=_ends(count),
        yield_share=_ends(good),
        total_usd=_ends(lambda c: sum(part(c) for part in parts.values())),
        **{name: _ends(part) for name, part in parts.items()},
    )


def chip_token_cost(
    bill: ChipBill,
    *,
    device: str,
    weight_format: str,
    tokens_per_s: float,
    joules_per_token: Range,
    inputs: CostInputs,
) -> TokenCost:
    """Return the cost of decoding on a chip, which serves one sequence at a time."""
    at = {case: inputs.at(case) for case in CASES}
    return _token_cost(
        {"side": "chip", "device": device, "format": weight_format, "basis": "owned"},
        batch=1,
        streams="one sequence",
        capital=lambda c: _dear(bill.total_usd, c) / at[c]["chip.lifetime"],
        rate=Range.exact(tokens_per_s),
        joules=joules_per_token,
        power=joules_per_token * tokens_per_s,
        at=at,
    )


def gpu_token_costs(
    decode: GpuDecode, *, weight_format: str, streams: str, inputs: CostInputs
) -> tuple[TokenCost, ...]:
    """Return the cost of decoding on a GPU, owned and rented, where prices are known.

    Parameters
    ----------
    decode
        Its roofline; all sequences of the batch are counted.
    streams
        ``"one sequence"`` or ``"best batch"``.
    """
    at = {case: inputs.at(case) for case in CASES}
    name, n = decode.gpu.name, decode.n_devices
    costs = []
    common = {"side": "gpu", "device": decode.device, "format": weight_format}
    if name in inputs.prices:
        costs.append(
            _token_cost(
                {**common, "basis": "owned"},
                batch=decode.batch,
                streams=streams,
                capital=lambda c: (
                    n * at[c][f"price.{name}"] * (1 + at[c]["gpu.server"]) / at[c]["gpu.lifetime"]
                ),
                rate=decode.aggregate_tokens_per_s,
                joules=decode.joules_per_token,
                power=Range.exact(decode.gpu.power_w * n),
                at=at,
            )
        )
    if name in inputs.rents:
        hours = _SECONDS_PER_YEAR / 3600
        costs.append(
            _token_cost(
                {**common, "basis": "rented"},
                batch=decode.batch,
                streams=streams,
                capital=lambda c: n * at[c][f"rent.{name}"] * hours,
                rate=decode.aggregate_tokens_per_s,
                joules=Range.exact(0.0),
                power=Range.exact(0.0),
                at=at,
            )
        )
    return tuple(costs)


def _token_cost(
    names: Mapping[str, str],
    *,
    batch: int,
    streams: str,
    capital: Callable[[Case], float],
    rate: Range,
    joules: Range,
    power: Range,
    at: Mapping[Case, Mapping[str, float]],
) -> TokenCost:
    def tokens(case: Case) -> float:
        return _cheap(rate, case) * at[case]["operation.utilisation"] * _SECONDS_PER_YEAR

    def energy_price(case: Case) -> float:
        return at[case]["operation.electricity"] * at[case]["operation.pue"] / _J_PER_KWH

    def electricity(case: Case) -> float:
        # A year costs more where more of it is used: here the larger share is the dear one.
        busy = at[_OPPOSITE[case]]["operation.utilisation"]
        return _dear(power, case) * busy * _SECONDS_PER_YEAR * energy_price(case)

    def token(case: Case) -> float:
        return capital(case) / tokens(case) + _dear(joules, case) * energy_price(case)

    return TokenCost(
        side=names["side"],
        device=names["device"],
        format=names["format"],
        basis=names["basis"],
        streams=streams,
        batch=batch,
        tokens_per_year=_ends(tokens),
        capital_usd_per_year=_ends(capital),
        electricity_usd_per_year=_ends(electricity),
        usd_per_year=_ends(lambda c: capital(c) + electricity(c)),
        usd_per_million_tokens=_ends(lambda c: 1e6 * token(c)),
    )
