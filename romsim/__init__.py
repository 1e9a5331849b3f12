"""ROM-based LLM accelerators: compile, simulate, verify, measure."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from romsim.api import (
        audit,
        build_report,
        compare,
        compile,
        load,
        logic_rom,
        perplexity,
        verify,
    )

__all__ = [
    "audit",
    "build_report",
    "compare",
    "compile",
    "load",
    "logic_rom",
    "perplexity",
    "verify",
]


def __getattr__(name: str) -> object:
    """Import a call when it is used, so that `import romsim` and `romsim --help` stay fast."""
    if name in __all__:
        from romsim import api

        return getattr(api, name)
    raise AttributeError(f"module 'romsim' has no attribute {name!r}")
