"""Fracs and block sizes of the integer arithmetic: `NumericsConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from romsim_models.errors import SpecError

__all__ = ["MAX_CONTEXT", "NumericsConfig"]

# Softmax sums of this many tokens stay below 2^32, value sums below 2^63 (page, section 5).
MAX_CONTEXT = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsConfig:
    """The free numbers of the numerics page.

    Parameters
    ----------
    residual_frac
        Fraction bits of the residual stream.
    linear_frac
        Fraction bits of the linear outputs that are not added to the residual, of the attention
        output and of the feed-forward activation.
    logit_frac
        Fraction bits of the logits.
    attn_block
        Keys whose softmax sums are exact before blocks are merged; a power of two.
    act_block
        Consecutive activations that share one power of two; a power of two.

    Raises
    ------
    SpecError
        If a value is out of its range.
    """

    residual_frac: int = 14
    linear_frac: int = 16
    logit_frac: int = 16
    attn_block: int = 32
    act_block: int = 32

    def __post_init__(self) -> None:
        # 0 .. 24: the embedding is a sum of grid 2^-24, and more would leave no integer bits.
        for field in ("residual_frac", "linear_frac", "logit_frac"):
            value = getattr(self, field)
            if not isinstance(value, int) or not 0 <= value <= 24:
                raise SpecError(f"{field} must be an integer from 0 to 24, not {value!r}")
        for field, largest in (("attn_block", MAX_CONTEXT), ("act_block", 32)):
            value = getattr(self, field)
            if not isinstance(value, int) or not 1 <= value <= largest or value & (value - 1):
                raise SpecError(
                    f"{field} must be a power of two from 1 to {largest}, not {value!r}"
                )
