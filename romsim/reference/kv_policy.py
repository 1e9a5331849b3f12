"""Which KV cache the integer reference has: `KvPolicy` (docs/kv.md)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KvPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPolicy:
    """Codec and retention; where slots lie changes no value and is not known here.

    Parameters
    ----------
    codec
        ``fp16``, ``int8``, ``int4``, ``int2``, ``kivi``, ``tiered`` or ``commvq``.
    key_bits, value_bits, group, residual, plain_sinks
        Of KIVI; the first three also of tiered, ``group`` of int4 and int2.
    head_table
        Of tiered: layer and KV head of those whose narrow codes have 4 bits.
    wide_heads
        Their number.
    stages
        Of commvq's keys; ``value_bits`` and ``residual`` are its, too.
    retention
        ``all``, ``stream`` or ``h2o``.
    sinks, window, heavy
        Of the retention, and of tiered.
    """

    codec: str = "int8"
    key_bits: int = 0
    value_bits: int = 0
    group: int = 0
    residual: int = 0
    plain_sinks: int = 0
    stages: int = 0
    wide_heads: int = 0
    head_table: tuple[tuple[int, int], ...] = ()
    retention: str = "all"
    sinks: int = 0
    window: int = 0
    heavy: int = 0

    @property
    def has_end(self) -> bool:
        """Whether a sequence's length is bounded by the exact sums: not where slots are reused."""
        return self.retention == "all"

    @property
    def is_ranked(self) -> bool:
        """Whether tokens are ranked by attention mass."""
        return self.retention == "h2o" or self.codec == "tiered"

    @property
    def is_plain(self) -> bool:
        """Whether this is MXINT8, every token kept."""
        return self == KvPolicy()
