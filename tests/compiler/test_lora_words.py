from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim_compiler.lora_image import LoraImage, LoraProjection
from romsim_compiler.lora_words import check_lora_capacity, lora_bits, lora_layout, pack_lora
from romsim_models.errors import CapacityError
from tests.compiler.rom_arrays import make_array, make_spec, make_target


def projection(
    rng: np.random.Generator, first: int, n_rows: int, n_cols: int, rank: int
) -> LoraProjection:
    block = min(32, rank)
    padded = -(-rank // block) * block

    def codes(*shape: int) -> np.ndarray:
        return rng.integers(-127, 128, shape, dtype=np.int8)

    def exps(*shape: int) -> np.ndarray:
        return rng.integers(-40, 10, shape, dtype=np.int8)

    return LoraProjection(
        tensor=f"t{first}", operator="q", first_row=first, n_rows=n_rows, rank=rank,
        a_codes=codes(padded, n_cols), a_exps=exps(padded, -(-n_cols // 32)),
        b_codes=codes(n_rows, padded), b_exps=exps(n_rows, padded // block),
        grid_a=0, grid_b=0, error=0.0,
    )  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from((0, 1, 5, 8, 12, 16, 32, 33, 64, 96))),
        min_size=1,
        max_size=3,
    ).filter(lambda members: any(rank for _, rank in members)),
    st.integers(1, 150),
    st.sampled_from((1, 2, 3, 4, 16, 21, 64)),
    st.sampled_from((32, 64, 128)),
    st.integers(0, 2**32),
)
def test_every_code_and_exponent_stands_where_the_page_says(
    members: list[tuple[int, int]], n_cols: int, n_tiles: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    projections, ranks, first = [], [], 0
    for n_rows, rank in members:
        ranks.append(0)
        if rank:
            projections.append(projection(rng, first, n_rows, n_cols, rank))
            ranks[-1] = projections[-1].padded_rank
        first += n_rows
    image = LoraImage(
        name="L0.qkv", layer=0, n_rows=first, n_cols=n_cols, ranks=tuple(ranks),
        projections=tuple(projections),
    )  # fmt: skip
    target = make_target(array=make_array(n_tiles=n_tiles), word_elems=width)
    packed = pack_lora(image, target)
    a_left, b_left = packed.a_words.copy(), packed.b_words.copy()

    def take(words: np.ndarray, tile: int, word: int, at: int) -> int:
        byte = int(words[tile, word, at])
        words[tile, word, at] = 0
        return byte

    row_words, n_a_rows = -(-n_cols // width), sum(ranks)
    shared = 1
    while 2 * shared * n_a_rows <= n_tiles and shared < row_words:
        shared *= 2
    places, in_tile = n_tiles // shared, -(-row_words // shared)
    j = 0
    for p in projections:
        for row in range(p.padded_rank):
            for k in range(n_cols):
                turn, part = divmod(k // width, shared)
                tile, word = j % places + part * places, j // places * in_tile + turn
                assert take(a_left, tile, word, k % width) == int(p.a_codes[row, k]) % 256
                if k % 32 == 0:
                    at = width + k % width // 32
                    expected = int(p.a_exps[row, k // 32]) % 256
                    assert take(a_left, tile, word, at) == expected
            j += 1
    widest = max(ranks)
    rw = max(1, width // widest)
    for p in projections:
        for row in range(p.n_rows):
            step, r = divmod(p.first_row + row, n_tiles * rw)
            tile, slot = divmod(r, rw)
            for c in range(p.padded_rank):
                word = step * -(-widest // width) + (c // width if rw == 1 else 0)
                lane = c % width if rw == 1 else slot * widest + c
                assert take(b_left, tile, word, lane) == int(p.b_codes[row, c]) % 256
                if c % p.block == 0:
                    block = c // p.block
                    at = block % (width // 32) if rw == 1 else slot * -(-widest // 32) + block
                    expected = int(p.b_exps[row, block]) % 256
                    assert take(b_left, tile, word, width + at) == expected
    assert not a_left.any()
    assert not b_left.any()
    assert packed.n_bits == 8 * packed.layout.tile_bytes * n_tiles


def test_word_counts_are_those_of_the_cycle_formula() -> None:
    """The lora row of docs/machine.md, section 5 reads each word of A and of B once."""
    layout = lora_layout(960, 576, (16, 16, 16), n_tiles=8, word_elems=64)
    assert (layout.n_a_words, layout.rows_per_word) == (6 * 9, 4)
    assert layout.n_b_words == 30
    wide = lora_layout(960, 576, (64, 0, 32), n_tiles=8, word_elems=32)
    assert (wide.n_a_words, wide.rows_per_word, wide.n_b_words) == (12 * 18, 1, 240)
    # 48 rows on 256 tiles: four share a row, of 48 words
    roma = lora_layout(5120, 3072, (16, 16, 16), n_tiles=256, word_elems=64)
    assert (roma.a_parts, roma.n_a_words, roma.n_b_words) == (4, 12, 5)
    # one word has nothing to share
    assert lora_layout(32, 64, (4,), n_tiles=256, word_elems=64).a_parts == 1
    assert lora_layout(32, 65, (4,), n_tiles=256, word_elems=64).a_parts == 2


def test_bits_of_a_model_are_the_sum_of_its_words() -> None:
    spec, target = make_spec(n_layers=2), make_target()
    ranks = {"blk.0.attn_q.weight": 5, "blk.1.ffn_down.weight": 33}
    qkv = lora_layout(128, 64, (5, 0, 0), n_tiles=2, word_elems=32)
    down = lora_layout(64, 96, (64,), n_tiles=2, word_elems=32)
    assert lora_bits(spec, ranks, target) == 16 * (qkv.tile_bytes + down.tile_bytes)
    assert lora_bits(spec, {}, target) == 0


def test_an_adapter_that_does_not_fit_is_refused() -> None:
    spec, target = make_spec(), make_target(sram_kib=4)
    ranks = {"blk.0.attn_q.weight": 32}
    needed = lora_bits(spec, ranks, target) // 16
    check_lora_capacity("story", ranks, spec, target, used_bytes=4096 - needed)
    with pytest.raises(
        CapacityError,
        match=rf"^Adapter 'story' \(ranks up to 32\) must fit the SRAM of a tile of target 'test': "
        rf"it needs {needed} bytes, not the {needed - 1} available; lower the rank or the context, "
        rf"or raise attention\.sram_kib to at least 5$",
    ):
        check_lora_capacity("story", ranks, spec, target, used_bytes=4097 - needed)
