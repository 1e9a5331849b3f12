"""CommVQ (row T2-01): codebooks, both machines, bits, refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import romsim
from romsim.comparison import compare_values, make_reference
from romsim.cycle import CycleModel
from romsim.cycle.kernels_kv_vectors import encode_key, encode_value, pair_squares
from romsim.cycle.sequences import SequencePool
from romsim.kv_calibration import calibrate
from romsim.kv_quality import BASELINE
from romsim.reference.kv_vectors import encode_keys, encode_values
from romsim_compiler.description import Description
from romsim_compiler.kv import parse_kv
from romsim_compiler.kv_codebooks import read_codebooks
from romsim_compiler.kv_sram import codebook_bits, element_bits, stored_bits
from romsim_compiler.kv_training import train_codebooks
from romsim_compiler.tables import tables
from romsim_models.errors import DescriptionError, SpecError
from romsim_models.registry import open_model
from romsim_models.shapes import SHAPES
from tests.romsim.kv_chips import text
from tests.tiny_chips import compile_tiny, sized_target

REPEATABLE = settings(deadline=None, derandomize=True, database=None, max_examples=30)
RSQ = np.array(tables()["RSQ"], np.int64)
KV = "codec=commvq,stages=2,value_bits=2,residual=8"


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    folder = tmp_path_factory.mktemp("commvq") / "chip"
    return compile_tiny("tiny-int4", folder, kv=f"{KV},layout=paged,block=4")


def test_cycle_model_equals_the_reference_on_every_value(chip: Description) -> None:
    done = compare_values(chip, open_model("tiny-int4"), text(43), n_new=8)
    assert done.first is None
    assert done.passed
    kinds = {f"{side}.{part}" for side in "kv" for part in ("words", "vector.codes")}
    assert kinds | {"k.vector.norms", "v.vector.norms"} <= set(done.counts)
    assert done.saturations == 0


def test_reference_gives_the_same_however_a_text_is_cut(chip: Description) -> None:
    decoder = make_reference(chip, open_model("tiny-int4"))
    tokens = text(45, seed=4)
    whole = decoder.forward(tokens, all_logits=True)
    decoder.reset()
    parts = [decoder.forward(tokens[a:b], all_logits=True) for a, b in ((0, 7), (7, 9), (9, 45))]
    assert torch.equal(whole, torch.cat(parts))


def test_t2_01_bits_are_the_words_written_and_the_closed_form(chip: Description) -> None:
    kv, spec = chip.target.kv, chip.spec
    model = CycleModel(chip, threads=1)
    for step, token in enumerate(text(30), 1):
        model.step(token)
        expected = spec.n_kv_heads * stored_bits(kv, spec.head_dim, step)
        assert model.state().stores[0].held_bits == expected
    coded = 12 * 2 + 16 + 2 * 32 + 16  # two stages of two indices, two bits an element, two lengths
    assert stored_bits(kv, 32, 24) == 24 * coded
    assert stored_bits(kv, 32, 27) == 24 * coded + 3 * 2 * 16 * 32
    # Of heads of 128 as published: 21 stages of 12 bits, and a length a head, not a KV width.
    wide = parse_kv("commvq-2bit,stages=21")
    assert (
        element_bits(wide, replace(chip.spec, head_dim=128))
        == (12 * 21 / 128 + 16 / 128 + 2 + 16 / 128) / 2
    )
    entries = spec.n_layers * spec.n_kv_heads * (2 * 64 * 32 + (2 * 32 + 1) * 32)
    pairs = spec.n_layers * spec.n_kv_heads * 2 * 64**2
    assert codebook_bits(spec, kv) == 16 * entries + 32 * pairs
    assert chip.manifest["kv"]["codebook_bits"] == codebook_bits(spec, kv)
    assert codebook_bits(SHAPES["smollm2"], parse_kv("int8")) == 0


vectors = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=8, max_size=8)


@REPEATABLE
@given(vector=vectors, places=st.sampled_from([0, 12, 31]), seed=st.integers(0, 99))
def test_t2_01_separable_search_is_the_full_search(
    vector: list[int], places: int, seed: int
) -> None:
    """Of 4,096 centres the nearest, ties to the first; both machines, in integers."""
    rng = np.random.default_rng(seed)
    book = rng.integers(-9000, 9000, (2, 64, 8)).astype(np.int16)
    key = np.array(vector, np.int64) >> places
    squares = np.zeros((2, 64, 64), np.int64)
    pair_squares(book.astype(np.int64), squares)
    codes, decoded = np.zeros(4, np.uint8), np.zeros(8, np.int64)
    word = encode_key(key, book.astype(np.int64), squares, RSQ, codes, decoded)
    made = encode_keys(torch.from_numpy(key.astype(float))[None, None], book[None])
    assert made.codes[0, 0].tolist() == codes.tolist()
    assert int(made.norms[0, 0]) == word
    assert made.decoded[0, 0].tolist() == decoded.tolist()
    length = float(np.sqrt((key.astype(float) ** 2).sum()))
    unit = np.rint(key / length * 2**14) if length else np.zeros(8)
    rest = unit
    for stage, (first, second) in enumerate(codes.reshape(2, 2).tolist()):
        one = book[stage].astype(float)
        other = np.stack((-one[:, 1::2], one[:, ::2]), axis=-1).reshape(64, 8)
        distances = ((rest - one[:, None] - other[None]) ** 2).sum(axis=-1)
        # The unit vector itself is rounded from a root of 30 bits: one in 2^14 may differ.
        assert distances[first, second] <= distances.min() + 2e5
        rest = rest - one[first] - other[second]
    assert np.abs(decoded).max() <= 2**31
    number = float(np.array(word, np.uint16).view(np.float16)) * 2**16
    assert number == pytest.approx(min(length, 2.0**31), rel=2**-10, abs=1)


@REPEATABLE
@given(vector=vectors, places=st.sampled_from([0, 12, 31]), seed=st.integers(0, 99))
def test_t2_01_values_are_sums_of_the_rows_of_their_bits(
    vector: list[int], places: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    book = rng.integers(-9000, 9000, (7, 8)).astype(np.int16)
    value = np.array(vector, np.int64) >> places
    symbols, decoded = np.zeros(3, np.uint8), np.zeros(8, np.int64)
    word = encode_value(value, book.astype(np.int64), RSQ, symbols, decoded)
    made = encode_values(torch.from_numpy(value.astype(float))[None, None], book[None])
    assert made.codes[0, 0].tolist() == symbols.tolist()
    assert int(made.norms[0, 0]) == word
    assert made.decoded[0, 0].tolist() == decoded.tolist()
    bits = np.stack((symbols & 1, symbols >> 1), axis=1).reshape(-1).astype(np.int64)
    scale = int(float(np.array(word, np.uint16).view(np.float16)) * 2**16)
    exact = [int(x) * scale for x in bits @ book[:6].astype(np.int64) + book[6]]
    limit = 2**31
    rounded = [min(max(round(x / 2**14) if abs(x) < 2**52 else (x + 2**13) >> 14, -limit),
                   limit - 1) for x in exact]  # fmt: skip
    assert decoded.tolist() == rounded


def test_t2_01_sums_over_tables_are_the_scores_and_sums_over_bits_the_values() -> None:
    """What hardware may do instead of decoding, in float64: one table a step, and E last."""
    rng = np.random.default_rng(0)
    dim, n_tokens, stages = 16, 40, 3
    book = rng.normal(size=(stages, 64, dim))
    other = np.stack((-book[..., 1::2], book[..., ::2]), axis=-1).reshape(book.shape)
    index = rng.integers(0, 64, (n_tokens, stages, 2))
    q, length, angle = rng.normal(size=dim), rng.random(n_tokens), rng.random((n_tokens, dim // 2))

    def pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        products: np.ndarray = (a * b).reshape(*b.shape[:-1], dim // 2, 2).sum(axis=-1)
        return products

    table, turned = pairs(q, book), pairs(q, other)  # [stages, 64, pairs]
    for t in range(n_tokens):
        i, j = index[t].T
        s = np.arange(stages)
        centre = (book[s, i] + other[s, j]).sum(axis=0)
        a, b = centre[::2], centre[1::2]
        cos, sin = np.cos(angle[t]), np.sin(angle[t])
        key = np.stack((a * cos - b * sin, a * sin + b * cos), axis=-1).reshape(-1)
        direct = length[t] * (q @ key)
        looked_up = (
            length[t]
            * (
                cos * (table[s, i].sum(0) + turned[s, j].sum(0))
                + sin * (turned[s, i].sum(0) - table[s, j].sum(0))
            ).sum()
        )
        assert looked_up == pytest.approx(direct, rel=1e-12, abs=1e-12)
    bits, rows = rng.integers(0, 2, (n_tokens, 12)), rng.normal(size=(12, dim))
    p = rng.random(n_tokens)
    values = length[:, None] * (bits @ rows)
    assert np.allclose(((p * length) @ bits) @ rows, p @ values, rtol=1e-12)


def test_training_is_repeatable_and_learns() -> None:
    rng = np.random.default_rng(3)
    # 40 directions with a little noise: few enough for one stage to find.
    directions = rng.normal(size=(40, 8))
    samples = directions[rng.integers(0, 40, 600)] * 30_000 + rng.normal(0, 300, (600, 8))
    shaped = [samples[:, None]]
    books = train_codebooks(shaped, shaped, stages=2, value_bits=2, seed=1)
    again = train_codebooks(shaped, shaped, stages=2, value_bits=2, seed=1)
    assert books.keys.tobytes() == again.keys.tobytes()
    assert books.values.tobytes() == again.values.tobytes()
    v = torch.from_numpy(np.rint(samples))[None]
    size = float((v**2).sum())
    for made, bound in (
        (encode_keys(v, books.keys[0]), 0.01),
        (encode_values(v, books.values[0]), 0.15),
    ):
        assert float(((made.decoded - v) ** 2).sum()) < bound * size
    sentence = (
        "Samples to train codebooks of 64 entries must be at least as many, not 63; give a longer "
        "text"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        train_codebooks([samples[:63, None]], [samples[:63, None]], stages=1, value_bits=1)


def test_codebooks_depend_on_neither_room_nor_threads(chip: Description, tmp_path: Path) -> None:
    """Not even where the SRAM is too small for what they are trained on."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        small = compile_tiny(
            "tiny-int4",
            tmp_path / "chip",
            target=sized_target("small", sram_kib=2),
            kv=KV,
            context=6,
        )
    finally:
        torch.set_num_threads(n_threads)
    books, own = small.kv_codebooks(), chip.kv_codebooks()
    assert books is not None
    assert own is not None
    np.testing.assert_array_equal(books.keys, own.keys)
    np.testing.assert_array_equal(books.values, own.values)


