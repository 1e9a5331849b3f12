"""LoRA adapters as SRAM words of the tiles: layout, size, capacity (docs/machine.md, section 3).

A word holds ``W`` codes, one byte each, and behind them its exponents, one byte each. A word of A
is 32-blocks of one row: ``W / 32`` exponents. A word of B holds ``rw = max(1, W div r)`` rows of
the group, ``r`` being the group's widest padded rank: row ``s`` of the word has its codes at
``s · r`` and its exponents at ``s · ceil(r / 32)``; a row of more than ``W`` codes takes several
words. What is absent is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.formats import SHIPPED_FORMATS
from romsim_compiler.groups import layer_groups
from romsim_compiler.lora_adders import adder_lora_bits
from romsim_compiler.row_parts import row_parts
from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.errors import CapacityError
from romsim_models.spec import ModelSpec

if TYPE_CHECKING:
    from romsim_compiler.lora_image import LoraImage

__all__ = [
    "LoraLayout",
    "LoraWords",
    "check_lora_capacity",
    "lora_bits",
    "lora_layout",
    "pack_lora",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraLayout:
    """Sizes of one group's adapter in each tile.

    Parameters
    ----------
    n_tiles, word_elems
        ``T`` and ``W`` of the target.
    slot
        Codes between two rows in a word of B: the widest padded rank.
    rows_per_word
        ``rw``.
    a_parts
        Tiles that share a row of A, a power of two: as many as leave every row tiles of its own.
    a_part_words, b_row_words
        Words of a row of A in a tile, and of a row of B.
    n_a_words, n_b_words
        Words of A and of B in a tile.
    a_exps, b_exps
        Exponents in a word of A, and of B.
    """

    n_tiles: int
    word_elems: int
    slot: int
    rows_per_word: int
    a_parts: int
    a_part_words: int
    b_row_words: int
    n_a_words: int
    n_b_words: int
    a_exps: int
    b_exps: int

    @property
    def tile_bytes(self) -> int:
        """Bytes in each tile, exponents included."""
        a_word, b_word = self.word_elems + self.a_exps, self.word_elems + self.b_exps
        return self.n_a_words * a_word + self.n_b_words * b_word


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoraWords:
    """One group's adapter as SRAM words.

    Parameters
    ----------
    layout
        Sizes.
    a_words
        uint8 [n_tiles, n_a_words, W + exponents].
    b_words
        uint8 [n_tiles, n_b_words, W + exponents].
    """

    layout: LoraLayout
    a_words: NDArray[np.uint8]
    b_words: NDArray[np.uint8]

    @property
    def n_bits(self) -> int:
        """Bits of all words of all tiles."""
        return 8 * (self.a_words.size + self.b_words.size)


def lora_layout(
    n_rows: int, n_cols: int, ranks: tuple[int, ...], *, n_tiles: int, word_elems: int
) -> LoraLayout:
    """Return the layout of a group's adapter.

    Parameters
    ----------
    n_rows, n_cols
        Shape of the group.
    ranks
        Padded rank of each matrix of the group, at least one of them not 0.
    n_tiles, word_elems
        ``T`` and ``W`` of the target.
    """
    widest = max(ranks)
    rows_per_word = max(1, word_elems // widest)
    a_parts, a_part_words = row_parts(sum(ranks), -(-n_cols // word_elems), n_tiles)
    b_row_words = -(-widest // word_elems)
    blocks = word_elems // MX_BLOCK
    return LoraLayout(
        n_tiles=n_tiles,
        word_elems=word_elems,
        slot=widest,
        rows_per_word=rows_per_word,
        a_parts=a_parts,
        a_part_words=a_part_words,
        b_row_words=b_row_words,
        n_a_words=-(-sum(ranks) // n_tiles) * a_part_words,
        n_b_words=-(-n_rows // (n_tiles * rows_per_word)) * b_row_words,
        a_exps=blocks,
        b_exps=max(blocks, rows_per_word * -(-widest // MX_BLOCK)) if rows_per_word > 1 else blocks,
    )


def pack_lora(image: LoraImage, target: Target) -> LoraWords:
    """Pack one group's adapter into the words of a target's tiles.

    Parameters
    ----------
    image
        Codes and exponents.
    target
        Gives the number of tiles and the codes of a word.
    """
    layout = lora_layout(
        image.n_rows,
        image.n_cols,
        image.ranks,
        n_tiles=target.array.n_tiles,
        word_elems=target.attention.word_elems,
    )
    return LoraWords(
        layout=layout, a_words=_a_words(image, layout), b_words=_b_words(image, layout)
    )


def _a_words(image: LoraImage, layout: LoraLayout) -> NDArray[np.uint8]:
    width = layout.word_elems
    codes = np.concatenate([p.a_codes for p in image.projections]).view(np.uint8)
    exps = np.concatenate([p.a_exps for p in image.projections]).view(np.uint8)
    n_rows, parts, n_words = codes.shape[0], layout.a_parts, layout.a_part_words
    apart = layout.n_tiles // parts  # tiles between two that share a row
    rows_of_tile = layout.n_a_words // n_words
    words = np.zeros((rows_of_tile * apart, n_words * parts, width + layout.a_exps), dtype=np.uint8)
    whole = n_words * parts  # words of a row, those that are absent included
    words[:n_rows, :, :width] = _widen(codes, whole * width).reshape(n_rows, whole, width)
    words[:n_rows, :, width:] = _widen(exps, whole * layout.a_exps).reshape(n_rows, whole, -1)
    # Part p of row j, words p, p + parts ..., in tile p · apart + j mod apart:
    # [local, place, word, part, byte] -> [part, place, local, word, byte].
    by_tile = words.reshape(rows_of_tile, apart, n_words, parts, -1).transpose(3, 1, 0, 2, 4)
    result = np.zeros((layout.n_tiles, layout.n_a_words, words.shape[-1]), dtype=np.uint8)
    result[: parts * apart] = by_tile.reshape(parts * apart, layout.n_a_words, -1)
    return result


def _b_words(image: LoraImage, layout: LoraLayout) -> NDArray[np.uint8]:
    width, slot, packed = layout.word_elems, layout.slot, layout.rows_per_word
    slot_exps = -(-slot // MX_BLOCK)
    if packed == 1:  # a row has its words for itself
        slot = layout.b_row_words * width
        slot_exps = layout.b_row_words * layout.b_exps
    n_steps = layout.n_b_words // layout.b_row_words
    n_rows = n_steps * layout.n_tiles * packed
    codes = np.zeros((n_rows, slot), dtype=np.uint8)
    exps = np.zeros((n_rows, slot_exps), dtype=np.uint8)
    for p in image.projections:
        rows = slice(p.first_row, p.first_row + p.n_rows)
        codes[rows, : p.padded_rank] = p.b_codes.view(np.uint8)
        exps[rows, : p.b_exps.shape[1]] = p.b_exps.view(np.uint8)
    words = np.zeros(
        (n_steps, layout.n_tiles, layout.b_row_words, width + layout.b_exps), dtype=np.uint8
    )
    n_codes, n_exps = packed * slot // layout.b_row_words, packed * slot_exps // layout.b_row_words
    words[..., :n_codes] = codes.reshape(*words.shape[:3], n_codes)
    words[..., width : width + n_exps] = exps.reshape(*words.shape[:3], n_exps)
    return words.transpose(1, 0, 2, 3).reshape(layout.n_tiles, layout.n_b_words, -1)


def _widen(values: NDArray[np.uint8], n_cols: int) -> NDArray[np.uint8]:
    return np.pad(values, ((0, 0), (0, n_cols - values.shape[1])))


def lora_bits(spec: ModelSpec, ranks: Mapping[str, int], target: Target) -> int:
    """Return the bits of SRAM words that an adapter takes in all tiles of a target.

    Parameters
    ----------
    ranks
        Rank of each matrix by canonical name; it is padded here to whole blocks.
    """
    if target.lora.path == "adders":
        return adder_lora_bits(spec, {n: _pad_rank(r) for n, r in ranks.items()}, target)
    tile_bytes = 0
    for layer in range(spec.n_layers):
        for group in layer_groups(spec, layer, lambda _: SHIPPED_FORMATS["q8_0"]):
            padded = tuple(_pad_rank(ranks.get(m.tensor, 0)) for m in group.members)
            if any(padded):
                tile_bytes += lora_layout(
                    group.n_rows,
                    group.n_cols,
                    padded,
                    n_tiles=target.array.n_tiles,
                    word_elems=target.attention.word_elems,
                ).tile_bytes
    return 8 * tile_bytes * target.array.n_tiles


def _pad_rank(rank: int) -> int:
    return rank if rank <= MX_BLOCK else -(-rank // MX_BLOCK) * MX_BLOCK


def check_lora_capacity(
    name: str, ranks: Mapping[str, int], spec: ModelSpec, target: Target, *, used_bytes: int = 0
) -> None:
    """Refuse an adapter that does not fit the tiles' SRAM.

    Parameters
    ----------
    name
        Name of the adapter.
    ranks
        Rank of each matrix by canonical name.
    used_bytes
        Bytes of a tile's SRAM that other adapters and the KV cache take.

    Raises
    ------
    CapacityError
        With the needed and the available bytes of a tile.
    """
    needed = -(-lora_bits(spec, ranks, target) // (8 * target.array.n_tiles))
    available = target.attention.sram_kib * 1024 - used_bytes
    if needed > available:
        raise CapacityError(
            f"Adapter {name!r} (ranks up to {max(ranks.values())}) must fit the SRAM of a tile of "
            f"target {target.name!r}: it needs {needed} bytes, not the {available} available; "
            f"lower the rank or the context, or raise attention.sram_kib to at least "
            f"{-(-(needed + used_bytes) // 1024)}"
        )
