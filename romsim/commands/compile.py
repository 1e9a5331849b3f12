"""``romsim compile``."""

from __future__ import annotations

from typing import Any

import click

from romsim.commands.arguments import adapter_folders
from romsim.commands.output import Progress, emit_json, json_option, say

__all__ = ["command", "lines", "summary"]


@click.command("compile")
@click.argument("model")
@click.option("--target", default="roma-7nm-g32", show_default=True, help="Name or TOML file.")
@click.option("-o", "--out", required=True, type=click.Path(), help="Folder of the description.")
@click.option("--context", type=int, help="Tokens of one sequence [default: as many as fit].")
@click.option(
    "--quantize",
    "rules",
    multiple=True,
    metavar="PATTERN=FORMAT",
    help="Format of the tensors that match, e.g. 'blk.*.ffn_down.weight=int4g64'; repeatable.",
)
@click.option(
    "--weights",
    help="Format of a shape's weights, e.g. int4g32, sym2g128, ternary; of a model, 'ternary' "
    "takes floats that are ternary already and refuses others.",
)
@click.option(
    "--lora", "loras", multiple=True, metavar="[NAME=]FOLDER", help="Resident adapter; repeatable."
)
@click.option(
    "--lora-path",
    type=click.Choice(["int8", "adders"]),
    help="Where adapters run: int8 in the H-units, or as trits in a ternary chip's adder arrays "
    "[default: the target's].",
)
@click.option(
    "--force-ternary-adapter",
    is_flag=True,
    help="On path adders, make adapters ternary that are not; what it costs is printed.",
)
@click.option(
    "--kv",
    metavar="PRESET|KEY=VALUE,...",
    help="KV cache: a preset (int8, vllm, int4, kivi-2bit, kivi-4bit, kivi-k4v2, streaming-llm, "
    "h2o, ...), changes to it, or pairs alone [default: the target's].",
)
@click.option("--slots", type=int, help="Sequences at a time [default: the target's].")
@click.option("--fit", is_flag=True, help="Size tiles, ROM and SRAM for the model.")
@click.option("--rank", type=int, default=0, help="With --fit: LoRA rank to leave room for.")
@click.option("--area", "area_mm2", type=float, help="With --fit: largest area in mm2.")
@click.option(
    "--measure/--no-measure",
    default=True,
    help="Measure in perplexity what rounding of weights done here costs [default: measure].",
)
@json_option
def command(
    model: str,
    target: str,
    out: str,
    context: int | None,
    rules: tuple[str, ...],
    weights: str | None,
    loras: tuple[str, ...],
    lora_path: str | None,
    force_ternary_adapter: bool,
    kv: str | None,
    slots: int | None,
    fit: bool,
    rank: int,
    area_mm2: float | None,
    measure: bool,
    as_json: bool,
) -> None:
    """Compile MODEL (a name, a GGUF file or a Hugging Face folder) into a description."""
    import romsim

    progress = Progress()
    description = romsim.compile(
        model,
        out,
        target=target,
        context=context,
        quantize=rules,
        weights=weights,
        adapters=adapter_folders(loras),
        lora_path=lora_path,
        force_ternary_adapter=force_ternary_adapter,
        kv=kv,
        slots=slots,
        fit=fit,
        rank=rank,
        area_mm2=area_mm2,
        progress=progress,
    )
    quality = None
    if measure and _is_rounded_here(description):
        progress("measuring the cost of rounding", 0.99)
        quality = romsim.perplexity(description, model=model, n_tokens=512)
    forced: dict[str, Any] = {}
    for name in _forced_here(description) if measure else ():
        progress(f"measuring the cost of adapter {name} in trits", 0.99)
        folders = adapter_folders(loras)
        forced[name] = romsim.perplexity(
            description, model=model, n_tokens=512, adapter=name, loras={name: folders[name]}
        )
    progress.clear()
    if as_json:
        measured = None if quality is None else quality.to_json()
        values = {"path": str(out), **summary(description), "quality": measured}
        adapters = {**values["adapters"]}
        for name, one in forced.items():
            adapters[name] = {**adapters[name], "quality": one.to_json()}
        emit_json({**values, "adapters": adapters})
        return
    for line in lines(description, out):
        say(line)
    if quality is not None:
        say(f"  cost      {quality.sentence()}")
    for name, one in forced.items():
        say(f"  cost      of {name} in trits: {one.sentence()}")


def _can_read(description: Any) -> bool:
    """Whether the description has real weights that can read a text."""
    return bool(
        description.has_images
        and description.manifest["model"]["source"]["kind"] != "synthetic"
        and description.tokenizer_file() is not None
    )


def _is_rounded_here(description: Any) -> bool:
    """Whether real weights that can read a text were rounded by this compilation."""
    return _can_read(description) and bool(description.manifest["model"]["formats"]["requantised"])


def _forced_here(description: Any) -> list[str]:
    """Return adapters that were made ternary, if the model can read a text."""
    adapters = description.manifest["adapters"]
    return [n for n, a in adapters.items() if a.get("forced")] if _can_read(description) else []


