"""The instruction word in hardware."""

from __future__ import annotations

from amaranth.hdl import Value

from romsim_rtl.encoding import FIELDS

__all__ = ["cut_fields"]


def cut_fields(word: Value) -> dict[str, Value]:
    """Cut an instruction word into its fields, each with its sign."""
    result, at = {}, 0
    for name, (bits, is_signed) in FIELDS.items():
        part = word[at : at + bits]
        result[name] = part.as_signed() if is_signed else part
        at += bits
    return result
