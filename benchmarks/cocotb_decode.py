"""cocotb's side of `benchmarks.cocotb_speed`: one command, one wake."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import cocotb
from cocotb.triggers import Timer, ValueChange

__all__ = ["decode_greedily"]

HAND_OVER = 2  # cycles of a program that its counter does not see: result and command


@cocotb.test()
async def decode_greedily(dut: Any) -> None:
    """Decode as many tokens as the job says, and write what came out and the CPU time it took."""
    job = json.loads(Path(os.environ["ROMSIM_COCOTB_JOB"]).read_text())
    dut.rst.value = 1
    await Timer(6, "ns")
    dut.rst.value = 0
    await Timer(2, "ns")
    dut.tokens.value = job["first"]
    dut.begin_sequence.value = 1
    dut.n_more.value = job["tokens"] - 1
    dut.go.value = 1
    used = time.process_time()
    await ValueChange(dut.finished)
    seconds = time.process_time() - used
    result = {
        "cycles": int(dut.n_cycles.value) + HAND_OVER * job["tokens"],
        "seconds": seconds,
        "logits": [dut.logits[row].value.to_signed() for row in range(job["rows"])],
    }
    Path(os.environ["ROMSIM_COCOTB_OUT"]).write_text(json.dumps(result))
