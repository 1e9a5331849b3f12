from __future__ import annotations

from pathlib import Path

import pytest

from romsim import api
from romsim.description_point import point_of_description
from romsim.rates import prefill_cycles, timing_model


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("tiny-int4", "small"),
        ("tiny-ternary", "small-ternary"),
        ("llama-3.2-1b", "roma-7nm-g32"),
    ],
)
def test_point_of_a_description_has_its_cycles_and_words(
    model: str, target: str, tmp_path: Path
) -> None:
    weights = "int4g32" if model.startswith("llama") else None
    description = api.compile(model, tmp_path / "x", target=target, weights=weights)
    point = point_of_description(description)
    positions = [0, 1, 63, 64, 100]
    assert point.decode_cycles(positions) == timing_model(description).decode_cycles(positions)
    assert point.rom_words == description.placement["n_words"]
    assert [point.prefill_cycles(n) for n in (1, 7)] == [
        prefill_cycles(description, n) for n in (1, 7)
    ]
