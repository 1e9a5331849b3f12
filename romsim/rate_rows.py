"""Rates of decoding side by side: one row each for chip, roofline, measurement, publication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from romsim.chip_decode import ChipDecode
from romsim.decode_record import DecodeRecord, model_of
from romsim.gpu_roofline import GpuDecode
from romsim.gpu_tables import measured_rates
from romsim_compiler.technology import Range
from romsim_models.shapes import SHAPES
from romsim_models.spec import ModelSpec

__all__ = [
    "BATCHED",
    "SINGLE",
    "RateRow",
    "Roofline",
    "chip_row",
    "measured_row",
    "published_rows",
    "roofline_row",
]

SINGLE, BATCHED = "one sequence", "best batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRow:
    """One rate of decoding."""

    side: str  # "chip", "gpu" or "cpu"
    device: str
    kind: str  # "compiled program", "roofline", "measured" or "published"
    framework: str
    model: str
    weight_format: str
    context: int | None
    batch: int | None
    streams: str  # SINGLE, BATCHED or "batch N"
    tokens_per_s: Range  # of one sequence
    aggregate_tokens_per_s: Range  # of all sequences of the batch
    joules_per_token: Range | None
    joules_basis: str  # where the joules come from; "" where there are none
    bandwidth_share: Range | None
    chip_times_faster: Range | None  # the chip's rate of one sequence over this one's
    chip_times_aggregate: Range | None  # the chip's aggregate rate over this one's
    chip_times_joules: Range | None  # these joules over the chip's
    grade: str
    source: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A GPU's roofline with what it was asked for."""

    weight_format: str
    weight_bits: float
    head_bits: float
    kv_bits: float
    streams: str
    decode: GpuDecode


def chip_row(spec: ModelSpec, chip: ChipDecode) -> RateRow:
    """Return the chip's own row."""
    return RateRow(
        side="chip",
        device=chip.target,
        kind="compiled program",
        framework="romsim",
        model=spec.name,
        weight_format=chip.weight_format,
        context=chip.context,
        batch=1,
        streams=SINGLE,
        tokens_per_s=Range.exact(chip.tokens_per_s),
        aggregate_tokens_per_s=Range.exact(chip.aggregate_tokens_per_s),
        joules_per_token=chip.joules_per_token,
        joules_basis=f"events and leakage, estimated ({chip.technology})",
        bandwidth_share=None,
        chip_times_faster=None,
        chip_times_aggregate=None,
        chip_times_joules=None,
        grade="derived",
        source="cycles of the compiled program",
        warnings=(),
    )


def roofline_row(chip: ChipDecode, roof: Roofline) -> RateRow:
    """Return the row of a roofline, with what the chip is to it if the model fits the part."""
    decode, share = roof.decode, roof.decode.fraction
    return _row(
        chip,
        side="gpu",
        device=decode.device,
        kind="roofline",
        framework="none: a roofline",
        model=decode.model,
        weight_format=roof.weight_format,
        context=decode.context,
        batch=decode.batch,
        streams=roof.streams,
        tokens_per_s=decode.tokens_per_s,
        aggregate_tokens_per_s=decode.aggregate_tokens_per_s,
        joules_per_token=decode.joules_per_token,
        joules_basis="rated power: an upper limit",
        bandwidth_share=Range(share.low, share.mid, share.high),
        grade=share.grade,
        source=f"{decode.gpu.source}; share of bandwidth: {share.source}",
        warnings=decode.warnings,
        is_comparable=decode.fits,
    )


def measured_row(chip: ChipDecode, record: DecodeRecord, number: int) -> RateRow:
    """Return the row of one step of a record, with what the chip is to it at equal contexts."""
    step, device = record.steps[number], record.device
    share = step.bandwidth_share
    joules = step.joules_per_token
    versions = ", ".join(f"{k} {v}" for k, v in sorted(device.versions.items()))
    where = f", driver {device.driver}" if device.driver else ""
    where += f", {device.n_threads} threads" if device.n_threads else ""
    same = step.context == chip.context
    warnings = () if same else (f"measured at {step.context} tokens, not at {chip.context}",)
    graphs = ", CUDA graphs" if step.graphs else ""
    return _row(
        chip,
        side="cpu" if device.kind == "cpu" else "gpu",
        device=device.name,
        kind="measured",
        framework=record.framework + graphs,
        model=record.model.name,
        weight_format=record.number_format,
        context=step.context,
        batch=step.batch,
        streams=SINGLE if step.batch == 1 else f"batch {step.batch}",
        tokens_per_s=_spread(1 / t for t in step.turns_s),
        aggregate_tokens_per_s=_spread(step.batch / t for t in step.turns_s),
        joules_per_token=None if joules is None else Range.exact(joules),
        joules_basis="" if joules is None else "NVML's counter of the device",
        bandwidth_share=None if share is None else Range.exact(share),
        grade="measured",
        source=f"measured with this package: median of {len(step.turns_s)} turns of "
        f"{step.n_steps} steps, {record.weights} weights; {versions}{where}",
        warnings=warnings,
        is_comparable=same,
    )


def _spread(values: Any) -> Range:
    """Return the slowest, the median and the fastest of some rates."""
    found = sorted(values)
    half = len(found) // 2
    middle = found[half] if len(found) % 2 else (found[half - 1] + found[half]) / 2
    return Range(found[0], middle, found[-1])


def published_rows(spec: ModelSpec, chip: ChipDecode, names: Sequence[str] | None) -> list[RateRow]:
    """Return the published rates of this model's shape.

    Parameters
    ----------
    names
        Parts wanted; ``None`` for all.
    """
    rows = []
    for one in measured_rates():
        if one.shape is None or not _same_shape(spec, SHAPES[one.shape]):
            continue
        if names is not None and one.part not in names:
            continue
        joules = one.joules_per_token
        share = one.fraction
        notes = []
        if one.context is None:
            notes.append("its context is not stated")
        elif one.context != chip.context:
            notes.append(f"at {one.context} tokens, not at {chip.context}")
        rows.append(
            _row(
                chip,
                side="gpu",
                device=one.part,
                kind="published",
                framework=one.framework,
                model=one.model,
                weight_format=one.format,
                context=one.context,
                batch=1,
                streams=SINGLE,
                tokens_per_s=Range.exact(one.tokens_per_s),
                aggregate_tokens_per_s=Range.exact(one.tokens_per_s),
                joules_per_token=None if joules is None else Range.exact(joules),
                joules_basis="" if joules is None else "published",
                bandwidth_share=None if share is None else Range.exact(share),
                grade=one.confidence,
                source=one.source,
                warnings=tuple(notes),
                is_comparable=one.context == chip.context,
            )
        )
    return rows


def _same_shape(spec: ModelSpec, other: ModelSpec) -> bool:
    return model_of(spec).model_copy(update={"name": ""}) == model_of(other).model_copy(
        update={"name": ""}
    )


def _row(chip: ChipDecode, *, is_comparable: bool, **values: Any) -> RateRow:
    """Return a row with what the chip is to it; nothing where context or memory do not allow it."""
    rate: Range = values["tokens_per_s"]
    together: Range = values["aggregate_tokens_per_s"]
    joules: Range | None = values["joules_per_token"]
    return RateRow(
        **values,
        chip_times_faster=Range.exact(chip.tokens_per_s).over(rate) if is_comparable else None,
        chip_times_aggregate=Range.exact(chip.aggregate_tokens_per_s).over(together)
        if is_comparable
        else None,
        chip_times_joules=joules.over(chip.joules_per_token)
        if joules is not None and is_comparable
        else None,
    )
