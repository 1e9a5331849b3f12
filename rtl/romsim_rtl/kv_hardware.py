"""Which KV configurations the RTL has hardware for, axis by axis (docs/kv.md)."""

from __future__ import annotations

from romsim_compiler.kv import KvConfig
from romsim_compiler.target import MX_BLOCK
from romsim_models.errors import SpecError

__all__ = ["KV_HARDWARE", "check_kv_hardware"]

KV_HARDWARE = {
    "codec": ("int8", "int4", "int2", "fp16", "kivi"),
    "retention": ("all", "stream", "h2o"),
    "layout": ("contiguous", "ring", "paged", "slotmap"),
}
"""Values of each axis that unit H is built for; the plain cache's first."""


def check_kv_hardware(kv: KvConfig, *, n_lanes: int) -> None:
    """Refuse a KV configuration of which a choice has no hardware.

    Parameters
    ----------
    n_lanes
        Lanes of unit V.

    Raises
    ------
    SpecError
        With the first axis whose choice has none.
    """
    for axis, built in KV_HARDWARE.items():
        found = getattr(kv, axis)
        if found not in built:
            raise SpecError(
                f"kv.{axis} of an RTL target must be one of {', '.join(built)}, not {found!r}, for "
                f"which there is no hardware yet; compile with --kv {axis}={built[0]}"
            )
    if kv.codec == "kivi" and kv.group != MX_BLOCK:
        raise SpecError(
            f"kv.group of an RTL target must be {MX_BLOCK} with codec kivi, the values that its "
            f"encoder takes, not {kv.group}; compile with --kv group={MX_BLOCK} beside the rest"
        )
    if kv.group and n_lanes % kv.group:
        raise SpecError(
            f"kv.group of an RTL target must divide its {n_lanes} vector lanes, which encode a "
            f"group at a time, not be {kv.group}; compile with --kv {kv.codec},group={MX_BLOCK}"
        )
