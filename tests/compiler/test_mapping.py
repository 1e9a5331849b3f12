from hypothesis import given
from hypothesis import strategies as st

from romsim_compiler.mapping import map_group
from romsim_compiler.target import Array
from romsim_compiler.target_file import load_target


def array(n_tiles: int, n_cells: int, word_codes: int = 32) -> Array:
    return Array(
        n_tiles=n_tiles,
        n_cells=n_cells,
        rom_rows=1 << 20,
        word_codes=word_codes,
        lane_bits=4,
        encoding="unsigned",
        scale_group=32,
        scale_bits=16,
        min_bits=16,
    )


arrays = st.builds(
    array, st.integers(1, 9), st.sampled_from([1, 2, 4, 8]), st.sampled_from([32, 64, 128])
)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 4), arrays)
def test_mapping_has_a_place_for_every_word_of_every_row(
    n_rows: int, n_cols: int, planes: int, chip: Array
) -> None:
    mapping = map_group(n_rows, n_cols, planes, chip, 32)
    assert mapping.steps * mapping.rows_per_step >= n_rows
    assert (mapping.steps - 1) * mapping.rows_per_step < n_rows
    assert mapping.ks * mapping.wpc * chip.word_codes >= n_cols
    assert mapping.rows_per_step * mapping.ks == chip.n_tiles * chip.n_cells
    assert mapping.n_words == mapping.steps * mapping.wpc * planes


@given(st.integers(1, 2000), st.integers(1, 2000), arrays)
def test_no_other_split_takes_fewer_cycles(n_rows: int, n_cols: int, chip: Array) -> None:
    best = map_group(n_rows, n_cols, 1, chip, 32)
    words = -(-n_cols // chip.word_codes)
    for ks in (1, 2, 4, 8):
        if ks > chip.n_cells:
            break
        rows = chip.n_tiles * chip.n_cells // ks
        drain = -(-min(rows, n_rows) // 32)
        step = max(-(-words // ks), drain)
        cycles = -(-n_rows // rows) * step + drain - 1 + ks.bit_length() - 1
        assert best.cycles(32) <= cycles


def test_llama_8b_at_2_bits_takes_the_words_that_fit_the_published_rom() -> None:
    target = load_target("roma-7nm")
    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    layer = sum(map_group(r, c, 1, target.array, target.vector.n_lanes).n_words for r, c in shapes)
    head = map_group(128256, 4096, 1, target.array, target.vector.n_lanes).n_words
    assert 32 * layer + head == 3579  # of 3,584 words a cell
