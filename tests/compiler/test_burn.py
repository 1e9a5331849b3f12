from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import romsim
from romsim_compiler.burn import norm_names
from romsim_compiler.description import Description
from romsim_compiler.pipeline import compile_model
from romsim_compiler.target_file import load_target
from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import EncodedTensor, Tensor
from romsim_models.errors import FormatError
from romsim_models.registry import open_model
from romsim_models.shapes import TINY
from romsim_models.synthetic import synthetic_checkpoint
from tests.tiny_chips import compile_tiny

SPEC = TINY["tiny-int4"]


@pytest.fixture(scope="module")
def ternary(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_tiny("tiny-ternary", tmp_path_factory.mktemp("b") / "chip")


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_tiny("tiny-int2", tmp_path_factory.mktemp("b") / "chip")


def test_norms_in_program_order() -> None:
    assert norm_names(SPEC) == [
        "blk.0.attn_norm", "blk.0.ffn_norm", "blk.1.attn_norm", "blk.1.ffn_norm", "output_norm",
    ]  # fmt: skip
    assert norm_names(TINY["tiny-ternary"])[:5] == [
        "blk.0.attn_norm", "blk.0.attn_sub_norm", "blk.0.ffn_norm", "blk.0.ffn_sub_norm",
        "blk.1.attn_norm",
    ]  # fmt: skip


def test_inputs_have_the_frac_of_the_norm_before_them(ternary: Description) -> None:
    gains, groups = ternary.gains, ternary.groups
    for layer in (0, 1):
        for name, norm in (
            ("q", "attn_norm"), ("k", "attn_norm"), ("v", "attn_norm"), ("o", "attn_sub_norm"),
            ("gate", "ffn_norm"), ("up", "ffn_norm"), ("down", "ffn_sub_norm"),
        ):  # fmt: skip
            group = groups[f"L{layer}.{name}"]
            assert group.in_frac == gains[f"blk.{layer}.{norm}"].out_frac
            assert group.out_frac == (14 if name in ("o", "down") else 16)
    assert (groups["head"].in_frac, groups["head"].out_frac) == (gains["output_norm"].out_frac, 16)


def test_inputs_without_a_norm_have_the_frac_of_linear_outputs(untied: Description) -> None:
    for name in ("L0.o", "L0.down"):
        assert (untied.groups[name].in_frac, untied.groups[name].out_frac) == (16, 14)
    assert untied.groups["embd"].out_frac == 14


def test_gains_lie_one_after_another(ternary: Description) -> None:
    first = 0
    for name, entry in ternary.placement["gains"].items():
        assert entry["first"] == first, name
        first += entry["length"]
    assert (ternary.path / "gains.bin").stat().st_size == 4 * first
    expected = synthetic_checkpoint(TINY["tiny-ternary"]).read("blk.1.ffn_norm.weight").dequantize()
    gain = ternary.gains["blk.1.ffn_norm"]
    np.testing.assert_allclose(gain.values / 2.0**gain.shift, expected, rtol=0, atol=2.0**-22)


def test_groups_lie_one_after_another_and_fill_the_file(untied: Description) -> None:
    base = 0
    for group in untied.groups.values():
        assert group.base == base
        base += group.mapping.n_words
    array = untied.target.array
    size = base * array.n_tiles * array.n_cells * array.word_bytes
    assert (untied.path / "rom.bin").stat().st_size == size


def test_whole_matrix_scales_are_beside_the_rom(ternary: Description) -> None:
    group = ternary.groups["L0.q"]
    weights = synthetic_checkpoint(TINY["tiny-ternary"]).read("blk.0.attn_q.weight").dequantize()
    scale = np.abs(weights.astype(np.float64)).mean()
    assert group.multiplier < 1 << 24
    assert group.multiplier * 2.0**group.multiplier_exp == pytest.approx(scale, rel=2.0**-22)
    assert (group.group, group.grid) == (0, 0)
    head = ternary.groups["head"]
    assert (head.multiplier, head.multiplier_exp, head.pre_shift) == (1, 0, 0)


def test_what_rounding_costs_is_measured(untied: Description, ternary: Description) -> None:
    errors = untied.manifest["accuracy"]["quantisation_error"]
    assert list(errors) == sorted(errors)
    assert len(errors) == 7 * 3 + 2
    weights = synthetic_checkpoint(TINY["tiny-int2"]).read("blk.1.ffn_up.weight").dequantize()
    lo, hi = (f(weights.reshape(-1, 32), axis=1) for f in (np.min, np.max))
    d = ((hi - lo) / 3).astype(np.float16).astype(np.float32)[:, None]
    m = lo.astype(np.float16).astype(np.float32)[:, None]
    codes = np.clip(np.rint((weights.reshape(-1, 32) - m) / d), 0, 3)
    rounded = (codes * d + m).reshape(weights.shape)
    measured = np.linalg.norm((rounded - weights).astype(np.float64)) / np.linalg.norm(weights)
    assert errors["blk.1.ffn_up.weight"] == pytest.approx(measured, rel=1e-4)
    assert max(ternary.manifest["accuracy"]["quantisation_error"].values()) > 0.4
    assert 0 < untied.manifest["accuracy"]["accumulator_bits"] <= 63
    assert untied.manifest["accuracy"]["terms_rounded_by_grid"] == 0
    assert untied.manifest["accuracy"]["groups_with_rounded_terms"] == {}


class _CodedNorm:
    """A store whose second norm is in codes."""

    def __init__(self) -> None:
        self._plain = synthetic_checkpoint(SPEC)

    def formats(self) -> Mapping[str, str]:
        return self._plain.formats()

    def read(self, name: str) -> Tensor:
        if name != "blk.0.ffn_norm.weight":
            return self._plain.read(name)
        return EncodedTensor(
            name=name, shape=(2, 32), format="q8_0", code_bits=8, code_offset=0, group_size=32,
            codes=np.ones((2, 32), np.int8), scale_bits=np.ones((2, 1), np.uint16),
            minimum_bits=None,
        )  # fmt: skip

    def read_rows(self, name: str, first: int, last: int) -> Tensor:
        return self._plain.read_rows(name, first, last)

    def digest(self) -> str:
        return "0" * 64


def test_norm_in_codes_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint(spec=SPEC, kind="synthetic", name="x", store=_CodedNorm())
    sentence = "Norm 'blk.0.ffn_norm' must be in floating point, not 'q8_0'; convert the file anew"
    with pytest.raises(FormatError, match=rf"^{re.escape(sentence)}$"):
        compile_model(checkpoint, load_target("small"), tmp_path / "chip")
    assert list(tmp_path.iterdir()) == []


def test_progress_rises_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    romsim.compile(
        "tiny-int4",
        tmp_path / "chip",
        target="small",
        progress=lambda stage, fraction: seen.append((stage, fraction)),
    )
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    assert seen[0] == ("adapters", 0.0)
    assert seen[-1] == ("done", 1.0)
    names = [stage for stage, _ in seen if stage.startswith("burning ")]
    groups = romsim.load(tmp_path / "chip").groups
    assert names == [f"burning {name}" for name in groups]


def test_description_needs_no_model_file(ternary: Description) -> None:
    assert ternary.manifest["model"]["source"]["sha256"] == open_model("tiny-ternary").source.sha256
