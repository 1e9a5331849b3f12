"""``romsim session``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from romsim.commands.output import Progress, emit_json, json_option, say

if TYPE_CHECKING:
    from romsim.prompt_session import Session

__all__ = ["command"]


@click.command("session")
@click.argument("description", type=click.Path())
@click.option("--prompt", "prompts", multiple=True, help="Text to continue; repeatable.")
@click.option(
    "--chat", "chats", multiple=True, help="A user's message, put into the chat template; likewise."
)
@click.option(
    "--token-ids", "ids", multiple=True, metavar="N,N,...", help="A prompt as token ids; likewise."
)
@click.option("--max-tokens", default=64, show_default=True, help="New tokens of each at most.")
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    help="Resident LoRA adapter: of all prompts, or given once for each; '' for none.",
)
@click.option("--ignore-eos", is_flag=True, help="Do not stop at the end-of-text token.")
@json_option
def command(
    description: str,
    prompts: tuple[str, ...],
    chats: tuple[str, ...],
    ids: tuple[str, ...],
    max_tokens: int,
    adapters: tuple[str, ...],
    ignore_eos: bool,
    as_json: bool,
) -> None:
    """Answer prompts one after another on one chip: prefixes that it knows are not computed."""
    import romsim
    from romsim.commands.arguments import read_integers
    from romsim.simulate import prompt_tokens
    from romsim_compiler.description import Description
    from romsim_models.errors import SpecError

    if sum(map(bool, (prompts, chats, ids))) != 1:
        raise SpecError(
            "Prompts must be given in one form, --prompt, --chat or --token-ids, not in "
            f"{sum(map(bool, (prompts, chats, ids)))}"
        )
    loaded = Description.load(description)
    texts = [
        *(prompt_tokens(loaded, prompt=text) for text in prompts),
        *(prompt_tokens(loaded, chat=text) for text in chats),
        *(prompt_tokens(loaded, tokens=read_integers(text, "--token-ids")) for text in ids),
    ]
    names = adapters * len(texts) if len(adapters) == 1 else adapters
    progress = Progress()
    done = romsim.session(
        loaded,
        texts,
        adapters=[name or None for name in names] if names else None,
        n_new=max_tokens,
        ignore_eos=ignore_eos,
        progress=progress,
    )
    progress.clear()
    if as_json:
        emit_json(done.to_json())
        return
    _show(done)


def _show(done: Session) -> None:
    for number, turn in enumerate(done.turns, 1):
        adapter = "" if turn.adapter is None else f" with adapter {turn.adapter}"
        say(
            f"[{number}]{adapter} {turn.reused_tokens} of {len(turn.prompt)} prompt tokens known, "
            f"first token after {1e6 * turn.prefill_cycles / done.clock_hz:,.1f} us, "
            f"{turn.saved_multiplications:,} multiplications saved"
        )
        say(turn.text or "tokens " + ",".join(str(t) for t in turn.tokens))
    last = done.turns[-1]
    say()
    say(
        f"KV:   {done.hit_percent:.1f} % of the prompts' tokens were known; {last.known_pages} of "
        f"{done.pages} pages of {done.page_tokens} tokens are, "
        f"{sum(turn.forgotten_pages for turn in done.turns)} were forgotten for room; "
        f"{done.saturations} saturations"
    )
