"""``romsim sample``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from romsim.commands.arguments import integers_option
from romsim.commands.output import Progress, emit_json, json_option, say
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from romsim.parallel_sampling import Samples

__all__ = ["command"]


@click.command("sample")
@click.argument("description", type=click.Path())
@click.option("--prompt", help="Text to continue.")
@click.option("--chat", help="A user's message, put into the model's chat template.")
@integers_option("--token-ids", "The prompt as token ids, separated by commas.")
@click.option("-n", "--n", "n_answers", default=4, show_default=True, help="Answers.")
@click.option("--max-tokens", default=64, show_default=True, help="New tokens of each at most.")
@click.option("--beams", is_flag=True, help="The likeliest answers by a beam of that width.")
@click.option("--temperature", default=1.0, show_default=True, help="Of samples.")
@click.option("--top-k", default=0, show_default=True, help="Candidates kept; 0 for all.")
@click.option("--seed", default=0, show_default=True, help="Of the first sample; then one more.")
@click.option("--adapter", help="Resident LoRA adapter to use.")
@click.option("--ignore-eos", is_flag=True, help="Do not stop at the end-of-text token.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    description: str,
    prompt: str | None,
    chat: str | None,
    token_ids: list[int] | None,
    n_answers: int,
    max_tokens: int,
    beams: bool,
    temperature: float,
    top_k: int,
    seed: int,
    adapter: str | None,
    ignore_eos: bool,
    as_json: bool,
) -> None:
    """Answer a prompt several times on one chip, KV pages shared until an answer writes them."""
    from romsim.parallel_sampling import sample
    from romsim.sampling import Sampler
    from romsim.simulate import prompt_tokens
    from romsim_compiler.description import Description

    if beams:
        for name in ("temperature", "top_k", "seed"):
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise SpecError(f"--{name.replace('_', '-')} must be used without --beams")
    loaded = Description.load(description)
    ids = prompt_tokens(loaded, prompt=prompt, chat=chat, tokens=token_ids)
    progress = Progress()
    done = sample(
        loaded,
        ids,
        n=n_answers,
        n_new=max_tokens,
        beams=beams,
        sampler=Sampler(temperature=temperature, top_k=top_k, seed=seed),
        adapter=adapter,
        ignore_eos=ignore_eos,
        progress=progress,
    )
    progress.clear()
    if as_json:
        emit_json(done.to_json())
        return
    _show(done)


def _show(done: Samples) -> None:
    for number, answer in enumerate(done.answers, 1):
        score = answer.log2_probability
        say(f"[{number}]" if score is None else f"[{number}] log2 p = {score:.2f}")
        say(answer.text or "tokens " + ",".join(str(t) for t in answer.tokens))
    say()
    if done.tokens_per_s is not None:
        say(
            f"chip: {done.tokens_per_s:,.0f} tokens/s of all answers, {done.n_decoded} decoded; "
            f"prompt once, {1e6 * done.prefill_cycles / done.clock_hz:,.0f} us; "
            f"{done.saturations} saturations"
        )
    say(
        f"KV:   {done.pages} pages of {done.page_tokens} tokens at most, {done.pages_unshared} if "
        f"nothing were shared ({done.saved_percent:.1f} % saved); {len(done.copied)} copies moved "
        f"{sum(done.copied)} tokens in {done.copy_cycles:,} cycles; forks took "
        f"{done.fork_cycles:,}"
    )
