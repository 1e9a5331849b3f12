"""ROM-based LLM accelerators: compile, simulate, verify, measure."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from romsim.api import (
        audit,
        build_report,
        compare,
        compile,
        load,
        perplexity,
    )
    from romsim.kv_quality import kv_eval
    from romsim.kv_room import kv_capacity
    from romsim.logic_rom_area import logic_rom
    from romsim.parallel_sampling import sample
    from romsim.prompt_session import session
    from romsim.synthesis import synth
    from romsim.verification import verify

__all__ = [
    "audit",
    "build_report",
    "compare",
    "compile",
    "kv_capacity",
    "kv_eval",
    "load",
    "logic_rom",
    "perplexity",
    "sample",
    "session",
    "synth",
    "verify",
]

# All others: romsim.api
_MODULES = {
    "kv_capacity": "romsim.kv_room",
    "kv_eval": "romsim.kv_quality",
    "logic_rom": "romsim.logic_rom_area",
    "sample": "romsim.parallel_sampling",
    "session": "romsim.prompt_session",
    "synth": "romsim.synthesis",
    "verify": "romsim.verification",
}


def __getattr__(name: str) -> object:
    """Import a call when it is used, so that `import romsim` and `romsim --help` stay fast."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(_MODULES.get(name, "romsim.api")), name)
    raise AttributeError(f"module 'romsim' has no attribute {name!r}")
