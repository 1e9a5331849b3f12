from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from romsim.bounds import split_cycles
from romsim.design_point import DesignPoint, adapter_ranks
from romsim.throughput import decode_rates, profile_token, roofline, time_to_first_token
from romsim_compiler.durations import attention_cycles
from romsim_compiler.formats import parse_format
from romsim_compiler.target import Power, Target
from romsim_compiler.target_file import load_target
from romsim_models.shapes import SHAPES, TINY
from tests.romsim.random_points import random_point


def roma() -> DesignPoint:
    return DesignPoint.uniform(
        SHAPES["llama-3.2-3b"], load_target("roma-7nm"), parse_format("sym4g128")
    )


def test_parts_of_every_duration_sum_to_it_on_200_random_points() -> None:
    rng = random.Random(21)
    for _ in range(200):
        point = random_point(rng)
        rank, position = rng.choice([0, 8, 33]), rng.randrange(500)
        ranks = adapter_ranks(rank)
        for block in point.blocks():
            for one in block.instructions:
                split = split_cycles(point, one, position=position, ranks=ranks)
                expected = (
                    attention_cycles([position], spec=point.spec, target=point.target)[0]
                    if one.op == "attn"
                    else point.duration(one, ranks)
                )
                assert sum(split.values()) == expected, (one, split)
                assert all(cycles >= 0 for cycles in split.values()), (one, split)


def test_stacks_of_a_token_sum_to_its_cycles_on_60_random_points() -> None:
    rng = random.Random(22)
    for _ in range(60):
        point = random_point(rng)
        rank, context = rng.choice([0, 8]), rng.randint(1, 300)
        profile = profile_token(point, context, rank=rank)
        assert profile.cycles == decode_rates(point, [context], rank=rank)[0].cycles
        stacks = (profile.by_resource, profile.by_unit, profile.by_layer, profile.by_op)
        for stack in stacks:
            assert sum(stack.values()) == profile.cycles
            assert min(stack.values()) >= 0
        assert set(profile.by_layer) == {-1, *range(point.spec.n_layers)}
        for share in profile.utilisation().values():
            assert 0 <= share <= 1
        json.dumps(profile.to_json(), allow_nan=False)


def test_waiting_for_banks_is_a_share_of_its_own() -> None:
    point = roma()
    assert "wake" not in profile_token(point, 64).by_resource
    before = 0
    for wake in (1, 8, 64, 512):
        gated = replace(point, target=replace(point.target, power=Power(wake_cycles=wake)))
        profile = profile_token(gated, 64)
        paid = profile.cycles - profile_token(point, 64).cycles
        assert before <= profile.by_resource["wake"] <= wake * (1 + 4 * point.spec.n_layers + 1)
        assert profile.by_resource["wake"] >= paid  # the path without waits is no longer one
        assert paid >= wake  # the program's first matrix
        before = profile.by_resource["wake"]


def test_rows_of_a_profile_name_their_own_layer() -> None:
    profile = profile_token(roma(), 1)
    matvecs = [r for r in profile.rows if r.op == "matvec" and r.layer == 17]
    assert [r.operand for r in matvecs] == ["L17.qkv", "L17.o", "L17.gu", "L17.down"]
    norms = [r.operand for r in profile.rows if r.op == "norm" and r.layer == 17]
    assert norms == ["blk.17.attn_norm", "blk.17.ffn_norm"]
    assert profile.rows[-1].operand == "head"


def test_rom_chip_is_bound_by_latency_and_not_by_weights() -> None:
    profile = profile_token(roma(), 1)
    assert profile.by_resource["latency"] > profile.by_resource["weights"]
    assert profile.by_resource["weights"] < 0.25 * profile.cycles
    limits = {roof.resource: roof for roof in roofline(roma(), 1)}
    assert limits["weight lanes"].limit_tokens_per_s == pytest.approx(163_199, rel=1e-4)
    assert limits["weight lanes"].utilisation == pytest.approx(
        decode_rates(roma(), [1])[0].tokens_per_s / 163_199, rel=1e-4
    )


def test_long_context_is_bound_by_the_kv_port() -> None:
    rows = profile_token(roma(), 4096).rows
    assert {r.bound for r in rows if r.op == "attn"} == {"kv port"}


def test_adapter_moves_the_path_to_the_h_units() -> None:
    without, with_adapter = (profile_token(roma(), 1, rank=rank) for rank in (0, 16))
    assert without.by_resource["adapter"] == 0
    assert with_adapter.by_unit["H"] > with_adapter.by_unit["L"]
    assert with_adapter.cycles > without.cycles


def test_rates_are_the_clock_over_the_cycles() -> None:
    (rate,) = decode_rates(roma(), [1025])
    assert rate.context == 1025
    assert rate.seconds == pytest.approx(rate.cycles / 500e6)
    assert rate.tokens_per_s == pytest.approx(1 / rate.seconds)
    assert rate.aggregate_tokens_per_s == rate.tokens_per_s
    json.dumps(rate.to_json(), allow_nan=False)


def test_time_to_first_token_grows_faster_than_the_prompt() -> None:
    short, long = time_to_first_token(roma(), [256, 4096])
    assert long.seconds / short.seconds > 4096 / 256
    assert short.tokens_per_s > long.tokens_per_s
    assert short.seconds == pytest.approx(roma().prefill_cycles(256) / 500e6)


def halved(target: Target, section: str, field: str) -> Target:
    part = getattr(target, section)
    return replace(
        target,
        **{section: replace(part, **{field: getattr(part, field) // 2})},
    )


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("array", "n_tiles"),
        ("array", "n_cells"),
        ("vector", "n_lanes"),
        ("attention", "word_elems"),
        ("attention", "heads_parallel"),
    ],
)
def test_halving_a_resource_lowers_the_rate(section: str, field: str) -> None:
    full = roma()
    half = DesignPoint.uniform(
        full.spec, halved(full.target, section, field), parse_format("sym4g128")
    )
    contexts = [1, 1024, 4096]
    for before, after in zip(
        decode_rates(full, contexts), decode_rates(half, contexts), strict=True
    ):
        if field == "heads_parallel" and before.context == 1:
            continue
        assert after.tokens_per_s < before.tokens_per_s


def test_figures_of_random_points_are_finite() -> None:
    rng = random.Random(23)
    for _ in range(40):
        point = random_point(rng)
        for roof in roofline(point, rng.randint(1, 100)):
            assert 0 < roof.limit_tokens_per_s < math.inf
            assert 0 < roof.utilisation <= 1 or roof.resource == "attention lanes"
            assert roof.utilisation <= 1


def test_chip_without_rom_for_the_head_has_no_head_in_its_profile() -> None:
    target = load_target("tom-7nm")
    point = DesignPoint.uniform(SHAPES["bitnet-2b-4t"], target, parse_format("ternary"))
    rows = profile_token(point, 1).rows
    assert [r.op for r in rows[-2:]] == ["resid", "norm"]
    tiny = DesignPoint.uniform(TINY["tiny-int4"], load_target("small"), parse_format("int4g32"))
    assert profile_token(tiny, 1).rows[-1].operand == "head"
