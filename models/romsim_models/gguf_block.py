"""`GgufBlock`: what one GGUF element type has to tell its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from romsim_models.encoded import Tensor

__all__ = ["Decoder", "GgufBlock"]

# (canonical name, raw bytes of whole rows, shape) -> tensor
Decoder = Callable[[str, "NDArray[np.uint8]", tuple[int, ...]], "Tensor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufBlock:
    """Layout of one element type.

    Parameters
    ----------
    type_id
        Number in the file (ggml's ``enum ggml_type``).
    name
        Our name of the format, lower case.
    n_weights
        Elements of one block, along a row.
    n_bytes
        Bytes of one block.
    decode
        Turns the raw bytes of whole rows, with the trailer behind them, into a tensor.
    trailer_bytes
        Bytes behind the blocks of the whole tensor, for whatever it has once.
    """

    type_id: int
    name: str
    n_weights: int
    n_bytes: int
    decode: Decoder
    trailer_bytes: int = 0
