"""What each row of the KV-cache survey promises, as tests named after the row, and the laws."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from romsim.comparison import make_reference
from romsim.cycle import CycleModel
from romsim.cycle.kernels_kv_codec import encode_rows, encode_words
from romsim.cycle.kv_rows import PagePool, RowMap
from romsim.design_point import DesignPoint
from romsim.kv_check import kv_models
from romsim.kv_formulas import kv_bytes
from romsim.throughput import profile_token
from romsim_compiler.description import Description
from romsim_compiler.durations import attention_cycles, block_cycles
from romsim_compiler.formats import parse_format
from romsim_compiler.kv import parse_kv
from romsim_compiler.kv_cycles import block_extra, step_extra
from romsim_compiler.kv_sram import (
    MASS_BITS,
    element_bits,
    model_bits,
    sequence_bits,
    stored_bits,
    table_bits,
)
from romsim_compiler.memory_map import max_context
from romsim_compiler.tables import tables
from romsim_compiler.target_file import load_target
from romsim_models.errors import CapacityError
from romsim_models.registry import open_model
from romsim_models.shapes import SHAPES
from romsim_models.spec import ModelSpec
from tests.romsim.kv_chips import SPEC, Recorded, filled, make_store, text, with_kv

REPEATABLE = settings(deadline=None, derandomize=True, database=None, max_examples=25)
RCP = np.array(tables()["RCP"], np.int64)

codecs = st.sampled_from(
    ["int8,layout=paged,block=4", "fp16", "int4", "int2", "kivi-2bit,residual=8,group=4",
     "kivi-k4v2,residual=6,group=2,plain_sinks=5", "h2o,heavy=7,window=3,codec=int4",
     "streaming-llm,sinks=2,window=9", "window,window=4,codec=int8",
     "kvc-q,heavy=5,window=4,value_bits=4"]
)  # fmt: skip


def affine(values: list[int], bits: int) -> tuple[list[int], int, int, NDArray[np.float64]]:
    """Codes, scale word, zero word, what attention sees, of one group."""
    source = np.array(values, np.int64)
    codes = np.zeros(len(values), np.uint8)
    scale, zero = np.zeros(1, np.uint16), np.zeros(1, np.uint16)
    seen = np.zeros(len(values))
    encode_rows(source, len(values), bits, RCP, codes, scale, zero, seen)
    return codes.tolist(), int(scale[0]), int(zero[0]), seen


def of_word(word: int) -> Fraction:
    """The integer of frac 16 that a sixteen-bit word stands for, by IEEE 754 itself."""
    return Fraction(float(np.array(word, np.uint16).view(np.float16))) * 2**16


# --- Laws: layout, codec, retention (of the survey's section 4.2) -----------------------------


@REPEATABLE
@given(
    data=st.data(), block=st.integers(1, 8), n_slots=st.integers(1, 60), n_colours=st.integers(1, 4)
)
def test_law_1_a_layout_is_a_bijection_on_live_slots(
    data: st.DataObject, block: int, n_slots: int, n_colours: int
) -> None:
    n_pages = -(-n_slots // block)
    order = data.draw(st.permutations(range(n_pages)))
    pool = PagePool(n_pages, n_colours=n_colours, order=order)
    rows = RowMap(n_slots, block=block, pool=pool)
    for slot in range(n_slots):
        rows.reach(slot)
        live = rows.rows[: slot + 1]
        assert len(set(live.tolist())) == slot + 1
        assert all(page % n_colours == i % n_colours for i, page in enumerate(rows.table))
    assert len(rows.table) == n_pages
    assert pool.n_free == 0
    rows.release()
    assert pool.n_free == n_pages


@REPEATABLE
@given(name=codecs, n_tokens=st.integers(1, 40), seed=st.integers(0, 99))
def test_law_2_bits_in_closed_form_are_the_words_written(
    name: str, n_tokens: int, seed: int
) -> None:
    kv = parse_kv(name)
    store = make_store(kv, 40)
    for position, _ in filled(store, n_tokens, seed=seed):
        assert store.held_bits == model_bits(kv, SPEC, position + 1), position


@REPEATABLE
@given(
    name=st.sampled_from(["int4", "fp16", "kivi-2bit,residual=8,group=4,plain_sinks=3"]),
    seed=st.integers(0, 99),
)
def test_law_2_what_was_encoded_never_changes(name: str, seed: int) -> None:
    kv = parse_kv(name)
    store = make_store(kv, 40)
    written: dict[tuple[int, int], NDArray[np.float64]] = {}
    for position, _ in filled(store, 40, seed=seed):
        n = position + 1
        first, keys, values = 0, n, n
        if kv.codec == "kivi":
            first = kv.plain_sinks
            keys = first + max(0, n - first) // kv.residual * kv.residual
            values = n - kv.residual
        for side, end in enumerate((keys, values)):
            for token in range(first, end):
                now = store.seen[side][:, store.rows[token]].copy()
                before = written.setdefault((side, token), now)
                np.testing.assert_array_equal(now, before)
    assert len(written) == {"int4": 80, "fp16": 80}.get(name, 32 + 29)


@REPEATABLE
@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=32),
    size=st.sampled_from([0, 8, 16, 24]),
    bits=st.sampled_from([2, 4]),
    queries=st.lists(st.integers(-127, 127), min_size=32, max_size=32),
)
def test_law_2_decoding_is_the_words_and_scales_may_be_folded_into_the_query(
    values: list[int], size: int, bits: int, queries: list[int]
) -> None:
    group = [v >> size for v in values]
    codes, scale, zero, seen = affine(group, bits)
    assert affine(group, bits)[0] == codes
    decoded = [of_word(zero) + c * of_word(scale) for c in codes]
    assert [Fraction(x) for x in seen.tolist()] == decoded
    q = queries[: len(group)]
    fused = sum(q) * of_word(zero) + sum(a * c for a, c in zip(q, codes, strict=True)) * of_word(
        scale
    )
    assert fused == sum(a * x for a, x in zip(q, decoded, strict=True))
    # Half a step of the scale, and what the two words and the reciprocal round.
    span = max(group) - min(group)
    step = Fraction(span, 2**bits - 1)
    for value, x in zip(group, decoded, strict=True):
        assert abs(value - x) <= step / 2 + Fraction(span + max(map(abs, group)), 1000) + 2**bits


@REPEATABLE
@given(
    heavy=st.integers(0, 6),
    window=st.integers(1, 6),
    seed=st.integers(0, 99),
    codec=st.sampled_from(["int8", "fp16", "int4"]),
)
def test_law_3_retained_tokens_only_shrink_but_for_the_new_one(
    heavy: int, window: int, seed: int, codec: str
) -> None:
    kv = parse_kv(f"h2o,heavy={heavy},window={window},codec={codec}")
    store = make_store(kv, 30)
    before = [set[int]() for _ in range(SPEC.n_kv_heads)]
    for position, _ in filled(store, 30, seed=seed):
        for head in range(SPEC.n_kv_heads):
            held = {int(p) for p in store.positions[head] if p >= 0}
            assert held <= before[head] | {position}
            assert set(range(max(0, position + 1 - window), position + 1)) <= held
            assert len(held) == min(position + 1, heavy + window)
            before[head] = held


# --- Rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_tokens", [1, 15, 16, 17, 127, 128, 129, 2048])
def test_t1_01_bytes_are_the_formula_the_allocator_and_the_words_written(n_tokens: int) -> None:
    kv = parse_kv("vllm")
    for model in kv_models():
        bits = stored_bits(kv, model.head_dim, n_tokens) * model.layers * model.kv_heads
        assert bits / 8 == n_tokens * model.bytes_per_token == n_tokens * model.recomputed
    assert sorted(model.bytes_per_token for model in kv_models()) == [
        23040, 32768, 57344, 76800, 114688, 131072, 131072, 147456, 262144, 327680, 524288,
        819200, 2621440,
    ]  # fmt: skip
    store = make_store(kv, n_tokens)
    for _ in filled(store, n_tokens):
        pass
    expected = kv_bytes(layers=1, kv_heads=SPEC.n_kv_heads, head_dim=SPEC.head_dim, tokens=n_tokens)
    assert store.held_bits / 8 == expected
    target = replace(load_target("small"), kv=kv)
    pages = -(-n_tokens // 16)
    allocated = sequence_bits(SPEC, target, n_tokens) - table_bits(SPEC, kv, n_tokens)
    assert allocated / 8 == kv_bytes(
        layers=1, kv_heads=SPEC.n_kv_heads, head_dim=SPEC.head_dim, tokens=16 * pages
    )


def test_t1_03_contiguous_pre_allocation_uses_17_09_percent_and_paging_97_95() -> None:
    lengths, longest = (50, 300, 700), 2048
    assert round(100 * sum(lengths) / (len(lengths) * longest), 2) == 17.09
    pool = PagePool(3 * longest // 16)
    maps = [RowMap(longest, block=16, pool=pool) for _ in lengths]
    for rows, length in zip(maps, lengths, strict=True):
        for slot in range(length):
            rows.reach(slot)
    taken = 16 * (pool.n_pages - pool.n_free)
    assert taken - sum(lengths) == 22
    assert round(100 * sum(lengths) / taken, 2) == 97.95
    assert taken == 16 * sum(len(rows.table) for rows in maps)
    with pytest.raises(
        CapacityError,
        match=r"^KV pool of 1 pages must have a free one for page 1 of the sequence, but all are "
        r"taken; free a sequence or raise attention.sram_kib$",
    ):
        RowMap(32, block=16, pool=PagePool(1)).reach(16)


@pytest.mark.parametrize("block", [1, 2, 16, 128])
def test_t1_04_paging_wastes_less_than_a_page_and_costs_a_cycle_for_each(block: int) -> None:
    spec, target = SHAPES["llama-3.2-3b"], load_target("roma-7nm-int8")
    plain = replace(target, kv=parse_kv("fp16"))
    paged = replace(target, kv=parse_kv(f"vllm,block={block}"))
    for n_tokens in (1, 15, 16, 17, 1000, 4096, 4097):
        one, other = (
            attention_cycles([n_tokens - 1], spec=spec, target=t)[0] for t in (plain, paged)
        )
        pages = -(-n_tokens // block)
        assert 0 < other - one <= pages  # entries serve all heads: at most one a head and page
        bits = sequence_bits(spec, paged, n_tokens) - table_bits(spec, paged.kv, n_tokens)
        wasted = bits - sequence_bits(spec, plain, n_tokens)
        token = 32 * spec.head_dim * spec.n_kv_heads * spec.n_layers
        assert wasted == (pages * block - n_tokens) * token
        assert wasted <= (block - 1) * token
    assert table_bits(spec, paged.kv, 4096) == -(-4096 // block) * max(
        1, (4096 // block - 1).bit_length()
    )


def heads_of(dim: int) -> ModelSpec:
    """A model of heads of a size."""
    return replace(SPEC, head_dim=dim)


def test_t1_08_int8_is_8_25_bits_an_element() -> None:
    kv = parse_kv("int8")
    assert element_bits(kv, heads_of(64)) == element_bits(kv, heads_of(128)) == 8 + 8 / 32
    assert stored_bits(kv, 64, 7) == 7 * 2 * 64 * 8.25


def test_t1_09_int4_is_4_5_or_5_bits_an_element_and_not_4() -> None:
    wide, narrow = parse_kv("int4-g64"), parse_kv("int4")
    assert (element_bits(wide, heads_of(64)), element_bits(narrow, heads_of(64))) == (4.5, 5.0)
    assert round(16 / element_bits(wide, heads_of(128)), 2) == 3.56
    assert round(16 / element_bits(narrow, heads_of(128)), 2) == 3.2


def test_t1_10_kivi_of_1000_tokens_takes_1154048_bits_a_head() -> None:
    kv = parse_kv("kivi-2bit")
    assert stored_bits(kv, 128, 1000) == 1_154_048
    spec = replace(SPEC, n_kv_heads=1, head_dim=128, dim=512)
    store = make_store(kv, 1000, spec=spec)
    for _ in filled(store, 1000, spec=spec):
        pass
    assert store.held_bits == 1_154_048
    bits = 288 * 2**20 * 8 // (28 * 8)  # of a head, ROMA's SRAM without an adapter, 3B
    fits = next(n for n in range(1, 20000) if stored_bits(kv, 128, n + 1) > bits)
    assert fits == 13_542


@pytest.mark.parametrize("bits", [2, 4])
def test_t1_10_equal_values_have_scale_0_and_ties_go_to_even(bits: int) -> None:
    for value in (0, 1, -1, 77777, -(2**31), 2**31 - 1):
        codes, scale, zero, seen = affine([value] * 8, bits)
        assert (codes, scale) == ([0] * 8, 0)
        assert seen.tolist() == [float(of_word(zero))] * 8
    # A scale of 1024 is a power of two: its reciprocal is exact, and halves are halves.
    top = 2**bits - 1
    values = [0, 512, 1536, 1024 * top] + ([2560, 3584] if bits == 4 else [])
    codes, scale, zero, _ = affine(values, bits)
    assert [of_word(scale), of_word(zero)] == [1024, 0]
    assert codes == [0, 0, 2, top] + ([2, 4] if bits == 4 else [])


@REPEATABLE
@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=30),
    size=st.integers(0, 31),
)
def test_words_are_ieee_binary16(values: list[int], size: int) -> None:
    source = np.array([v >> size for v in values], np.int32)
    words, seen = np.zeros(len(source), np.uint16), np.zeros(len(source))
    encode_words(source, words, seen)
    expected = (source / 2.0**16).astype(np.float16)
    np.testing.assert_array_equal(words, expected.view(np.uint16))
    np.testing.assert_array_equal(seen, expected.astype(np.float64) * 2.0**16)


@REPEATABLE
@given(sinks=st.integers(0, 5), window=st.integers(5, 12), n_tokens=st.integers(1, 60))
def test_t1_11_the_ring_holds_sinks_and_the_last_window(
    sinks: int, window: int, n_tokens: int
) -> None:
    kv = parse_kv(f"streaming-llm,sinks={sinks},window={window}")
    store = make_store(kv, n_tokens)
    for position, _ in filled(store, n_tokens):
        n = position + 1
        expected = set(range(min(sinks, n))) | set(range(max(sinks, n - window), n))
        for head in range(SPEC.n_kv_heads):
            assert {int(p) for p in store.positions[head] if p >= 0} == expected
        limit = SPEC.n_kv_heads * stored_bits(kv, SPEC.head_dim, sinks + window)
        assert store.held_bits <= limit


def test_t1_11_sinks_at_their_distance_inside_the_cache(tiny: Description) -> None:
    """Keys stored rotated and a second query equal keys rotated anew at their cache positions."""
    sinks, window = 3, 8
    chip = with_kv(tiny, f"streaming-llm,sinks={sinks},window={window},codec=fp16", context=60)
    values = Recorded()
    model = CycleModel(chip, threads=1, record=values)
    for token in text(40):
        model.step(token)
    spec = chip.spec
    increments = chip.phase_increments.astype(np.float64) / 2**32 * 2 * np.pi

    def turn(heads: NDArray[np.float64], position: int) -> NDArray[np.float64]:
        pairs = heads.reshape(-1, spec.head_dim // 2, 2)
        z = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * position * increments)
        return np.stack((z.real, z.imag), axis=-1).reshape(heads.shape)

    def coded(name: str, position: int) -> NDArray[np.float64]:
        codes = values.values[f"L0.{name}.codes", position].astype(float).reshape(-1, 32)
        shifts = values.values[f"L0.{name}.shifts", position].astype(float)
        return (codes * 2.0 ** shifts.reshape(-1, 1)).reshape(spec.n_heads, spec.head_dim)

    raw = [values.values["L0.k", p].astype(float).reshape(spec.n_kv_heads, -1) for p in range(40)]
    for position in (5, 10, 11, 25, 39):
        q = values.values["L0.q", position].astype(float).reshape(spec.n_heads, -1)
        held = sorted(
            set(range(min(sinks, position + 1)))
            | set(range(max(sinks, position + 1 - window), position + 1))
        )
        scale = np.sqrt(spec.head_dim) / np.log2(np.e)
        upstream = turn(q, len(held) - 1) / scale
        for rank, token in enumerate(held):
            key = np.repeat(turn(raw[token], rank), spec.n_groups, axis=0)
            wanted = (upstream * key).sum(axis=1)
            stored = np.repeat(turn(raw[token], token), spec.n_groups, axis=0)
            query = coded("q.sink" if token < sinks else "q", position)
            found = (query * stored).sum(axis=1)
            size = np.abs(query * stored).sum(axis=1)
            assert (np.abs(found - wanted) <= 0.02 * size).all(), (position, token)


def test_t1_11_ten_times_the_cache_neither_overflows_nor_ends(tiny: Description) -> None:
    chip = with_kv(tiny, "streaming-llm,sinks=2,window=14,codec=int8", context=1 << 24)
    model = CycleModel(chip, threads=1)
    steps = [model.step(token) for token in text(160)]
    assert model.position() == 160
    assert model.saturations == 0
    assert {step.cycles for step in steps[16:]} == {steps[16].cycles}  # neither slower nor longer
    store = model._slot(0).stores[0]
    assert store.capacity <= 32
    assert store.held_bits == chip.spec.n_kv_heads * stored_bits(chip.target.kv, 32, 16)


def test_t1_11_sram_is_that_of_the_slots_whatever_the_length() -> None:
    spec, target = SHAPES["llama-3.2-3b"], load_target("roma-7nm-int8")
    kv = replace(target, kv=parse_kv("streaming-llm"))
    assert sequence_bits(spec, kv, 512) == sequence_bits(spec, kv, 10**6) == 512 * 114_688 * 8
    assert max_context(spec, kv) == 1 << 24


@REPEATABLE
@given(seed=st.integers(0, 999), heavy=st.integers(1, 8), window=st.integers(1, 5))
def test_t1_12_dropping_the_least_of_the_old_keeps_the_heaviest_of_the_old(
    seed: int, heavy: int, window: int
) -> None:
    kv = parse_kv(f"h2o,heavy={heavy},window={window}")
    store = make_store(kv, 40)
    for position, words in filled(store, 40, seed=seed):
        mass = words.values["mass", 0].reshape(SPEC.n_kv_heads, -1)
        for head in range(SPEC.n_kv_heads):
            held = {int(p) for p in store.positions[head] if p >= 0}
            old = [p for p in held if p <= position - window]
            assert len(old) == min(heavy, max(0, position + 1 - window))
            gone = int(words.values["evicted", 0][head])
            if gone >= 0:  # no token that stayed is lighter, and none as light is in a lower slot
                slots = {int(store.positions[head, s]): s for s in range(store.mass.shape[1])}
                for p in old:
                    slot = slots[p]
                    assert (mass[head, slot], slot) > (mass[head, gone], gone)


def test_t1_12_evictions_equal_the_references_for_four_budgets(tiny: Description) -> None:
    chip = with_kv(tiny, "h2o,heavy=6,window=3")
    seen = Recorded()
    model = CycleModel(chip, threads=1, record=seen)
    tokens = text(4 * 9 + 9, seed=11)
    for token in tokens:
        model.step(token)
    expected = Recorded()

    def record(name: str, first: int, rows: NDArray[Any]) -> None:
        for offset, row in enumerate(np.atleast_2d(rows)):
            expected(name, first + offset, row)

    make_reference(chip, open_model("tiny-int4")).forward(tokens, record=record)
    for layer in range(chip.spec.n_layers):
        mine, wanted = seen.of(f"L{layer}.evicted"), expected.of(f"L{layer}.evicted")
        assert sorted(mine) == sorted(wanted) == list(range(len(tokens)))
        for position, slots in mine.items():
            assert slots.tolist() == wanted[position].tolist()
            assert (slots >= 0).all() == (position >= 9)
    heads = [seen.of("L0.evicted")[p].tolist() for p in range(9, len(tokens))]
    assert any(one != other for one, other in heads)  # each KV head drops its own


def test_t1_12_score_sram_is_an_accumulator_a_slot_and_head() -> None:
    spec, target = SHAPES["smollm2"], load_target("small")
    kept = replace(target, kv=parse_kv("h2o,heavy=128,window=128"))
    plain = replace(target, kv=parse_kv("fp16,layout=slotmap"))
    heads = spec.n_layers * spec.n_kv_heads
    extra = sequence_bits(spec, kept, 9999) - sequence_bits(spec, plain, 257)
    # mass and a bit, slots of the newest and the freed one; numerators of all slots
    assert extra == heads * (257 * (MASS_BITS + 1) + 129 * 9) + 257 * spec.n_heads * 16
    # One token over the budget is dropped, and attended to before.
    cycles = attention_cycles([255, 256, 257, 999], spec=spec, target=kept)
    assert cycles[1] > cycles[0]
    assert cycles[1] == cycles[2] == cycles[3]


def test_t2_02_tiered_bits_are_exact_and_30_percent_of_fp16_is_3_33_times_smaller() -> None:
    kv, dim = parse_kv("kvc-q,heavy=100,window=60"), 128
    for n_tokens in (1, 160, 161, 1000):
        wide = min(n_tokens, 160)
        assert stored_bits(kv, dim, n_tokens) == 2 * dim * (
            wide * Fraction(33, 4) + (n_tokens - wide) * 3
        )
    # 8.25 f + 3 (1 - f) = 0.3 * 16 has f = 12/35: 360 wide tokens of 1,050.
    ratio = Fraction(
        32 * dim * 1050, stored_bits(parse_kv("kvc-q,heavy=260,window=100"), dim, 1050)
    )
    assert ratio == Fraction(10, 3)
    assert f"{float(ratio):.2f}" == "3.33"


def test_configurations_keep_their_order_of_room() -> None:
    spec, target = SHAPES["llama-3.2-3b"], load_target("roma-7nm-int8")

    def fits(name: str) -> int:
        return max_context(spec, replace(target, kv=parse_kv(name)))

    rooms = [fits(n) for n in ("fp16", "int8", "kivi-4bit", "int4", "int4-g64", "kivi-2bit")]
    assert rooms == sorted(rooms)


@pytest.mark.parametrize(
    "kv", ["vllm", "int4", "kivi-2bit-sinks", "streaming-llm,window=60", "h2o,heavy=40,window=30"]
)
def test_cycles_of_a_token_sum_up_by_resource(kv: str) -> None:
    spec = replace(SHAPES["smollm2"], n_layers=2)
    target = replace(load_target("rtl-1k"), kv=parse_kv(kv))
    point = DesignPoint.uniform(spec, target, parse_format("int4g32"), head=parse_format("int8g32"))
    plain = replace(point, target=replace(target, kv=parse_kv("int8")))
    for context in (1, 64, 70, 71, 160, 161, 300):
        profile = profile_token(point, context)
        assert sum(profile.by_resource.values()) == profile.cycles
        assert profile.cycles == point.decode_cycles([context - 1])[0]
        if point.target.kv.retention == "all":
            more = profile.cycles - plain.decode_cycles([context - 1])[0]
            assert more > 0


@pytest.mark.parametrize(
    "kv", ["vllm", "kivi-2bit-sinks,residual=64", "kvc-q", "h2o,heavy=40,window=30"]
)
def test_blocks_that_settled_are_those_evaluated_one_by_one(kv: str) -> None:
    spec, target = SHAPES["smollm2"], replace(load_target("rtl-1k"), kv=parse_kv(kv))
    size = target.attention.attn_block
    positions = [0, 31, 63, 64, 100, 127, 128, 200, 255, 256, 257, 600]
    found = attention_cycles(positions, spec=spec, target=target)
    assert found == [attention_cycles([p], spec=spec, target=target)[0] for p in positions]
    merge = -(-spec.n_heads * spec.head_dim // target.vector.n_lanes)
    hop = target.network.broadcast_cycles + target.network.collect_cycles
    for position, cycles in zip(positions, found, strict=True):
        n, held = position + 1, target.kv.held(position + 1)
        n_blocks = -(-held // size)
        expected = target.latency.attn + hop + merge * (n_blocks.bit_count() - 1)
        expected += sum(step_extra(n, spec=spec, target=target))
        for j in range(n_blocks):
            last = min(held, (j + 1) * size)
            expected += block_cycles(j, last - j * size, spec=spec, target=target)
            expected += sum(block_extra(j, last, n, spec=spec, target=target))
        assert cycles == expected, position
