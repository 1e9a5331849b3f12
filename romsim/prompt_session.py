"""Prompts one after another on one chip, which keeps their pages: known prefixes are not computed.

What is known goes when its room is needed, the leaf that was used longest ago first
(docs/kv-sharing.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from romsim.kv_room import attention_macs
from romsim.simulate import check_length, load_tokenizer
from romsim_compiler.description import Description
from romsim_models.errors import SpecError

__all__ = ["Session", "Turn", "session"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One prompt and its answer."""

    adapter: str | None
    prompt: tuple[int, ...]
    reused_tokens: int  # of the prompt, found in pages that an earlier one left
    text: str
    tokens: tuple[int, ...]  # the answer's
    prefill_cycles: int
    decode_cycles: int
    saved_multiplications: int  # of matrices and attention, for the tokens that were found
    known_pages: int  # when it ended
    forgotten_pages: int  # for it

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {**asdict(self), "prompt": list(self.prompt), "tokens": list(self.tokens)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """All turns on one chip."""

    turns: tuple[Turn, ...]
    clock_hz: float
    page_tokens: int
    pages: int  # of the pool
    saturations: int

    @property
    def hit_percent(self) -> float:
        """Prompt tokens that were found, of all."""
        n_all = sum(len(turn.prompt) for turn in self.turns)
        return 100 * sum(turn.reused_tokens for turn in self.turns) / n_all

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {
            **asdict(self),
            "turns": [turn.to_json() for turn in self.turns],
            "hit_percent": self.hit_percent,
        }


def session(
    description: str | Path | Description,
    prompts: Sequence[Sequence[int]],
    *,
    adapters: Sequence[str | None] | None = None,
    n_new: int = 64,
    ignore_eos: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Session:
    """Answer prompts in turn on the cycle model, greedily, and keep their pages as prefixes.

    Logits of a prompt that finds pages are those of computing it anew, bit for bit.

    Parameters
    ----------
    prompts
        Token ids.
    adapters
        Of each prompt; ``None`` for the base model throughout. A prefix is found only under the
        adapter and the KV configuration with which it was computed.
    n_new
        Tokens of an answer at most.

    Raises
    ------
    SpecError
        If the chip's cache is not paged, encodes tokens together or drops them, or an argument is
        impossible.
    CapacityError
        If a prompt and its answer pass the context.
    """
    import numpy as np

    from romsim.api import load
    from romsim.cycle import CycleModel
    from romsim.cycle.sequences import SequencePool

    loaded = description if isinstance(description, Description) else load(description)
    if not prompts:
        raise SpecError("Prompts of a session must be at least 1, not 0")
    chosen = list(adapters) if adapters is not None else [None] * len(prompts)
    if len(chosen) != len(prompts):
        raise SpecError(
            f"Adapters of a session must be as many as its {len(prompts)} prompts, not "
            f"{len(chosen)}"
        )
    for prompt in prompts:
        check_length(loaded, len(prompt), n_new)
    stop = () if ignore_eos else loaded.spec.eos_ids
    tokenizer = load_tokenizer(loaded) if loaded.tokenizer_file() is not None else None
    pool = SequencePool(CycleModel(loaded), prefixes=True)
    tree = pool.tree
    assert tree is not None
    turns = []
    for number, (prompt, adapter) in enumerate(zip(prompts, chosen, strict=True)):
        if progress is not None:
            progress(f"prompt {number + 1} of {len(prompts)}", number / len(prompts))
        found, forgotten = pool.hit_tokens, tree.n_forgotten
        slot, first = pool.start(prompt, adapter=adapter)
        answer = [int(np.argmax(first.logits))]
        cycles = 0
        while len(answer) < n_new and answer[-1] not in stop:
            step = pool.step(slot, answer[-1])
            cycles += step.cycles
            answer.append(step.next_token)
        pool.free(slot)
        reused = pool.hit_tokens - found
        turns.append(
            Turn(
                adapter=adapter,
                prompt=tuple(prompt),
                reused_tokens=reused,
                text="" if tokenizer is None else tokenizer.decode(answer),
                tokens=tuple(answer),
                prefill_cycles=first.cycles,
                decode_cycles=cycles,
                saved_multiplications=_multiplications(loaded, reused),
                known_pages=tree.n_pages,
                forgotten_pages=tree.n_forgotten - forgotten,
            )
        )
    return Session(
        turns=tuple(turns),
        clock_hz=loaded.target.clock_mhz * 1e6,
        page_tokens=loaded.target.kv.block,
        pages=pool.pages_in_all,
        saturations=pool.saturations,
    )


def _multiplications(description: Description, n_tokens: int) -> int:
    """Return the multiplications of a sequence's first tokens in all layers, without the head."""
    spec = description.spec
    matrices = sum(
        group.mapping.n_rows * group.mapping.n_cols
        for group in description.groups.values()
        if group.name not in ("embd", "head")
    )
    attention = sum(attention_macs(spec, n) for n in range(1, n_tokens + 1))
    return n_tokens * matrices + spec.n_layers * attention
