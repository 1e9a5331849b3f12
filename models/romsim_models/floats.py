"""Exact conversion of a file's floating-point words to float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["FLOAT_BYTES", "widen"]

FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


def widen(raw: NDArray[np.uint8], format: str, *, out: NDArray[np.float32]) -> None:
    """Write little-endian words as float32, exactly.

    Parameters
    ----------
    raw
        Bytes of the words.
    format
        ``"f32"``, ``"f16"`` or ``"bf16"``.
    out
        Where the values go, one dimension; as long as there are words.
    """
    if format == "bf16":
        # A bfloat16 word is the upper half of a float32 word.
        words = out.view(np.uint32)
        words[:] = raw.view("<u2")
        words <<= np.uint32(16)
    else:
        out[:] = raw.view("<f4" if format == "f32" else "<f2")
