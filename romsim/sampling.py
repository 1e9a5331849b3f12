"""Choosing the next token from integer logits, the same for every engine.

Source: docs/numerics.md, section 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from romsim_models.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Sampler", "splitmix64"]

_MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """Return one output of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) for a 64-bit state."""
    z = (state + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Greedy (``temperature = 0``) or seeded sampling.

    Parameters
    ----------
    temperature
        0 for greedy; else the divisor of the logits.
    top_k
        Candidates kept; 0 for all.
    seed
        Any integer; with the position it fixes the draw.

    Raises
    ------
    SpecError
        If the temperature or ``top_k`` is negative or not finite.
    """

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise SpecError(
                f"Temperature must be a finite number of at least 0, not {self.temperature!r}"
            )
        if 0 < self.temperature < 1e-4:
            raise SpecError(
                f"Temperature must be 0 (greedy) or at least 0.0001, not {self.temperature!r}"
            )
        if self.top_k < 0:
            raise SpecError(f"top_k must be at least 0, not {self.top_k!r}")

    def choose(
        self,
        logits: NDArray[np.int32],
        position: int,
        exp_table: NDArray[np.int64],
    ) -> int:
        """Return the token id chosen at ``position``.

        Parameters
        ----------
        logits
            int32 [vocab], frac 16.
        exp_table
            The page's EXP table, 257 entries of frac 20.
        """
        import numpy as np

        values = np.asarray(logits, dtype=np.int64)
        if self.temperature == 0.0:
            return int(np.argmax(values))  # argmax takes the first, hence the lowest id
        ids = np.arange(values.size)
        if 0 < self.top_k < values.size:
            order = np.lexsort((ids, -values))[: self.top_k]
            ids = np.sort(order)
        kappa = round(65536 * math.log2(math.e) / self.temperature)
        d = ((int(values.max()) - values[ids]) * kappa) >> 16
        n, index, r = d >> 16, (d >> 8) & 255, d & 255
        step = (exp_table[index] - exp_table[index + 1]) * r
        half = (step + 127 + ((step >> 8) & 1)) >> 8  # nearest, ties to even
        weights = np.where(n >= 21, 0, (exp_table[index] - half) >> np.minimum(n, 62))
        running = np.cumsum(weights)
        state = (self.seed + position * 0x9E3779B97F4A7C15) & _MASK
        draw = (splitmix64(state) * int(running[-1])) >> 64
        return int(ids[int(np.searchsorted(running, draw, side="right"))])
