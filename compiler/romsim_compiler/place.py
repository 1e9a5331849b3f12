"""Placement: an address range in every ROM cell for each group (docs/machine.md, section 2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from romsim_compiler.groups import Group
from romsim_compiler.mapping import Mapping, map_group
from romsim_compiler.target import Target
from romsim_models.errors import CapacityError

__all__ = ["Placement", "check_placement", "group_bits", "place", "size_groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Mapping and base address of each group, in program order."""

    entries: tuple[tuple[Group, Mapping, int], ...]
    n_words: int  # addresses used in every cell

    def used_bits(self) -> int:
        """Return the ROM bits that hold codes, scales and minima of the model."""
        return sum(group_bits(g) for g, _, _ in self.entries)


def group_bits(group: Group) -> int:
    """Return the bits of a group's codes, scales and minima."""
    return round(group.n_rows * group.n_cols * group.fmt.bits_per_weight())


def size_groups(groups: Iterable[Group], target: Target) -> list[Mapping]:
    """Return the mapping of each group on the target."""
    array, lanes = target.array, target.vector.n_lanes
    return [map_group(g.n_rows, g.n_cols, g.fmt.planes(array), array, lanes) for g in groups]


def place(groups: Sequence[Group], target: Target) -> Placement:
    """Place the groups one after another.

    Raises
    ------
    CapacityError
        If they need more words than a cell has: needed and available bytes, the largest groups and
        the remedy.
    """
    mappings = size_groups(groups, target)
    entries, base = [], 0
    for group, mapping in zip(groups, mappings, strict=True):
        entries.append((group, mapping, base))
        base += mapping.n_words
    if base > target.array.rom_rows:
        raise CapacityError(_too_large(groups, mappings, base, target))
    return Placement(entries=tuple(entries), n_words=base)


def _too_large(
    groups: Sequence[Group], mappings: Sequence[Mapping], needed: int, target: Target
) -> str:
    array = target.array
    per_word = array.n_tiles * array.n_cells * array.word_bits / 8
    largest = sorted(zip(groups, mappings, strict=True), key=lambda p: -p[1].n_words)[:3]
    listed = ", ".join(f"{g.name} {m.n_words * per_word / 1e6:.3g} MB" for g, m in largest)
    return (
        f"Model must fit the ROM of target {target.name!r}: it needs {needed * per_word:.0f} bytes "
        f"({needed} words in each of {array.n_tiles * array.n_cells} cells), not the "
        f"{array.rom_rows * per_word:.0f} available ({array.rom_rows} words); largest: {listed}; "
        f"raise array.rom_rows to {needed}, use fewer bits, or let --fit size the chip"
    )


def check_placement(placement: Placement, target: Target) -> None:
    """Prove that no two groups share an address and that all lie inside the cells.

    Raises
    ------
    CapacityError
        If two groups overlap or one ends past the last word.
    """
    end = 0
    last = "nothing"
    for group, mapping, base in placement.entries:
        if base < end:
            raise CapacityError(
                f"Group {group.name!r} must start at word {end} or later, not {base}: it overlaps "
                f"{last}"
            )
        last, end = group.name, base + mapping.n_words
    if end > target.array.rom_rows:
        raise CapacityError(f"Group {last!r} must end by word {target.array.rom_rows}, not {end}")
