"""CommVQ's codebooks: what the ROM beside the K and V banks holds (docs/kv.md, section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.kv import KvConfig
from romsim_compiler.kv_sram import codebook_shapes
from romsim_models.errors import DescriptionError
from romsim_models.spec import ModelSpec

__all__ = ["CODEBOOK_FILE", "FRAC", "KvCodebooks", "read_codebooks"]

CODEBOOK_FILE = "kv_codebooks.bin"
FRAC = 14
"""Fraction bits of codebooks: vectors are of length 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KvCodebooks:
    """Codebooks of every layer and KV head.

    Parameters
    ----------
    keys
        int16 [n_layers, n_kv_heads, stages, entries, head_dim].
    values
        int16 [n_layers, n_kv_heads, value_bits * head_dim + 1, head_dim]; the last row is in
        every sum.
    """

    keys: NDArray[np.int16]
    values: NDArray[np.int16]

    def write(self, path: Path) -> None:
        """Write all keys, then all values, little-endian."""
        path.write_bytes(self.keys.astype("<i2").tobytes() + self.values.astype("<i2").tobytes())


def read_codebooks(path: Path, spec: ModelSpec, kv: KvConfig) -> KvCodebooks:
    """Read what :meth:`KvCodebooks.write` wrote.

    Raises
    ------
    DescriptionError
        If the file is missing or of another length.
    """
    shapes = codebook_shapes(spec, kv)
    sizes = [int(np.prod(shape)) for shape in shapes]
    try:
        words = np.fromfile(path, "<i2")
    except OSError as error:
        raise DescriptionError(
            f"{path} must be readable, not {error.strerror!r}; compile again"
        ) from None
    if len(words) != sum(sizes):
        raise DescriptionError(
            f"{path} must hold {sum(sizes)} words, not {len(words)}; compile again"
        )
    return KvCodebooks(
        keys=words[: sizes[0]].reshape(shapes[0]), values=words[sizes[0] :].reshape(shapes[1])
    )
