"""Which KV configurations have words that can be traced, axis by axis (docs/kv.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from romsim_compiler.kv import KvConfig

__all__ = ["check_traced"]

_TRACED = {
    "codec": ("int8", "int4", "int2", "fp16", "kivi"),
    "retention": ("all", "stream", "h2o"),
    "layout": ("contiguous", "ring", "paged", "slotmap"),
}


def check_traced(kv: KvConfig) -> None:
    """Refuse a KV configuration whose words cannot be traced.

    Raises
    ------
    SpecError
        With the first axis whose choice cannot.
    """
    for axis, traced in _TRACED.items():
        found = getattr(kv, axis)
        if found not in traced:
            raise SpecError(
                f"Trace of SRAM writes must be with kv.{axis} one of {', '.join(traced)}, not "
                f"{found!r}, whose words no RTL writes; compile with --kv {axis}={traced[0]}"
            )
