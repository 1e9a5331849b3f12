"""Decode on a chip as one side of a comparison: rate, joules, area, each with its items."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from romsim.area import AreaReport
from romsim.description_point import area_of_description, point_of_description
from romsim.design_point import DesignPoint
from romsim.energy import GATING, EnergyReport, estimate_energy
from romsim.gpu_roofline import ByteItem
from romsim.throughput import mean_decode_cycles, profile_token
from romsim_compiler.description import Description
from romsim_compiler.memory_map import kv_bits_per_element, kv_bytes_per_token
from romsim_compiler.technology import Range
from romsim_models.errors import CapacityError, SpecError

__all__ = ["ChipDecode", "decode_on_chip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipDecode:
    """Decode of a description's model at one context, one sequence at a time."""

    target: str
    technology: str
    clock_mhz: float
    context: int  # tokens that attention reads, the new one included
    cycles: int
    tokens_per_s: float  # of one sequence; exact for the target's clock
    aggregate_tokens_per_s: float  # sequences take turns
    joules_per_token: Range
    gating_joules: dict[str, Range]  # by what idle parts do
    power_w: Range
    area_mm2: Range
    weight_format: str
    bits_per_weight: float  # of the layers, scales and minima included
    head_bits_per_weight: float | None  # None where the head is not on the chip
    kv_bits: float
    items: tuple[ByteItem, ...]  # bytes that a token reads or writes
    cycles_by_resource: dict[str, int]
    joules_by_unit: dict[str, Range]
    area_by_unit_mm2: dict[str, Range]
    notes: tuple[str, ...]

    @property
    def bytes_per_token(self) -> float:
        """Bytes of all items."""
        return sum(item.bytes for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values."""
        return {**asdict(self), "bytes_per_token": self.bytes_per_token}


def decode_on_chip(description: Description, context: int) -> ChipDecode:
    """Return the chip's side of a comparison.

    Parameters
    ----------
    context
        Tokens that attention reads, the new one included.

    Raises
    ------
    CapacityError
        If the context does not fit.
    SpecError
        If it is less than the new token.
    """
    if context < 1:
        raise SpecError(f"Context must be at least 1 token, the new one, not {context}")
    if context > description.context:
        raise CapacityError(
            f"Context must be at most {description.context} tokens in {description.path}, not "
            f"{context}; compile with a larger --context"
        )
    point = point_of_description(description)
    target = point.target
    area = area_of_description(description)
    energy = {g: estimate_energy(point, context, gating=g, area=area) for g in GATING}
    chosen = energy["isolated"]
    (cycles,) = point.decode_cycles([context - 1])
    rate = target.clock_mhz * 1e6 / mean_decode_cycles(point, [context])[0]
    layers, head = _formats(point)
    return ChipDecode(
        target=target.name,
        technology=area.technology,
        clock_mhz=target.clock_mhz,
        context=context,
        cycles=cycles,
        tokens_per_s=rate,
        aggregate_tokens_per_s=rate,
        joules_per_token=chosen.token_pj * 1e-12,
        gating_joules={name: report.token_pj * 1e-12 for name, report in energy.items()},
        power_w=chosen.power_w,
        area_mm2=area.total_mm2,
        weight_format=", ".join(dict.fromkeys(_names(point))),
        bits_per_weight=layers,
        head_bits_per_weight=head,
        kv_bits=kv_bits_per_element(target, point.spec),
        items=_items(point, context),
        cycles_by_resource=profile_token(point, context).by_resource,
        joules_by_unit=_joules(chosen),
        area_by_unit_mm2=_areas(area),
        notes=_notes(description, point),
    )


def _names(point: DesignPoint) -> list[str]:
    return [group.fmt.name for group in point.groups]


def _bits(point: DesignPoint, *, in_layers: bool) -> tuple[int, float]:
    """Return weights and their stored bits, of the layers or of the LM head."""
    weights, bits = 0, 0.0
    for group in point.groups:
        if (group.layer >= 0) if in_layers else (group.name == "head"):
            n = group.n_rows * group.n_cols * point.repetitions[group.name]
            weights += n
            bits += n * group.fmt.bits_per_weight()
    return weights, bits


def _formats(point: DesignPoint) -> tuple[float, float | None]:
    weights, bits = _bits(point, in_layers=True)
    head, head_bits = _bits(point, in_layers=False)
    return bits / weights, head_bits / head if head else None


def _items(point: DesignPoint, context: int) -> tuple[ByteItem, ...]:
    spec = point.spec
    weights, bits = _bits(point, in_layers=True)
    items = [
        ByteItem(
            name="weights of the layers",
            bytes=bits / 8,
            formula=f"{weights} weights x {bits / weights:g} b / 8, from ROM",
        )
    ]
    head, head_bits = _bits(point, in_layers=False)
    if head:
        items.append(
            ByteItem(
                name="LM head",
                bytes=head_bits / 8,
                formula=f"{spec.vocab_size} x {spec.dim} x {head_bits / head:g} b / 8, from ROM",
            )
        )
    if point.target.embedding.input == "rom":
        name = "embd" if any(g.name == "embd" for g in point.groups) else "head"
        (row,) = (g.fmt.bits_per_weight() for g in point.groups if g.name == name)
        items.append(
            ByteItem(
                name="embedding rows",
                bytes=spec.dim * row / 8,
                formula=f"1 x {spec.dim} x {row:g} b / 8, from ROM",
            )
        )
    token = kv_bytes_per_token(spec, kv_bits_per_element(point.target, spec))
    heads = f"2 x {spec.n_layers} layers x {spec.n_kv_heads} KV heads x {spec.head_dim}"
    items += [
        ByteItem(
            name="KV read",
            bytes=context * token,
            formula=f"{context} tokens x {token:g} B ({heads}), from SRAM",
        ),
        ByteItem(name="KV written", bytes=token, formula=f"1 x {token:g} B, to SRAM"),
    ]
    return tuple(items)


def _joules(report: EnergyReport) -> dict[str, Range]:
    return {unit: pj * 1e-12 for unit, pj in report.by_unit().items()}


def _areas(report: AreaReport) -> dict[str, Range]:
    return {unit: um2 * 1e-6 for unit, um2 in report.by_unit().items()}


def _notes(description: Description, point: DesignPoint) -> tuple[str, ...]:
    notes = [
        "Cycles are the compiled program's; area and energy are estimates from the technology's "
        "ranges; the clock is the target's."
    ]
    window = point.target.kv.residual
    if window:
        notes.append(
            f"Tokens/s is the mean over {window} tokens, since the KV cache encodes as many at "
            f"once; cycles and energy are of the last one."
        )
    home = point.target.embedding
    if home.head != "rom":
        notes.append("The LM head is off-chip: its time, energy and area are in no figure.")
    if home.input != "rom":
        notes.append("The input embedding is off-chip: its row is read by the host.")
    if not point.target.executable:
        notes.append(f"Target {point.target.name} is not executable: no value was computed on it.")
    if not description.has_images:
        notes.append("The description has no weights: its ROM bits are counted, not known.")
    return tuple(notes)
