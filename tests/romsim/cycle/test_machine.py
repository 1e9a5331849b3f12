"""The cycle model against the page, operator by operator, and against itself on other chips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from romsim.cycle import CycleModel
from romsim.timing import TimingModel
from romsim_compiler.lora_image import LoraAdapterImage, build_lora
from romsim_compiler.target import Latency
from romsim_compiler.target_file import load_target
from romsim_models.errors import CapacityError, DescriptionError, SpecError
from romsim_models.lora import LoraAdapter, LoraTarget
from tests.romsim.cycle import page
from tests.romsim.cycle.chips import (
    BITNET,
    LLAMA,
    WIDE,
    Chip,
    PageDecoder,
    TinyModel,
    make_chip,
    make_model,
    make_target,
)

TOKENS = [3, 17, 0, 39, 5, 5, 21, 8, 30, 11, 2]


def mixed(tensor: str) -> str:
    """As SmolLM2 is shipped: 4 bits with minima, an 8-bit embedding that is the head too."""
    return "int8g32" if "embd" in tensor else "int4g32"


def split(tensor: str) -> str:
    """Formats that differ inside the fused groups."""
    return {"attn_k": "int8g32", "ffn_up": "sym4g32", "output": "int2g32"}.get(
        tensor.split(".")[-2], "int4g64" if "attn_q" in tensor else "int4g32"
    )


CASES: dict[str, tuple[TinyModel, dict[str, Any]]] = {
    "mixed 4 and 8 bits": (make_model(LLAMA, mixed), {}),
    "split groups": (make_model(WIDE, split, seed=1), {"lane_bits": 2, "n_tiles": 3}),
    "ternary": (
        make_model(BITNET, lambda t: "int8g32" if "embd" in t else "ternary", seed=2),
        {"lane_bits": 2},
    ),
    "all ternary": (make_model(BITNET, lambda t: "ternary", seed=3), {"lane_bits": 2}),
    "squared relu": (make_model(replace(WIDE, activation="relu2"), lambda t: "int4g32"), {}),
}


def chip_of(name: str, **changes: Any) -> Chip:
    model, sizes = CASES[name]
    return make_chip(model, make_target(**{**sizes, **changes}))


def recorded(model: CycleModel, run: Callable[[], object]) -> dict[tuple[int, str], Any]:
    found: dict[tuple[int, str], Any] = {}

    def record(name: str, position: int, values: NDArray[Any]) -> None:
        assert (position, name) not in found
        found[position, name] = values

    model.record = record
    run()
    model.record = None
    return found


def decode(chip: Chip, tokens: list[int], **options: Any) -> list[NDArray[np.int32]]:
    model = CycleModel(chip, **options)
    return [model.step(token).logits for token in tokens]


@pytest.mark.parametrize("name", CASES)
def test_every_operator_is_the_pages(name: str) -> None:
    chip = chip_of(name, attn_block=4)
    model, decoder = CycleModel(chip), PageDecoder(CASES[name][0], chip)
    clips = page.clips[0]
    found = recorded(model, lambda: [model.step(token) for token in TOKENS])
    for position, token in enumerate(TOKENS):
        expected = decoder.step(token)
        assert {n for p, n in found if p == position} == set(expected)
        for operator, values in expected.items():
            got = found[position, operator]
            assert got.dtype == (np.int8 if operator.endswith(("codes", "shifts")) else np.int32)
            assert got.tolist() == values, (position, operator)
    assert model.saturations == page.clips[0] - clips == 0


def test_saturations_of_a_model_that_overflows_are_the_pages() -> None:
    weights = make_model(LLAMA, mixed, seed=4, spread=3000.0)
    chip = make_chip(weights, make_target())
    model, decoder = CycleModel(chip), PageDecoder(weights, chip)
    clips = page.clips[0]
    for token in TOKENS[:3]:
        assert model.step(token).logits.tolist() == decoder.step(token)["logits"]
    assert model.saturations == page.clips[0] - clips > 0


@pytest.mark.parametrize("attn_block", [1, 2, 5, 16])
def test_logits_over_many_attention_blocks_are_the_pages(attn_block: int) -> None:
    weights = make_model(replace(LLAMA, n_layers=1, vocab_size=24), mixed, seed=attn_block)
    chip = make_chip(weights, make_target(attn_block=attn_block))
    model, decoder = CycleModel(chip), PageDecoder(weights, chip)
    for position in range(35):
        token = position * 7 % 24
        assert model.step(token).logits.tolist() == decoder.step(token)["logits"], position


def adapter_image(chip: Chip, ranks: dict[str, int], seed: int = 0) -> LoraAdapterImage:
    rng = np.random.default_rng(seed)
    targets = {}
    for group in chip.built:
        for member in group.members:
            rank = ranks.get(member.operator, 0)
            if rank and group.layer >= 0:
                targets[member.tensor] = LoraTarget(
                    name=member.tensor,
                    alpha=0.5 * rank,
                    a=rng.normal(0, 0.2, (rank, group.n_cols)).astype(np.float32),
                    b=rng.normal(0, 0.2, (member.n_rows, rank)).astype(np.float32),
                    scaling=0.5,
                )
    adapter = LoraAdapter(name="style", base_name="", targets=targets)
    return build_lora("style", adapter, spec=chip.spec, target=chip.target)


@pytest.mark.parametrize(
    "ranks",
    [{"q": 8, "v": 8}, {"o": 4, "down": 40, "gate": 3}, dict.fromkeys("qkvo", 32), {"up": 20}],
    ids=str,
)
@pytest.mark.parametrize("name", ["mixed 4 and 8 bits", "split groups", "ternary"])
def test_adapters_are_the_pages(name: str, ranks: dict[str, int]) -> None:
    plain = chip_of(name)
    image = adapter_image(plain, ranks)
    chip = replace(plain, loras={"style": image})
    model, decoder = CycleModel(chip), PageDecoder(CASES[name][0], chip)
    decoder.adapter = image
    found = recorded(model, lambda: [model.step(t, adapter="style") for t in TOKENS[:3]])
    for position, token in enumerate(TOKENS[:3]):
        for operator, values in decoder.step(token).items():
            assert found[position, operator].tolist() == values, (position, operator)
    without = CycleModel(chip)
    assert without.step(TOKENS[0]).logits.tolist() != found[0, "logits"].tolist()
    assert np.array_equal(without.step(TOKENS[1]).logits, decode(plain, TOKENS[:2])[1])


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    n_tiles=st.sampled_from([1, 2, 3, 5, 8]),
    n_cells=st.sampled_from([1, 2, 4, 8]),
    word_codes=st.sampled_from([32, 64, 128]),
    lane_bits=st.sampled_from([2, 4]),
    n_lanes=st.sampled_from([32, 64, 96]),
    word_elems=st.sampled_from([32, 64]),
    heads_parallel=st.integers(1, 4),
    context=st.integers(len(TOKENS), 70),
    n_inflight=st.integers(1, 4),
    slot=st.integers(0, 2),
    name=st.sampled_from(sorted(CASES)),
)
def test_no_size_of_the_machine_changes_a_logit(
    n_tiles: int,
    n_cells: int,
    word_codes: int,
    lane_bits: int,
    n_lanes: int,
    word_elems: int,
    heads_parallel: int,
    context: int,
    n_inflight: int,
    slot: int,
    name: str,
) -> None:
    target = make_target(
        n_tiles=n_tiles, n_cells=n_cells, word_codes=word_codes, lane_bits=lane_bits,
        word_elems=word_elems, heads_parallel=heads_parallel, n_inflight=n_inflight, n_slots=3,
        attn_block=4,
    )  # fmt: skip
    target = replace(target, vector=replace(target.vector, n_lanes=n_lanes))
    chip = make_chip(CASES[name][0], target, context=context)
    model = CycleModel(chip)
    model.prefill(TOKENS[:5], slot=slot)
    logits = [model.step(token, slot=slot).logits for token in TOKENS[5:]]
    expected = decode(chip_of(name, attn_block=4), TOKENS)[5:]
    assert all(np.array_equal(a, b) for a, b in zip(logits, expected, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_number_of_threads_changes_a_value(threads: int) -> None:
    weights = make_model(replace(LLAMA, vocab_size=3000), mixed)  # several pieces in the head
    chip = make_chip(weights, make_target())
    model = CycleModel(chip, threads=threads)
    found = recorded(model, lambda: [model.step(t) for t in TOKENS])
    alone = CycleModel(chip, threads=1)
    expected = recorded(alone, lambda: [alone.step(t) for t in TOKENS])
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in found)


@pytest.mark.parametrize("n_inflight", [1, 2, 3, 4])
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 7, 8, 11])
def test_prefill_has_the_values_of_single_steps(n_inflight: int, n_tokens: int) -> None:
    chip = chip_of("mixed 4 and 8 bits", n_inflight=n_inflight, attn_block=4)
    together, single = CycleModel(chip), CycleModel(chip)
    prompt = TOKENS[:n_tokens]
    results: list[Any] = []
    found = recorded(together, lambda: results.append(together.prefill(prompt)))
    expected = recorded(single, lambda: [single.step(token) for token in prompt])
    heads = ("output_norm.codes", "output_norm.shifts", "logits")
    for position in range(n_tokens - 1):  # the head runs after the last token only
        for name in heads:
            del expected[position, name]
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in found)
    (result,) = results
    assert np.array_equal(result.logits, expected[n_tokens - 1, "logits"])
    assert result.next_token == int(np.argmax(result.logits))
    assert result.position == n_tokens - 1
    n_chunks, n_rest = divmod(n_tokens, n_inflight)
    assert len(result.chunks) == n_chunks + n_rest
    after = together.step(4).logits
    assert np.array_equal(after, single.step(4).logits)


def test_next_token_is_the_lowest_of_the_largest() -> None:
    chip = chip_of("mixed 4 and 8 bits")
    model = CycleModel(chip)
    rom = chip.rom.copy()
    head = chip.groups["head"]
    rom[head.base : head.base + head.mapping.n_words] = 0  # every logit alike
    flat = CycleModel(replace(chip, rom=rom))
    result = flat.step(5)
    assert len(set(result.logits.tolist())) == 1
    assert result.next_token == 0
    logits = model.step(5).logits
    assert model.step(5).position == 1
    assert len(set(logits.tolist())) > 1


def timing_model(chip: Chip) -> TimingModel:
    spec = chip.spec
    return TimingModel(
        spec=spec,
        target=chip.target,
        mappings={name: group.mapping for name, group in chip.groups.items()},
        decode=chip.decode,
    )


@pytest.mark.parametrize("name", CASES)
def test_cycles_are_those_of_the_timing_engine(name: str) -> None:
    chip = chip_of(name, attn_block=4, n_inflight=3)
    image = adapter_image(chip, {"q": 8, "o": 4})
    chip = replace(chip, loras={"style": image})
    ranks = {group: entry.ranks for group, entry in image.groups.items()}
    timing, model = timing_model(chip), CycleModel(chip)
    result = model.prefill(TOKENS)
    firsts = [0, 3, 6, 9, 10]
    for first, chunk in zip(firsts, result.chunks, strict=True):
        n = 3 if first < 9 else 1
        expected = timing.run(chip.prefill(n, first + n == len(TOKENS)), first)
        assert chunk.cycles == expected.cycles
        assert tuple((issue, idle) for _, issue, idle in chunk.events) == expected.times
    assert result.cycles == sum(chunk.cycles for chunk in result.chunks)
    for position in range(len(TOKENS), 30):
        adapter = "style" if position % 2 else None
        step = model.step(3, adapter=adapter)
        expected = timing.run(chip.decode, position, ranks if adapter else None)
        assert step.position == position
        assert step.cycles == expected.cycles
        assert tuple((issue, idle) for _, issue, idle in step.timeline) == expected.times
        assert tuple(i for i, _, _ in step.timeline) == chip.decode.instructions


def test_a_token_by_hand() -> None:
    """The chain of docs/machine.md, section 5, added up for one layer of the small target."""
    spec = replace(LLAMA, n_layers=1)
    # Depths of its own, so that the sums below stay a person's and do not follow the RTL's.
    depths = Latency(
        embed=6, sincos=5, norm=26, matvec=8, rope=8, attn=4, block=16, attn_out=16, resid=4,
        glu=10, lora=24, lora_off=2, token=4,
    )  # fmt: skip
    chip = make_chip(make_model(spec, mixed), replace(make_target(), latency=depths))
    step = CycleModel(chip).step(0)
    issues = {(i.op, i.operand): (issue, idle) for i, issue, idle in step.timeline}
    # head 2 planes of 2 words; 2 beats of 32 lanes: max(4, 2) + 6 + 1
    assert issues["embed", "head"] == (0, 11)
    # 16 pairs, one a cycle
    assert issues["sincos", ""] == (11, 11 + 16 + 5)
    assert issues["norm", "blk.0.attn_norm"] == (32, 32 + 2 * 2 + 26 + 1)
    # 256 rows, 4 at a time, 2 words of a row in one cell: 64 steps of 2 cycles, one drain beat
    qkv = chip.groups["L0.qkv"].mapping
    assert (qkv.rows_per_step, qkv.wpc, qkv.ks, qkv.steps) == (4, 2, 1, 64)
    assert issues["matvec", "L0.qkv"] == (63, 63 + 64 * 2 + 8 + 1)
    assert issues["lora", "L0.qkv"] == (64, 64 + 2)
    assert issues["rope", ""] == (200, 200 + 8 + 8 + 1)
    # one token: 2 KV heads x 1 pass x 1 token x 1 word, twice, and exponentials; 4 heads, 2 hops;
    # 4 beats of sums; 16; then no fold, 4 and 2 hops
    assert issues["attn", ""] == (217, 217 + (2 + 4 + 2 + 2 + 2 + 4 + 16) + 0 + 4 + 2)
    assert step.cycles == max(idle for _, _, idle in step.timeline) + 4


def test_reset_starts_anew_and_slots_are_apart() -> None:
    chip = chip_of("mixed 4 and 8 bits", n_slots=2)
    expected = decode(chip, TOKENS[:4])
    model = CycleModel(chip)
    for index, token in enumerate(TOKENS[:4]):  # two sequences, a token of each in turn
        assert np.array_equal(model.step(token, slot=0).logits, expected[index])
        model.step(TOKENS[-1 - index], slot=1)
    model.reset()
    assert (model.position(0), model.position(1)) == (0, 4)
    again = [model.step(token).logits for token in TOKENS[:4]]
    assert all(np.array_equal(a, b) for a, b in zip(again, expected, strict=True))


def test_results_are_not_overwritten_by_later_tokens() -> None:
    model = CycleModel(chip_of("mixed 4 and 8 bits"))
    first = model.step(1).logits
    kept = first.copy()
    model.step(2)
    assert np.array_equal(first, kept)


def test_a_run_that_fits_exactly_runs_and_one_token_more_is_refused() -> None:
    chip = make_chip(CASES["mixed 4 and 8 bits"][0], make_target(), context=8)
    model = CycleModel(chip)
    model.check_run(5, 4)  # the last generated token enters no cache
    with pytest.raises(
        CapacityError,
        match=r"^Run of 5 prompt and 5 new tokens must fit the KV cache of 8 tokens, of which 0 "
        r"are taken; ask for at most 4 new tokens, or compile with a larger context$",
    ):
        model.check_run(5, 5)
    result = model.prefill(TOKENS[:5])
    for _ in range(3):
        result = model.step(result.next_token)  # type: ignore[assignment]  # both have next_token
    assert model.position() == 8
    with pytest.raises(
        CapacityError,
        match=r"^Run of 1 prompt and 0 new tokens must fit the KV cache of 8 tokens, of which 8 "
        r"are taken; shorten the prompt to 0 tokens, or compile with a larger context$",
    ):
        model.step(0)


def test_a_long_prompt_is_refused_before_anything_runs() -> None:
    chip = make_chip(CASES["mixed 4 and 8 bits"][0], make_target(), context=8)
    model = CycleModel(chip)
    with pytest.raises(
        CapacityError,
        match=r"^Run of 9 prompt and 0 new tokens must fit the KV cache of 8 tokens, of which 0 "
        r"are taken; shorten the prompt to 8 tokens, or compile with a larger context$",
    ):
        model.prefill([0] * 9)
    assert model.position() == 0


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda m: m.check_run(0, 1), "Prompt must have at least 1 token, not 0"),
        (lambda m: m.prefill([]), "Prompt must have at least 1 token, not 0"),
        (lambda m: m.check_run(1, -1), "Number of new tokens must be at least 0, not -1"),
        (lambda m: m.step(40), "Token must be 0 to 39, not 40"),
        (lambda m: m.prefill([1, 2, -1]), "Token must be 0 to 39, not -1"),
        (lambda m: m.step(0, slot=1), "Slot must be 0 to 0 on target 'small', not 1"),
        (
            lambda m: m.step(0, adapter="x"),
            r"Adapter must be a resident one: none \(compile with one\); not 'x'",
        ),
    ],
    ids=["empty run", "empty prompt", "negative", "token", "prompt token", "slot", "adapter"],
)
def test_impossible_requests_are_refused(run: Callable[[CycleModel], Any], message: str) -> None:
    model = CycleModel(chip_of("mixed 4 and 8 bits"))
    with pytest.raises(SpecError, match=f"^{message}$"):
        run(model)
    assert model.position() == 0


def test_an_unknown_adapter_is_refused_with_the_resident_ones() -> None:
    chip = chip_of("mixed 4 and 8 bits")
    image = adapter_image(chip, {"q": 4})
    model = CycleModel(replace(chip, loras={"style": image, "law": image}))
    with pytest.raises(
        SpecError, match=r"^Adapter must be a resident one: law, style; not 'stile'$"
    ):
        model.step(0, adapter="stile")


@pytest.mark.parametrize("name", ["roma-7nm", "tom-7nm"])
def test_a_published_target_is_refused_with_its_executable_twin(name: str) -> None:
    chip = replace(chip_of("mixed 4 and 8 bits"), target=load_target(name))
    with pytest.raises(
        SpecError,
        match=rf"^Target '{name}' must be executable for a run with values, but its formats "
        r"\(activations fp8_e4m3, KV fp8_e4m3, adapters [a-z0-9_]+\) are for area and timing only; "
        rf"compile for its executable twin '{name}-int8', or use the timing engine$",
    ):
        CycleModel(chip)


def test_another_target_that_is_not_executable_is_refused() -> None:
    chip = replace(chip_of("mixed 4 and 8 bits"), target=make_target(executable=False))
    with pytest.raises(
        SpecError,
        match=r"^Target 'small' must be executable for a run with values, but its formats "
        r"\(activations mxint8, KV mxint8, adapters mxint8\) are for area and timing only; compile "
        r"for an executable target such as 'roma-7nm-int8', or use the timing engine$",
    ):
        CycleModel(chip)


def test_a_shape_without_weights_is_refused() -> None:
    chip = replace(chip_of("mixed 4 and 8 bits"), has_images=False)
    with pytest.raises(
        DescriptionError,
        match=r"^Description of 'tiny' must have ROM images to be executed, but it was compiled "
        r"from a shape without weights; compile a model with weights, or use the timing engine$",
    ):
        CycleModel(chip)


def test_a_foreign_format_is_refused() -> None:
    chip = replace(chip_of("mixed 4 and 8 bits"), target=make_target(kv="fp8_e4m3"))
    with pytest.raises(
        SpecError,
        match=r"^Format of kv of target 'small' must be 'mxint8' to be executed, not 'fp8_e4m3'; "
        r"change it in the target's \[formats\]$",
    ):
        CycleModel(chip)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("input", r'keep the input embedding in ROM to be executed; set input = "rom" in its'),
        ("head", r'keep the LM head in ROM to be executed; set head = "rom" in its'),
    ],
)
def test_an_embedding_off_chip_is_refused(part: str, message: str) -> None:
    model, _ = CASES["split groups"]  # not tied
    target = make_target(lane_bits=2)
    target = replace(target, embedding=replace(target.embedding, **{part: "off-chip"}))
    with pytest.raises(SpecError, match=rf"^Target 'small' must {message} \[embedding\]$"):
        CycleModel(make_chip(model, target))


def test_foreign_numerics_are_refused() -> None:
    chip = chip_of("mixed 4 and 8 bits")
    chip = replace(chip, numerics=replace(chip.numerics, linear_frac=12))
    with pytest.raises(
        DescriptionError,
        match=r"^Numerics must have act_block 32 and linear_frac 16, not 32 and 12; compile again$",
    ):
        CycleModel(chip)


def test_a_short_table_is_refused() -> None:
    chip = chip_of("mixed 4 and 8 bits")
    tables = {**chip.tables, "SIG": chip.tables["SIG"][:-1]}
    with pytest.raises(
        DescriptionError,
        match=r"^Table SIG of the description must have 1025 entries, not 1024 entries; compile "
        r"again$",
    ):
        CycleModel(replace(chip, tables=tables))
    tables.pop("SIG")
    with pytest.raises(
        DescriptionError,
        match=r"^Table SIG of the description must have 1025 entries, not missing; compile again$",
    ):
        CycleModel(replace(chip, tables=tables))


def test_no_thread_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^threads must be at least 1, not 0$"):
        CycleModel(chip_of("mixed 4 and 8 bits"), threads=0)
