"""Constants of rotary positions and of query scaling, correctly rounded (docs/numerics.md, 5)."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.tables import LOG2_E, PI, round_decimal
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec

__all__ = ["phase_increments", "query_scale"]

PRECISION = 60  # decimal digits of every step
_MARGIN = Decimal("1e-40")
"""Distance from a tie within which a rounding would not be proved.

Values are below 2^32 < 10^10 and 60 digits are carried through fewer than 20 operations, so that a
value is wrong by less than 10^-47 (the decimal library rounds ``exp`` and ``ln`` correctly).
A true value closer to a tie than this is not expected once in 10^39 increments.
"""


def phase_increments(spec: ModelSpec) -> NDArray[np.uint32]:
    """Return the phase that each rotary pair gains per position, in turns of 2^-32.

    ``round(θ_j / 2π · 2^32) mod 2^32`` with ``θ_j`` of the specification's exact real numbers, not
    of a floating-point approximation.

    Returns
    -------
    uint32 [head_dim / 2]
        Element j belongs to elements 2j and 2j+1 of a head.

    Raises
    ------
    SpecError
        If a value lies too near a tie for its rounding to be proved.

    Source
    ------
    As `romsim_models.spec.rope_frequencies`, in decimal arithmetic.
    """
    increments = []
    with localcontext() as context:
        context.prec = PRECISION
        for pair, turns in enumerate(_turns(spec)):
            scaled = turns * 2**32
            nearest = round_decimal(scaled)
            if Decimal("0.5") - abs(scaled - nearest) < _MARGIN:
                raise SpecError(
                    f"Rotary frequency of pair {pair} of model {spec.name!r} must not lie at a tie "
                    f"between two phase increments, not {scaled} of 2^-32 turns; change rope_theta"
                )
            increments.append(nearest % 2**32)
    return np.array(increments, dtype=np.uint32)


def query_scale(head_dim: int) -> int:
    """Return ``CQ = round(2^20 · log2(e) / sqrt(head_dim))``."""
    with localcontext() as context:
        context.prec = PRECISION
        return round_decimal(LOG2_E * 2**20 / Decimal(head_dim).sqrt())


def _turns(spec: ModelSpec) -> list[Decimal]:
    """Return the turns per position of each pair."""
    log_theta = Decimal(spec.rope_theta).ln()
    plain = [
        (log_theta * (-2 * j) / spec.head_dim).exp() / (2 * PI) for j in range(spec.head_dim // 2)
    ]
    if spec.rope_factors is not None:
        return [f / Decimal(factor) for f, factor in zip(plain, spec.rope_factors, strict=True)]
    scaling = spec.rope_scaling
    if scaling is None:
        return plain
    low, high = Decimal(scaling.low_freq_factor), Decimal(scaling.high_freq_factor)
    result = []
    for frequency in plain:
        # Waves in the original context, against which the factors are measured.
        waves = scaling.original_max_position * frequency
        blend = min(max((waves - low) / (high - low), Decimal(0)), Decimal(1))
        result.append((1 - blend) * frequency / Decimal(scaling.factor) + blend * frequency)
    return result
