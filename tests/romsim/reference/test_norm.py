from __future__ import annotations

import numpy as np
import pytest
import torch

from romsim.reference.norm import Norm
from romsim.reference.primitives import Saturation
from romsim_models.errors import SpecError
from tests.romsim.reference import scalar_page as page


def make(gains: np.ndarray, *, epsilon: float = 1e-5, input_frac: int = 14) -> Norm:
    return Norm(
        "n", gains.astype(np.float32), epsilon=epsilon, input_frac=input_frac, block=32,
        device="cpu",
    )  # fmt: skip


@pytest.mark.parametrize("input_frac", [14, 16])
@pytest.mark.parametrize("size", [0.3, 1.0, 40.0, 2.0**14, 2.0**20, 2.0**29])
@pytest.mark.parametrize("largest", [0.01, 1.0, 77.0])
def test_norms_equal_the_scalar_reading(size: float, largest: float, input_frac: int) -> None:
    generator = np.random.default_rng(0)
    gains = (generator.standard_normal(70) * largest).astype(np.float32)
    x = np.rint(generator.standard_normal((4, 70)) * size).clip(-(2.0**31), 2.0**31 - 1)
    x[1] = 0.0
    x[2, 3] = -(2.0**31)
    x[3] = 2.0**31 - 1
    norm = make(gains, input_frac=input_frac)
    saturation, clips = Saturation(), page.Clips()
    found = norm(torch.from_numpy(x), saturation)
    for row, values in enumerate(x):
        exact = [int(value) for value in values]
        y, frac = page.norm(exact, [float(w) for w in gains], 1e-5, input_frac, clips)
        assert frac == norm.frac
        assert (found.codes[row].tolist(), found.shifts[row].tolist()) == page.mxint8(y)
    assert found.frac == norm.frac
    assert saturation.count == clips.count == 0


def test_a_norm_is_close_to_the_real_one() -> None:
    generator = np.random.default_rng(1)
    x = np.rint(generator.standard_normal((1, 576)) * 2.0**14)
    norm = make(np.ones(576))
    found = norm(torch.from_numpy(x), Saturation())
    values = found.codes[0].double() * 2.0 ** found.element_shifts()[0].double() * 2.0**-norm.frac
    real = x[0] / 2**14
    expected = real / np.sqrt((real**2).mean() + 1e-5)
    assert np.abs(values.numpy() - expected).max() < 2.0**-6  # codes of 7 bits below 4


def test_impossible_norms_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^norm 'n' must have at most 16384 elements, not 16385$"):
        make(np.ones(16_385))
    with pytest.raises(SpecError, match=r"^largest gain of norm 'n' must be above 0, not 0\.0$"):
        make(np.zeros(8))
    with pytest.raises(
        SpecError,
        match=r"^epsilon of norm 'n' must stay below 2\^62 in its integer form, not 1000000\.0$",
    ):
        make(np.ones(8), epsilon=1e6)
