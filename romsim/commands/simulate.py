"""``romsim simulate``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from romsim.commands.output import emit_json, json_option, say
from romsim_models.errors import SpecError

__all__ = ["command"]


@click.command("simulate")
@click.argument("description", type=click.Path())
@click.option("--prompt", help="Text to continue.")
@click.option("--chat", help="A user's message, put into the model's chat template.")
@click.option("--tokens", help="Token ids, separated by commas.")
@click.option("--max-tokens", default=64, show_default=True, help="New tokens at most.")
@click.option("--engine", default="cycle", show_default=True, help="cycle, reference or timing.")
@click.option("--temperature", default=0.0, show_default=True, help="0 for greedy.")
@click.option("--top-k", default=0, show_default=True, help="Candidates kept; 0 for all.")
@click.option("--seed", default=0, show_default=True, help="Fixes every draw.")
@click.option("--adapter", help="Resident LoRA adapter to use.")
@click.option("--ignore-eos", is_flag=True, help="Do not stop at the end-of-text token.")
@click.option("--model", help="Model file, for --engine reference.")
@click.option("--positions", default=None, help="With --engine timing: contexts, e.g. 0,256,1024.")
@click.option(
    "--trace", type=click.Path(), help="Write a Chrome/Perfetto timeline (.json or .csv)."
)
@json_option
def command(
    description: str,
    prompt: str | None,
    chat: str | None,
    tokens: str | None,
    max_tokens: int,
    engine: str,
    temperature: float,
    top_k: int,
    seed: int,
    adapter: str | None,
    ignore_eos: bool,
    model: str | None,
    positions: str | None,
    trace: str | None,
    as_json: bool,
) -> None:
    """Run a prompt on the simulated chip and print its answer, or print tokens/s by context."""
    from romsim_compiler.description import Description

    loaded = Description.load(description)
    if trace is not None:
        from romsim.timeline import write_timeline

        write_timeline(loaded, Path(trace))
    if engine == "timing":
        _timing(loaded, positions, as_json)
        return
    if positions is not None:
        raise SpecError("--positions must be used with --engine timing, not with values")
    from romsim.engines import make_engine
    from romsim.sampling import Sampler
    from romsim.simulate import check_length, prompt_tokens, simulate

    ids = prompt_tokens(loaded, prompt=prompt, chat=chat, tokens=_ids(tokens))
    check_length(loaded, len(ids), max_tokens)
    sampler = Sampler(temperature=temperature, top_k=top_k, seed=seed)
    machine = make_engine(engine, loaded, model=model, adapter=adapter)
    if not as_json and prompt is not None:
        click.echo(prompt, nl=False)

    def on_text(text: str) -> None:
        click.echo(text, nl=False)
        sys.stdout.flush()

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
        emit_json(run.to_json())
        return
    say()
    if loaded.tokenizer_file() is None:
        say("tokens " + ",".join(str(t) for t in run.tokens))
    rate = run.tokens_per_s
    if rate is not None and run.prefill_cycles is not None:
        ttft = run.ttft_s or 0.0
        say(
            f"\nchip: {rate:,.0f} tokens/s at {loaded.target.clock_mhz:g} MHz "
            f"({sum(run.token_cycles) // len(run.token_cycles):,} cycles a token), first token "
            f"after {1e6 * ttft:,.0f} us ({len(ids)} prompt tokens), {run.saturations} saturations"
        )
    n_done = len(run.tokens) + len(ids)
    say(f"host: {n_done / run.wall_s:.1f} tokens/s simulated ({run.wall_s:.1f} s)")


def _ids(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"--tokens must be integers separated by commas, not {text!r}") from None


def _timing(loaded: object, positions: str | None, as_json: bool) -> None:
    from romsim.rates import decode_rates
    from romsim_compiler.description import Description

    assert isinstance(loaded, Description)
    wanted = _ids(positions)
    rows = decode_rates(loaded, wanted)
    if as_json:
        emit_json({"rows": rows, "clock_hz": loaded.target.clock_mhz * 1e6})
        return
    say(f"{'context':>8} {'cycles':>10} {'tokens/s':>10}")
    for row in rows:
        say(f"{row['context']:>8} {row['cycles']:>10} {row['tokens_per_s']:>10,.0f}")
