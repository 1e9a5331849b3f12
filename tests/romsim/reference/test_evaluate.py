from __future__ import annotations

import re

import numpy as np
import pytest

from romsim.reference import IntegerDecoder, NumericsConfig, evaluate_nll
from romsim_models.errors import SpecError
from tests.romsim.reference.small_models import SPEC, checkpoint_of, random_tensors


def small() -> IntegerDecoder:
    return IntegerDecoder(checkpoint_of(SPEC, random_tensors(SPEC, seed=1)))


def test_the_loss_is_that_of_the_logits_window_by_window() -> None:
    decoder = small()
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, SPEC.vocab_size, 21)]
    losses = []
    for first in (0, 10):  # the third window has one token, which is not scored
        decoder.reset()
        part = tokens[first : first + 10]
        logits = decoder.forward(part, all_logits=True).numpy().astype(np.float64) / 2**16
        for row, target in zip(logits[:-1], part[1:], strict=True):
            losses.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[target])
    assert evaluate_nll(decoder, tokens, 10) == pytest.approx(np.mean(losses), rel=1e-12)
    assert decoder.position == 0


def test_a_text_too_short_to_score_is_refused() -> None:
    for tokens, window, text in (
        ([1, 2, 3], 1, "window must be at least 2 tokens, not 1"),
        ([1], 8, "text must have at least 2 tokens, not 1"),
    ):
        with pytest.raises(SpecError, match=f"^{text}$"):
            evaluate_nll(small(), tokens, window)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("residual_frac", 25, "residual_frac must be an integer from 0 to 24, not 25"),
        ("logit_frac", -1, "logit_frac must be an integer from 0 to 24, not -1"),
        ("attn_block", 24, "attn_block must be a power of two from 1 to 65536, not 24"),
        ("act_block", 64, "act_block must be a power of two from 1 to 32, not 64"),
    ],
)
def test_impossible_numbers_of_the_page_are_refused(field: str, value: int, text: str) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(text)}$"):
        NumericsConfig(**{field: value})
