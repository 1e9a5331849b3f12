"""Compiling: a plain function that calls the stages in order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from romsim_compiler.burn import BurntModel, burn
from romsim_compiler.choices import FormatChoice, Rule, choose_formats, shape_formats
from romsim_compiler.description import SCHEMA_VERSION, Description, group_to_json
from romsim_compiler.formats import WeightFormat
from romsim_compiler.groups import Group, build_groups, tensor_shapes
from romsim_compiler.kv_codebooks import CODEBOOK_FILE, KvCodebooks
from romsim_compiler.kv_sram import check_kv, kv_summary
from romsim_compiler.lora_image import LoraAdapterImage, build_lora, save_lora
from romsim_compiler.memory_map import MemoryMap, map_memory
from romsim_compiler.numerics import Numerics
from romsim_compiler.place import Placement, check_placement, place
from romsim_compiler.program import PlacedGroup
from romsim_compiler.schedule import build_decode, build_prefill
from romsim_compiler.store import replace_folder
from romsim_compiler.tables import tables
from romsim_compiler.target import Target
from romsim_compiler.target_file import write_target
from romsim_models.checkpoint import Checkpoint
from romsim_models.errors import SpecError
from romsim_models.lora import LoraAdapter
from romsim_models.spec import ModelSpec

__all__ = [
    "CompileOptions",
    "check_adapter_names",
    "check_model",
    "compile_model",
    "format_histogram",
    "serial_prefill",
]

_ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """What a user may ask of a compilation."""

    context: int | None = None  # tokens; None for the most that fit
    rules: tuple[Rule, ...] = ()
    weights: WeightFormat | None = None  # of a shape without weights
    adapters: tuple[tuple[str, LoraAdapter], ...] = ()
    force_ternary_adapter: bool = False  # make adapters of the adder arrays ternary
    fitted: bool = False  # the target was sized for the model
    codebooks: KvCodebooks | None = None  # of the KV codec commvq


def check_model(spec: ModelSpec, target: Target) -> None:
    """Refuse a model that the machine template cannot run.

    Raises
    ------
    SpecError
        If an axis does not fit the template's blocks, with the remedy.
    """
    if target.executable and spec.head_dim % 32:
        raise SpecError(
            f"head_dim of model {spec.name!r} must be a multiple of 32 on target {target.name!r}, "
            f"not {spec.head_dim}: a KV word holds whole blocks of 32; use a target that is not "
            f"executable for timing alone"
        )
    for axis, length in (("dim", spec.dim), ("hidden_dim", spec.hidden_dim)):
        if target.executable and length % 32:
            raise SpecError(
                f"{axis} of model {spec.name!r} must be a multiple of 32 on target "
                f"{target.name!r}, not {length}: activations are quantised in blocks of 32"
            )
    check_kv(spec, target)
    target.check_lora_path()
    if (max(spec.dim, spec.hidden_dim) > 16384 and spec.has_sub_norms) or spec.dim > 16384:
        raise SpecError(
            f"Normalised vectors of model {spec.name!r} must have at most 16384 elements, not "
            f"{max(spec.dim, spec.hidden_dim)}"
        )


def serial_prefill(target: Target) -> tuple[Target, tuple[str, ...]]:
    """Return the target with one token in flight where a retention policy reuses slots.

    A token in flight would write its key into the slot of one that the token before it still
    reads. The second value says so.
    """
    n_inflight = target.schedule.n_inflight
    if target.kv.retention == "all" or n_inflight == 1:
        return target, ()
    serial = replace(target, schedule=replace(target.schedule, n_inflight=1))
    return serial, (
        f"prompts run one token at a time, not {n_inflight}: KV retention "
        f"{target.kv.retention!r} reuses slots that a token in flight still reads",
    )


def check_adapter_names(names: Sequence[str]) -> None:
    """Refuse names of resident adapters that cannot name a folder, or that stand for two.

    Raises
    ------
    SpecError
        With the name.
    """
    for index, name in enumerate(names):
        if not _ADAPTER_NAME.fullmatch(name):
            raise SpecError(
                f"Adapter name must be letters, digits, '.', '_' and '-' and begin with a letter "
                f"or digit, not {name!r}; give one with --lora NAME=FOLDER"
            )
        if name in names[:index]:
            raise SpecError(f"Adapter name must be given once, not twice: {name!r}")


def format_histogram(
    choices: dict[str, FormatChoice], shapes: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    """Return weights per format and effective bits per weight, scales and minima counted."""
    counts: dict[str, int] = {}
    bits = 0.0
    for tensor, choice in choices.items():
        n_weights = shapes[tensor][0] * shapes[tensor][1]
        counts[choice.fmt.name] = counts.get(choice.fmt.name, 0) + n_weights
        bits += n_weights * choice.fmt.bits_per_weight()
    total = sum(counts.values())
    return {
        "weights": dict(sorted(counts.items())),
        "bits_per_weight": round(bits / total, 6),
        "requantised": sorted(t for t, c in choices.items() if c.requantised),
    }


def compile_model(
    checkpoint: Checkpoint,
    target: Target,
    out: str | Path,
    *,
    options: CompileOptions | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Description:
    """Compile a model for a target into a description folder.

    Parameters
    ----------
    checkpoint
        The model; a shape without weights gives a description without images.
    out
        Folder to make or to replace.
    progress
        Called with a stage's name and the finished fraction of all work.

    Raises
    ------
    RomsimError
        For whatever is wrong with the model, the target, their fit or the output folder.
    """
    options = options or CompileOptions()
    report = progress or (lambda stage, fraction: None)
    spec = checkpoint.spec
    check_model(spec, target)
    target, notes = serial_prefill(target)
    images = checkpoint.has_weights and target.executable
    if images and target.kv.codec == "commvq" and options.codebooks is None:
        raise SpecError(
            f"KV codec 'commvq' of model {spec.name!r} must come with codebooks, not without; "
            f"train them with romsim_compiler.kv_training"
        )
    if images and target.kv.wide_heads and not target.kv.head_table:
        raise SpecError(
            f"kv.head_table of model {spec.name!r} must say which {target.kv.wide_heads} KV heads "
            f"have wide codes, not be left out; choose them with romsim_compiler.kv_heads"
        )
    if checkpoint.has_weights:
        choices = choose_formats(spec, checkpoint.formats(), target, options.rules)
    else:
        choices = shape_formats(spec, target, options.weights)
    groups = build_groups(
        spec,
        lambda tensor: choices[tensor].fmt,
        input_in_rom=target.embedding.input == "rom",
        head_in_rom=target.embedding.head == "rom",
    )
    placement = place(groups, target)
    check_placement(placement, target)
    report("adapters", 0.0)
    check_adapter_names([name for name, _ in options.adapters])
    if options.force_ternary_adapter and (target.lora.path != "adders" or not options.adapters):
        raise SpecError(
            f"--force-ternary-adapter must be used with an adapter on lora.path 'adders', not with "
            f"{len(options.adapters)} on {target.lora.path!r}; add --lora-path adders and --lora"
        )
    loras = {
        name: build_lora(
            name, adapter, spec=spec, target=target, is_forced=options.force_ternary_adapter
        )
        for name, adapter in options.adapters
    }
    lora_bytes = sum(-(-lora.sram_bits(spec, target) // 8) for lora in loras.values())
    memory = map_memory(spec, target, context=options.context, lora_bytes=lora_bytes)
    numerics = Numerics(attn_block=target.attention.attn_block)
    with replace_folder(Path(out)) as folder:
        burnt = (
            burn(checkpoint, choices, placement, target, numerics, folder.path, report)
            if images
            else None
        )
        placed = burnt.groups if burnt else _unburnt(placement)
        folder.text("target.toml", write_target(target))
        folder.json("placement.json", _placement_json(placement, placed, burnt, spec))
        decode = build_decode(spec, groups, lora_unit=target.lora_unit)
        folder.json("program.json", decode.to_json())
        folder.json("prefill.json", _prefills(spec, groups, target))
        folder.json("tables.json", {k: [int(x) for x in v] for k, v in tables().items()})
        if options.codebooks is not None:
            options.codebooks.write(folder.path / CODEBOOK_FILE)
        for name, lora in loras.items():
            save_lora(lora, folder.path / "lora" / name)
        tokenizer = checkpoint.tokenizer()
        if tokenizer is not None:
            folder.text("tokenizer.json", tokenizer.to_json())
        report("digests", 0.97)
        folder.seal(
            _manifest(
                checkpoint,
                target,
                numerics,
                memory,
                choices,
                placement,
                burnt,
                loras,
                options,
                notes,
            )
        )
    report("done", 1.0)
    return Description.load(out, verify=False)


def _unburnt(placement: Placement) -> tuple[PlacedGroup, ...]:
    """Return placed groups of a shape: positions are real, numbers that need weights are 0."""
    return tuple(
        PlacedGroup(
            name=group.name,
            layer=group.layer,
            mapping=mapping,
            base=base,
            code_bits=group.fmt.code_bits,
            kind=group.fmt.kind,
            offset=group.fmt.offset,
            group=group.fmt.group,
            has_minimum=group.fmt.has_minimum,
            grid=0,
            in_frac=0,
            out_frac=0,
            multiplier=1,
            multiplier_exp=0,
            pre_shift=0,
            members=tuple((m.tensor, m.operator, m.first_row, m.n_rows) for m in group.members),
        )
        for group, mapping, base in placement.entries
    )


def _placement_json(
    placement: Placement,
    placed: Sequence[PlacedGroup],
    burnt: BurntModel | None,
    spec: ModelSpec,
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "n_words": placement.n_words,
        "groups": [group_to_json(g) for g in placed],
    }
    if burnt is not None:
        values |= {
            "gains": burnt.gains,
            "phase_increments": [int(x) for x in burnt.phase_increments],
            "query_scale": burnt.query_scale,
        }
    return values


def _prefills(spec: ModelSpec, groups: Sequence[Group], target: Target) -> dict[str, Any]:
    inflight = target.schedule.n_inflight
    programs: dict[str, Any] = {}
    for n_tokens in sorted({1, inflight}):
        for head in (False, True):
            if n_tokens == 1 and head:
                continue  # that is the decode program
            key = f"{n_tokens}" + ("_head" if head else "")
            program = build_prefill(
                spec, groups, n_tokens, with_head=head, lora_unit=target.lora_unit
            )
            programs[key] = program.to_json()
    return programs


def _manifest(
    checkpoint: Checkpoint,
    target: Target,
    numerics: Numerics,
    memory: MemoryMap,
    choices: dict[str, FormatChoice],
    placement: Placement,
    burnt: BurntModel | None,
    loras: dict[str, LoraAdapterImage],
    options: CompileOptions,
    notes: Sequence[str],
) -> dict[str, Any]:
    array = target.array
    used = placement.used_bits()
    cells = array.n_tiles * array.n_cells
    source = checkpoint.source
    return {
        "schema_version": SCHEMA_VERSION,
        "name": checkpoint.spec.name,
        "model": {
            "spec": json.loads(checkpoint.spec.to_json()),
            "source": asdict(source),
            "notes": [*checkpoint.notes, *notes],
            "formats": format_histogram(choices, tensor_shapes(checkpoint.spec)),
            "choices": {t: c.fmt.name for t, c in sorted(choices.items()) if c.is_recorded},
        },
        "target": target.to_json(),
        "fitted": options.fitted,
        "executable": target.executable,
        "has_images": burnt is not None,
        "numerics": numerics.to_json(),
        "context": memory.context,
        "memory": asdict(memory),
        "kv": kv_summary(checkpoint.spec, target, memory.context),
        "rom": {
            "words_used": placement.n_words,
            "words_available": array.rom_rows,
            "bits_of_model": used,
            "bits_used": placement.n_words * cells * array.word_bits,
            "bits_available": array.rom_bits,
            "utilisation": round(used / array.rom_bits, 6),
            "padding": round(1 - used / (placement.n_words * cells * array.word_bits), 6),
            "tile_utilisation": round(placement.n_words / array.rom_rows, 6),
        },
        "accuracy": {} if burnt is None else burnt.accuracy,
        "adapters": {
            name: {
                **loras[name].summary(),
                "sram_bytes": -(-loras[name].sram_bits(checkpoint.spec, target) // 8),
                "source": {"name": adapter.name, "sha256": adapter.sha256},
                "notes": list(adapter.notes),
            }
            for name, adapter in sorted(options.adapters)
        },
        "n_slots": target.schedule.n_slots,
        "dies": [
            {"name": "die0", "groups": [g.name for g, _, _ in placement.entries], "links": []}
        ],
    }
