"""``romsim simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from romsim.commands.arguments import adapter_folders, integers_option
from romsim.commands.output import Progress, emit_json, json_option, say
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from romsim.simulate import Simulation
    from romsim_compiler.description import Description
    from romsim_compiler.technology import Range

__all__ = ["command"]

_ONLY_WITH_VALUES = (
    "prompt", "chat", "token_ids", "max_tokens", "temperature", "top_k", "seed", "ignore_eos",
    "model", "lora",
)  # fmt: skip


@click.command("simulate")
@click.argument("description", type=click.Path())
@click.option("--prompt", help="Text to continue.")
@click.option("--chat", help="A user's message, put into the model's chat template.")
@integers_option("--token-ids", "The prompt as token ids, separated by commas.")
@click.option("--max-tokens", default=64, show_default=True, help="New tokens at most.")
@click.option(
    "--engine", default="cycle", show_default=True, help="cycle, reference, rtl or timing."
)
@click.option("--temperature", default=0.0, show_default=True, help="0 for greedy.")
@click.option("--top-k", default=0, show_default=True, help="Candidates kept; 0 for all.")
@click.option("--seed", default=0, show_default=True, help="Fixes every draw.")
@click.option("--adapter", help="Resident LoRA adapter to use.")
@click.option("--ignore-eos", is_flag=True, help="Do not stop at the end-of-text token.")
@click.option("--model", help="Model file, for --engine reference.")
@click.option(
    "--lora",
    multiple=True,
    metavar="[NAME=]FOLDER",
    help="Folder of the adapter, for --engine reference.",
)
@integers_option("--positions", "With --engine timing: contexts, e.g. 0,256,1024.")
@click.option(
    "--trace",
    type=click.Path(),
    help="Write a Chrome/Perfetto timeline (.json or .csv) of a token at position 0.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    description: str,
    prompt: str | None,
    chat: str | None,
    token_ids: list[int] | None,
    max_tokens: int,
    engine: str,
    temperature: float,
    top_k: int,
    seed: int,
    adapter: str | None,
    ignore_eos: bool,
    model: str | None,
    lora: tuple[str, ...],
    positions: list[int] | None,
    trace: str | None,
    as_json: bool,
) -> None:
    """Run a prompt on the simulated chip and print its answer, or print tokens/s by context."""
    from romsim_compiler.description import Description

    if trace is not None:
        from romsim.timeline import check_timeline_path

        check_timeline_path(Path(trace))
    loaded = Description.load(description)
    if engine == "timing":
        _refuse(ctx, _ONLY_WITH_VALUES, "with --engine cycle or reference, not with timing")
        _timing(loaded, positions, adapter, as_json)
        _trace(loaded, trace, adapter)
        return
    _refuse(ctx, ("positions",), "with --engine timing, not with values")
    if temperature == 0:
        _refuse(ctx, ("top_k", "seed"), "with a --temperature above 0, not with greedy choice")
    from romsim.engines import check_engine, make_engine
    from romsim.sampling import Sampler
    from romsim.simulate import check_length, prompt_tokens, simulate

    check_engine(engine, loaded)
    ids = prompt_tokens(loaded, prompt=prompt, chat=chat, tokens=token_ids)
    check_length(loaded, len(ids), max_tokens)
    sampler = Sampler(temperature=temperature, top_k=top_k, seed=seed)
    folders = adapter_folders(lora)
    progress = Progress()
    machine = make_engine(
        engine, loaded, model=model, adapter=adapter, loras=folders, progress=progress
    )
    progress.clear()
    if not as_json and prompt is not None:
        click.echo(prompt, nl=False)

    def on_text(text: str) -> None:
        click.echo(text, nl=False)  # which flushes too

    run = simulate(
        loaded,
        machine,
        ids,
        n_new=max_tokens,
        sampler=sampler,
        ignore_eos=ignore_eos,
        on_text=None if as_json else on_text,
    )
    if as_json:
        emit_json({**run.to_json(), "energy": _energy(loaded, run)})
    else:
        _show(loaded, run)
    _trace(loaded, trace, adapter)


def _refuse(ctx: click.Context, names: tuple[str, ...], condition: str) -> None:
    """Refuse options that would have no effect."""
    for name in names:
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise SpecError(f"--{name.replace('_', '-')} must be used {condition}")


def _show(loaded: Description, run: Simulation) -> None:
    say()
    if loaded.tokenizer_file() is None:
        say("tokens " + ",".join(str(t) for t in run.tokens))
    say()
    rate, ttft = run.tokens_per_s, run.ttft_s
    parts = []
    if rate is not None:
        parts.append(
            f"{rate:,.0f} tokens/s at {loaded.target.clock_mhz:g} MHz "
            f"({sum(run.token_cycles) // len(run.token_cycles):,} cycles a token)"
        )
    if ttft is not None:
        parts.append(f"first token after {1e6 * ttft:,.0f} us ({len(run.prompt)} prompt tokens)")
    say(f"chip: {', '.join([*parts, f'{run.saturations} saturations'])}")
    energy = _energy(loaded, run)
    if energy is not None:
        token, power = energy["token_j"], energy["power_w"]
        say(
            f"      {1e3 * token['mid']:.3g} mJ a token ({1e3 * token['low']:.2g} to "
            f"{1e3 * token['high']:.2g}), {power['mid']:.2g} W at {energy['context']} tokens of "
            f"context: an estimate ({energy['technology']})"
        )
    n_done = len(run.tokens) + len(run.prompt)
    say(f"host: {n_done / run.wall_s:.1f} tokens/s simulated ({run.wall_s:.1f} s)")


def _energy(loaded: Description, run: Simulation) -> dict[str, Any] | None:
    """Return the estimated energy of a token at the run's last context; ``None`` without a clock.

    Each figure has its range: ``low``, ``mid`` and ``high``.
    """
    if not run.token_cycles:
        return None
    from romsim.description_point import area_of_description, point_of_description
    from romsim.energy import estimate_energy

    context = len(run.prompt) + len(run.token_cycles)
    area = area_of_description(loaded)
    report = estimate_energy(point_of_description(loaded), context, area=area)

    def spread(value: Range, scale: float) -> dict[str, float]:
        return {"low": value.low * scale, "mid": value.mid * scale, "high": value.high * scale}

    return {
        "context": context,
        "technology": report.technology,
        "token_j": spread(report.token_pj, 1e-12),
        "power_w": spread(report.power_w, 1.0),
    }


def _trace(loaded: Description, path: str | None, adapter: str | None) -> None:
    if path is not None:
        from romsim.timeline import write_timeline

        write_timeline(loaded, Path(path), adapter=adapter)


def _timing(
    loaded: Description, positions: list[int] | None, adapter: str | None, as_json: bool
) -> None:
    from romsim.rates import decode_rates

    rows = decode_rates(loaded, positions, adapter=adapter)
    if as_json:
        emit_json({"rows": rows, "clock_hz": loaded.target.clock_mhz * 1e6})
        return
    say(f"{'context':>8} {'cycles':>10} {'tokens/s':>10}")
    for row in rows:
        say(f"{row['context']:>8} {row['cycles']:>10} {row['tokens_per_s']:>10,.0f}")
    if window := loaded.target.kv.residual:
        say(f"the KV cache encodes {window} tokens at once: one token in {window} takes longer")
