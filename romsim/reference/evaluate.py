"""Loss of the integer decoder on a text: `evaluate_nll`, `score_window`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from romsim.reference.decoder import IntegerDecoder
from romsim_models.errors import SpecError

__all__ = ["evaluate_nll", "score_window"]

_ROWS = 64  # tokens whose logits are in float64 at a time


@torch.inference_mode()
def evaluate_nll(
    decoder: IntegerDecoder, tokens: Sequence[int], window: int, *, adapter: str | None = None
) -> float:
    """Mean negative log-likelihood in nats per scored token.

    The text is cut into windows that do not overlap and know nothing of each other; every token
    but the first of its window is scored.

    Parameters
    ----------
    decoder
        Reset before each window, and left so.
    tokens
        Token ids of the text.
    window
        Tokens of one window, at least 2; the last may be shorter.
    adapter
        Name of an adapter, or ``None``.

    Raises
    ------
    SpecError
        If the window or the text is too short to score a token.
    """
    if window < 2:
        raise SpecError(f"window must be at least 2 tokens, not {window!r}")
    if len(tokens) < 2:
        raise SpecError(f"text must have at least 2 tokens, not {len(tokens)!r}")
    losses: list[float] = []
    for first in range(0, len(tokens), window):
        part = list(tokens[first : first + window])
        if len(part) < 2:
            continue  # one token after the last whole window: it is the first of its own
        losses.extend(score_window(decoder, part, adapter=adapter)[0])
    decoder.reset()
    return math.fsum(losses) / len(losses)


@torch.inference_mode()
def score_window(
    decoder: IntegerDecoder,
    tokens: Sequence[int],
    *,
    first: int = 1,
    adapter: str | None = None,
) -> tuple[list[float], list[int], int]:
    """Score the tokens of a text from ``first`` on, the decoder reset before.

    Returns
    -------
    tuple
        Negative log-likelihood in nats, and the likeliest token instead (the lowest id among
        equals), of tokens ``first`` to the last; and the clips to int32.

    Raises
    ------
    SpecError
        If no token is left to score, or nothing is before it.
    """
    if not 1 <= first < len(tokens):
        raise SpecError(f"first must be 1 to {len(tokens) - 1}, not {first!r}")
    decoder.reset()
    if first > 1:
        decoder.forward(tokens[: first - 1], adapter=adapter)
    logits = decoder.forward(tokens[first - 1 :], adapter=adapter, all_logits=True)[:-1]
    targets = torch.as_tensor(tokens[first:], device=logits.device)
    scale = 2.0**-decoder.config.logit_frac
    losses: list[float] = []
    likeliest: list[int] = []
    for row in range(0, len(targets), _ROWS):
        chosen = targets[row : row + _ROWS]
        values = logits[row : row + len(chosen)].to(torch.float64) * scale
        of_target = values.gather(1, chosen[:, None])[:, 0]
        losses.extend((values.logsumexp(dim=1) - of_target).tolist())
        likeliest.extend(int(row.argmax()) for row in values.numpy(force=True))
    return losses, likeliest, decoder.saturations
