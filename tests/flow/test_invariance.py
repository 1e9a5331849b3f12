"""Tiles, cells, words, lanes, in-flight tokens and slots change cycles, never a value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from romsim.cycle import CycleModel
from romsim_compiler.description import Description
from tests.tiny_chips import compile_tiny, sized_target, tiny_spec, write_adapter

PROMPT = [40, 41, 7, 99, 200, 3, 17, 45, 46, 47, 48, 250, 251, 30, 31, 33, 34, 35, 36]
FORCED = [11, 12, 13]

sizes = st.fixed_dictionaries(
    {
        "n_tiles": st.sampled_from([1, 2, 3, 5, 8]),
        "n_cells": st.sampled_from([1, 2, 4, 8]),
        "word_codes": st.sampled_from([32, 64, 128]),
        "lane_bits": st.sampled_from([2, 4, 8]),
        "n_lanes": st.sampled_from([32, 64, 96]),
        "word_elems": st.sampled_from([32, 64]),
        "heads_parallel": st.sampled_from([1, 2, 3]),
        "n_inflight": st.sampled_from([1, 2, 3, 7]),
        "n_slots": st.sampled_from([1, 3]),
        "broadcast_cycles": st.sampled_from([0, 3]),
    }
)


def logits_of(chip: Description, *, slot: int, adapter: str | None) -> NDArray[np.int32]:
    model = CycleModel(chip, threads=1)
    if slot:
        model.prefill([1, 2, 3, 4, 5], slot=0)  # a neighbour that must not be seen
    rows = [model.prefill(PROMPT, slot=slot, adapter=adapter).logits]
    rows += [model.step(token, slot=slot, adapter=adapter).logits for token in FORCED]
    assert model.saturations == 0
    return np.stack(rows)


@pytest.fixture(scope="module")
def baseline(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str | None, NDArray[np.int32]]]:
    folder = tmp_path_factory.mktemp("baseline")
    adapter = write_adapter(folder / "adapter", tiny_spec("tiny-int4"), rank=5)
    chip = compile_tiny("tiny-int4", folder / "chip", adapters={"a": adapter})
    return adapter, {name: logits_of(chip, slot=0, adapter=name) for name in (None, "a")}


# Deadlines measure the machine; the folder is made anew for each example.
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=sizes)
def test_no_logit_depends_on_the_architecture(
    changes: dict[str, int],
    baseline: tuple[Path, dict[str | None, NDArray[np.int32]]],
    tmp_path: Path,
) -> None:
    adapter, expected = baseline
    target = sized_target("small", **changes)
    chip = compile_tiny("tiny-int4", tmp_path / "chip", target=target, adapters={"a": adapter})
    slot = changes["n_slots"] - 1
    for name, rows in expected.items():
        np.testing.assert_array_equal(logits_of(chip, slot=slot, adapter=name), rows)


def test_the_attention_block_is_numerics_and_does_change_logits(
    baseline: tuple[Path, dict[str | None, NDArray[np.int32]]], tmp_path: Path
) -> None:
    target = sized_target("small", attn_block=8)
    chip = compile_tiny("tiny-int4", tmp_path / "chip", target=target)
    assert (logits_of(chip, slot=0, adapter=None) != baseline[1][None]).any()
