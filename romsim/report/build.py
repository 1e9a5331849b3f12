"""Building a report: one or several descriptions, and results of other commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from romsim.area import estimate_area
from romsim.area_adapters import why_no_adapter_area
from romsim.area_kv import why_no_kv_area
from romsim.area_synthesised import has_rtl
from romsim.description_point import point_of_description
from romsim.design_point import DesignPoint
from romsim.report import power, silicon, speed
from romsim.report.adapters import adapter_table
from romsim.report.assumptions import technology_table
from romsim.report.chips_elsewhere import published_tables
from romsim.report.compare_results import compare_tables
from romsim.report.headline import headline_figures
from romsim.report.kv_results import kv_tables
from romsim.report.memory import codec_table, kv_name
from romsim.report.model import ChipReport, Report, Table
from romsim.report.result_files import read_result
from romsim.report.verify_results import verify_tables
from romsim.report.zero_bits import ZeroBits, count_zero_bits
from romsim.rtl_clock import rtl_clock
from romsim.throughput import profile_token
from romsim_compiler.description import Description
from romsim_compiler.kv import DEFAULT_KV
from romsim_compiler.target import Target
from romsim_compiler.target_file import list_targets, load_target
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import CapacityError, SpecError

__all__ = ["CURVE_END", "DEFAULT_CONTEXT", "build_report", "chip_report"]

DEFAULT_CONTEXT = 1024
CURVE_END = 65536
"""Tokens at which curves end; under a retention policy a sequence has no end."""
_MAX_CHIPS = 4

_NOTES = (
    "Area and energy are bottom-up estimates from published and synthesised figures, each with its "
    "grade; nothing was placed and routed. Read the ranges, not the mid values alone.",
    "Cycles are exact for the template: tests hold the cycle model, the RTL and these closed forms "
    "together. The clock is the target's own figure.",
    "One sequence's rate and that of many are different figures and stand apart.",
    "Grades, best first: published, measured, derived, assumed. A figure made from several has the "
    "weakest of theirs.",
)


def build_report(
    descriptions: Sequence[Description],
    *,
    context: int | None = None,
    verify: Sequence[str | Path] = (),
    compare: Sequence[str | Path] = (),
    kv_eval: Sequence[str | Path] = (),
    progress: Callable[[str, float], None] | None = None,
) -> Report:
    """Return the report of descriptions side by side.

    Parameters
    ----------
    context
        Tokens at which single figures are taken; 1,024, or the longest sequence if that is less.
    verify, compare, kv_eval
        Files with what ``romsim verify --json``, ``romsim compare --json`` and ``romsim kv-eval
        --json`` printed.
    progress
        Called with a stage and the finished fraction.

    Raises
    ------
    SpecError
        If there are no descriptions or more than four, or the context is less than 1.
    CapacityError
        If a chip cannot hold the context.
    FormatError
        If a result file cannot be read.
    """
    if not 1 <= len(descriptions) <= _MAX_CHIPS:
        raise SpecError(
            f"Descriptions of one report must be 1 to {_MAX_CHIPS}, not {len(descriptions)}"
        )
    shared: list[Table] = []
    for number, file in enumerate(verify, 1):
        shared += verify_tables(number, read_result(file))
    for number, file in enumerate(compare, 1):
        shared += compare_tables(number, read_result(file))
    for number, file in enumerate(kv_eval, 1):
        shared += kv_tables(number, read_result(file))
    limits = [description.context for description in descriptions]
    at = context if context is not None else min(DEFAULT_CONTEXT, *limits)
    if at < 1:
        raise SpecError(f"Context must be at least 1 token, not {at}")
    for description in descriptions:
        if at > description.context:
            raise CapacityError(
                f"Context must be at most {description.context} tokens in {description.path}, not "
                f"{at}; lower --context, or compile with a larger one"
            )
    chips = []
    for number, (label, description) in enumerate(
        zip(_labels(descriptions), descriptions, strict=True)
    ):
        if progress is not None:
            progress("reporting", number / len(descriptions))
        zeros = count_zero_bits(description) if description.has_images else None
        adapters = adapter_table(description, at)
        chips.append(
            chip_report(
                point_of_description(description),
                letter=chr(ord("A") + number),
                label=label,
                name=description.name,
                context=at,
                limit=description.context,
                zeros=zeros,
                lora_bytes=int(description.manifest["memory"]["lora_bytes"]),
                lora_rank=description.lora_rank,
                notes=_notes(description),
                more=() if adapters is None else (adapters,),
            )
        )
    shared += published_tables()
    title = " and ".join(chip.label for chip in chips)
    return Report(
        title=f"ROM chip report: {title}",
        commands=_commands(descriptions, at, len(verify), len(compare), len(kv_eval)),
        chips=tuple(chips),
        tables=tuple(shared),
        notes=(*_verdicts(shared), *_NOTES),
    )


def chip_report(
    point: DesignPoint,
    *,
    letter: str,
    label: str,
    name: str,
    context: int,
    limit: int,
    zeros: ZeroBits | None = None,
    lora_bytes: int = 0,
    lora_rank: int = 0,
    notes: Sequence[str] = (),
    more: Sequence[Table] = (),
) -> ChipReport:
    """Return the figures and tables of one design point.

    Parameters
    ----------
    letter, label, name
        What tells the chip from others, and what it is called.
    context, limit
        Tokens at which single figures are taken, and of the longest sequence.
    zeros
        Zero bits of the ROM images, where there are images.
    lora_bytes
        SRAM that resident adapters take.
    lora_rank
        Largest rank of resident adapters, a power of two; 0 for none.
    notes
        What a reader has to know beside the figures.
    more
        Tables that a design point does not have.
    """
    spec, target = point.spec, point.target
    end = min(limit, CURVE_END)
    area = estimate_area(target, spec=spec, rank=lora_rank)
    reports = power.energies(point, area, context)
    profile = profile_token(point, context)
    tables = [
        silicon.area_table(area),
        silicon.floorplan_table(area, target.array.n_tiles),
        speed.rate_table(point, end),
        speed.ttft_table(point, end),
        speed.layer_table(profile),
        speed.resource_table(point, sorted({1, context, end})),
        speed.operation_table(profile),
        speed.utilisation_table(profile),
        speed.roofline_table(point, context),
        speed.limit_table(point, end),
        power.energy_unit_table(reports),
        power.energy_table(reports["isolated"]),
        power.energy_layer_table(reports["isolated"]),
        power.energy_context_table(point, area, end),
        silicon.rom_group_table(point, zeros),
        codec_table(spec, target, lora_bytes),
        technology_table(load_technology(target.technology)),
        *more,
    ]
    if zeros is not None:
        tables.append(silicon.rom_bank_table(zeros))
    figures = headline_figures(
        point,
        area,
        reports["isolated"],
        context=context,
        limit=limit,
        zeros=zeros,
        has_adapters=lora_rank > 0 and why_no_adapter_area(target, lora_rank) is None,
    )
    array, kv = target.array, kv_name(target.kv)
    return ChipReport(
        letter=letter,
        label=label,
        name=name,
        model=spec.name,
        target=target.name,
        technology=area.technology,
        summary=(
            f"{array.n_tiles} tiles × {array.n_cells} cells × {array.word_codes} lanes of "
            f"{array.lane_bits} bits, {target.clock_mhz:g} MHz, {area.technology}"
            f"{kv and f', {kv}'}"
        ),
        context=context,
        figures=figures,
        tables=tuple(tables),
        notes=tuple(notes),
    )


def _verdicts(tables: Sequence[Table]) -> list[str]:
    """Return a sentence for each result of ``romsim verify``."""
    return [f"{table.title}." for table in tables if table.title.startswith("Verification")]


def _labels(descriptions: Sequence[Description]) -> list[str]:
    """Return what tells each chip from the others: model, target, KV; numbered where equal."""
    names = [(f"{d.name} on {d.target.name}", kv_name(d.target.kv)) for d in descriptions]
    labels = [f"{label}, {kv}" if kv else label for label, kv in names]
    return [
        f"{label} ({number})" if labels.count(label) > 1 else label
        for number, label in enumerate(labels, 1)
    ]


def _notes(description: Description) -> list[str]:
    notes = []
    target = description.target
    if not target.executable:
        notes.append(
            f"Target {target.name} cannot be executed ({target.formats.activation} activations, "
            f"{target.formats.kv} KV): timing, capacity and area only."
        )
    adapters = description.manifest["adapters"]
    why: str | None = "the target has no RTL; lanes counted from parts are shared with attention"
    if has_rtl(target):
        why = why_no_adapter_area(target, description.lora_rank)
    clock = rtl_clock(target, has_adapters=bool(adapters) and why is None)
    if clock is not None and not clock.is_met:
        notes.append(clock.verdict())
    if not description.has_images:
        notes.append("A shape without weights: no ROM images, so no zero-bit densities.")
    for part, home in (
        ("input embedding", target.embedding.input),
        ("LM head", target.embedding.head),
    ):
        if home != "rom":
            notes.append(f"The {part} is {home}: neither its bits nor its area are counted here.")
    kv = target.kv
    if not kv.is_default:
        notes.append(
            f"KV cache: {kv.text()} (docs/kv.md). Its words in SRAM are counted in cycles and "
            f"energy{_kv_logic(target)}"
        )
    if kv.codec == "kivi":
        notes.append(
            f"Every {kv.residual} tokens a token also encodes a group of keys and takes longer; "
            f"figures at a power of two are often those of such a token."
        )
    if description.context > CURVE_END:
        notes.append(
            f"A sequence may have {description.context:,} tokens; curves end at {CURVE_END:,}."
        )
    if adapters:
        notes.append(
            f"Resident adapters: {', '.join(sorted(adapters))}; speed and energy are without one."
        )
        if why is not None:
            notes.append(f"Adapters' hardware is not in the area: {why}.")
    return notes


def _kv_logic(target: Target) -> str:
    """Say what is counted of a KV cache's own logic."""
    if not has_rtl(target):
        return "; its own logic is in neither area nor energy: the target has no RTL."
    why = why_no_kv_area(target)
    if why is not None:
        return f"; its own logic is in neither area nor energy: {why}."
    return (
        ". Its own logic is in the area, and what switches with the tiles' lanes in the energy; "
        "encoding is priced as that of MXINT8."
    )


