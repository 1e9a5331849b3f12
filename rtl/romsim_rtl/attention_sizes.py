"""Sizes of unit H: what the attention and adapter modules derive from a target and a model."""

from __future__ import annotations

from dataclasses import dataclass

from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec
from romsim_rtl.kivi_sizes import KiviSizes
from romsim_rtl.kv_words import KV_WORDS, KvWords
from romsim_rtl.memory import address_bits

__all__ = [
    "ATTN_CYCLES",
    "BLOCK_CYCLES",
    "CODES_BITS",
    "MAX_BITS",
    "SHIFT_BITS",
    "AttentionSizes",
    "log2",
]

CODES_BITS = 8 * MX_BLOCK
"""Bits of the codes of a block."""

SHIFT_BITS = 5
"""Bits of a block's exponent, 0 to 25."""

MAX_BITS = 17
"""Bits of a block's maximum ``m``, which is from -2^15 to 2^15."""

ATTN_CYCLES = 6
"""λ_attn: instruction and base address (2), tile sum, merge and write of the last beat (4)."""

BLOCK_CYCLES = 19
"""λ_block: scores (7), maximum over tiles (4), exponentials (5), values (3)."""


def log2(value: int) -> int:
    """Exponent of a power of two."""
    return value.bit_length() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes:
    """Loop sizes and widths of unit H.

    Parameters
    ----------
    n_tiles, n_lanes, word_elems
        ``T``, ``VL`` and ``W`` of docs/machine.md; powers of two, the last two at least 32.
    heads_parallel
        Query heads that are multiplied with one KV word.
    attn_block
        Tokens of a softmax block, a multiple of ``n_tiles`` and a power of two.
    n_heads, n_kv_heads, head_dim, n_layers
        Of the model; ``head_dim`` is a multiple of 32.
    context
        Slots for which the K and V banks have room: of tokens that attention reads at a time.
    n_inflight
        Tokens with buffers of their own.
    broadcast_cycles, collect_cycles
        Register stages to and from the tiles.
    linear_frac
        ``F_A`` of docs/numerics.md.
    is_ring
        Whether the newest tokens take the slots of the oldest.
    codec
        Of the KV cache, one of `KV_WORDS`.
    sinks
        First slots, which are never taken and are read by a query of their own.
    block
        Slots of a page, whose row a block table gives; 0 where a slot's row is its number.
    n_sequences
        Sequences that draw on one pool of pages; 1 without pages.
    heavy, window
        Tokens that are kept for their attention mass, and the newest ones, which are kept anyway;
        0 both where mass is not counted.
    kivi
        Rows of the banks of codec ``kivi``.

    Raises
    ------
    SpecError
        If a size is impossible for the template.
    """

    n_tiles: int
    n_lanes: int
    word_elems: int
    heads_parallel: int
    attn_block: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_layers: int
    context: int
    n_inflight: int
    broadcast_cycles: int
    collect_cycles: int
    linear_frac: int = 16
    is_ring: bool = False
    codec: str = "int8"
    sinks: int = 0
    block: int = 0
    n_sequences: int = 1
    heavy: int = 0
    window: int = 0
    kivi: KiviSizes | None = None

    def __post_init__(self) -> None:
        for name in ("n_tiles", "n_lanes", "word_elems", "attn_block"):
            value, least = getattr(self, name), MX_BLOCK if name in ("n_lanes", "word_elems") else 1
            if value < least or value & (value - 1):
                raise SpecError(
                    f"{name} of the RTL must be a power of two of at least {least}, not {value!r}"
                )
        if self.attn_block % self.n_tiles:
            raise SpecError(
                f"attn_block of the RTL must be a multiple of the {self.n_tiles} tiles, "
                f"not {self.attn_block!r}"
            )
        if self.head_dim < 1 or self.head_dim % MX_BLOCK:
            raise SpecError(
                f"head_dim of the RTL must be a multiple of {MX_BLOCK}, not {self.head_dim!r}"
            )
        if self.n_kv_heads < 1 or self.n_heads % self.n_kv_heads or self.n_heads < 1:
            raise SpecError(
                f"n_heads must be a multiple of the {self.n_kv_heads} KV heads, "
                f"not {self.n_heads!r}"
            )
        if not 1 <= self.context <= 65536:
            raise SpecError(f"context of the RTL must be from 1 to 65536, not {self.context!r}")
        for name in ("heads_parallel", "n_layers", "n_inflight"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        for name in ("broadcast_cycles", "collect_cycles"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name} must be at least 0, not {getattr(self, name)!r}")
        if not 8 < self.linear_frac <= 24:
            raise SpecError(
                f"linear_frac of the RTL must be from 9 to 24, not {self.linear_frac!r}"
            )
        if self.codec != "int8" and self.linear_frac != 16:
            raise SpecError(
                f"linear_frac of the RTL must be 16 with KV codec {self.codec!r}, whose words have "
                f"that many fraction bits, not {self.linear_frac!r}"
            )

    @classmethod
    def of(
        cls, target: Target, spec: ModelSpec, *, context: int, linear_frac: int = 16
    ) -> AttentionSizes:
        """Take the sizes from a target and a model.

        Raises
        ------
        SpecError
            If a size is impossible for the template, or the target's λ are not the RTL's.
        """
        for name, cycles in (("attn", ATTN_CYCLES), ("block", BLOCK_CYCLES)):
            if getattr(target.latency, name) != cycles:
                raise SpecError(
                    f"latency.{name} of target {target.name!r} must be {cycles}, the RTL's depth, "
                    f"not {getattr(target.latency, name)!r}"
                )
        return cls(
            n_tiles=target.array.n_tiles,
            n_lanes=target.vector.n_lanes,
            word_elems=target.attention.word_elems,
            heads_parallel=target.attention.heads_parallel,
            attn_block=target.attention.attn_block,
            n_heads=spec.n_heads,
            n_kv_heads=spec.n_kv_heads,
            head_dim=spec.head_dim,
            n_layers=spec.n_layers,
            context=target.kv.held(context),
            n_inflight=target.schedule.n_inflight,
            broadcast_cycles=target.network.broadcast_cycles,
            collect_cycles=target.network.collect_cycles,
            linear_frac=linear_frac,
            is_ring=target.kv.retention == "stream",
            codec=target.kv.codec,
            sinks=target.kv.sinks,
            block=target.kv.block,
            n_sequences=target.schedule.n_slots,
            heavy=target.kv.heavy if target.kv.retention == "h2o" else 0,
            window=target.kv.window if target.kv.retention == "h2o" else 0,
            kivi=None
            if target.kv.codec != "kivi"
            else KiviSizes.of(
                target.kv,
                n_tiles=target.array.n_tiles,
                context=context,
                n_inflight=target.schedule.n_inflight,
            ),
        )

    @property
    def words(self) -> KvWords:
        """How keys and values stand in their banks."""
        return KV_WORDS[self.codec]

    @property
    def n_groups(self) -> int:
        """Lane groups of 32 in a beat."""
        return self.n_lanes // MX_BLOCK

    @property
    def word_blocks(self) -> int:
        """Blocks of 32 in a KV word."""
        return self.word_elems // MX_BLOCK

    @property
    def head_blocks(self) -> int:
        """Blocks of 32 in a head."""
        return self.head_dim // MX_BLOCK

    @property
    def row_words(self) -> int:
        """Words of one head of one token: ``wt``."""
        return -(-self.head_dim // self.word_elems)

    @property
    def last_blocks(self) -> int:
        """Blocks of a head that its last word holds."""
        return self.head_blocks - (self.row_words - 1) * self.word_blocks

    @property
    def heads_per_kv(self) -> int:
        """Query heads that read one KV head: ``g``."""
        return self.n_heads // self.n_kv_heads

    @property
    def n_passes(self) -> int:
        """Sweeps over one KV head: ``np``."""
        return -(-self.heads_per_kv // self.heads_parallel)

    @property
    def last_lanes(self) -> int:
        """Query heads in the last pass over a KV head."""
        return self.heads_per_kv - (self.n_passes - 1) * self.heads_parallel

    @property
    def n_entries(self) -> int:
        """Passes over all KV heads; entry ``kv · np + pass`` holds up to heads_parallel heads."""
        return self.n_kv_heads * self.n_passes

    @property
    def tile_tokens(self) -> int:
        """Rows of a KV head in a tile: tokens of the context, or of all pages."""
        if self.block:
            return -(-self.n_pages // self.colours) * self.page_rows
        return -(-self.context // self.n_tiles)

    @property
    def looks_up_rows(self) -> bool:
        """Whether a token's words go to the row that a block table gives; KIVI's go to a window."""
        return self.block > 0 and self.kivi is None

    @property
    def wants_slots(self) -> bool:
        """Whether a token's slot or row is not its position's."""
        return self.is_ring or self.block > 0

    @property
    def is_ranked(self) -> bool:
        """Whether a token's slot is the one of least attention mass, once all are full."""
        return self.window > 0

    @property
    def slot_rows(self) -> int:
        """Slots of a KV head in a tile, wherever their rows are."""
        return -(-self.context // self.n_tiles)

    @property
    def n_blocks(self) -> int:
        """Attention blocks of all slots."""
        return -(-self.context // self.attn_block)

    @property
    def numerator_words(self) -> int:
        """Words of a tile's numerators: of a block; of all, each at a power of two, for mass."""
        words = self.n_entries * self.block_slots
        return self.n_blocks << address_bits(words) if self.is_ranked else words

    @property
    def sequence_pages(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.context // self.block)

    @property
    def n_pages(self) -> int:
        """Pages of the pool: of several sequences each may take as many of every colour."""
        if self.n_sequences == 1:
            return self.sequence_pages
        return -(-self.sequence_pages // self.colours) * self.colours * self.n_sequences

    @property
    def table_entries(self) -> int:
        """Entries of the block table; a sequence's begin at a power of two."""
        if self.n_sequences == 1:
            return self.sequence_pages
        return self.n_sequences << address_bits(self.sequence_pages)

    @property
    def colours(self) -> int:
        """Pages side by side in the tiles; a page keeps its number modulo this."""
        return max(1, self.n_tiles // self.block)

    @property
    def page_rows(self) -> int:
        """Rows of a page in one tile."""
        return max(1, self.block // self.n_tiles)

    @property
    def block_pages(self) -> int:
        """Pages of one colour that an attention block meets at most."""
        if self.colours > 1:
            return self.block_slots
        if self.attn_block % self.block == 0 or self.block % self.attn_block == 0:
            return max(1, self.attn_block // self.block)
        return (self.attn_block + self.block - 2) // self.block + 1

    @property
    def block_slots(self) -> int:
        """Tokens of a whole block in a tile."""
        return self.attn_block // self.n_tiles

    @property
    def kv_row(self) -> int:
        """Words of one KV head of one layer in a bank."""
        rows = self.tile_tokens if self.kivi is None else self.kivi.code_rows
        return rows * self.row_words

    @property
    def layer_words(self) -> int:
        """Words of a layer in a bank."""
        return self.n_kv_heads * self.kv_row

    @property
    def bank_words(self) -> int:
        """Words of a K bank, or a V bank."""
        return self.n_layers * self.layer_words

    @property
    def n_q_blocks(self) -> int:
        """Blocks of 32 in all query heads."""
        return self.n_heads * self.head_blocks

    @property
    def n_kv_blocks(self) -> int:
        """Blocks of 32 in all key heads."""
        return self.n_kv_heads * self.head_blocks

    @property
    def sink_blocks(self) -> int:
        """Blocks on the broadcast bus, in whole beats, of the sinks' queries, which come first."""
        return self.beats * self.n_groups if self.sinks else 0

    @property
    def beats(self) -> int:
        """Beats of VL lanes in all query heads."""
        return -(-self.n_q_blocks // self.n_groups)

    @property
    def n_levels(self) -> int:
        """Levels of the merge stack."""
        return (-(-self.context // self.attn_block)).bit_length()

    @property
    def is_aligned(self) -> bool:
        """Whether the blocks of a broadcast beat always stand in one word of one bank."""
        if self.n_groups == 1:
            return True
        return (
            self.word_blocks % self.n_groups == 0
            and self.head_blocks % self.word_blocks == 0
            and self.n_q_blocks % self.n_groups == 0
        )

    @property
    def n_banks(self) -> int:
        """SRAMs in which a bank is kept so that a beat's blocks never meet at a write port."""
        return 1 if self.is_aligned else self.n_groups

    def place_head(self, head: int) -> tuple[int, int]:
        """Return the entry and the lane of a query head."""
        kv, inside = divmod(head, self.heads_per_kv)
        in_pass, lane = divmod(inside, self.heads_parallel)
        return kv * self.n_passes + in_pass, lane
