"""Sharing one kernel's rows among threads: an atomic counter hands out pieces.

A thread that the operating system keeps waiting takes no piece, so nobody waits for it; a fixed
division with a barrier loses a time slice at every kernel on a machine that has other work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from romsim.cycle.compiled import kernel

__all__ = ["CLAIMED", "CLIPPED", "FINISHED", "N_COUNTERS", "await_finish", "fetch_add"]

CLAIMED, FINISHED, CLIPPED = 0, 8, 16
"""Places of the counters (pieces handed out, finished; saturations), a cache line apart."""
N_COUNTERS = 24
_N_SPINS = 2000  # about 10 us, longer than a piece takes a thread that is running


@intrinsic  # type: ignore[misc, unused-ignore]  # numba is untyped
def fetch_add(
    typing: Any, counters: Any, index: Any, amount: Any
) -> tuple[Any, Callable[..., Any]]:
    """Add to an int64 counter in one step that orders memory; return what it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        value = builder.sext(args[2], ir.IntType(64)) if args[2].type.width < 64 else args[2]
        return builder.atomic_rmw("add", builder.gep(data, [args[1]]), value, "seq_cst")

    return types.int64(counters, types.intp, types.int64), generate


@kernel
def await_finish(counters: Any, total: Any) -> Any:
    """Return whether ``total`` pieces are finished, after a moment of waiting at most."""
    n_spins = 0
    while n_spins < _N_SPINS and fetch_add(counters, FINISHED, 0) < total:
        n_spins += 1
    return n_spins < _N_SPINS