def test_codebooks_of_a_chip_are_those_that_evaluation_trains(
    chip: Description, tiny: Description, tmp_path: Path
) -> None:
    books = chip.kv_codebooks()
    assert books is not None
    rng = np.random.default_rng(0)
    tokens = [int(t) for t in rng.integers(0, chip.spec.vocab_size, 2048)]
    decoder = make_reference(tiny, open_model("tiny-int4"))
    if tiny.tokenizer_file() is None:
        trained = calibrate(decoder, tokens, chip.target.kv)
        np.testing.assert_array_equal(trained.keys, books.keys)
        np.testing.assert_array_equal(trained.values, books.values)
    own, other = (
        romsim.kv_eval(one, n_tokens=60, window=60, skip=8, configs=(KV,)) for one in (chip, tiny)
    )
    assert own.rows[1].config == KV
    assert own.rows[0].config == BASELINE
    assert own.rows[1].perplexity == other.rows[1].perplexity
    assert own.rows[1].perplexity != own.rows[0].perplexity


def test_refusals(chip: Description, tmp_path: Path) -> None:
    def sentence(words: str) -> str:
        return f"^{re.escape(words)}$"

    short = tmp_path / "kv_codebooks.bin"
    short.write_bytes(b"\0\0")
    with pytest.raises(
        DescriptionError, match=sentence(f"{short} must hold 24704 words, not 1; compile again")
    ):
        read_codebooks(short, chip.spec, chip.target.kv)
    missing = tmp_path / "none"
    with pytest.raises(
        DescriptionError,
        match=sentence(
            f"{missing} must be readable, not 'No such file or directory'; compile again"
        ),
    ):
        read_codebooks(missing, chip.spec, chip.target.kv)
    pool = SequencePool(CycleModel(chip, threads=1))
    slot, _ = pool.start(text(5))
    with pytest.raises(
        SpecError,
        match=sentence(
            "Codec of a sequence to be forked must not be 'commvq', which encodes tokens of shared "
            "pages anew when their window is whole; compile with another codec"
        ),
    ):
        pool._model.state(slot).fork()
    with pytest.raises(
        SpecError, match=r"^Codec of cached prefixes must encode each token by itself, not be 'comm"
    ):
        SequencePool(CycleModel(chip, threads=1), prefixes=True)