def _commands(
    descriptions: Sequence[Description], context: int, n_verify: int, n_compare: int, n_kv: int
) -> tuple[str, ...]:
    """Return the commands that make this report again, folders by letter: paths are the user's."""
    names = [f"build/{chr(ord('a') + n)}" for n in range(len(descriptions))]
    commands = [_compile(*pair) for pair in zip(names, descriptions, strict=True)]
    results = " --verify verify.json" * n_verify + " --compare compare.json" * n_compare
    results += " --kv-eval kv-eval.json" * n_kv
    commands.append(f"romsim report {' '.join(names)} --context {context}{results} -o report.html")
    return tuple(commands)


def _compile(name: str, description: Description) -> str:
    """Return the command that makes a description, as far as its manifest tells."""
    manifest = description.manifest
    source: dict[str, Any] = manifest["model"]["source"]
    target = description.target.name
    parts = ["romsim compile", str(source["name"]), f"--target {target}"]
    if manifest["fitted"]:
        parts[2] = f"--target {target.removesuffix('-fit')} --fit"
    formats = list(manifest["model"]["formats"]["weights"])
    if source["kind"] == "shape" and len(formats) == 1:
        parts.append(f"--weights {formats[0]}")
    parts += _choices(description, target.removesuffix("-fit") if manifest["fitted"] else target)
    parts += [f"--context {description.context}", f"-o {name}"]
    chosen = manifest["model"]["choices"]
    if chosen and source["kind"] not in ("shape", "synthetic"):
        parts.append(f"  # and --quantize for {len(chosen)} tensors: model.choices of its manifest")
    return " ".join(parts)


def _choices(description: Description, name: str) -> list[str]:
    """Return the options that change the target: of its own values where it is built in."""
    kv, slots, path = DEFAULT_KV, 1, "int8"
    target = description.target
    if name in list_targets():
        base = load_target(name)
        kv, slots, path = base.kv, base.schedule.n_slots, base.lora.path
    parts = [f"--kv {target.kv.text()}"] * (target.kv != kv)
    parts += [f"--slots {target.schedule.n_slots}"] * (target.schedule.n_slots != slots)
    parts += [f"--lora-path {target.lora.path}"] * (target.lora.path != path)
    return parts + [f"--lora {one}=FOLDER" for one in sorted(description.loras)]
