"""Design point and area of a compiled description: reports then need no weights."""

from __future__ import annotations

from romsim.area import AreaReport, estimate_area
from romsim.design_point import DesignPoint
from romsim_compiler.description import Description
from romsim_compiler.formats import WeightFormat
from romsim_compiler.groups import Group, Member
from romsim_compiler.program import PlacedGroup

__all__ = ["area_of_description", "point_of_description"]


def area_of_description(description: Description) -> AreaReport:
    """Return the estimated area of a description's chip, hardware of resident adapters included."""
    return estimate_area(description.target, spec=description.spec, rank=description.lora_rank)


def point_of_description(description: Description) -> DesignPoint:
    """Return the design point that a description was compiled from.

    Its mappings, cycles and ROM words are the description's own, which tests prove.
    """
    groups = [_group(placed) for placed in description.groups.values()]
    return DesignPoint.of_groups(description.spec, description.target, groups)


def _group(placed: PlacedGroup) -> Group:
    return Group(
        name=placed.name,
        layer=placed.layer,
        members=tuple(
            Member(tensor=tensor, operator=operator, first_row=first, n_rows=rows)
            for tensor, operator, first, rows in placed.members
        ),
        n_rows=placed.mapping.n_rows,
        n_cols=placed.mapping.n_cols,
        fmt=WeightFormat(
            name=f"{placed.kind}{placed.code_bits}g{placed.group}",
            code_bits=placed.code_bits,
            kind=placed.kind,
            offset=placed.offset,
            group=placed.group,
            has_minimum=placed.has_minimum,
        ),
    )
