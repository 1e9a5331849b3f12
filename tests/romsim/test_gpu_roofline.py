from __future__ import annotations

import json
import math
import random

import pytest

from romsim.gpu_roofline import all_gpus, best_batch, decode_on_gpu, weight_count
from romsim.gpu_tables import Fraction, find_gpu
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES
from tests.romsim.random_points import random_spec

WHOLE = Fraction(low=1.0, mid=1.0, high=1.0, grade="assumed", source="a limit")


def test_weights_of_the_known_models() -> None:
    layers, head = weight_count(SHAPES["llama-3-8b"])
    assert layers + 2 * head == 8_030_261_248  # as its authors count them
    layers, head = weight_count(SHAPES["llama-3.2-3b"])
    assert layers + head == 3_212_749_824
    layers, head = weight_count(SHAPES["smollm2"])
    assert layers + head == 134_515_008


def test_bytes_are_itemised_and_sum_up() -> None:
    result = decode_on_gpu(SHAPES["llama-3-8b"], "H100", weight_bits=16, context=1000)
    items = {item.name: item.bytes for item in result.items}
    layers, head = weight_count(SHAPES["llama-3-8b"])
    assert items["weights of the layers"] == 2 * layers
    assert items["LM head"] == 2 * head
    assert items["embedding rows"] == 2 * 4096
    assert items["KV read"] == 1000 * 131072
    assert items["KV written"] == 131072
    assert 0 < items["activations"] < 0.01 * items["weights of the layers"]
    assert result.bytes_per_step == sum(items.values())


@pytest.mark.parametrize(
    ("gpu", "limit"),
    [("H200", 2652), ("H100", 1851), ("A100", 1127), ("RTX 4090", 557), ("Jetson Orin", 113)],
)
def test_bandwidth_limits_of_a_3b_model(gpu: str, limit: float) -> None:
    """The weights alone: 1.81 GB at 4.5 bits; KV, activations and norms take a little more."""
    result = decode_on_gpu(SHAPES["llama-3.2-3b"], gpu, weight_bits=4.5, context=1)
    assert limit * 0.97 < result.limit_tokens_per_s <= limit * 1.005


@pytest.mark.parametrize(
    ("context", "batch", "rate"), [(4096, 330, 15_500), (32768, 41, 1_940), (131072, 10, 480)]
)
def test_best_batch_of_a_70b_on_eight_devices(context: int, batch: int, rate: float) -> None:
    """The corrected table of decode limits; its figures are rounded by a few per cent."""
    spec = SHAPES["llama-3-70b"]
    found = best_batch(spec, "H100", weight_bits=16, context=context, n_devices=8)
    assert found == pytest.approx(batch, rel=0.03)
    result = decode_on_gpu(
        spec, "H100", weight_bits=16, context=context, batch=found, n_devices=8, fraction=WHOLE
    )
    assert result.aggregate_tokens_per_s.mid == pytest.approx(rate, rel=0.05)
    assert result.fits
    more = decode_on_gpu(
        spec, "H100", weight_bits=16, context=context, batch=found + 1, n_devices=8, fraction=WHOLE
    )
    assert not more.fits


@pytest.mark.parametrize(
    ("model", "gpu", "bits", "context", "measured"),
    [
        ("llama-3.2-3b", "RTX 4090", 4.5, 256, 219.0),
        ("llama-3.2-3b", "RTX 4090", 4.5, 2048, 205.8),
        ("llama-3-8b", "RTX 4090", 4.9, 1024, 127.7),
        ("llama-3-8b", "RTX 4090", 16.0, 1024, 54.3),
        ("llama-3-8b", "A100", 16.0, 1024, 55.0),
        ("llama-3-8b", "Jetson Thor", 4.5, 1024, 50.8),
        ("llama-3-8b", "H200", 8.0, 1024, 230.0),
    ],
)
def test_published_rates_lie_in_the_range(
    model: str, gpu: str, bits: float, context: int, measured: float
) -> None:
    rate = decode_on_gpu(SHAPES[model], gpu, weight_bits=bits, context=context).tokens_per_s
    assert rate.low * 0.9 < measured < rate.high * 1.1


def test_share_outside_what_is_believable_is_warned_of() -> None:
    share = Fraction(low=0.25, mid=0.5, high=0.97, grade="assumed", source="hope")
    result = decode_on_gpu(SHAPES["llama-3-8b"], "H100", weight_bits=16, context=1, fraction=share)
    assert result.warnings == (
        "Achieved share of bandwidth (low) is 25%, outside 30% to 95%: check its source (hope)",
        "Achieved share of bandwidth (high) is 97%, outside 30% to 95%: check its source (hope)",
    )


def test_model_that_does_not_fit_is_warned_of() -> None:
    result = decode_on_gpu(SHAPES["llama-3-70b"], "RTX 4090", weight_bits=16, context=1)
    assert not result.fits
    assert result.warnings == (
        "141.1 GB of weights and KV do not fit 90% of 1 x 24 GB of RTX 4090",
    )
    assert best_batch(SHAPES["llama-3-70b"], "RTX 4090", weight_bits=16, context=1) == 0


def test_small_model_is_bound_by_launches_and_a_large_batch_by_compute() -> None:
    assert decode_on_gpu(SHAPES["smollm2"], "H100", weight_bits=16, context=1).bound == "launches"
    large = decode_on_gpu(SHAPES["llama-3-8b"], "H100", weight_bits=16, context=1, batch=4096)
    assert large.bound == "compute"
    one = decode_on_gpu(SHAPES["llama-3-8b"], "H100", weight_bits=16, context=1)
    assert one.bound == "bandwidth"


def test_more_bits_longer_contexts_and_slower_parts_lower_the_rate() -> None:
    spec = SHAPES["llama-3-8b"]

    def rate(gpu: str, bits: float, context: int) -> float:
        return decode_on_gpu(
            spec, gpu, weight_bits=bits, context=context, fraction=WHOLE
        ).tokens_per_s.mid

    assert rate("H100", 8, 1000) > rate("H100", 16, 1000) > rate("H100", 16, 8000)
    assert rate("B200", 16, 1000) > rate("H200", 16, 1000) > rate("A100", 16, 1000)


def test_figures_of_random_models_are_finite() -> None:
    rng = random.Random(41)
    for _ in range(40):
        spec = random_spec(rng)
        for result in all_gpus(spec, weight_bits=rng.choice([2, 4.5, 16]), context=100):
            rate = result.tokens_per_s
            assert 0 < rate.low <= rate.mid <= rate.high < math.inf
            assert 0 < result.joules_per_token.low < math.inf
            json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight_bits": 0.0, "context": 1}, r"weight_bits must be above 0, not 0\.0"),
        ({"weight_bits": 4.0, "context": 0}, r"context must be above 0, not 0"),
        (
            {"weight_bits": 4.0, "context": 1, "kv_bits": -1.0},
            r"kv_bits must be above 0, not -1\.0",
        ),
        ({"weight_bits": 4.0, "context": 1, "batch": 0}, r"batch must be at least 1, not 0"),
        (
            {"weight_bits": 4.0, "context": 1, "n_devices": 0},
            r"n_devices must be at least 1, not 0",
        ),
    ],
)
def test_impossible_request_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=rf"^{message}$"):
        decode_on_gpu(SHAPES["smollm2"], find_gpu("H100"), **arguments)  # type: ignore[arg-type]
