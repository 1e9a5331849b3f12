"""Epsilons at which bits of gains show: on the cycle model, with the bit and without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romsim.cycle import CycleModel
from romsim.gain_stimulus import GainStimuli
from romsim_compiler.description import Description
from romsim_compiler.reduced import with_gain
from tests.tiny_chips import compile_tiny

PROMPT = (1, 5, 9)


def codes(chip: Description) -> dict[str, list[Any]]:
    """Everything that matrices are given on the prompt."""
    found: dict[str, list[Any]] = {}

    def record(name: str, position: int, values: Any) -> None:
        if name.endswith((".codes", ".shifts")):
            found.setdefault(name, []).append(values.tolist())

    CycleModel(chip, record=record).prefill(PROMPT)
    return found


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("tiny-int4", ("blk.0.attn_norm", "blk.1.ffn_norm", "output_norm")),
        ("tiny-ternary", ("blk.1.attn_norm", "blk.0.attn_sub_norm")),
    ],
)
def test_the_lowest_bit_shows_at_the_epsilon_that_is_given(
    name: str, norms: tuple[str, ...], tmp_path: Path
) -> None:
    chip = compile_tiny(name, tmp_path / "build")
    stimuli = GainStimuli(chip, PROMPT)
    for norm in norms:
        for index in (0, 5):
            shown = stimuli.chip_for(norm, index, 1)
            assert shown is not None
            gain = shown.gains[norm]
            own = chip.gains[norm].scalars()
            assert gain.scalars() == {**own, "eps_term": gain.eps_term}
            values = gain.values.copy()
            values[index] ^= 1
            faulty = with_gain(chip, replace(gain, values=values))
            assert codes(shown) != codes(faulty)
            assert codes(chip) != codes(shown)
            # on the prompt as it is, the bit changes nothing
            plain = with_gain(chip, replace(chip.gains[norm], values=values))
            assert codes(plain) == codes(chip)


def test_no_epsilon_is_given_where_none_shows_the_bit(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "build")
    stimuli = GainStimuli(chip, PROMPT)
    assert stimuli.chip_for("output_norm", 3, 0) is None  # no bit at all
    sub_norms = compile_tiny("tiny-ternary", tmp_path / "ternary")
    # the cycle model does not record what this norm is given
    assert GainStimuli(sub_norms, PROMPT).chip_for("blk.0.ffn_sub_norm", 0, 1 << 20) is None


def test_a_chip_with_another_epsilon_keeps_all_instructions(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "build")
    gain = replace(chip.gains["output_norm"], eps_term=7)
    changed = with_gain(chip, gain)
    assert changed.decode == chip.decode
    assert changed.whole is chip
    assert changed.gains["output_norm"].eps_term == 7
    assert np.array_equal(changed.gains["output_norm"].values, chip.gains["output_norm"].values)
