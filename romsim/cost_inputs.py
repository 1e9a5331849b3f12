"""Inputs of the cost calculation: ``tables/cost.toml``, or a user's copy of it, checked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from romsim.gpu_tables import gpus
from romsim_compiler.technology import Fact
from romsim_models.errors import SpecError

__all__ = ["CASES", "YIELD_MODELS", "Case", "CostInputs", "cost_template", "read_cost_inputs"]

Case = Literal["low", "mid", "high"]
CASES: tuple[Case, ...] = ("low", "mid", "high")
"""Cost with every input at its favourable end, in the middle, and at its other end."""

YIELD_MODELS = ("murphy", "poisson", "negative-binomial")

# Unit of each input, and whether a larger value makes a token dearer.
_INPUTS = {
    "yield.d0": ("1/cm2", True),
    "yield.alpha": ("1", True),
    "wafer.price": ("USD", True),
    "wafer.diameter": ("mm", False),
    "wafer.edge": ("mm", True),
    "wafer.scribe": ("mm", True),
    "wafer.reticle": ("mm2", False),
    "chip.development": ("USD", True),
    "chip.mask_set": ("USD", True),
    "chip.model_masks": ("1", True),
    "chip.models": ("models", False),
    "chip.volume": ("chips", False),
    "chip.package": ("USD", True),
    "chip.board": ("USD", True),
    "chip.lifetime": ("year", False),
    "gpu.lifetime": ("year", False),
    "gpu.server": ("1", True),
    "operation.electricity": ("USD/kWh", True),
    "operation.pue": ("1", True),
    "operation.utilisation": ("1", False),
}
_ZERO_ALLOWED = {
    "yield.d0", "wafer.edge", "wafer.scribe", "chip.development", "chip.mask_set",
    "chip.model_masks", "chip.package", "chip.board", "gpu.server", "operation.electricity",
}  # fmt: skip
_Text = Annotated[str, Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Input(_Model):
    low: float = Field(ge=0, allow_inf_nan=False)
    mid: float = Field(ge=0, allow_inf_nan=False)
    high: float = Field(ge=0, allow_inf_nan=False)
    unit: _Text
    grade: Literal["published", "measured", "derived", "assumed"]
    source: _Text

    @model_validator(mode="after")
    def _ordered(self) -> _Input:
        if not self.low <= self.mid <= self.high:
            raise ValueError(
                f"low, mid, high must rise, not be {self.low}, {self.mid}, {self.high}"
            )
        return self


class _Yield(_Model):
    model: Literal["murphy", "poisson", "negative-binomial"]
    d0: _Input
    alpha: _Input


class _Gpu(_Model):
    price: _Input
    rent: _Input | None = None


class _File(_Model):
    sources: dict[str, _Text]
    yields: _Yield = Field(alias="yield")
    wafer: dict[str, _Input]
    chip: dict[str, _Input]
    gpu: dict[str, _Input]
    operation: dict[str, _Input]
    gpus: dict[str, _Gpu]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInputs:
    """Everything that a cost is calculated from.

    Parameters
    ----------
    yield_model
        One of :data:`YIELD_MODELS`.
    facts
        Inputs by key (``wafer.price``).
    prices, rents
        Of GPUs, by name; a rent is per hour.
    """

    yield_model: str
    facts: Mapping[str, Fact]
    prices: Mapping[str, Fact]
    rents: Mapping[str, Fact]

    def at(self, case: Case) -> dict[str, float]:
        """Return the inputs of one case by key, ``price.NAME`` and ``rent.NAME`` of GPUs too."""
        values = {key: _pick(f, case, raises=_INPUTS[key][1]) for key, f in self.facts.items()}
        values |= {f"price.{n}": _pick(f, case, raises=True) for n, f in self.prices.items()}
        values |= {f"rent.{n}": _pick(f, case, raises=True) for n, f in self.rents.items()}
        return values

    def to_json(self) -> dict[str, Any]:
        """Return the inputs as JSON-ready values."""
        return {
            "yield_model": self.yield_model,
            "inputs": {key: asdict(fact) for key, fact in self.facts.items()},
            "prices": {name: asdict(fact) for name, fact in self.prices.items()},
            "rents": {name: asdict(fact) for name, fact in self.rents.items()},
        }


def _pick(fact: Fact, case: Case, *, raises: bool) -> float:
    if case == "mid":
        return fact.mid
    return fact.low if (case == "low") == raises else fact.high


def cost_template() -> str:
    """Return the text of the file that is used when no other is given: what a user may edit."""
    source = resources.files("romsim") / "tables" / "cost.toml"
    return source.read_text(encoding="utf-8")


def read_cost_inputs(path: Path | None = None) -> CostInputs:
    """Return the inputs of a file; the built-in ones without.

    Raises
    ------
    SpecError
        If the file cannot be read, or a key is unknown, missing or wrong.
    """
    if path is None:
        return _parse(cost_template(), "cost.toml")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise SpecError(
            f"Cost file {path} must be a readable TOML file, not {reason!r}; get one to edit with "
            f"`romsim compare CHIP --write-cost FILE`"
        ) from None
    return _parse(text, path.name)


def _parse(text: str, file: str) -> CostInputs:
    try:
        checked = _File.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{file} must be TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        dotted = ".".join(str(k) for k in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        raise SpecError(f"{file}: {dotted} must be valid: {message}") from None
    inputs = {"yield.d0": checked.yields.d0, "yield.alpha": checked.yields.alpha}
    for section in ("wafer", "chip", "gpu", "operation"):
        inputs |= {f"{section}.{k}": one for k, one in getattr(checked, section).items()}
    for key in _INPUTS:
        if key not in inputs:
            raise SpecError(f"{file}: {key} must be present, not missing; add [{key}]")
    facts = {}
    for key, one in inputs.items():
        if key not in _INPUTS:
            raise SpecError(f"{file}: key must be one of {', '.join(_INPUTS)}, not {key!r}")
        facts[key] = _fact(key, one, _INPUTS[key][0], checked.sources, file)
    _check_limits(facts, file)
    known = [gpu.name for gpu in gpus()]
    for name in checked.gpus:
        if name not in known:
            raise SpecError(f"{file}: GPU must be one of {', '.join(known)}, not {name!r}")
    prices, rents = {}, {}
    for name, gpu in checked.gpus.items():
        prices[name] = _fact(f"gpus.{name}.price", gpu.price, "USD", checked.sources, file)
        if gpu.rent is not None:
            rents[name] = _fact(f"gpus.{name}.rent", gpu.rent, "USD/h", checked.sources, file)
    return CostInputs(yield_model=checked.yields.model, facts=facts, prices=prices, rents=rents)


def _fact(key: str, one: _Input, unit: str, sources: Mapping[str, str], file: str) -> Fact:
    if one.unit != unit:
        raise SpecError(f"{file}: unit of {key} must be {unit!r}, not {one.unit!r}")
    if one.source not in sources:
        raise SpecError(
            f"{file}: source of {key} must be one of {', '.join(sources)}, not {one.source!r}; add "
            f"it to [sources]"
        )
    if one.low == 0 and key not in _ZERO_ALLOWED:
        raise SpecError(f"{file}: {key} must be above 0, not {one.low:g}")
    return Fact(
        key=key,
        low=one.low,
        mid=one.mid,
        high=one.high,
        unit=unit,
        grade=one.grade,
        source=sources[one.source],
    )


def _check_limits(facts: Mapping[str, Fact], file: str) -> None:
    if facts["operation.utilisation"].high > 1:
        high = facts["operation.utilisation"].high
        raise SpecError(f"{file}: operation.utilisation must be at most 1, not {high:g}")
    if facts["operation.pue"].low < 1:
        low = facts["operation.pue"].low
        raise SpecError(f"{file}: operation.pue must be at least 1, not {low:g}")
    if 2 * facts["wafer.edge"].high >= facts["wafer.diameter"].low:
        raise SpecError(
            f"{file}: wafer.edge must leave something of wafer.diameter, not be "
            f"{facts['wafer.edge'].high:g} of {facts['wafer.diameter'].low:g} mm"
        )
