"""Sequences that share one chip's pages give what each gives alone, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from romsim.cycle import CycleModel
from romsim.cycle.sequences import SequencePool
from romsim_compiler.description import Description
from romsim_compiler.kv_cycles import copy_cycles, fork_cycles
from romsim_models.errors import CapacityError, SpecError
from tests.romsim.kv_chips import text, with_kv

PAGED = (
    "vllm,block=4",
    "int8,layout=paged,block=4",
    "int4,layout=paged,block=2",
    "kivi-2bit,residual=8,group=4,layout=paged,block=4",
    "streaming-llm,sinks=2,window=9,layout=paged,block=4",
    "h2o,heavy=5,window=4,layout=paged,block=2",
)


def with_slots(chip: Description, kv: str, n_slots: int, *, context: int = 96) -> Description:
    """The same chip with another KV cache and more sequences."""
    changed = with_kv(chip, kv, context=context)
    target = changed.manifest["target"]
    schedule = {**target["schedule"], "n_slots": n_slots}
    return Description(chip.path, {**changed.manifest, "target": {**target, "schedule": schedule}})


def alone(
    chip: Description, tokens: Sequence[int], *, adapter: str | None = None
) -> NDArray[np.int32]:
    """Logits after every token of a sequence that has the chip to itself."""
    model = CycleModel(chip, threads=1)
    return np.stack([model.step(token, adapter=adapter).logits for token in tokens])


def sentence(words: str) -> str:
    return f"^{re.escape(words)}$"


@pytest.mark.parametrize("kv", PAGED)
def test_t1_06_forks_give_what_each_sequence_gives_alone(kv: str, tiny: Description) -> None:
    chip = with_slots(tiny, kv, 4)
    pool = SequencePool(CycleModel(chip, threads=1))
    prompt = text(21, seed=1)
    parent, first = pool.start(prompt)
    np.testing.assert_array_equal(first.logits, alone(chip, prompt)[-1])
    slots = [pool.fork(parent) for _ in range(3)]
    n_new = 13
    answers = {slot: text(n_new, seed=10 + slot) for slot in (parent, *slots)}
    found: dict[int, list[NDArray[np.int32]]] = {slot: [] for slot in answers}
    for step in range(n_new):  # in turn, so that each writes while the others are half-way
        for slot, answer in answers.items():
            found[slot].append(pool.step(slot, answer[step]).logits)
    for slot, answer in answers.items():
        expected = alone(chip, [*prompt, *answer])[len(prompt) :]
        np.testing.assert_array_equal(np.stack(found[slot]), expected)
    assert pool.copied
    assert pool.pages_in_use <= pool.pages_unshared
    for slot in pool.slots:
        pool.free(slot)
    assert pool.pages_in_use == 0


def test_t1_06_copies_take_the_cycles_of_their_words(tiny: Description) -> None:
    chip = with_slots(tiny, "int8,layout=paged,block=16", 4)
    pool = SequencePool(CycleModel(chip, threads=1))
    parent, _ = pool.start(text(37))
    slots = [pool.fork(parent) for _ in range(3)]
    model = CycleModel(chip, threads=1)
    model.prefill(text(37))
    plain = model.step(5).cycles
    spec, target = chip.spec, chip.target
    # Five tokens of one page: the command, then a word of K and of V a cycle.
    local = -(-5 // target.array.n_tiles)
    words = -(-spec.head_dim // target.attention.word_elems)
    expected = spec.n_layers * spec.n_kv_heads * words * local + 1
    assert copy_cycles(5, spec=spec, target=target) == expected
    for slot in slots:
        assert pool.step(slot, 5).cycles == plain + expected
    assert pool.step(parent, 5).cycles == plain  # it holds its page alone by now
    for _ in range(19):
        for slot in slots:
            pool.step(slot, 7)
    assert pool.copied == (5, 5, 5)
    assert (pool.pages_in_use, pool.pages_unshared) == (9, 15)
    assert pool.fork_cycles == 3 * 3  # entries of the block table
    for slot in pool.slots:
        pool.free(slot)
    assert pool.pages_in_use == 0


def test_16_bit_words_are_copied_as_fast_and_h2o_copies_its_mass(tiny: Description) -> None:
    narrow = with_slots(tiny, "int8,layout=paged,block=4", 2)
    wide = with_slots(tiny, "vllm,block=4", 2)
    h2o = with_slots(tiny, "h2o,heavy=5,window=4,layout=paged,block=2", 2)
    spec = tiny.spec
    assert copy_cycles(3, spec=spec, target=wide.target) == copy_cycles(
        3, spec=spec, target=narrow.target
    )
    mass = 2 * spec.n_layers * spec.n_kv_heads * -(-9 // tiny.target.array.n_tiles)
    assert fork_cycles(50, spec=spec, target=h2o.target) == 5 + mass


def test_t2_12_a_known_prefix_gives_what_computing_it_gives(tiny: Description) -> None:
    chip = with_slots(tiny, "int4,layout=paged,block=4", 3)
    pool = SequencePool(CycleModel(chip, threads=1), prefixes=True)
    system = text(18, seed=3)
    first, cold = pool.start([*system, 11, 12])
    assert pool.hit_tokens == 0
    second, warm = pool.start([*system, 21, 22, 23])
    assert pool.hit_tokens == 16  # four whole pages of the first one's twenty tokens
    np.testing.assert_array_equal(warm.logits, alone(chip, [*system, 21, 22, 23])[-1])
    assert warm.cycles < cold.cycles
    assert len(warm.chunks) < len(cold.chunks)
    answer = text(9, seed=4)
    found = [pool.step(second, token).logits for token in answer]
    expected = alone(chip, [*system, 21, 22, 23, *answer])[21:]
    np.testing.assert_array_equal(np.stack(found), expected)
    # The answer stays known, too: a second turn finds all its whole pages.
    pool.free(second)
    again = [*system, 21, 22, 23, *answer, 31]
    third, turn = pool.start(again)
    assert pool.hit_tokens == 16 + 28
    np.testing.assert_array_equal(turn.logits, alone(chip, again)[-1])
    pool.free(first)
    pool.free(third)
    assert pool.tree is not None
    assert pool.pages_in_use == pool.tree.n_pages


def test_t1_14_a_prefix_of_another_adapter_is_not_found(tiny: Description) -> None:
    chip = with_slots(tiny, "int8,layout=paged,block=4", 3)
    pool = SequencePool(CycleModel(chip, threads=1), prefixes=True)
    prompt = text(17, seed=5)
    pool.start(prompt)
    _, adapted = pool.start(prompt, adapter="story")
    assert pool.hit_tokens == 0
    expected = alone(chip, prompt, adapter="story")[-1]
    np.testing.assert_array_equal(adapted.logits, expected)
    assert (adapted.logits != alone(chip, prompt)[-1]).any()  # a hit would have been wrong
    _, again = pool.start(prompt, adapter="story")
    assert pool.hit_tokens == 16
    np.testing.assert_array_equal(again.logits, expected)


def test_t2_12_a_full_chip_forgets_prefixes_that_nobody_uses(tiny: Description) -> None:
    chip = with_slots(tiny, "int8,layout=paged,block=4", 2, context=24)
    pool = SequencePool(CycleModel(chip, threads=1), prefixes=True)
    for seed in range(6):
        prompt = text(21, seed=seed)
        slot, result = pool.start(prompt)
        np.testing.assert_array_equal(result.logits, alone(chip, prompt)[-1])
        pool.free(slot)
    assert pool.tree is not None
    assert pool.tree.n_pages <= 12
    assert pool.admit(21) == "now"


def test_admission_says_now_later_or_never(tiny: Description) -> None:
    chip = with_slots(tiny, "int8,layout=paged,block=4", 2, context=24)
    pool = SequencePool(CycleModel(chip, threads=1), watermark=0.2)  # two of the twelve pages
    assert pool.admit(24) == "now"
    assert pool.admit(25) == "never"
    pool.start(text(20))
    assert pool.admit(20) == "now"
    assert pool.admit(21) == "later"  # six of the seven that are free, two to be left
    pool.start(text(3))
    assert pool.admit(1) == "later"  # no slot


def test_errors(tiny: Description) -> None:
    chip = with_slots(tiny, "int8,layout=paged,block=4", 2, context=24)
    pool = SequencePool(CycleModel(chip, threads=1))
    parent, _ = pool.start(text(22))
    child = pool.fork(parent)
    wide = (
        "Sequences on target 'small' must be at most 2, one a slot, not 3; free one, narrow the "
        "beam, or compile with --slots 3"
    )
    with pytest.raises(CapacityError, match=sentence(wide)):
        pool.fork(parent)
    pool.free(child)
    with pytest.raises(
        SpecError, match=sentence(f"Slot must hold a sequence ({parent} do), not be {child}")
    ):
        pool.free(child)
    with pytest.raises(SpecError, match=sentence("Prompt must have at least 1 token, not 0")):
        pool.start([])
    before = pool.pages_in_use
    with pytest.raises(SpecError, match=r"^Token must be 0 to \d+, not -1$"):
        pool.start([1, -1])
    assert pool.pages_in_use == before
    for kv, words in (
        ("int4", "KV layout of a chip whose sequences share must be 'paged', not 'contiguous'; "
                 "compile with --kv codec=int4,group=32,retention=all,layout=paged"),
        ("int8", "KV layout of a chip whose sequences share must be 'paged', not 'contiguous'; "
                 "compile with --kv codec=int8,retention=all,layout=paged"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=sentence(words)):
            SequencePool(CycleModel(with_kv(tiny, kv), threads=1))
    for kv, words in (
        ("kivi-2bit,residual=8,group=4,layout=paged,block=4",
         "Codec of cached prefixes must encode each token by itself, not be 'kivi', which encodes "
         "the last 8 tokens of a prefix when the sequence goes on; compile with --kv codec=int4, "
         "or fork a sequence instead"),
        ("kvc-q,heavy=4,window=3,key_bits=4,layout=paged,block=4",
         "Codec of cached prefixes must encode each token by itself, not be 'tiered', whose narrow "
         "tokens depend on what followed; compile with --kv codec=int4"),
        ("h2o,heavy=5,window=4,layout=paged,block=2",
         "Retention of cached prefixes must be 'all', not 'h2o': which tokens are left depends on "
         "what followed; fork a sequence instead"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=sentence(words)):
            SequencePool(CycleModel(with_kv(tiny, kv), threads=1), prefixes=True)
    with pytest.raises(
        SpecError, match=sentence("Watermark must be at least 0 and below 1, not 1.0")
    ):
        SequencePool(CycleModel(chip, threads=1), watermark=1.0)
    with pytest.raises(
        SpecError,
        match=sentence(
            "Sequence to be forked must lie in pages, not in the plain cache; compile with --kv "
            "int8,layout=paged"
        ),
    ):
        CycleModel(tiny, threads=1).fork(0, 0)
    tiered = SequencePool(
        CycleModel(
            with_slots(tiny, "kvc-q,heavy=4,window=3,key_bits=4,layout=paged,block=4", 2), threads=1
        )
    )
    only, _ = tiered.start(text(5))
    with pytest.raises(
        SpecError,
        match=sentence(
            "Codec of a sequence to be forked must not be 'tiered', which encodes tokens of shared "
            "pages anew as attention ranks them; compile with another codec"
        ),
    ):
        tiered.fork(only)


def test_t2_12_the_flag_says_where_known_prefixes_are_exact(tiny: Description) -> None:
    """Everywhere else they are refused."""
    codecs = (
        "fp16",
        "int8",
        "int4",
        "int2",
        "kivi-2bit,residual=8,group=4",
        "kvc-q,heavy=4,window=3",
        "commvq-1bit,residual=8",
    )
    policies = ("", ",retention=stream,sinks=1,window=4", ",retention=h2o,heavy=2,window=3")
    exact = []
    for codec in codecs:
        for policy in policies if "," not in codec else policies[:1]:
            kv = f"{codec}{policy},layout=paged,block=4"
            chip = with_kv(tiny, kv)
            assert not with_kv(tiny, f"{codec}{policy},layout=slotmap").target.kv.exact_prefixes
            model = SimpleNamespace(description=chip, pages=SimpleNamespace())
            try:
                SequencePool(cast("CycleModel", model), prefixes=True)
            except SpecError:
                assert not chip.target.kv.exact_prefixes, kv
            else:
                assert chip.target.kv.exact_prefixes, kv
                exact.append(codec)
    assert exact == ["fp16", "int8", "int4", "int2"]


@pytest.mark.parametrize("kv", PAGED)
def test_law_5_any_order_of_starts_forks_steps_and_ends_changes_no_logit(
    kv: str, tiny: Description
) -> None:
    """On a pool so small that prefixes are forgotten and prompts refused."""
    rng = np.random.default_rng(len(kv))
    chip = with_slots(tiny, kv, 3, context=24)
    pool = SequencePool(CycleModel(chip, threads=1), prefixes=chip.target.kv.exact_prefixes)
    shared = text(20, seed=9)
    n_compared = n_refused = 0
    while n_compared < 40:
        slots, what = pool.slots, rng.random()
        slot = int(rng.choice(slots)) if slots else 0
        try:
            if not slots or what < 0.25:
                own = [int(token) for token in rng.integers(3, 280, rng.integers(1, 4))]
                slot, first = pool.start(shared[: rng.integers(0, 18)] + own)
                logits = first.logits
            elif what < 0.4:
                pool.fork(slot)
                continue
            elif what < 0.5:
                pool.free(slot)
                continue
            else:
                logits = pool.step(slot, int(rng.integers(3, 280))).logits
        except CapacityError:
            n_refused += 1
            continue
        n_compared += 1
        np.testing.assert_array_equal(logits, alone(chip, pool.tokens(slot))[-1])
    assert n_refused
    assert (pool.hit_tokens > 0) == chip.target.kv.exact_prefixes
    for slot in pool.slots:
        pool.free(slot)
    if pool.tree is None:
        assert pool.pages_in_use == 0
