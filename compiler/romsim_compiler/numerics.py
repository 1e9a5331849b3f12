"""Parameters of the numerics page that a description records (docs/numerics.md, section 2)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Numerics"]


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Fraction bits of the fixed-point formats, and the block sizes that are part of values."""

    residual_frac: int = 14
    linear_frac: int = 16
    logit_frac: int = 16
    act_block: int = 32
    attn_block: int = 64

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as JSON-ready values."""
        return asdict(self)
