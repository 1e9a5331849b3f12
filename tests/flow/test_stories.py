"""The trained models on chips: the reference's values, and text."""

from __future__ import annotations

import pytest

import romsim
from romsim.engines import make_engine
from romsim.simulate import Simulation, prompt_tokens, simulate
from romsim_compiler.description import Description

PROMPT = "Once upon a time, there was a little"
TARGETS = {"stories-ternary": "small-ternary", "stories-int4": "small", "stories-int2": "small"}
TEXT = (
    " mouse named Leo. Leo lived in a forest. One day, Leo found a yellow flower. He was very "
    "happy. He had a big smile on it. He had a big blue flower. He"
)


@pytest.fixture(scope="module")
def chips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Description]:
    folder = tmp_path_factory.mktemp("stories")
    return {
        name: romsim.compile(name, folder / name, target=target, context=96)
        for name, target in TARGETS.items()
    }


@pytest.mark.parametrize("name", TARGETS)
def test_chip_equals_the_reference(chips: dict[str, Description], name: str) -> None:
    chip = chips[name]
    assert romsim.audit(chip).n_differences == 0
    done = romsim.verify(chip, prompt=PROMPT, n_new=2, level="values")
    assert done.passed, done.reference.first
    assert done.reference.saturations == 0


def test_matrices_are_burnt_as_trained(chips: dict[str, Description]) -> None:
    chip = chips["stories-ternary"]
    assert chip.manifest["model"]["formats"]["requantised"] == []
    kinds = {group.kind for name, group in chip.groups.items() if name.startswith("L")}
    assert kinds == {"ternary"}
    formats = {name: c.manifest["model"]["formats"]["weights"].keys() for name, c in chips.items()}
    assert formats == {
        "stories-ternary": {"ternary-exact", "q8_0"},
        "stories-int4": {"q4_1", "q8_0"},
        "stories-int2": {"int2g32", "q8_0"},
    }


def tell(chip: Description, engine: str, n_new: int) -> Simulation:
    machine = make_engine(engine, chip)
    return simulate(chip, machine, prompt_tokens(chip, prompt=PROMPT), n_new=n_new)


def test_text_of_the_ternary_chip(chips: dict[str, Description]) -> None:
    assert tell(chips["stories-ternary"], "cycle", 40).text == TEXT


@pytest.mark.slow
@pytest.mark.verilator
def test_rtl_tells_the_reference_s_story(chips: dict[str, Description]) -> None:
    chip = chips["stories-ternary"]
    expected = tell(chip, "reference", 32)
    assert len(expected.tokens) == 32
    assert tell(chip, "rtl", 32).tokens == expected.tokens
    # every write and cycle too, past the third block of attention
    done = romsim.verify(chip, prompt=PROMPT, n_new=32, level="chip")
    assert done.passed, [part.report.first for part in done.rtl]
