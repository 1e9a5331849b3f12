"""Text out of the simulated chip: prompt, decode, tokens per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from romsim.engines import Engine
from romsim.sampling import Sampler
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, SpecError
from romsim_models.tokenizer import Tokenizer

__all__ = [
    "Simulation",
    "check_length",
    "generate",
    "load_tokenizer",
    "prompt_tokens",
    "simulate",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A finished run."""

    text: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    prefill_cycles: int | None
    token_cycles: tuple[int, ...]
    clock_hz: float
    saturations: int
    wall_s: float = field(compare=False)

    @property
    def tokens_per_s(self) -> float | None:
        """Decoded tokens per second of the chip, single stream."""
        if not self.token_cycles:
            return None
        return self.clock_hz * len(self.token_cycles) / sum(self.token_cycles)

    @property
    def ttft_s(self) -> float | None:
        """Seconds of the chip to the first token."""
        return None if self.prefill_cycles is None else self.prefill_cycles / self.clock_hz

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON-ready values; wall-clock time is left out."""
        return {
            "text": self.text,
            "prompt": list(self.prompt),
            "tokens": list(self.tokens),
            "prefill_cycles": self.prefill_cycles,
            "token_cycles": list(self.token_cycles),
            "clock_hz": self.clock_hz,
            "tokens_per_s": self.tokens_per_s,
            "ttft_s": self.ttft_s,
            "saturations": self.saturations,
        }


def load_tokenizer(description: Description, *, ids: str | None = "--token-ids") -> Tokenizer:
    """Return the tokenizer in a description.

    Parameters
    ----------
    ids
        The option with which token ids are given instead of a text, where there is one.

    Raises
    ------
    SpecError
        If the model brought none.
    """
    file = description.tokenizer_file()
    if file is None:
        remedy = f"give token ids with {ids}" if ids else "compile a model that brings one"
        raise SpecError(
            f"{description.path} must have a tokenizer for text, but its model brought none; "
            f"{remedy}"
        )
    return Tokenizer.from_json(file.read_text(encoding="utf-8"))


def prompt_tokens(
    description: Description,
    *,
    prompt: str | None = None,
    chat: str | None = None,
    tokens: Sequence[int] | None = None,
) -> list[int]:
    """Return the prompt as token ids.

    Parameters
    ----------
    prompt, chat, tokens
        A text, a user's message or token ids.

    Raises
    ------
    SpecError
        If not exactly one form is given, it is empty, or an id is outside the vocabulary.
    """
    given = [x for x in (prompt, chat, tokens) if x is not None]
    if len(given) != 1:
        raise SpecError(
            f"Prompt must be given once, as --prompt, --chat or --token-ids, not {len(given)} times"
        )
    if tokens is not None:
        found = list(tokens)
    elif chat is not None:
        found = load_tokenizer(description).encode_chat(chat)
    else:
        assert prompt is not None
        found = load_tokenizer(description).encode(prompt)
    if not found:
        raise SpecError("Prompt must have at least one token, not none; give a text")
    vocab = description.spec.vocab_size
    for token in found:
        if not 0 <= token < vocab:
            raise SpecError(f"Token id must be from 0 to {vocab - 1}, not {token!r}")
    return found


def check_length(
    description: Description, n_prompt: int, n_new: int, *, feeds_last: bool = False
) -> None:
    """Refuse a run that would pass the context, before it starts.

    Parameters
    ----------
    feeds_last
        Whether the last new token is fed back too; a run for text only chooses it, so that it takes
        no place in the cache.

    Raises
    ------
    SpecError
        If there would be no new token.
    CapacityError
        With the context, and what would fit.
    """
    least = 0 if feeds_last else 1
    if n_new < least:
        raise SpecError(f"Number of new tokens must be at least {least}, not {n_new}")
    needed = n_prompt + n_new - least
    room = description.context - n_prompt + least
    if needed > description.context:
        option = "--tokens" if feeds_last else "--max-tokens"
        remedy = f"lower {option} to {room}" if room >= least else "shorten the prompt"
        raise CapacityError(
            f"Prompt of {n_prompt} tokens and {n_new} new ones must fit the context of "
            f"{description.context} tokens, not {needed}; {remedy}, or compile with a larger "
            f"--context"
        )


def generate(
    engine: Engine,
    prompt: Sequence[int],
    *,
    n_new: int,
    sampler: Sampler,
    exp_table: Any,
    stop: Sequence[int] = (),
    on_token: Callable[[int], None] | None = None,
) -> tuple[list[int], int | None, list[int]]:
    """Decode tokens; return them, the prefill's cycles, and each further token's cycles."""
    logits = engine.prefill(prompt)
    prefill_cycles = engine.cycles
    tokens: list[int] = []
    cycles: list[int] = []
    position = len(prompt) - 1
    while True:
        token = sampler.choose(logits, position, exp_table)
        tokens.append(token)
        if on_token is not None:
            on_token(token)
        if len(tokens) == n_new or token in stop:
            return tokens, prefill_cycles, cycles
        logits = engine.step(token)
        position += 1
        if engine.cycles is not None:
            cycles.append(engine.cycles)


def simulate(
    description: Description,
    engine: Engine,
    prompt: Sequence[int],
    *,
    n_new: int = 64,
    sampler: Sampler | None = None,
    ignore_eos: bool = False,
    on_text: Callable[[str], None] | None = None,
) -> Simulation:
    """Run a prompt through an engine and decode its answer.

    Raises
    ------
    CapacityError
        If the run would pass the context.
    """
    check_length(description, len(prompt), n_new)
    has_text = description.tokenizer_file() is not None
    tokenizer = load_tokenizer(description) if has_text else None
    stream = tokenizer.stream() if tokenizer is not None else None
    pieces: list[str] = []

    def emit(text: str) -> None:
        pieces.append(text)
        if on_text is not None and text:
            on_text(text)

    def on_token(token: int) -> None:
        if stream is not None:
            emit(stream.push(token))

    started = time.perf_counter()
    tokens, prefill_cycles, cycles = generate(
        engine,
        prompt,
        n_new=n_new,
        sampler=sampler or Sampler(),
        exp_table=description.tables["EXP"],
        stop=() if ignore_eos else description.spec.eos_ids,
        on_token=on_token,
    )
    if stream is not None:
        emit(stream.finish())
    return Simulation(
        text="".join(pieces),
        prompt=tuple(prompt),
        tokens=tuple(tokens),
        prefill_cycles=prefill_cycles,
        token_cycles=tuple(cycles),
        clock_hz=description.target.clock_mhz * 1e6,
        saturations=engine.saturations,
        wall_s=time.perf_counter() - started,
    )
