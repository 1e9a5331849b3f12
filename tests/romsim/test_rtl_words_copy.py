"""Which blocks of a copied page are compared: those that a head of the model has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from romsim.rtl_words_copy import copied_words
from romsim_compiler.kv import parse_kv
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_models.shapes import TINY
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.driver_trace import Memory, Writes


def sizes_of(*, head_dim: int, n_groups: int) -> AttentionSizes:
    small = load_target("small")
    target: Target = replace(
        small,
        array=replace(small.array, n_tiles=1),
        attention=replace(small.attention, word_elems=64),
        vector=replace(small.vector, n_lanes=32 * n_groups),
        schedule=replace(small.schedule, n_slots=2),
        kv=parse_kv("int8,layout=paged,block=4"),
    )
    spec = replace(TINY["tiny-int4"], head_dim=head_dim, n_heads=2, n_kv_heads=2, n_layers=1)
    return AttentionSizes.of(target, spec, context=8)


def kept(sizes: AttentionSizes, name: str, addresses: list[int]) -> list[list[bool]]:
    """Return the mask of each address, of a copy that writes whole words."""
    n = len(addresses)
    one = Writes(
        memory=Memory(name=name, n_lanes=2, lane_bits=256),
        cycles=np.arange(n),
        addresses=np.array(addresses),
        masks=np.ones((n, 2), dtype=bool),
        bits=np.zeros((n, 2, 256), dtype=np.uint8),
    )
    (found,) = copied_words([one], sizes)
    masks: list[list[bool]] = found.masks.tolist()
    return masks


def test_a_heads_last_word_may_be_half_full() -> None:
    sizes = sizes_of(head_dim=96, n_groups=1)
    assert (sizes.row_words, sizes.word_blocks, sizes.head_blocks) == (2, 2, 3)
    assert kept(sizes, "hside0.tile0.k.codes0", [0, 1]) == [[True, True], [True, False]]


def test_a_block_lies_in_the_bank_of_its_lane_group() -> None:
    sizes = sizes_of(head_dim=96, n_groups=2)
    # 6 blocks of queries: the first block of the first key comes from group 0, of the second from 1
    second = sizes.tile_tokens * sizes.row_words
    assert kept(sizes, "hside0.tile0.k.codes0", [0, 1, second, second + 1]) == [
        [True, False], [True, False], [False, True], [False, False],
    ]  # fmt: skip
    assert kept(sizes, "hside0.tile0.k.shifts1", [0, 1, second, second + 1]) == [
        [False, True], [False, False], [True, False], [True, False],
    ]  # fmt: skip


def test_layers_that_the_model_has_not_are_left_out() -> None:
    sizes = sizes_of(head_dim=64, n_groups=1)
    beyond = 2 * sizes.tile_tokens  # of two heads of one layer
    assert kept(sizes, "hside0.tile0.v.codes0", [beyond - 1, beyond]) == [
        [True, True],
        [False, False],
    ]


def test_other_memories_stay_as_they_are() -> None:
    sizes = sizes_of(head_dim=96, n_groups=2)
    assert kept(sizes, "hside0.tile0.q0.codes0", [0, 1]) == [[True, True], [True, True]]
