"""Speed of a whole chip under cocotb beside the native loop on the same model, in one run.

``python -m benchmarks.cocotb_speed [CHIP] [--tokens 64] [--turns 5]``: CHIP is a description,
tiny-int4 on the target small by default. Both decode the same tokens greedily, the first from
position 0; the host around the chip in cocotb is `romsim_rtl.driver_cocotb`'s, which wakes Python
once for all of them.
Logits and cycles of both must be equal. Rates are of CPU time of the simulation, so that other
work on the machine changes less; starting up is not counted. The two take turns, and medians count:
a single turn's ratio was seen from 0.61 to 0.77 on one machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import romsim
from benchmarks.rtl_speed import cpu_seconds
from romsim_compiler.description import Description
from romsim_rtl.driver import RtlRun
from romsim_rtl.driver_cocotb import build_cocotb, run_cocotb

__all__ = ["main", "measure"]

TOKEN = 5


def native(description: Description, n_tokens: int) -> dict[str, Any]:
    """Decode in the C++ loop."""
    with RtlRun(description) as chip:
        used = cpu_seconds(chip.process_id)
        cycles, token = 0, TOKEN
        for number in range(n_tokens):
            result = chip.run("decode", [token], begin=number == 0)
            cycles, token = cycles + result.cycles, result.token
        seconds = cpu_seconds(chip.process_id) - used
        return {"cycles": cycles, "seconds": seconds, "logits": result.logits.tolist()}


def under_cocotb(description: Description, n_tokens: int, folder: Path) -> dict[str, Any]:
    """Decode in cocotb."""
    build = build_cocotb(description)
    folder.mkdir()
    job, out = folder / "job.json", folder / "out.json"
    job.write_text(
        json.dumps({"tokens": n_tokens, "first": TOKEN, "rows": description.spec.vocab_size})
    )
    environment = {"ROMSIM_COCOTB_JOB": str(job), "ROMSIM_COCOTB_OUT": str(out)}
    run_cocotb(build, "benchmarks.cocotb_decode", folder / "run", environment=environment)
    values: dict[str, Any] = json.loads(out.read_text())
    return values


def measure(
    description: Description, *, n_tokens: int, n_turns: int, folder: Path
) -> dict[str, Any]:
    """Run both, in turns.

    Returns
    -------
    dict
        Cycles of all tokens; medians over the turns of both rates in cycles/s and of their ratio;
        each turn's ratio.

    Raises
    ------
    SystemExit
        If the two do not agree.
    """
    rates: dict[str, list[float]] = {"native": [], "cocotb": []}
    for turn in range(n_turns):
        one = native(description, n_tokens)
        two = under_cocotb(description, n_tokens, folder / f"{turn}")
        for name in ("cycles", "logits"):
            if one[name] != two[name]:
                raise SystemExit(
                    f"{name} under cocotb must be those of the native loop, but differ"
                )
        for kind, run in (("native", one), ("cocotb", two)):
            rates[kind].append(run["cycles"] / run["seconds"])
    ratios = [two / one for one, two in zip(rates["native"], rates["cocotb"], strict=True)]
    return {
        "cycles": one["cycles"],
        "native_cycles_per_s": median(rates["native"]),
        "cocotb_cycles_per_s": median(rates["cocotb"]),
        "ratio": median(ratios),
        "ratios": ratios,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chip", nargs="?")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args(arguments)
    if options.turns < 1 or options.tokens < 1:
        parser.error("--tokens and --turns must be at least 1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.chip is None:
            target = "small"
            chip = romsim.compile("tiny-int4", folder / "chip", target=target, context=96)
        else:
            chip = romsim.load(options.chip)
        result = measure(chip, n_tokens=options.tokens, n_turns=options.turns, folder=folder)
    sys.stdout.write(
        f"{options.tokens} tokens, {result['cycles']:,} cycles: native loop "
        f"{result['native_cycles_per_s']:,.0f} cycles/s, cocotb "
        f"{result['cocotb_cycles_per_s']:,.0f} cycles/s, {result['ratio']:.2f} of it "
        f"({min(result['ratios']):.2f} to {max(result['ratios']):.2f} in {options.turns} turns)\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
