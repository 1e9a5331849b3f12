"""What the command line does, as Python calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from romsim_compiler.description import Description
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from romsim.gpu_compare import GpuComparison
    from romsim.quality import Quality
    from romsim.report.model import Report
    from romsim_compiler.audit import AuditReport
    from romsim_compiler.target import Target

__all__ = ["audit", "build_report", "compare", "compile", "load", "perplexity"]

DEFAULT_PROMPT = "Once upon a time, there was a little girl who"


def load(path: str | Path) -> Description:
    """Read a compiled description, every file checked against its digest.

    Raises
    ------
    DescriptionError
        If it is incomplete, changed or of another schema version.
    """
    return Description.load(path)


def compile(
    model: str | Path,
    out: str | Path,
    *,
    target: str | Path | Target = "roma-7nm-g32",
    context: int | None = None,
    quantize: Sequence[str] = (),
    weights: str | None = None,
    adapters: Mapping[str, str | Path] | None = None,
    lora_path: str | None = None,
    force_ternary_adapter: bool = False,
    kv: str | None = None,
    slots: int | None = None,
    fit: bool = False,
    rank: int = 0,
    area_mm2: float | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Description:
    """Compile a model into a description folder.

    Parameters
    ----------
    model
        Name, GGUF file or Hugging Face folder.
    out
        Folder to make, or an earlier description to replace.
    target
        Name of a built-in target, TOML file, or a target.
    context
        Tokens of one sequence; ``None`` for as many as fit (and the model knows).
    quantize
        Rules ``pattern=format`` for tensors; what no rule names is burnt as shipped.
    weights
        Format of all matrices of a shape without weights. Of a model with weights ``"ternary"``
        takes its floats as ternary already, and refuses others.
    adapters
        Name to PEFT folder of each resident LoRA adapter.
    lora_path
        Where adapters run: ``"int8"`` in the H-units, or ``"adders"``, as trits in the adder arrays
        of a ternary chip; ``None`` for the target's own.
    force_ternary_adapter
        Whether adapters that are not ternary are made so where they have to be.
    kv
        KV cache: a preset's name, ``key=value`` pairs, or both (docs/kv.md); ``None`` for the
        target's own.
    slots
        Sequences that the chip holds at a time; ``None`` for the target's own.
    fit
        Size tiles, ROM depth and SRAM for the model, its context and a LoRA ``rank``, within
        ``area_mm2``.
    progress
        Called with a stage and the finished fraction.

    Raises
    ------
    RomsimError
        For whatever is wrong with the model, the target, their fit or the output folder.
    """
    from romsim_compiler.choices import parse_rules
    from romsim_compiler.formats import parse_format
    from romsim_compiler.kv import parse_kv
    from romsim_compiler.pipeline import CompileOptions, compile_model
    from romsim_compiler.target import Target
    from romsim_compiler.target_file import load_target
    from romsim_models.registry import open_model

    checkpoint = open_model(model)
    chip = target if isinstance(target, Target) else load_target(target)
    if lora_path is not None:
        chip = chip.with_lora_path(lora_path)
        chip.check_lora_path()
    if kv is not None:
        chip = replace(chip, kv=parse_kv(kv))
    if slots is not None:
        if not 1 <= slots <= 256:
            raise SpecError(f"Slots must be 1 to 256, not {slots}")
        chip = replace(chip, schedule=replace(chip.schedule, n_slots=slots))
    exact = ["blk.*=ternary-exact"] if weights == "ternary" and checkpoint.has_weights else []
    if exact:
        weights = None
    if weights is not None and checkpoint.has_weights:
        raise SpecError(
            f"--weights must be used with a shape without weights, not with {model}; give rules "
            f"such as --quantize 'blk.*={weights}'"
        )
    if quantize and not checkpoint.has_weights:
        raise SpecError(
            f"--quantize must be used with a model with weights, not with the shape {model}; give "
            f"the format of all matrices with --weights"
        )
    if not fit and (rank or area_mm2 is not None):
        raise SpecError("--rank and --area must be used with --fit, not alone; add --fit")
    loras = {}
    if adapters:
        from romsim_models.lora import read_adapter

        loras = {n: read_adapter(Path(f), checkpoint.spec) for n, f in adapters.items()}
    options = CompileOptions(
        context=context,
        rules=parse_rules([*_meant_for(model, chip), *exact, *quantize]),
        weights=None if weights is None else parse_format(weights),
        adapters=tuple(loras.items()),
        force_ternary_adapter=force_ternary_adapter,
        fitted=fit,
    )
    if fit:
        from romsim.fit import fit_target

        chip = fit_target(checkpoint, chip, options=options, rank=rank, area_mm2=area_mm2)
    if chip.kv.codec == "commvq" and checkpoint.has_weights and chip.executable:
        from romsim.kv_calibration import codebooks_of

        books = codebooks_of(checkpoint, chip, options=options, progress=progress)
        options = replace(options, codebooks=books)
    if chip.kv.wide_heads and not chip.kv.head_table and checkpoint.has_weights and chip.executable:
        from romsim.kv_calibration import heads_of

        chip = replace(chip, kv=heads_of(checkpoint, chip, options=options, progress=progress))
    return compile_model(checkpoint, chip, out, options=options, progress=progress)


def _meant_for(model: str | Path, chip: Target) -> list[str]:
    """Return the rule for the weights of a built-in model, by the format it is meant for."""
    from romsim_models.registry import named_models

    known = named_models().get(str(model))
    wanted = None if known is None else known.weight_format
    if wanted is None or (wanted == "ternary" and chip.array.encoding != "ternary"):
        return []
    suffix = "" if wanted == "ternary" else f"g{max(32, chip.array.scale_group)}"
    return [f"blk.*={wanted}{suffix}"]


def audit(
    description: str | Path | Description,
    *,
    model: str | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> AuditReport:
    """Read every code, scale, minimum and gain back through the placement; compare with the file.

    Raises
    ------
    SpecError
        If the model file is needed and not given, or is another one.
    """
    from romsim.engines import open_source, require_images
    from romsim_compiler.audit import audit_description

    loaded = description if isinstance(description, Description) else load(description)
    require_images(loaded, "Audit")
    return audit_description(loaded, open_source(loaded, model), progress=progress)


def perplexity(
    description: str | Path | Description,
    *,
    text: Path | None = None,
    n_tokens: int = 1024,
    window: int = 512,
    model: str | None = None,
    adapter: str | None = None,
    loras: Mapping[str, str | Path] | None = None,
) -> Quality:
    """Measure a text's perplexity on the chip's arithmetic and in float.

    Parameters
    ----------
    text
        UTF-8 file; ``None`` takes the start of a novel.
    n_tokens
        Tokens scored, at most.
    window
        Tokens of one window; windows do not overlap.
    adapter, loras
        Resident adapter to use on both sides, and its folder by that name.

    Raises
    ------
    SpecError
        If the text cannot be read or is too short, or the file of the model or of the adapter is
        needed and not given.
    """
    from romsim.comparison import make_reference
    from romsim.engines import open_adapters, open_source
    from romsim.quality import default_text, measure_quality
    from romsim.simulate import load_tokenizer
    from romsim_models.reference import FloatDecoder

    if n_tokens < 2 or window < 2:
        raise SpecError(
            f"Tokens and window must be at least 2, not {n_tokens} and {window}; raise them"
        )
    loaded = description if isinstance(description, Description) else load(description)
    try:
        content = default_text() if text is None else text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"Text {text} must be a readable UTF-8 file, not {error}") from None
    tokenizer = load_tokenizer(loaded)
    tokens = tokenizer.encode(content, add_special=False)[:n_tokens]
    opened = open_adapters(loaded, adapter, loras)
    checkpoint = open_source(loaded, model)
    return measure_quality(
        FloatDecoder(checkpoint, lora=None if adapter is None else opened[adapter]),
        make_reference(loaded, checkpoint, loras=opened),
        tokens,
        n_bytes=max(1, len(tokenizer.decode(tokens).encode())),
        window=window,
        adapter=adapter,
    )


def compare(
    description: str | Path | Description,
    *,
    context: int | None = None,
    gpus: Sequence[str] = (),
    fraction: float | None = None,
    device: str | None = None,
    batches: Sequence[int] = (1,),
    n_steps: int = 16,
    n_turns: int = 5,
    model: str | None = None,
    save: Path | None = None,
    measured: Sequence[Path] = (),
    cost: Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> GpuComparison:
    """Compare a chip with decode of the same model on GPUs.

    Parameters
    ----------
    context
        Tokens that attention reads, the new one included; 1,024 or as many as fit by default.
    gpus
        Names; all that are known where none is given.
    fraction
        Share of a GPU's bandwidth that is reached, instead of what published decoders reach.
    device
        ``"cpu"`` or ``"cuda"``: measure the float decoder in PyTorch there, at every batch of
        ``batches``, in ``n_turns`` turns of ``n_steps`` steps.
    model
        Its model file; ``None`` for the built-in model of the description's name. A description
        without weights is measured with random ones.
    save
        File for what was measured.
    measured
        Files of earlier measurements.
    cost
        Inputs of the cost calculation; the built-in ones without.

    Raises
    ------
    RomsimError
        If the context does not fit, or a GPU, device, file or number cannot be used.
    """
    from romsim.cost_inputs import read_cost_inputs
    from romsim.decode_record import records_of_model, write_records
    from romsim.gpu_compare import compare_with_gpus
    from romsim.gpu_tables import Fraction
    from romsim.whole_file import check_folder

    if save is not None:
        check_folder(save, what="Record")
    loaded = description if isinstance(description, Description) else load(description)
    inputs = read_cost_inputs(cost)
    share = None
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise SpecError(f"Share of bandwidth must be above 0 and at most 1, not {fraction!r}")
        share = Fraction(
            low=fraction, mid=fraction, high=fraction, grade="assumed", source="given by the user"
        )
    records, notes = [], []
    for path in measured:
        found, left_out = records_of_model(path, loaded.spec)
        records += [(str(path), record) for record in found]
        notes += left_out

    def made() -> GpuComparison:
        return compare_with_gpus(
            loaded,
            context=context,
            names=gpus,
            fraction=share,
            records=records,
            cost_inputs=inputs,
            notes=notes,
        )

    comparison = made()  # also refuses whatever is wrong, before minutes are spent on measuring
    if device is None:
        return comparison
    import_module("romsim_models.reference")  # which says what to install without PyTorch
    from romsim.decode_bench import repeated_checkpoint
    from romsim.decode_measure import Plan, measure_decode
    from romsim.engines import open_source

    record = measure_decode(
        open_source(loaded, model) if loaded.has_images else repeated_checkpoint(loaded.spec),
        Plan(
            contexts=(comparison.context,),
            batches=tuple(batches),
            n_steps=n_steps,
            n_turns=n_turns,
        ),
        device=device,
        is_random=not loaded.has_images,
        progress=progress,
    )
    if save is not None:
        write_records(save, (record,))
    records.append((f"Measurement on {device}", record))
    return made()


def build_report(
    *descriptions: str | Path | Description,
    context: int | None = None,
    verify: Sequence[str | Path] = (),
    compare: Sequence[str | Path] = (),
    kv_eval: Sequence[str | Path] = (),
    progress: Callable[[str, float], None] | None = None,
) -> Report:
    """Report area, speed, energy and memory of descriptions, side by side if there are several.

    :func:`romsim.report.output.write_report` writes it.

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
    RomsimError
        If there are no descriptions or too many, one cannot hold the context, or a file cannot be
        read.
    """
    from romsim.report.build import build_report as build

    loaded = [d if isinstance(d, Description) else load(d) for d in descriptions]
    return build(
        loaded,
        context=context,
        verify=verify,
        compare=compare,
        kv_eval=kv_eval,
        progress=progress,
    )
