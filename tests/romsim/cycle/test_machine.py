"""The cycle model against the page, operator by operator, and against itself on other chips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from romsim.cycle import CycleModel
from romsim_compiler.lora_image import build_lora
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


def adapter_image(chip: Chip, ranks: dict[str, int], seed: int = 0) -> Any:
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
