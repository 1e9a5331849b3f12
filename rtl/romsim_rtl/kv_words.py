"""How a KV codec's words stand in the banks, and what it adds to the pipelines (docs/kv.md)."""

from __future__ import annotations

from dataclasses import dataclass

from romsim_compiler.target import MX_BLOCK

__all__ = ["KV_WORDS", "KvWords"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvWords:
    """Words of one codec.

    Parameters
    ----------
    element_bits
        Of an element of a bank's word.
    block_bits
        What a block of 32 has beside its elements: its exponent, or zero and scale.
    score_cycles, value_cycles
        Stages of the scores' and of the values' pipeline beyond those of MXINT8.
    encode_cycles
        Stages of the encoder beyond those of the MXINT8 quantiser.
    """

    element_bits: int
    block_bits: int
    score_cycles: int = 0
    value_cycles: int = 0
    encode_cycles: int = 0

    @property
    def code_bits(self) -> int:
        """Bits of the elements of a block of 32."""
        return self.element_bits * MX_BLOCK

    @property
    def has_halves(self) -> bool:
        """Whether a block's elements stand in two banks, 16 each, and are read in turn."""
        return self.element_bits == 16

    @property
    def read_bits(self) -> int:
        """Bits of the elements of a block that one read gives."""
        return self.code_bits // 2 if self.has_halves else self.code_bits

    @property
    def is_affine(self) -> bool:
        """Whether a block has a zero and a scale: ``zero + code · scale``."""
        return self.block_bits == 32


KV_WORDS = {
    "fp16": KvWords(element_bits=16, block_bits=0, score_cycles=1, value_cycles=1),
    "kivi": KvWords(element_bits=16, block_bits=0, score_cycles=2, value_cycles=2),
    "int8": KvWords(element_bits=8, block_bits=5),
    "int4": KvWords(element_bits=4, block_bits=32, score_cycles=2, value_cycles=1, encode_cycles=3),
    "int2": KvWords(element_bits=2, block_bits=32, score_cycles=2, value_cycles=1, encode_cycles=3),
}
"""By codec. The added cycles are those of `romsim_compiler.kv_cycles.CODEC_CYCLES`."""
