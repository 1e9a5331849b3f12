# amaranth: UnusedElaboratable=no
"""A die for several models: as large as the largest, and only for models of one shape."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.adapter_images import lora_sizes
from romsim_rtl.die import Die
from romsim_rtl.lside import LSideConfig
from romsim_rtl.rom_files import program_words
from romsim_rtl.top import Top
from tests.rtl.sweep_chips import AXES, SweepChip, compile_chip

SIMPLEST = SweepChip(**{name: values[0] for name, values in AXES.items()})
SMALL = replace(SIMPLEST, n_tiles=2, n_inflight=2, rank=4)
LARGE = replace(SMALL, n_layers=3, vocab_size=131, wide="head", is_tied=False, rank=8)
PLAIN = replace(SMALL, n_layers=2, rank=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Description]:
    folder = tmp_path_factory.mktemp("die")
    chips = {"small": SMALL, "large": LARGE, "plain": PLAIN}
    return [compile_chip(chip, folder / name) for name, chip in chips.items()]


def test_a_die_of_one_model_has_its_sizes(models: list[Description]) -> None:
    small, _, plain = models
    die = Die.of(small)
    starts, words = program_words(small)
    assert list(die.starts) == starts
    assert sum(die.program_words) == len(words)
    assert die.l_side == LSideConfig.of(small)
    assert die.lora == lora_sizes(small)
    assert die.attention.n_layers == 1
    assert Die.of(plain).lora is None


def test_a_die_has_room_for_the_largest_model(models: list[Description]) -> None:
    small, large, plain = models
    dies = [Die.of(small, large, plain), Die.of(plain, small, large)]
    for die in dies:
        assert die.l_side == LSideConfig.of(large) != LSideConfig.of(small)
        assert die.attention.n_layers == 3
        assert die.lora == lora_sizes(large)
        assert die.program_words == Die.of(large).program_words
        assert die.n_gain_words == Die.of(large).n_gain_words > Die.of(small).n_gain_words
        assert die.starts == Die.of(large).starts
        for model in die.models:
            starts, words = program_words(model, die.program_words)
            own_starts, own = program_words(model)
            assert tuple(starts) == die.starts
            assert len(words) == sum(die.program_words)
            end = own[-1]
            for begin, own_begin in zip(starts, own_starts, strict=True):
                length = own[own_begin:].index(end) + 1
                assert words[begin : begin + length] == own[own_begin : own_begin + length]


def test_a_chip_on_a_larger_die_is_wired_for_it(models: list[Description]) -> None:
    small, large, plain = models
    top = Top(description=plain, die=Die.of(small, large, plain))
    assert top.sequencer_config == Top(description=large).sequencer_config
    assert "cfg_data" in top.signature.members
    assert "cfg_data" not in Top(description=plain).signature.members


def test_models_of_other_shapes_are_refused(models: list[Description], tmp_path: Path) -> None:
    other = compile_chip(replace(SMALL, hidden_dim=192), tmp_path)
    message = (
        "hidden_dim of models on one die must be the same, not 64 for 'sweep' and 192 for 'sweep'; "
        "build a die for each"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        Die.of(models[0], other)
