"""Sizes of unit L's adapter path, and the adapter table's entries: one for each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from romsim_compiler.description import Description
from romsim_compiler.lora_adders import AdderRun, adder_runs, lora_parts, placed_runs
from romsim_compiler.lora_image import LoraImage
from romsim_compiler.target import MX_BLOCK
from romsim_models.errors import SpecError
from romsim_rtl.encoding import LORA_GROUPS, group_fracs
from romsim_rtl.lora_sizes import pack_fields
from romsim_rtl.memory import address_bits

__all__ = [
    "RUNS_LOG2",
    "AdderSizes",
    "pack_run",
    "run_entries",
    "run_mappings",
]

RUNS_LOG2 = 3
"""Base-2 logarithm of a group's entries in the table: A and B of three matrices are 6."""

_CHUNKS = 3
_ADDRESS_BITS = 20  # of the configuration port: cell and word


@dataclass(frozen=True, slots=True, kw_only=True)
class AdderSizes:
    """Memories of the adapter path in unit L.

    Parameters
    ----------
    bank_words
        Words of trits beside each cell.
    n_groups
        Groups of all layers of all resident adapters.
    max_rank
        Largest padded rank.
    z_words
        Words of the longest row of B, absent ones included.
    n_rows
        Rows of the tallest matrix group.
    n_inflight
        Tokens with a buffer D of their own.
    broadcast_cycles
        Register stages from the quantiser of z to the tiles.
    """

    bank_words: int
    n_groups: int
    max_rank: int
    z_words: int
    n_rows: int
    n_inflight: int
    broadcast_cycles: int

    @property
    def n_blocks(self) -> int:
        """Blocks of 32 in the largest rank."""
        return -(-self.max_rank // MX_BLOCK)

    @property
    def entry_fields(self) -> dict[str, tuple[int, bool]]:
        """Bits of each field of an entry, and whether it is signed."""
        fields = {
            "enable": (1, False),
            "is_up": (1, False),
            "is_last": (1, False),  # of the group's runs
            "base": (address_bits(self.bank_words), False),
            "steps": (20, False),
            "wpc": (8, False),
            "ks_log2": (4, False),
            "n_rows": (20, False),
            "first_row": (20, False),
            "out_shift": (8, True),
            "pre_shift": (6, False),
            "multiplier": (24, False),
        }
        # blocks of z after a run of A; as wide as whole chunks make it
        bits = sum(bits for bits, _ in fields.values()) + self.n_blocks.bit_length()
        return fields | {"n_blocks": (self.n_blocks.bit_length() + -bits % _CHUNKS, False)}

    @property
    def chunk_bits(self) -> int:
        """Bits of an entry that the configuration port writes at once."""
        return sum(bits for bits, _ in self.entry_fields.values()) // _CHUNKS

    @property
    def n_chunks(self) -> int:
        """Chunks of an entry."""
        return _CHUNKS

    def d_bits(self, n_lanes: int) -> int:
        """Address bits of a beat of D, within one token's."""
        return address_bits(-(-self.n_rows // n_lanes) + 1)

    def check_fits(self, *, n_tiles: int, n_cells: int) -> None:
        """Refuse what the configuration port cannot name.

        Raises
        ------
        SpecError
            With the number of tiles, or of bits of a cell and a word.
        """
        if n_tiles > 256:
            raise SpecError(
                f"n_tiles of the RTL must be at most 256 with adapters, not {n_tiles!r}"
            )
        bits = address_bits(n_cells) + address_bits(self.bank_words)
        if bits > _ADDRESS_BITS:
            raise SpecError(
                f"Adapters of the RTL must have words and cells that {_ADDRESS_BITS} bits name, "
                f"not {bits} for {self.bank_words} words beside {n_cells} cells; lower the rank or "
                f"leave out an adapter"
            )

    @classmethod
    def of(cls, *models: Description) -> AdderSizes | None:
        """Take the largest of what resident adapters need, or ``None`` if there are none.

        Raises
        ------
        SpecError
            If the chip cannot be told of them.
        """
        first = models[0]
        if first.target.lora.path != "adders" or not any(model.loras for model in models):
            return None
        runs = [run for model in models for _, run in _runs(model)]
        made = cls(
            bank_words=max(1, *(_bank_words(model) for model in models)),
            n_groups=max(
                len(model.loras) * model.spec.n_layers * len(LORA_GROUPS) for model in models
            ),
            max_rank=max(run.mapping.n_rows for run in runs if not run.is_up),
            z_words=max(run.mapping.ks * run.mapping.wpc for run in runs if run.is_up),
            n_rows=max(
                sum(lora_parts(model.spec, stem)[0]) for model in models for stem in LORA_GROUPS
            ),
            n_inflight=first.target.schedule.n_inflight,
            broadcast_cycles=first.target.network.broadcast_cycles,
        )
        array = first.target.array
        made.check_fits(n_tiles=array.n_tiles, n_cells=array.n_cells)
        return made


def _runs(description: Description) -> Iterator[tuple[LoraImage, AdderRun]]:
    for adapter in description.loras.values():
        for image in adapter.groups.values():
            parts, n_cols = lora_parts(description.spec, image.name.partition(".")[2])
            for run in adder_runs(parts, n_cols, image.ranks, description.target):
                yield image, run


def _bank_words(description: Description) -> int:
    return sum(run.mapping.n_words for _, run in _runs(description) if run.is_there)


def run_mappings(*models: Description) -> list[int]:
    """Return the base-2 logarithms of the cells that share a row in a run of some adapter."""
    return sorted({run.mapping.ks.bit_length() - 1 for model in models for _, run in _runs(model)})


def run_entries(
    image: LoraImage, description: Description, *, base: int, n_lanes: int
) -> list[dict[str, int]]:
    """Return the table's entries of one group's adapter, by field.

    Parameters
    ----------
    base
        First word of the group beside every cell.
    n_lanes
        Lanes of unit V.

    Raises
    ------
    SpecError
        If a matrix's rows do not begin at a beat.
    """
    kind = image.name.partition(".")[2]
    in_frac, out_frac = group_fracs(description, image.layer, kind)
    linear = description.numerics.linear_frac
    parts, _ = lora_parts(description.spec, kind)
    ternary = iter(image.ternary)
    current = None
    entries = []
    for run, first in placed_runs(description.spec, image, description.target):
        if run.is_there and (not run.is_up or current is None):
            current = next(ternary)
        mapping = run.mapping
        first_row = sum(parts[: run.projection]) if run.is_up else 0
        beat = min(n_lanes, mapping.rows_per_step)
        if first_row % beat:
            raise SpecError(
                f"First row of matrix {run.projection} of {image.name!r} must be a multiple of the "
                f"{beat} rows of a beat for an adapter in RTL, not {first_row}; choose fewer "
                f"vector lanes"
            )
        values = {
            "enable": 1,
            "is_up": int(run.is_up),
            "base": base + first if run.is_there else 0,
            "steps": mapping.steps,
            "wpc": mapping.wpc,
            "ks_log2": mapping.ks.bit_length() - 1,
            "n_rows": mapping.n_rows,
            "first_row": first_row,
            "n_blocks": run.n_blocks,
        }
        if run.is_there:
            assert current is not None  # a matrix with an adapter has a run of A before that of B
            factor = current.b if run.is_up else current.a
            places = linear - out_frac if run.is_up else in_frac - linear
            values |= {
                "out_shift": places - factor.exponent - factor.pre_shift,
                "pre_shift": factor.pre_shift,
                "multiplier": factor.multiplier,
            }
        entries.append(values)
    entries[-1]["is_last"] = 1
    return entries


def pack_run(values: Mapping[str, int], sizes: AdderSizes) -> Sequence[int]:
    """Return an entry's chunks, the first field in the lowest bits.

    Raises
    ------
    SpecError
        If a value does not fit its field.
    """
    word = pack_fields(values, sizes.entry_fields)
    mask = (1 << sizes.chunk_bits) - 1
    return [word >> chunk * sizes.chunk_bits & mask for chunk in range(sizes.n_chunks)]
