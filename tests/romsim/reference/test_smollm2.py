"""The default model: integer against float. Minutes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from romsim.reference import IntegerDecoder, evaluate_nll
from romsim_models.registry import open_model

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent.parent.parent / "data"


@pytest.fixture(scope="module")
def decoder(smollm2_path: Path) -> IntegerDecoder:
    return IntegerDecoder(open_model(smollm2_path))


@pytest.mark.parametrize("text", ["persuasion.txt", "hamlet.txt"])
def test_perplexity_is_within_two_percent_of_float(
    decoder: IntegerDecoder, smollm2_path: Path, text: str
) -> None:
    from romsim_models.reference import FloatDecoder  # loads 0.5 GB: only where it is used

    checkpoint = open_model(smollm2_path)
    tokenizer = checkpoint.tokenizer()
    assert tokenizer is not None
    tokens = tokenizer.encode((FOLDER / text).read_text(encoding="utf-8"))[:1024]
    assert len(tokens) == 1024
    exact = math.exp(float(FloatDecoder(checkpoint).token_nll(tokens, window=512).mean()))
    integer = math.exp(evaluate_nll(decoder, tokens, 512))
    assert integer == pytest.approx(exact, rel=0.02)
    assert decoder.saturations == 0


def test_no_term_rounds_and_decoding_equals_the_batch(
    decoder: IntegerDecoder, smollm2_path: Path
) -> None:
    tokenizer = open_model(smollm2_path).tokenizer()
    assert tokenizer is not None
    tokens = tokenizer.encode("Once upon a time, there was a little girl who")
    decoder.reset()
    batch = decoder.forward(tokens, all_logits=True)
    decoder.reset()
    serial = torch.stack([decoder.forward([token]) for token in tokens])
    assert torch.equal(batch, serial)
    text = []
    for _ in range(12):
        text.append(int(serial[-1].argmax()))
        serial = decoder.forward([text[-1]])[None]
    assert tokenizer.decode(text).startswith(" loved to")
    assert decoder.saturations == 0
