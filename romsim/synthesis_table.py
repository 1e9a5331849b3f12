"""The measured modules of the RTL: ``tables/synthesis_asap7.toml``, read.

:mod:`romsim.synthesis_points` makes it.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from romsim_models.errors import SpecError

__all__ = ["module_um2", "module_value", "table"]


@cache
def table() -> dict[str, Any]:
    """Return the measured points and where they come from."""
    source = resources.files("romsim") / "tables" / "synthesis_asap7.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


def module_um2(module: str, **keys: Any) -> float:
    """Return the cell area of a measured module in um2.

    Raises
    ------
    SpecError
        If it was not measured.
    """
    return module_value("um2", module, **keys)


def module_value(what: str, module: str, **keys: Any) -> float:
    """Return ``um2`` or ``n_flops`` of a measured module.

    Raises
    ------
    SpecError
        If it was not measured.
    """
    for point in table()["points"]:
        if point["module"] == module and all(point.get(k) == v for k, v in keys.items()):
            return float(point[what])
    raise SpecError(
        f"Synthesised module must be one of the points of synthesis_asap7.toml, not {module!r} "
        f"with {keys}; measure it with python -m romsim.synthesis_points"
    )
