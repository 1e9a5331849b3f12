"""Tokens per second against context, and time to first token, from timing alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from romsim.timing import Ranks, TimingModel
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, SpecError

__all__ = ["adapter_ranks", "decode_rates", "prefill_chunks", "prefill_cycles", "timing_model"]


def timing_model(description: Description) -> TimingModel:
    """Return the timing of a description's programs."""
    mappings = {name: group.mapping for name, group in description.groups.items()}
    return TimingModel(
        spec=description.spec,
        target=description.target,
        mappings=mappings,
        decode=description.decode,
    )


def adapter_ranks(description: Description, adapter: str | None) -> Ranks:
    """Return the padded ranks that a run's ``lora`` instructions see, by group.

    Raises
    ------
    SpecError
        If the adapter is not resident.
    """
    if adapter is None:
        return {}
    from romsim.engines import check_resident  # engines stay unloaded where nothing is run

    check_resident(description, adapter)
    return {name: image.ranks for name, image in description.loras[adapter].groups.items()}


def decode_rates(
    description: Description,
    contexts: Sequence[int] | None = None,
    *,
    adapter: str | None = None,
) -> list[dict[str, Any]]:
    """Return cycles and tokens/s of one decoded token with ``context`` tokens before it.

    Raises
    ------
    CapacityError
        If a context does not fit.
    SpecError
        If the adapter is not resident.
    """
    limit = description.context
    if contexts is None:
        contexts = [n for n in (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384) if n < limit]
        contexts = list(dict.fromkeys([*contexts, limit - 1]))
    for context in contexts:
        if not 0 <= context < limit:
            raise CapacityError(
                f"Context must be from 0 to {limit - 1} tokens in {description.path}, not {context}"
            )
    ranks = adapter_ranks(description, adapter)
    cycles = timing_model(description).decode_cycles(contexts, ranks)
    clock = description.target.clock_mhz * 1e6
    return [
        {"context": n, "cycles": c, "tokens_per_s": clock / c}
        for n, c in zip(contexts, cycles, strict=True)
    ]


def prefill_cycles(description: Description, n_tokens: int, *, adapter: str | None = None) -> int:
    """Return the cycles from a prompt's first token to its last one's logits.

    Raises
    ------
    CapacityError
        If the prompt does not fit the context.
    SpecError
        If there is no token, or the adapter is not resident.
    """
    if n_tokens > description.context:
        raise CapacityError(
            f"Prompt must have at most {description.context} tokens in {description.path}, not "
            f"{n_tokens}; shorten it or compile with a larger --context"
        )
    model = timing_model(description)
    ranks = adapter_ranks(description, adapter)
    total = 0
    for first, count, head in prefill_chunks(n_tokens, description.target.schedule.n_inflight):
        total += model.run(description.prefill(count, head), first, ranks).cycles
    return total


def prefill_chunks(n_tokens: int, n_inflight: int) -> list[tuple[int, int, bool]]:
    """Return (first position, tokens, with head) of each program run of a prompt.

    Full runs of ``n_inflight`` come first, then what is left, one at a time; the last run alone has
    the head.

    Raises
    ------
    SpecError
        If there is no token.
    """
    if n_tokens < 1:
        raise SpecError(f"Prompt must have at least one token, not {n_tokens}")
    whole = n_tokens // n_inflight * n_inflight
    chunks = [(p, n_inflight, False) for p in range(0, whole, n_inflight)]
    chunks += [(p, 1, False) for p in range(whole, n_tokens)]
    first, count, _ = chunks[-1]
    chunks[-1] = (first, count, True)
    return chunks
