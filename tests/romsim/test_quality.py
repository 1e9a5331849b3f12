"""Perplexity of chip and float decoder: the figures, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import jsonschema
import pytest

import romsim
from romsim.quality import Quality, default_text
from romsim_models.errors import SpecError


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quality") / "chip"
    romsim.compile("tiny-int4", out, target="small")
    return out


def test_quality_is_near_float_and_matches_its_schema(chip: Path) -> None:
    quality = romsim.perplexity(chip, n_tokens=96, window=48)
    assert quality.n_tokens == 96
    assert quality.chip_perplexity == pytest.approx(quality.float_perplexity, rel=0.2)
    schema = Path(romsim.__file__).parent / "schemas" / "perplexity.schema.json"
    jsonschema.validate(quality.to_json(), json.loads(schema.read_text()))


def test_change_is_in_percent_of_the_float_perplexity() -> None:
    quality = Quality(
        n_tokens=10,
        window=5,
        float_perplexity=20.0,
        chip_perplexity=21.0,
        float_bits_per_byte=1.0,
        chip_bits_per_byte=1.1,
        saturations=0,
    )
    assert quality.change_percent == pytest.approx(5.0)
    assert quality.sentence() == (
        "perplexity 21.000 on the chip, 20.000 in float (+5.00 %), 10 tokens in windows of 5; "
        "1.1000 and 1.0000 bits per byte; 0 saturations"
    )


def test_coarser_weights_cost_more(chip: Path, tmp_path: Path) -> None:
    """Both against the same float weights: 2 bits move the loss further than 4."""
    coarse = tmp_path / "coarse"
    romsim.compile("tiny-int4", coarse, target="small", quantize=["*=int2g32"])
    fine = romsim.perplexity(chip, n_tokens=128, window=64)
    rough = romsim.perplexity(coarse, n_tokens=128, window=64)
    assert rough.float_perplexity == fine.float_perplexity
    distance = [abs(math.log(q.chip_perplexity / q.float_perplexity)) for q in (fine, rough)]
    assert distance[0] < distance[1]


@pytest.mark.parametrize(
    ("text", "n_tokens", "window", "sentence"),
    [
        (None, 1, 512, "Tokens and window must be at least 2, not 1 and 512; raise them"),
        (None, 9, 1, "Tokens and window must be at least 2, not 9 and 1; raise them"),
        ("", 9, 9, "Text to score must have at least 2 tokens, not 0; give a longer one"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    chip: Path, tmp_path: Path, text: str | None, n_tokens: int, window: int, sentence: str
) -> None:
    file = None
    if text is not None:
        file = tmp_path / "text.txt"
        file.write_text(text)
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        romsim.perplexity(chip, text=file, n_tokens=n_tokens, window=window)


def test_unreadable_text_is_named(chip: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^Text .*missing\.txt must be a readable UTF-8 file, not"):
        romsim.perplexity(chip, text=tmp_path / "missing.txt")


def test_default_text_is_the_start_of_the_novel() -> None:
    assert default_text().startswith("Persuasion\n")
    assert len(default_text()) > 10_000
