"""GPUs, published decode rates and achieved shares of bandwidth, read from ``tables/gpus.toml``."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from romsim_compiler.technology import Fact
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES

__all__ = [
    "Fraction",
    "Gpu",
    "MeasuredRate",
    "find_gpu",
    "gpus",
    "launch_time",
    "measured_rates",
    "parse_gpus",
    "usual_fraction",
]

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Kind = Literal["data-centre", "consumer", "edge"]
_Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One part: peak figures, as its maker states them."""

    name: str
    kind: str  # "data-centre", "consumer" or "edge"
    summary: str
    bandwidth_gb_s: float
    memory_gb: float
    fp16_tflops: float
    power_w: float
    grade: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fraction:
    """Share of the bandwidth that decode reaches, with where it comes from."""

    low: float
    mid: float
    high: float
    grade: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRate:
    """A published decode rate at batch 1."""

    part: str
    model: str
    shape: str | None  # built-in shape that the model has
    format: str
    framework: str
    context: int | None
    tokens_per_s: float
    power_w: float | None
    joules_per_token: float | None
    weights_gb: float | None
    confidence: str
    source: str

    @property
    def fraction(self) -> float | None:
        """Share of the part's bandwidth that reading its weights takes, where both are known."""
        known = {gpu.name: gpu for gpu in gpus()}
        if self.weights_gb is None or self.part not in known:
            return None
        return self.tokens_per_s * self.weights_gb / known[self.part].bandwidth_gb_s


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Gpu(_Model):
    name: _Text
    kind: _Kind
    summary: _Text
    bandwidth_gb_s: _Positive
    memory_gb: _Positive
    fp16_tflops: _Positive
    power_w: _Positive
    grade: Literal["published", "measured", "derived", "assumed"]
    source: _Text


class _Fraction(_Model):
    kind: _Kind
    from_gb: float = Field(ge=0)
    low: _Positive
    mid: _Positive
    high: float = Field(gt=0, le=1)
    grade: Literal["published", "measured", "derived", "assumed"]
    source: _Text


class _Measured(_Model):
    part: _Text
    model: _Text
    shape: _Text | None = None
    format: _Text
    framework: _Text
    context: int | None = None
    tokens_per_s: _Positive
    power_w: _Positive | None = None
    joules_per_token: _Positive | None = None
    weights_gb: _Positive | None = None
    confidence: Literal["published", "measured", "secondary", "derived", "unverified"]
    source: _Text


class _Launch(_Model):
    low: _Positive
    mid: _Positive
    high: _Positive
    unit: Literal["us/layer"]
    grade: Literal["published", "measured", "derived", "assumed"]
    source: _Text


class _File(_Model):
    sources: dict[str, _Text]
    gpus: tuple[_Gpu, ...] = Field(min_length=1)
    fractions: tuple[_Fraction, ...] = Field(min_length=1)
    launch: _Launch
    measured: tuple[_Measured, ...]


def parse_gpus(text: str, file: str) -> _File:
    """Return the checked contents of a file of GPUs.

    Raises
    ------
    SpecError
        If a key is unknown, missing or wrong, or a source is not in the file's list.
    """
    try:
        checked = _File.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{file} must be TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        dotted = ".".join(str(k) for k in first["loc"])
        message = first["msg"][0].lower() + first["msg"][1:]
        raise SpecError(f"{file}: {dotted} must be valid: {message}") from None
    for one in checked.measured:
        if one.shape is not None and one.shape not in SHAPES:
            raise SpecError(
                f"{file}: shape of {one.model} must be one of {', '.join(SHAPES)}, not "
                f"{one.shape!r}"
            )
    named = [one.source for one in checked.gpus]
    named += [one.source for one in checked.fractions]
    named += [checked.launch.source, *(one.source for one in checked.measured)]
    for source in named:
        if source not in checked.sources:
            raise SpecError(
                f"{file}: source must be one of {', '.join(checked.sources)}, not {source!r}; "
                f"add it to [sources]"
            )
    return checked


@cache
def _tables() -> _File:
    source = resources.files("romsim") / "tables" / "gpus.toml"
    return parse_gpus(source.read_text(encoding="utf-8"), "gpus.toml")


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that are known."""
    tables = _tables()
    return tuple(
        Gpu(**{**one.model_dump(), "source": tables.sources[one.source]}) for one in tables.gpus
    )


def find_gpu(name: str) -> Gpu:
    """Return a GPU by name, case and spaces aside.

    Raises
    ------
    SpecError
        If none is known by that name.
    """
    plain = {gpu.name.lower().replace(" ", ""): gpu for gpu in gpus()}
    key = name.lower().replace(" ", "").replace("-", "").replace("_", "")
    if key in plain:
        return plain[key]
    near = difflib.get_close_matches(key, plain, n=1, cutoff=0.5)
    hint = f"; did you mean {plain[near[0]].name!r}?" if near else ""
    raise SpecError(f"GPU must be one of {', '.join(g.name for g in gpus())}, not {name!r}{hint}")


@cache
def measured_rates() -> tuple[MeasuredRate, ...]:
    """Return the published rates."""
    tables = _tables()
    return tuple(
        MeasuredRate(**{**one.model_dump(), "source": tables.sources[one.source]})
        for one in tables.measured
    )


def launch_time() -> Fact:
    """Return the least time of a layer on a GPU, in us."""
    tables = _tables()
    launch = tables.launch
    return Fact(
        key="launch",
        low=launch.low,
        mid=launch.mid,
        high=launch.high,
        unit=launch.unit,
        grade=launch.grade,
        source=tables.sources[launch.source],
    )


def usual_fraction(gpu: Gpu, gb_per_token: float) -> Fraction:
    """Return the share of bandwidth that published decoders reach on such a part.

    Parameters
    ----------
    gb_per_token
        What they read in a step, in GB.

    Raises
    ------
    SpecError
        If nothing is known for parts of that kind.
    """
    tables = _tables()
    rows = [r for r in tables.fractions if r.kind == gpu.kind and r.from_gb <= gb_per_token]
    if not rows:
        raise SpecError(
            f"Achieved share must be given for {gpu.name} at {gb_per_token:g} GB a token, since "
            f"none is known for parts of kind {gpu.kind!r}"
        )
    chosen = max(rows, key=lambda row: row.from_gb)
    return Fraction(
        low=chosen.low,
        mid=chosen.mid,
        high=chosen.high,
        grade=chosen.grade,
        source=tables.sources[chosen.source],
    )
