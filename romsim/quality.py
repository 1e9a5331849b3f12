"""What the chip's arithmetic and the chosen formats cost: perplexity beside the float decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from romsim.reference import IntegerDecoder
    from romsim_models.reference import FloatDecoder

__all__ = ["Quality", "default_text", "measure_quality"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Loss of one text under two decoders.

    The float decoder reads the model file's own weights, so that a format chosen for the chip is
    part of the difference.
    """

    n_tokens: int
    window: int  # tokens; windows do not overlap and know nothing of each other
    float_perplexity: float
    chip_perplexity: float
    float_bits_per_byte: float
    chip_bits_per_byte: float
    saturations: int

    @property
    def change_percent(self) -> float:
        """How much larger the chip's perplexity is, in percent."""
        return 100 * (self.chip_perplexity / self.float_perplexity - 1)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values."""
        return {**asdict(self), "change_percent": self.change_percent}

    def sentence(self) -> str:
        """Return the figures as one sentence."""
        return (
            f"perplexity {self.chip_perplexity:.3f} on the chip, {self.float_perplexity:.3f} in "
            f"float ({self.change_percent:+.2f} %), {self.n_tokens} tokens in windows of "
            f"{self.window}; {self.chip_bits_per_byte:.4f} and {self.float_bits_per_byte:.4f} bits "
            f"per byte; {self.saturations} saturations"
        )


def default_text() -> str:
    """Return the text that is measured when the user names none: the start of *Persuasion*.

    Source: Jane Austen, 1818, public domain; Debian package r-cran-janeaustenr 1.0.0-1.
    """
    return (resources.files("romsim") / "texts" / "persuasion.txt").read_text(encoding="utf-8")


def measure_quality(
    float_decoder: FloatDecoder,
    decoder: IntegerDecoder,
    tokens: Sequence[int],
    *,
    n_bytes: int,
    window: int,
    adapter: str | None = None,
) -> Quality:
    """Score a text under both decoders.

    Parameters
    ----------
    n_bytes
        UTF-8 bytes of the text that the tokens stand for.
    window
        Tokens of one window, at least 2; the last may be shorter. The first of each is not
        scored.
    adapter
        Name of the integer decoder's adapter; the float decoder has its own.

    Raises
    ------
    SpecError
        If there are fewer than two tokens.
    """
    import numpy as np

    from romsim.reference import evaluate_nll

    if len(tokens) < 2:
        raise SpecError(
            f"Text to score must have at least 2 tokens, not {len(tokens)}; give a longer one"
        )
    exact = float(np.mean(float_decoder.token_nll(tokens, window=window, batch=1)))
    integer = evaluate_nll(decoder, tokens, window, adapter=adapter)
    bits = len(tokens) / n_bytes / math.log(2)
    return Quality(
        n_tokens=len(tokens),
        window=window,
        float_perplexity=math.exp(exact),
        chip_perplexity=math.exp(integer),
        float_bits_per_byte=exact * bits,
        chip_bits_per_byte=integer * bits,
        saturations=int(decoder.saturations),
    )
