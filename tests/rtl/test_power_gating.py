# amaranth: UnusedElaboratable=no
"""A chip whose ROM banks take cycles to wake: the RTL issues when the cycle model does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from romsim.rates import decode_rates
from romsim.verify_rtl import compare_rtl
from romsim_compiler.choices import parse_rules
from romsim_compiler.pipeline import CompileOptions, compile_model
from romsim_compiler.target import Power
from romsim_models.synthetic import synthetic_checkpoint
from romsim_rtl.driver_build import BuildOptions
from tests.rtl.sweep_chips import SMALL_TERNARY

CHIP = replace(SMALL_TERNARY, attn_block=8, family="llama", n_layers=2, context=12)


@pytest.mark.slow
@pytest.mark.verilator
def test_instructions_wait_for_their_banks_in_both_models(tmp_path: Path) -> None:
    options = CompileOptions(context=CHIP.context, rules=parse_rules(CHIP.rules()))
    checkpoint = synthetic_checkpoint(CHIP.spec(), seed=1)
    base = CHIP.target()
    paid = []
    for wake in (0, 200):  # longer than most matrices are read, so that some of it is paid
        target = replace(base, power=Power(wake_cycles=wake))
        chip = compile_model(checkpoint, target, tmp_path / f"chip{wake}", options=options)
        paid.append(decode_rates(chip, [5])[0]["cycles"])
    assert paid[1] > paid[0] + 4 * 200
    report = compare_rtl(chip, [1, 2, 3, 4], n_new=3, options=BuildOptions(opt="-O0"))
    assert report.n_events > 0
    assert report.first is None
    assert report.passed
