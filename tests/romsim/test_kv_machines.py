"""Both machines under every KV configuration, value by value; layouts change none (docs/kv.md)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import romsim
from romsim.comparison import compare_values, make_reference
from romsim.cycle import CycleModel, SramWrite
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_models.registry import open_model
from tests.romsim.kv_chips import CONFIGS, Recorded, logits_of, text, with_kv

REPEATABLE = settings(deadline=None, derandomize=True, database=None, max_examples=12)


@pytest.mark.parametrize("kv", CONFIGS)
def test_cycle_model_equals_the_reference_on_every_value(kv: str, tiny: Description) -> None:
    chip = with_kv(tiny, kv)
    done = compare_values(chip, open_model("tiny-int4"), text(40), n_new=8)
    assert done.first is None
    assert done.passed
    kinds = {
        "fp16": {"k.words", "v.words"},
        "int8": {"k.codes", "k.shifts", "v.codes", "v.shifts"},
        "int4": {"k.codes", "k.scales", "k.zeros", "v.codes", "v.scales", "v.zeros"},
        "int2": {"k.codes", "k.scales", "k.zeros", "v.codes", "v.scales", "v.zeros"},
        "kivi": {"k.words", "v.words", "k.group.codes", "k.group.scales", "k.group.zeros",
                 "v.late.codes", "v.late.scales", "v.late.zeros"},
        "tiered": {"k.codes", "k.shifts", "v.codes", "v.shifts", "k.narrow.codes", "mass",
                   "k.narrow.scales", "k.narrow.zeros", "v.narrow.codes", "v.narrow.scales",
                   "v.narrow.zeros", "narrowed"},
    }[chip.target.kv.codec]  # fmt: skip
    if chip.target.kv.retention == "h2o":
        kinds |= {"mass", "evicted"}
    if chip.target.kv.retention == "stream" and chip.target.kv.sinks:
        kinds |= {"q.sink.codes", "q.sink.shifts"}
    assert kinds <= set(done.counts)


def test_int8_in_slots_equals_the_plain_cache(tiny: Description) -> None:
    tokens = text(50, seed=1)
    plain = logits_of(tiny, tokens)
    for kv in ("int8,layout=paged,block=4", "int8,layout=slotmap"):
        np.testing.assert_array_equal(logits_of(with_kv(tiny, kv), tokens), plain)


def test_policies_that_drop_nothing_equal_keeping_all(tiny: Description) -> None:
    tokens = text(40, seed=2)
    plain = logits_of(tiny, tokens)
    for kv in ("h2o,codec=int8,heavy=20,window=20", "streaming-llm,codec=int8,window=36"):
        np.testing.assert_array_equal(logits_of(with_kv(tiny, kv), tokens), plain)


def test_prompts_in_flight_give_what_single_tokens_give(tiny: Description) -> None:
    tokens = text(41, seed=3)
    chip = with_kv(tiny, "kivi-2bit,residual=4,group=4")
    assert chip.target.schedule.n_inflight == 3
    whole = CycleModel(chip, threads=1).prefill(tokens).logits
    np.testing.assert_array_equal(whole, logits_of(chip, tokens)[-1])


@pytest.mark.parametrize(
    "kv", ["kivi-2bit,residual=8,group=8", "streaming-llm,window=9", "h2o,heavy=5,window=4"]
)
def test_reference_gives_the_same_however_a_text_is_cut(kv: str, tiny: Description) -> None:
    decoder = make_reference(with_kv(tiny, kv), open_model("tiny-int4"))
    tokens = text(45, seed=4)
    whole = decoder.forward(tokens, all_logits=True)
    decoder.reset()
    parts = [decoder.forward(tokens[a:b], all_logits=True) for a, b in ((0, 1), (1, 13), (13, 45))]
    assert (whole == type(whole)(np.concatenate([p.numpy() for p in parts]))).all()


@REPEATABLE
@given(order=st.permutations(range(24)), block=st.sampled_from([1, 2, 4]))
def test_t1_04_any_physical_permutation_of_pages_gives_the_same(
    order: list[int], block: int, tiny: Description
) -> None:
    tokens = text(24, seed=5)
    for kv in ("int4", "kivi-2bit,residual=4,group=1", "h2o,heavy=9,window=4"):
        expected = logits_of(with_kv(tiny, kv, context=24), tokens)
        chip = with_kv(tiny, f"{kv},layout=paged,block={block}", context=24)
        n_pages = -(-chip.target.kv.held(24) // block)
        pages = [page for page in order if page < n_pages]
        np.testing.assert_array_equal(logits_of(chip, tokens, page_order=pages), expected)


def test_a_new_sequence_finds_nothing_of_the_one_before(tiny: Description) -> None:
    tokens = text(30, seed=6)
    for kv in ("h2o,heavy=5,window=4", "streaming-llm,window=9", "kivi-2bit,residual=8,group=4"):
        chip = with_kv(tiny, kv)
        model = CycleModel(chip, threads=1)
        for token in text(37, seed=7):
            model.step(token)
        model.reset()
        again = np.stack([model.step(token).logits for token in tokens])
        np.testing.assert_array_equal(again, logits_of(chip, tokens))


def test_threads_change_nothing(tiny: Description) -> None:
    chip, tokens = with_kv(tiny, "h2o,heavy=5,window=4"), text(20, seed=8)
    model = CycleModel(chip, threads=3)
    np.testing.assert_array_equal(
        np.stack([model.step(token).logits for token in tokens]), logits_of(chip, tokens)
    )


def test_values_beyond_float64s_integers_are_summed_in_words(tiny: Description) -> None:
    """The kernel's two ways of summing values give the same."""
    chip, tokens = with_kv(tiny, "int4"), text(20, seed=9)
    seen: list[Recorded] = []
    for bound in (0.0, 2.0**40):
        values = Recorded()
        model = CycleModel(chip, threads=1, record=values)
        for token in tokens:
            for store in model._slot(0).stores:
                store.memory.largest = max(store.memory.largest, bound)
            model.step(token)
        seen.append(values)
    assert seen[0].values.keys() == seen[1].values.keys()
    for key, value in seen[0].values.items():
        np.testing.assert_array_equal(seen[1].values[key], value)


