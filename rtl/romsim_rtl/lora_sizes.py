"""Sizes of the adapter path of unit H, and the adapter table's entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from romsim_compiler.lora_image import LoraImage
from romsim_compiler.lora_words import lora_layout
from romsim_compiler.target import MX_BLOCK
from romsim_models.errors import SpecError
from romsim_rtl.attention_sizes import AttentionSizes, log2
from romsim_rtl.memory import address_bits

__all__ = [
    "CHUNK_BITS",
    "ENTRY_BITS",
    "ENTRY_FIELDS",
    "LORA_CYCLES",
    "LORA_OFF_CYCLES",
    "N_PROJECTIONS",
    "PARTS_BITS",
    "LoraSizes",
    "entry_of",
    "pack_entry",
    "pack_fields",
    "part_sum_cycles",
    "rows_out",
]

LORA_CYCLES = 23
"""λ_lora: table (2), rows of A and their exponents (9), codes of z (4), rows of B (8)."""

LORA_OFF_CYCLES = 2
"""λ_lora_off: the table says that there is nothing to do."""

N_PROJECTIONS = 3
"""Matrices with an adapter in one group: q, k and v."""

CHUNK_BITS = 64
"""Bits that the configuration port writes at once."""

PARTS_BITS = 4
"""Bits of the number of tiles, as a power of two, that share a row of A."""

ENTRY_FIELDS: dict[str, tuple[int, bool]] = {
    # name: (bits, signed)
    "enable": (1, False),
    "a_base": (20, False),  # first word of A in every tile, and of B
    "b_base": (20, False),
    "last_row": (20, False),  # rows of A in a tile, less one
    "last_word": (16, False),  # words of a row of A in a tile, less one
    "parts_log2": (PARTS_BITS, False),  # tiles that share a row of A
    "rank_sum": (10, False),  # RA
    "last_beat": (6, False),  # beats of z, less one
    "last_step": (20, False),  # steps of B, less one
    "last_part": (12, False),  # cycles of a step, less one
    "slot_log2": (3, False),  # codes of a row of B
    "n_rows": (20, False),
    # projections 1 and 2: first row of A, first row of the group
    "offset1": (10, False),
    "offset2": (10, False),
    "first1": (20, False),
    "first2": (20, False),
} | {
    f"{name}{index}": (9, True)
    # γ and the final shift, of A and of B
    for name in ("grid_a", "out_a", "grid_b", "out_b")
    for index in range(N_PROJECTIONS)
}

ENTRY_BITS = sum(bits for bits, _ in ENTRY_FIELDS.values())
assert ENTRY_BITS % CHUNK_BITS == 0  # or the table would hold bits that nothing reads


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSizes:
    """Memories of the adapter path.

    Parameters
    ----------
    max_rank
        Largest padded rank, a power of two and at most ``word_elems``.
    n_entries
        Entries of the adapter table: groups of all layers of all resident adapters.
    a_words, b_words
        Words of A and of B in a tile.
    n_cols
        Columns of the widest matrix.
    n_rows
        Rows of the tallest matrix group.

    Raises
    ------
    SpecError
        If a size is impossible for the template.
    """

    max_rank: int
    n_entries: int
    a_words: int
    b_words: int
    n_cols: int
    n_rows: int

    def __post_init__(self) -> None:
        for name in ("max_rank", "n_entries", "a_words", "b_words", "n_cols", "n_rows"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.max_rank & (self.max_rank - 1):
            raise SpecError(f"max_rank must be a power of two, not {self.max_rank!r}")

    def check_fits(self, sizes: AttentionSizes) -> None:
        """Refuse what the tiles of a chip cannot do.

        Raises
        ------
        SpecError
            If a row of B would take more than one word, or the tiles are more than the lanes.
        """
        if self.max_rank > sizes.word_elems:
            raise SpecError(
                f"max_rank of the RTL must be at most word_elems, {sizes.word_elems}, "
                f"not {self.max_rank!r}; raise attention.word_elems"
            )
        if sizes.n_tiles > sizes.n_lanes:
            raise SpecError(
                f"n_tiles of the RTL must be at most n_lanes, {sizes.n_lanes}, with adapters, "
                f"not {sizes.n_tiles!r}"
            )

    @property
    def rank_blocks(self) -> int:
        """Blocks of 32 in the largest rank."""
        return -(-self.max_rank // MX_BLOCK)

    @property
    def n_z(self) -> int:
        """Largest number of rows of A in a group."""
        return N_PROJECTIONS * self.max_rank

    def x_bits(self, sizes: AttentionSizes) -> int:
        """Address bits of a word of the x buffer, within one token's."""
        return address_bits(-(-self.n_cols // max(sizes.word_elems, sizes.n_lanes)))


def rows_out(sizes: AttentionSizes) -> int:
    """Rows of B that a tile finishes in a cycle, at most."""
    return min(sizes.word_elems, sizes.n_lanes)


def part_sum_cycles(n_tiles: int) -> int:
    """Return the cycles of the sum of a row's parts over the tiles: one for two additions."""
    return (log2(n_tiles) + 1) // 2


def pack_entry(values: Mapping[str, int]) -> int:
    """Return an entry of the adapter table; as `pack_fields`."""
    return pack_fields(values, ENTRY_FIELDS)


def pack_fields(values: Mapping[str, int], fields: Mapping[str, tuple[int, bool]]) -> int:
    """Return an entry of an adapter table, the first field in the lowest bits.

    Parameters
    ----------
    fields
        Bits of each, and whether it is signed.

    Raises
    ------
    SpecError
        If a value does not fit its field.
    """
    word, at = 0, 0
    for name, (bits, is_signed) in fields.items():
        value = int(values.get(name, 0))
        low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if is_signed else (0, 1 << bits)
        if not low <= value < high:
            raise SpecError(
                f"Adapter table field {name!r} must be from {low} to {high - 1}, not {value!r}"
            )
        word |= (value & ((1 << bits) - 1)) << at
        at += bits
    return word


def entry_of(
    image: LoraImage,
    *,
    sizes: AttentionSizes,
    lora: LoraSizes,
    a_base: int,
    b_base: int,
    in_frac: int,
    out_frac: int,
) -> dict[str, int]:
    """Return the table entry of one group's adapter, by field.

    Parameters
    ----------
    image
        The adapter.
    a_base, b_base
        First words of its A and B in every tile.
    in_frac, out_frac
        Fraction bits of the group's input and output.

    Raises
    ------
    SpecError
        If the widest rank is not a power of two, too large, or too small for the lanes.
    """
    layout = lora_layout(
        image.n_rows,
        image.n_cols,
        image.ranks,
        n_tiles=sizes.n_tiles,
        word_elems=sizes.word_elems,
    )
    least = -(-sizes.word_elems // sizes.n_lanes)
    slot = layout.slot
    if slot & (slot - 1) or not least <= slot <= lora.max_rank:
        raise SpecError(
            f"Adapter of {image.name!r} must have a largest rank that is a power of two from "
            f"{least} to {lora.max_rank} in RTL, not {slot!r}; pad A and B with zeros"
        )
    total = sum(image.ranks)
    chip_rows = sizes.n_tiles * layout.rows_per_word
    values = {
        "enable": 1,
        "a_base": a_base,
        "b_base": b_base,
        "last_row": -(-total // sizes.n_tiles) - 1,
        "last_word": layout.a_part_words - 1,
        "parts_log2": log2(layout.a_parts),
        "rank_sum": total,
        "last_beat": -(-total // sizes.n_lanes) - 1,
        "last_step": -(-image.n_rows // chip_rows) - 1,
        "last_part": max(1, -(-chip_rows // sizes.n_lanes)) - 1,
        "slot_log2": log2(slot),
        "n_rows": image.n_rows,
        "offset1": (1 << 10) - 1,
        "offset2": (1 << 10) - 1,
        "first1": (1 << 20) - 1,
        "first2": (1 << 20) - 1,
    }
    offset = 0
    for index, projection in enumerate(image.projections):
        if index:
            values[f"offset{index}"] = offset
            values[f"first{index}"] = projection.first_row
        offset += projection.padded_rank
        values |= {
            f"grid_a{index}": projection.grid_a,
            f"out_a{index}": in_frac - sizes.linear_frac - projection.grid_a,
            f"grid_b{index}": projection.grid_b,
            f"out_b{index}": sizes.linear_frac - out_frac - projection.grid_b,
        }
    return values
