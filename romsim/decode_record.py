"""Records of measured decoding: device, versions, model and rates, as a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from romsim.gpu_tables import gpus
from romsim.whole_file import write_json
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec

__all__ = [
    "DecodeRecord",
    "Device",
    "MeasuredModel",
    "MeasuredStep",
    "NumberFormat",
    "check_same_model",
    "model_of",
    "read_records",
    "records_of_model",
    "write_records",
]

NumberFormat = Literal["float32", "float16", "bfloat16"]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Text = Annotated[str, Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Device(_Model):
    """Where decoding was measured."""

    kind: Literal["cpu", "cuda"]
    name: _Text
    n_threads: int | None  # of a CPU
    memory_gb: _Positive | None  # of a GPU
    driver: _Text | None
    versions: dict[str, _Text]  # python, torch, cuda

    @property
    def part(self) -> str | None:
        """Name of the GPU in our own table, where it is there."""
        plain = self.name.lower().replace(" ", "")
        known = [g.name for g in gpus() if g.name.lower().replace(" ", "") in plain]
        return max(known, key=len) if self.kind == "cuda" and known else None


class MeasuredModel(_Model):
    """The sizes that decide what a step moves."""

    name: _Text
    dim: int = Field(ge=1)
    n_layers: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    n_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    hidden_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    tie_embeddings: bool


class MeasuredStep(_Model):
    """Decode steps at one context and batch."""

    context: int = Field(ge=1)  # tokens that attention reads, the new one included
    batch: int = Field(ge=1)
    graphs: bool  # whether the step was one CUDA graph
    n_steps: int = Field(ge=1)  # of a turn
    turns_s: tuple[_Positive, ...] = Field(min_length=1)  # seconds of a step, turn by turn
    step_s: _Positive  # their median
    bytes_per_step: _Positive
    bandwidth_share: _Positive | None  # of the part's peak, where that is known
    joules_per_token: _Positive | None

    @property
    def tokens_per_s(self) -> float:
        """Rate of one sequence."""
        return 1 / self.step_s

    @property
    def aggregate_tokens_per_s(self) -> float:
        """Rate of all sequences."""
        return self.batch / self.step_s


class DecodeRecord(_Model):
    """One decoder on one device."""

    record_version: Literal[1]
    device: Device
    model: MeasuredModel
    weights: Literal["file", "random"]
    number_format: NumberFormat
    framework: _Text
    steps: tuple[MeasuredStep, ...] = Field(min_length=1)
    missing: tuple[_Text, ...]  # what could not be measured, and why

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-ready values, rates included."""
        values = self.model_dump(mode="json")
        for entry, step in zip(values["steps"], self.steps, strict=True):
            entry["tokens_per_s"] = step.tokens_per_s
            entry["aggregate_tokens_per_s"] = step.aggregate_tokens_per_s
        return values


def model_of(spec: ModelSpec) -> MeasuredModel:
    """Return what a record keeps of a specification."""
    return MeasuredModel(
        name=spec.name,
        dim=spec.dim,
        n_layers=spec.n_layers,
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        hidden_dim=spec.hidden_dim,
        vocab_size=spec.vocab_size,
        tie_embeddings=spec.tie_embeddings,
    )


def check_same_model(record: DecodeRecord, spec: ModelSpec, file: str) -> None:
    """Refuse a record of another model: one with other KV heads has another cache.

    Raises
    ------
    SpecError
        With the first size that differs.
    """
    expected = model_of(spec)
    for name in MeasuredModel.model_fields:
        found, wanted = getattr(record.model, name), getattr(expected, name)
        if name != "name" and found != wanted:
            raise SpecError(
                f"{file}: {name} of the measured model {record.model.name!r} must be {wanted!r}, "
                f"as in {spec.name!r}, not {found!r}; measure this model"
            )


def records_of_model(path: Path, spec: ModelSpec) -> tuple[list[DecodeRecord], list[str]]:
    """Read a file's records of one model, and a note on what else is in it.

    Raises
    ------
    SpecError
        As :func:`read_records`, and if none is of this model: the first size that differs.
    """
    wanted, others = [], []
    records = read_records(path)
    for record in records:
        try:
            check_same_model(record, spec, str(path))
        except SpecError as error:
            others.append((record.model.name, error))
        else:
            wanted.append(record)
    if not wanted:
        raise others[0][1]
    names = ", ".join(dict.fromkeys(name for name, _ in others))
    return wanted, [
        f"{path.name}: records of other models are left out: {names}."
    ] if others else []


def write_records(path: Path, records: tuple[DecodeRecord, ...]) -> None:
    """Write records as one JSON file, whole or not at all.

    Raises
    ------
    SpecError
        If it cannot be written.
    """
    write_json(path, {"records": [record.to_json() for record in records]}, what="Record")


def read_records(path: Path) -> tuple[DecodeRecord, ...]:
    """Read the records of a file that :func:`write_records` wrote.

    Raises
    ------
    SpecError
        If it cannot be read, or a key is unknown, missing or wrong.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no JSON"
        raise SpecError(
            f"Measured file {path} must be readable JSON, not {reason!r}; make one with `romsim "
            f"compare CHIP --device cpu --save FILE` or `make gpu-bench`"
        ) from None
    entries = values.get("records") if isinstance(values, dict) else None
    if not isinstance(entries, list) or not entries:
        raise SpecError(f"{path}: records must be a list of at least one, not {entries!r}")
    records = []
    for number, entry in enumerate(entries):
        where = f"{path}: records.{number}"
        try:
            for step in entry["steps"]:  # follow from the rest, and stand there for readers
                step.pop("tokens_per_s", None)
                step.pop("aggregate_tokens_per_s", None)
            records.append(DecodeRecord.model_validate(entry))
        except (TypeError, KeyError, AttributeError):
            raise SpecError(f"{where} must be a record with steps; measure again") from None
        except ValidationError as error:
            first = error.errors()[0]
            dotted = ".".join(str(k) for k in first["loc"])
            message = first["msg"][0].lower() + first["msg"][1:]
            raise SpecError(f"{where}.{dotted} must be valid: {message}") from None
    return tuple(records)