def test_options_that_do_not_go_together_are_refused(tiny: Description) -> None:
    for kv, sentence in (
        (
            "kvc-q",
            "kv.codec one of int8, int4, int2, fp16, kivi, not 'tiered', whose words no RTL "
            "writes; compile with --kv codec=int8",
        ),
    ):
        sentence = f"Trace of SRAM writes must be with {sentence}"
        with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
            CycleModel(with_kv(tiny, kv), trace=lambda write: None)
    chip = with_kv(tiny, "int4")
    sentence = "Order of pages must be given with KV layout paged, not with 'contiguous'"
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        CycleModel(chip, page_order=[0])
    with pytest.raises(
        SpecError, match=r"^Order of pages must be a permutation of 0 to 47, not \[0, 0\]$"
    ):
        CycleModel(with_kv(tiny, "vllm,block=2"), page_order=[0, 0]).step(1)


def test_interrupted_reference_must_be_reset_where_tokens_are_gone(tiny: Description) -> None:
    decoder = make_reference(with_kv(tiny, "h2o,heavy=2,window=2"), open_model("tiny-int4"))
    decoder.forward(text(9))

    def break_off(name: str, position: int, values: object) -> None:
        if name == "L1.attn":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoder.forward(text(3), record=break_off)
    sentence = (
        "Decoder with KV codec 'fp16' and retention 'h2o' must be reset after an interrupted call, "
        "since words that were dropped or narrowed are gone; call reset()"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        decoder.forward([1])
    decoder.reset()
    decoder.forward([1])


@pytest.mark.parametrize("kv", ["int4", "int2", "fp16"])
def test_trace_has_the_compared_words(tiny: Description, kv: str) -> None:
    values = Recorded()
    writes: list[SramWrite] = []
    model = CycleModel(with_kv(tiny, kv), threads=1, record=values, trace=writes.append)
    for token in text(3):
        model.step(token)
    spec, tiles = tiny.spec, tiny.target.array.n_tiles
    for side in "kv":
        found = [w for w in writes if w.memory == side.upper()]
        assert len(found) == 3 * spec.n_layers * spec.n_kv_heads
        for number, word in enumerate(found):
            position, rest = divmod(number, spec.n_layers * spec.n_kv_heads)
            layer, head = divmod(rest, spec.n_kv_heads)
            assert word.tile == position % tiles

            wanted = [
                values.values[f"L{layer}.{side}.{kind}", position].astype(np.int64)
                for kind in (("words",) if kv == "fp16" else ("codes", "zeros", "scales"))
            ]
            words = [one.reshape(spec.n_kv_heads, -1)[head] for one in wanted]
            if kv != "fp16":
                words[1:] = [words[1] + (words[2] << 16)]
            np.testing.assert_array_equal(word.data, np.concatenate(words))


@pytest.mark.parametrize("layout", ["slotmap", "paged,block=2"])
def test_trace_has_every_mass_and_slot(layout: str, tiny: Description) -> None:
    """What H2O writes after attention, as the compared values have it."""
    values = Recorded()
    writes: list[SramWrite] = []
    chip = with_kv(tiny, f"h2o,heavy=5,window=4,codec=int8,layout={layout}")
    order = [3, 0, 4, 1, 2] if "paged" in layout else None
    model = CycleModel(chip, threads=1, record=values, trace=writes.append, page_order=order)
    spec, tiles = tiny.spec, tiny.target.array.n_tiles
    rows = -(-10 // tiles)
    free = [[-1] * spec.n_kv_heads for _ in range(spec.n_layers)]
    places: list[list[dict[int, int]]] = [
        [{} for _ in range(spec.n_kv_heads)] for _ in range(spec.n_layers)
    ]
    for position, token in enumerate(text(30)):
        writes.clear()
        model.step(token)
        for layer in range(spec.n_layers):
            here = [w for w in writes if w.address // (spec.n_kv_heads * rows) == layer]
            masses = values.values[f"L{layer}.mass", position].reshape(spec.n_kv_heads, -1)
            evicted = values.values[f"L{layer}.evicted", position].tolist()
            for kv in range(spec.n_kv_heads):
                slots = places[layer][kv]
                new = position if position < 10 else free[layer][kv]
                slots[new] = position
                found = {}
                for word in here:
                    head, row = divmod(word.address % (spec.n_kv_heads * rows), rows)
                    if word.memory == "MASS" and head == kv:
                        found[row * tiles + word.tile] = word.data.tolist()
                assert found == {
                    slot: [masses[kv][slot], int(t > position - 4)] for slot, t in slots.items()
                }
                (newest,) = (
                    w.data for w in writes
                    if w.memory == "NEWEST" and w.address == layer * 4 + position % 4
                )  # fmt: skip
                assert newest[kv] == new
                freed = [
                    w.data.tolist() for w in writes
                    if w.memory == "FREE" and w.address == layer * spec.n_kv_heads + kv
                ]  # fmt: skip
                slot = evicted[kv]
                if order is not None:  # a page is a row of the two tiles
                    assert freed == ([[slot, order[slot // 2]]] if position >= 9 else [])
                else:
                    assert freed == ([[slot]] if position >= 9 else [])
                slots.pop(evicted[kv], None)
            free[layer] = evicted


def test_a_fitted_chip_has_room_for_every_slot(tmp_path: Path) -> None:
    """Also where its sequences are shorter than the window."""
    chip = romsim.compile(
        "tiny-int4",
        tmp_path / "chip",
        target="small",
        fit=True,
        context=8,
        kv="streaming-llm,window=60",
    )
    assert (chip.context, chip.target.schedule.n_inflight) == (8, 1)
    assert chip.manifest["kv"]["config"]["window"] == 60
    assert chip.manifest["kv"]["slots"] == 8
    tile = chip.target.attention.sram_kib * 1024 * chip.target.array.n_tiles
    assert tile >= 64 * 2 * 2 * 2 * 32 * 2  # slots, layers, KV heads, sides, elements, bytes
    assert any("prompts run one token at a time" in n for n in chip.manifest["model"]["notes"])
