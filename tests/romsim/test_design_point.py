from __future__ import annotations

import random
from dataclasses import replace

import pytest

from romsim.design_point import DesignPoint, adapter_ranks
from romsim.rates import prefill_chunks
from romsim.timing import TimingModel
from romsim_compiler.durations import attention_cycles
from romsim_compiler.formats import WeightFormat, parse_format
from romsim_compiler.groups import build_groups
from romsim_compiler.issue import issue_times
from romsim_compiler.place import size_groups
from romsim_compiler.schedule import build_decode, build_prefill
from romsim_compiler.target_file import load_target
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES, TINY
from tests.romsim.random_points import random_point, random_spec, random_target, random_weights


def compiled(
    point: DesignPoint, layers: WeightFormat, head: WeightFormat
) -> tuple[TimingModel, list[object]]:
    """Return the whole model's timing, every layer scheduled, and its groups."""
    home = point.target.embedding
    groups = build_groups(
        point.spec,
        lambda name: layers if name.startswith("blk.") else head,
        input_in_rom=home.input == "rom",
        head_in_rom=home.head == "rom",
    )
    mappings = dict(zip((g.name for g in groups), size_groups(groups, point.target), strict=True))
    decode = build_decode(point.spec, groups)
    model = TimingModel(spec=point.spec, target=point.target, mappings=mappings, decode=decode)
    return model, list(groups)


def test_decode_cycles_equal_the_compiled_program_on_200_random_targets() -> None:
    rng = random.Random(5)
    for _ in range(200):
        target, spec = random_target(rng), random_spec(rng)
        layers, head = random_weights(rng, target), random_weights(rng, target)
        point = DesignPoint.uniform(spec, target, layers, head=head)
        timer, groups = compiled(point, layers, head)
        positions = [rng.randrange(300) for _ in range(3)]
        rank = rng.choice([0, 4, 16, 40])
        ranks = {
            f"L{layer}.{stem}": padded
            for layer in range(spec.n_layers)
            for stem, padded in adapter_ranks(rank).items()
        }
        decode = build_decode(spec, groups)  # type: ignore[arg-type]
        stepped = [timer.run(decode, p, ranks).cycles for p in positions]
        assert point.decode_cycles(positions, rank=rank) == stepped


def test_prefill_cycles_equal_the_compiled_programs_on_60_random_targets() -> None:
    rng = random.Random(6)
    for _ in range(60):
        target, spec = random_target(rng), random_spec(rng)
        layers = random_weights(rng, target)
        point = DesignPoint.uniform(spec, target, layers)
        timer, groups = compiled(point, layers, layers)
        n_prompt = rng.randint(1, 40)
        expected = 0
        for first, n, last in prefill_chunks(n_prompt, target.schedule.n_inflight):
            program = build_prefill(spec, groups, n, with_head=last)  # type: ignore[arg-type]
            expected += timer.run(program, first).cycles
        assert point.prefill_cycles(n_prompt) == expected


def test_layers_of_different_formats_fold_only_where_they_are_equal() -> None:
    target = load_target("small")
    spec = replace(TINY["tiny-int4"], n_layers=7)
    wide, narrow = parse_format("int8g32"), parse_format("int4g32")

    def fmt_of(name: str) -> WeightFormat:
        is_wide = name.startswith(("blk.2.", "blk.3.")) or name == "blk.5.ffn_up.weight"
        return wide if is_wide else narrow

    point = DesignPoint.of_formats(spec, target, fmt_of)
    assert point.layer_runs == ((0, 2), (2, 2), (4, 1), (5, 1), (6, 1))
    groups = build_groups(spec, fmt_of)
    mappings = dict(zip((g.name for g in groups), size_groups(groups, target), strict=True))
    decode = build_decode(spec, groups)
    timer = TimingModel(spec=spec, target=target, mappings=mappings, decode=decode)
    assert point.decode_cycles([0, 9, 77]) == [timer.run(decode, p).cycles for p in (0, 9, 77)]
    assert point.rom_words == sum(m.n_words for m in mappings.values())