def summary(description: Any) -> dict[str, Any]:
    """Return the figures of a description that its compilation prints."""
    manifest = description.manifest
    keys = (
        "name",
        "context",
        "executable",
        "has_images",
        "fitted",
        "rom",
        "memory",
        "adapters",
    )
    return {
        **{k: manifest[k] for k in keys},
        "kv": {**manifest["kv"], "exact_prefixes": description.target.kv.exact_prefixes},
        "target": manifest["target"]["name"],
        "formats": manifest["model"]["formats"],
        "notes": manifest["model"]["notes"],
        "accuracy": manifest["accuracy"],
        "area_mm2": _area_mm2(description),
    }


def _kv_lines(kv: Any, memory: Any, *, exact_prefixes: bool) -> list[str]:
    """Return what a person reads about a KV cache that is not the plain one."""
    config = kv["config"]
    if config == {"codec": "int8", "retention": "all", "layout": "contiguous"}:
        return []
    held = f"{kv['slots']} slots, " if kv["slots"] != memory["context"] else ""
    prefixes = ""
    if config["layout"] == "paged":
        prefixes = ", exact prefixes" if exact_prefixes else ", no known prefixes"
    return [
        f"  KV        {','.join(f'{k}={config[k]}' for k in _in_order(config))}; {held}"
        f"{kv['bits_per_element']:g} bits an element, tables of {kv['table_bits']} bits"
        f"{prefixes}"
    ]


def _in_order(config: Any) -> list[str]:
    """Return keys as the axes have them: each choice, then what it uses."""
    from dataclasses import fields

    from romsim_compiler.kv import KvConfig

    return [field.name for field in fields(KvConfig) if field.name in config]


def _area_mm2(description: Any) -> float:
    """Return the chip's estimated area in mm2."""
    from romsim.area import chip_area_mm2

    return round(chip_area_mm2(description.target, description.spec), 4)


def lines(description: Any, out: str) -> list[str]:
    """Return what a person reads after a compilation."""
    manifest = description.manifest
    rom, memory, formats = manifest["rom"], manifest["memory"], manifest["model"]["formats"]
    target = description.target
    listed = ", ".join(f"{n} {c / 1e6:.1f} M" for n, c in formats["weights"].items())
    result = [f"note: {note}" for note in manifest["model"]["notes"]]
    is_streamed = target.kv.retention == "stream"  # its positions are those inside the cache
    positions = manifest["kv"]["slots"] if is_streamed else memory["context"]
    if positions > description.spec.max_seq_len:
        result.append(
            f"note: a context of {memory['context']} tokens is more than the "
            f"{description.spec.max_seq_len} that the model was made for"
        )
    result += [
        f"{manifest['name']} on {target.name}"
        f" ({target.array.n_tiles} tiles, {target.array.n_lanes} lanes, {target.clock_mhz:g} MHz)",
        f"  weights   {listed}; {formats['bits_per_weight']:.3f} bits per weight with scales",
        f"  ROM       {rom['bits_used'] / 8e6:.2f} MB in {rom['words_used']} of "
        f"{rom['words_available']} words a cell; model {rom['bits_of_model'] / 8e6:.2f} MB, "
        f"padding {100 * rom['padding']:.1f} %",
        f"  context   {memory['context']} tokens, KV {memory['kv_bytes'] / 1e6:.2f} MB of "
        f"{memory['tile_sram_bytes'] / 1e6:.2f} MB tile SRAM",
        *_kv_lines(manifest["kv"], memory, exact_prefixes=target.kv.exact_prefixes),
        f"  area      {_area_mm2(description):.2f} mm2 estimated ({target.technology})",
    ]
    accuracy = manifest["accuracy"]
    if accuracy:
        result.append(
            f"  exactness accumulators of {accuracy['accumulator_bits']} bits, "
            f"{accuracy['terms_rounded_by_grid']} terms rounded by the grid"
        )
        errors = accuracy["quantisation_error"]
        if errors:
            worst = max(errors, key=errors.get)
            result.append(
                f"  rounding  {len(errors)} tensors quantised here; worst relative error "
                f"{100 * errors[worst]:.1f} % ({worst})"
            )
    for name, lora in manifest["adapters"].items():
        result += [f"note: {note}" for note in lora["notes"]]
        result.append(
            f"  adapter   {name}: {lora['n_matrices']} matrices of rank up to {lora['max_rank']}, "
            f"{lora['sram_bytes'] / 1e6:.3f} MB of SRAM, relative error against the float adapter "
            f"{100 * lora['error']:.3f} %"
        )
        if lora.get("forced"):
            errors = lora["factor_errors"]
            worst = max(lora["forced"], key=lambda tensor: lora["errors"][tensor])
            a, b = errors[worst]
            result.append(
                f"  forced    {name}: {len(lora['forced'])} of {lora['n_matrices']} matrices made "
                f"ternary; worst {worst}: relative errors of A {100 * a:.1f} %, of B "
                f"{100 * b:.1f} %, of B·A {100 * lora['errors'][worst]:.1f} %"
            )
    if not description.has_images:
        result.append("  no weights: only --engine timing and area can be had")
    return [*result, f"  written   {out}"]
