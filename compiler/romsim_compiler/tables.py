"""The numerics page's tables, from decimal arithmetic (docs/numerics.md, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOG2_E", "PI", "TABLES", "round_decimal", "tables"]

PRECISION = 40
"""Decimal digits (132 bits) of every step, of which 36 (119 bits) stay true to the end."""

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
"""π to 80 decimals."""

LOG2_E = Decimal(
    "1.44269504088896340735992468100189213742664595415298593413544940693110921918118508"
)
"""log2(e) = 1 / ln 2 to 80 decimals."""


def round_decimal(value: Decimal) -> int:
    """Round to the nearest integer, ties to even."""
    return int(value.to_integral_value(rounding=ROUND_HALF_EVEN))


@lru_cache(maxsize=1)
def tables() -> Mapping[str, NDArray[np.int64]]:
    """Return the tables by name, computed once in a process.

    Returns
    -------
    mapping
        ``SIN`` [257], ``EXP`` [257], ``SIG`` [1025], ``RSQ`` [96] (entry 0 is the page's
        ``RSQ[32]``) and ``RCP`` [128]; int64, read-only.
    """
    with localcontext() as context:
        context.prec = PRECISION
        values = {
            "SIN": _sines(256),
            "EXP": [power * 2**20 for power in _powers((-1 / LOG2_E / 256).exp(), 257)],
            "SIG": [2**20 / (1 + power) for power in _powers((Decimal(-1) / 64).exp(), 1025)],
            "RSQ": [2**15 / ((i + Decimal("0.5")) / 128).sqrt() for i in range(32, 128)],
            "RCP": [2**15 * 256 / (i + Decimal("128.5")) for i in range(128)],
        }
        rounded = {name: [round_decimal(v) for v in column] for name, column in values.items()}
    arrays = {name: np.array(column, dtype=np.int64) for name, column in rounded.items()}
    for array in arrays.values():
        array.flags.writeable = False
    return MappingProxyType(arrays)


TABLES = tables


def _powers(base: Decimal, n_powers: int) -> list[Decimal]:
    """Powers 0 … of a number below 1; each product loses at most 10^-40, so 1024 lose 4 digits."""
    powers = [Decimal(1)]
    while len(powers) < n_powers:
        powers.append(powers[-1] * base)
    return powers


def _sines(n_steps: int) -> list[Decimal]:
    """2^20 sin(π/2 · i/n_steps) for i = 0 … n_steps, by turning a unit vector step by step.

    A step multiplies the error by at most 1 + 10^-39, so that 256 steps lose 3 digits of 40.
    """
    angle = PI / 2 / n_steps
    term, sine, cosine = Decimal(1), Decimal(0), Decimal(1)
    for n in range(1, 30):  # Taylor; the 30th term is below 10^-90
        term = term * angle / n
        if n % 2:
            sine += term if n % 4 == 1 else -term
        else:
            cosine += term if n % 4 == 0 else -term
    x, y, result = Decimal(1), Decimal(0), []
    for _ in range(n_steps + 1):
        result.append(y * 2**20)
        x, y = x * cosine - y * sine, x * sine + y * cosine
    return result