def test_words_and_bits_count_every_layer() -> None:
    spec, target = SHAPES["llama-3.2-3b"], load_target("roma-7nm")
    point = DesignPoint.uniform(spec, target, parse_format("sym4g128"))
    groups = build_groups(spec, lambda _: parse_format("sym4g128"), input_in_rom=False)
    assert point.rom_words == sum(m.n_words for m in size_groups(groups, target))
    assert point.n_weights == sum(g.n_rows * g.n_cols for g in groups) == 3_212_574_720
    assert point.weight_bits == point.n_weights * 33 // 8
    assert point.fits_rom
    assert point.max_context() == 5120  # 20 whole tokens of 56 KiB in each tile's 1,152 KiB


def test_longer_contexts_take_at_least_as_long() -> None:
    rng = random.Random(7)
    for _ in range(30):
        point = random_point(rng)
        block = point.target.attention.attn_block
        whole = [block * n - 1 for n in range(1, 9)]
        cycles = point.decode_cycles(whole)
        assert cycles == sorted(cycles)


def test_folded_prompt_costs_what_its_tokens_do_without_interleaving() -> None:
    target = load_target("small")
    single = replace(target, schedule=replace(target.schedule, n_inflight=1))
    point = DesignPoint.uniform(TINY["tiny-int4"], single, parse_format("int4g32"))
    decoded = point.decode_cycles(range(20))
    head = point.decode_cycles([19])[0]
    assert point.prefill_cycles(20) < sum(decoded)  # no head before the last token
    assert point.prefill_cycles(1) == decoded[0]
    assert point.prefill_cycles(20) - point.prefill_cycles(19) < head


def test_interleaving_two_tokens_is_faster_where_units_take_turns() -> None:
    target = load_target("roma-7nm")
    alone = replace(target, schedule=replace(target.schedule, n_inflight=1))
    spec, fmt = SHAPES["llama-3.2-3b"], parse_format("sym4g128")
    two = DesignPoint.uniform(spec, target, fmt).prefill_cycles(256)
    one = DesignPoint.uniform(spec, alone, fmt).prefill_cycles(256)
    assert one * 0.6 < two < one * 0.8


def test_adapter_rank_is_padded_to_blocks() -> None:
    assert adapter_ranks(0) == {}
    assert adapter_ranks(16) == {"qkv": (16,) * 3, "o": (16,), "gu": (16,) * 2, "down": (16,)}
    assert adapter_ranks(40)["o"] == (64,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: adapter_ranks(-1), r"^Adapter rank must be 0 or more, not -1$"),
        (
            lambda: DesignPoint.uniform(
                TINY["tiny-int4"], load_target("small"), parse_format("int4g32")
            ).prefill_cycles(0),
            r"^Prompt must have at least 1 token, not 0$",
        ),
    ],
)
def test_impossible_requests_are_refused(call: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()  # type: ignore[operator]


def test_format_that_the_words_cannot_hold_is_refused() -> None:
    message = (
        r"^Weight group of tensor 'blk\.0\.attn_q\.weight' must be a multiple of 128 codes on "
        r"target 'roma-7nm', not 32 \(format 'sym4g32'\); .*$"
    )
    with pytest.raises(SpecError, match=message):
        DesignPoint.uniform(
            SHAPES["llama-3.2-3b"], load_target("roma-7nm"), parse_format("sym4g32")
        )


def test_attention_of_each_token_in_flight_is_its_own() -> None:
    base = load_target("small")
    target = replace(
        base,
        array=replace(base.array, n_tiles=1),  # so that every token lengthens attention
        schedule=replace(base.schedule, n_inflight=2),
    )
    spec = replace(TINY["tiny-int4"], n_layers=3)
    point = DesignPoint.uniform(spec, target, parse_format("int4g32"))
    groups = build_groups(spec, lambda _: parse_format("int4g32"))
    program = build_prefill(spec, groups, 2, with_head=True)
    attention = attention_cycles([0, 1], spec=spec, target=target)
    assert attention[0] < attention[1]
    timer, _ = compiled(point, parse_format("int4g32"), parse_format("int4g32"))
    durations = timer.durations(program, 0)
    assert {
        d for i, d in zip(program.instructions, durations, strict=True) if i.op == "attn"
    } == set(attention)
    times = issue_times(program.instructions, durations, wake_cycles=0)
    assert point.prefill_cycles(2) == max(idle for _, idle in times) + target.latency.token
