from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from romsim.timing import TimingModel
from romsim_compiler.formats import parse_format
from romsim_compiler.groups import build_groups
from romsim_compiler.place import size_groups
from romsim_compiler.schedule import build_decode
from romsim_compiler.target import Power, Target
from romsim_compiler.target_file import load_target
from romsim_models.shapes import SHAPES, TINY
from romsim_models.spec import ModelSpec


def timing(spec: ModelSpec, target: Target, weights: str) -> tuple[TimingModel, object]:
    groups = build_groups(spec, lambda _: parse_format(weights))
    mappings = dict(zip((g.name for g in groups), size_groups(groups, target), strict=True))
    decode = build_decode(spec, groups)
    model = TimingModel(spec=spec, target=target, mappings=mappings, decode=decode)
    return model, decode


@pytest.mark.parametrize(
    ("model", "chip", "weights"),
    [
        ("llama-3-8b", "roma-7nm", "sym2g128"),
        ("llama-3.2-3b", "roma-7nm-g32", "int4g32"),
        ("smollm2", "rtl-1k", "int4g32"),
    ],
)
def test_folded_layers_give_the_cycles_of_stepping_through(
    model: str, chip: str, weights: str
) -> None:
    """Exact at every position of 4,096, each stepped instruction by instruction."""
    timer, decode = timing(SHAPES[model], load_target(chip), weights)
    folded = timer.decode_cycles(range(4096))
    stepped: dict[tuple[int, ...], int] = {}
    for position in range(4096):
        key = tuple(timer.durations(decode, position)[4:12])  # type: ignore[arg-type]
        if key not in stepped:  # the same durations step to the same cycles
            stepped[key] = timer.run(decode, position).cycles  # type: ignore[arg-type]
        assert folded[position] == stepped[key]


def _random_target(rng: random.Random) -> Target:
    base = load_target("small")
    return replace(
        base,
        array=replace(
            base.array,
            n_tiles=rng.choice([1, 2, 3, 4, 8, 16]),
            n_cells=rng.choice([1, 2, 4, 8]),
            word_codes=rng.choice([32, 64, 128]),
            lane_bits=rng.choice([2, 4]),
        ),
        vector=replace(base.vector, n_lanes=rng.choice([32, 64, 128, 256])),
        attention=replace(
            base.attention,
            word_elems=rng.choice([32, 64, 128]),
            heads_parallel=rng.choice([1, 2, 4]),
            attn_block=rng.choice([8, 16, 64]),
        ),
        network=replace(
            base.network,
            broadcast_cycles=rng.randint(0, 20),
            collect_cycles=rng.randint(0, 20),
        ),
        power=Power(wake_cycles=rng.choice([0, 0, 1, 40, 700])),
    )


def test_folding_is_exact_on_300_random_targets() -> None:
    rng = random.Random(2)
    for _ in range(300):
        spec = replace(
            TINY["tiny-int4"],
            n_layers=rng.randint(1, 6),
            n_heads=4,
            n_kv_heads=rng.choice([1, 2, 4]),
            hidden_dim=rng.choice([32, 96, 160]),
        )
        timer, decode = timing(spec, _random_target(rng), "int4g32")
        positions = [rng.randrange(300) for _ in range(4)]
        expected = [timer.run(decode, p).cycles for p in positions]  # type: ignore[arg-type]
        assert timer.decode_cycles(positions) == expected


def test_adapter_takes_cycles_and_no_adapter_few() -> None:
    timer, _ = timing(SHAPES["llama-3.2-3b"], load_target("roma-7nm-g32"), "int4g32")
    without = timer.decode_cycles([0])[0]
    ranks = {
        f"L{layer}.{name}": (16,) * count
        for layer in range(28)
        for name, count in (("qkv", 3), ("o", 1), ("gu", 2), ("down", 1))
    }
    assert timer.decode_cycles([0], ranks)[0] > without


def test_halving_a_resource_never_makes_a_token_faster() -> None:
    target = load_target("roma-7nm-g32")
    spec = SHAPES["llama-3.2-3b"]
    full = timing(spec, target, "int4g32")[0].decode_cycles([1000])[0]
    array, vector = target.array, target.vector
    for worse in (
        replace(target, array=replace(array, n_tiles=array.n_tiles // 2)),
        replace(target, vector=replace(vector, n_lanes=vector.n_lanes // 2)),
        replace(target, attention=replace(target.attention, word_elems=32)),
    ):
        assert timing(spec, worse, "int4g32")[0].decode_cycles([1000])[0] > full


def test_timing_loads_no_numpy() -> None:
    """Which takes longer to load than thousands of tokens take to time."""
    code = (
        "import sys; from romsim_compiler.description import Description; "
        "from romsim.rates import timing_model; sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
