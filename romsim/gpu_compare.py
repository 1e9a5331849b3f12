"""Decode on the chip against decode of the same model on GPUs: one row a rate, both sides itemised.

Three kinds of rows stand beside the chip's: rooflines, which state the share of bandwidth they
assume; measurements made with this package; and published measurements. One sequence and the best
batch are different products and never share a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from romsim.chip_decode import ChipDecode, decode_on_chip
from romsim.cost import (
    NOTES,
    ChipBill,
    TokenCost,
    chip_bill,
    chip_token_cost,
    gpu_token_costs,
)
from romsim.cost_inputs import CostInputs
from romsim.decode_record import DecodeRecord, check_same_model, model_of
from romsim.gpu_roofline import best_batch, decode_on_gpu
from romsim.gpu_tables import Fraction, Gpu, find_gpu, gpus
from romsim.rate_rows import (
    BATCHED,
    SINGLE,
    RateRow,
    Roofline,
    chip_row,
    measured_row,
    published_rows,
    roofline_row,
)
from romsim_compiler.description import Description
from romsim_compiler.memory_map import kv_bytes_per_token
from romsim_models.spec import ModelSpec

__all__ = ["GpuComparison", "compare_with_gpus"]

_GPU_KV_BITS = 16.0
_GROUPED = 4.5  # bits of a weight: 4, and a 16-bit scale for 32 of them
_NUMBERS = (1, 2, 4, 8)  # of devices that share a model that is too large for one
_7NM_CLASS = ("asap7", "n7-compiler", "n6")  # what the built-in wafer price is for


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuComparison:
    """The chip against GPUs."""

    spec: ModelSpec
    context: int
    chip: ChipDecode
    rooflines: tuple[Roofline, ...]
    records: tuple[DecodeRecord, ...]
    rows: tuple[RateRow, ...]
    bill: ChipBill
    costs: tuple[TokenCost, ...]
    cost_inputs: CostInputs
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def kv_sentence(self) -> str:
        """The KV cache of a token on both sides, from the model's own KV heads."""
        s = self.spec
        sizes = f"2 x {s.n_layers} layers x {s.n_kv_heads} KV heads x {s.head_dim}"
        chip = kv_bytes_per_token(s, self.chip.kv_bits)
        gpu = kv_bytes_per_token(s, _GPU_KV_BITS)
        shared = (
            f"; {s.n_heads} query heads share {s.n_kv_heads}" if s.n_heads > s.n_kv_heads else ""
        )
        return (
            f"{chip:,.0f} B a token on the chip ({sizes} x {self.chip.kv_bits:g} b / 8), "
            f"{gpu:,.0f} B on a GPU (16 b){shared}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready values."""
        return {
            "model": model_of(self.spec).model_dump(),
            "context": self.context,
            "kv": {
                "chip_bytes_per_token": kv_bytes_per_token(self.spec, self.chip.kv_bits),
                "gpu_bytes_per_token": kv_bytes_per_token(self.spec, _GPU_KV_BITS),
                "sentence": self.kv_sentence,
            },
            "chip": self.chip.to_json(),
            "rooflines": [
                {
                    "weight_format": r.weight_format,
                    "weight_bits": r.weight_bits,
                    "head_bits": r.head_bits,
                    "kv_bits": r.kv_bits,
                    "streams": r.streams,
                    **r.decode.to_json(),
                }
                for r in self.rooflines
            ],
            "records": [record.to_json() for record in self.records],
            "rows": [asdict(row) for row in self.rows],
            "cost": {
                "notes": list(NOTES),
                "chip": self.bill.to_json(),
                "rows": [one.to_json() for one in self.costs],
                **self.cost_inputs.to_json(),
            },
            "missing": list(self.missing),
            "notes": list(self.notes),
        }


def compare_with_gpus(
    description: Description,
    *,
    context: int | None = None,
    names: Sequence[str] = (),
    fraction: Fraction | None = None,
    records: Sequence[tuple[str, DecodeRecord]] = (),
    cost_inputs: CostInputs,
    notes: Sequence[str] = (),
) -> GpuComparison:
    """Compare a description with GPUs that decode the same model.

    Parameters
    ----------
    context
        Tokens that attention reads, the new one included; 1,024 or as many as fit by default.
    names
        GPUs, all that are known where none is named.
    fraction
        Share of bandwidth reached; what published decoders reach when left out.
    records
        Measurements, each with the name of its file or its origin, for messages.
    cost_inputs
        What costs are calculated from.
    notes
        More notes for the reader.

    Raises
    ------
    CapacityError
        If the context does not fit the chip.
    SpecError
        If a GPU is unknown, or a record is of another model.
    """
    spec = description.spec
    n_tokens = min(1024, description.context) if context is None else context
    chip = decode_on_chip(description, n_tokens)
    for where, record in records:
        check_same_model(record, spec, where)
    parts = [find_gpu(name) for name in dict.fromkeys(names)] or list(gpus())
    rooflines = [
        roof
        for part in parts
        for fmt, weight, head in _formats(chip)
        for roof in _rooflines(spec, part, fmt, (weight, head), n_tokens, fraction)
    ]
    rows = [chip_row(spec, chip), *(roofline_row(chip, roof) for roof in rooflines)]
    rows += [
        measured_row(chip, record, n) for _, record in records for n in range(len(record.steps))
    ]
    rows += published_rows(spec, chip, [part.name for part in parts] if names else None)
    bill = chip_bill(chip.area_mm2, cost_inputs)
    costs = [
        chip_token_cost(
            bill,
            device=chip.target,
            weight_format=chip.weight_format,
            tokens_per_s=chip.tokens_per_s,
            joules_per_token=chip.joules_per_token,
            inputs=cost_inputs,
        )
    ]
    for roof in rooflines:
        if roof.decode.fits:
            costs += gpu_token_costs(
                roof.decode,
                weight_format=roof.weight_format,
                streams=roof.streams,
                inputs=cost_inputs,
            )
    return GpuComparison(
        spec=spec,
        context=n_tokens,
        chip=chip,
        rooflines=tuple(rooflines),
        records=tuple(record for _, record in records),
        rows=tuple(rows),
        bill=bill,
        costs=tuple(costs),
        cost_inputs=cost_inputs,
        missing=tuple(_missing(rows, [record for _, record in records])),
        notes=(*chip.notes, *_notes(chip, bill), *notes),
    )


def _formats(chip: ChipDecode) -> list[tuple[str, float, float]]:
    """Return name, bits of a weight and bits of the head's, of what a GPU may hold."""
    head = chip.head_bits_per_weight or chip.bits_per_weight
    return [
        ("fp16", 16.0, 16.0),
        ("4-bit", _GROUPED, _GROUPED),
        ("as on the chip", chip.bits_per_weight, head),
    ]


def _rooflines(
    spec: ModelSpec,
    part: Gpu,
    fmt: str,
    bits: tuple[float, float],
    context: int,
    fraction: Fraction | None,
) -> list[Roofline]:
    """Return the rooflines of a part, or of as few of them as hold the model."""
    weight_bits, head_bits = bits

    def most(n_devices: int) -> int:
        return best_batch(
            spec,
            part,
            weight_bits=weight_bits,
            head_bits=head_bits,
            context=context,
            kv_bits=_GPU_KV_BITS,
            n_devices=n_devices,
        )

    numbers = (1,) if part.kind == "edge" else _NUMBERS
    n_devices = next((n for n in numbers if most(n)), 1)
    made = []
    for streams, batch in ((SINGLE, 1), (BATCHED, most(n_devices))):
        if batch:
            decode = decode_on_gpu(
                spec,
                part,
                weight_bits=weight_bits,
                head_bits=head_bits,
                context=context,
                kv_bits=_GPU_KV_BITS,
                batch=batch,
                n_devices=n_devices,
                fraction=fraction,
            )
            made.append(
                Roofline(
                    weight_format=fmt,
                    weight_bits=weight_bits,
                    head_bits=head_bits,
                    kv_bits=_GPU_KV_BITS,
                    streams=streams,
                    decode=decode,
                )
            )
    return made


def _missing(rows: Sequence[RateRow], records: Sequence[DecodeRecord]) -> list[str]:
    found = []
    if not records:
        found.append(
            "No rate was measured: give --device cuda (or cpu), or --measured FILE with what "
            "`make gpu-bench` wrote."
        )
    elif not any(record.device.kind == "cuda" for record in records):
        found.append("No rate was measured on a GPU: the measured rows are a CPU's.")
    found += [f"{r.device.name}: {what}" for r in records for what in r.missing]
    if not any(row.kind == "published" for row in rows):
        found.append("No published rate of this model on these parts is known to this package.")
    return list(dict.fromkeys(found))


def _notes(chip: ChipDecode, bill: ChipBill) -> list[str]:
    notes = [
        "A roofline is no server: several devices (where one cannot hold the model) talk at no "
        "cost, and the best batch fills 90 % of the memory; published and measured rows say what "
        "is reached.",
        "GPU weights: fp16; 4-bit with a 16-bit scale for 32 (4.5 b); and the bits that the chip "
        "stores. KV in 16 bits. Their arithmetic is not the chip's.",
    ]
    if chip.technology not in _7NM_CLASS:
        notes.append(
            f"The built-in wafer price is of the 7 nm class, and the chip's technology is "
            f"{chip.technology}: set [wafer.price] in a cost file."
        )
    if bill.n_dies > 1:
        notes.append(
            f"The chip is larger than a reticle's field: its cost is that of {bill.n_dies} equal "
            f"dies, without links."
        )
    return notes
