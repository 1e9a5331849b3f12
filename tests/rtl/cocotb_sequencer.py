"""cocotb tests of the sequencer's two handshakes; the units are counters here."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from romsim_rtl.encoding import FIELDS
from romsim_rtl.sequencer import TOKEN_CYCLES
from tests.rtl.test_sequencer import make

SEED = 1  # of the programs, as in test_cocotb.py


def field(word: int, wanted: str) -> int:
    at = 0
    for name, (bits, _) in FIELDS.items():
        if name == wanted:
            return word >> at & ((1 << bits) - 1)
        at += bits
    raise KeyError(wanted)


class Host:
    """Gives commands and takes results; when, two functions say, which are asked every cycle."""

    def __init__(self, dut: Any, gives: Callable[[], bool], takes: Callable[[], bool]) -> None:
        self.dut, self.gives, self.takes = dut, gives, takes
        self.programs, _ = make(SEED)
        self.rng = random.Random(9)
        self.left = [0, 0, 0]
        self.cycle = 0
        self.begun: list[int] = []  # first cycle after each command is taken
        self.done: list[int] = []  # cycle in which each result is taken
        self.valid_from: list[int] = []  # first cycle of each result
        self.issues: list[list[tuple[Any, ...]]] = []

    async def start(self) -> None:
        dut = self.dut
        for name in ("cmd_valid", "cmd_program", "cmd_tokens", "cmd_reset", "done_ready"):
            getattr(dut, name).value = 0
        for name in ("busy_v", "busy_l", "busy_h", "cmd_adapted", "cmd_adapter"):
            getattr(dut, name).value = 0
        dut.rst.value = 1
        Clock(dut.clk, 2, "ns").start()
        for _ in range(3):
            await FallingEdge(dut.clk)
        dut.rst.value = 0

    async def execute(self, numbers: list[int]) -> None:
        """Execute programs by number; the second begins a sequence anew."""
        dut = self.dut
        commands = [
            (number, place == 1, [self.rng.randrange(1 << 20) for _ in range(3)])
            for place, number in enumerate(numbers)
        ]
        position, given, valid, is_done = 0, 0, False, False
        base, word = 0, 0
        while len(self.done) < len(numbers):
            ready = self.takes()
            if given < len(commands) and not valid and self.gives():
                valid = True  # and stays so until it is taken
                number, begin, tokens = commands[given]
                dut.cmd_program.value = number
                dut.cmd_reset.value = int(begin)
                dut.cmd_tokens.value = sum(t << 20 * k for k, t in enumerate(tokens))
            dut.cmd_valid.value = int(valid)
            dut.done_ready.value = int(ready)
            self.left = [max(0, cycles - 1) for cycles in self.left]
            for unit, name in enumerate("vlh"):
                getattr(dut, f"busy_{name}").value = int(self.left[unit] > 0)
            await ReadOnly()
            for unit, name in enumerate("vlh"):
                if int(getattr(dut, f"start_{name}").value):
                    word = int(dut.instr.value)
                    self.left[unit] = field(word, "n_rows")
                    at = self.cycle - self.begun[-1]
                    token = int(dut.token.value)
                    self.issues[-1].append((at, unit, int(dut.pos.value) - base, token))
            was_done, is_done = is_done, bool(int(dut.done_valid.value))
            if is_done and not was_done:
                self.valid_from.append(self.cycle)
            if is_done and ready:
                self.done.append(self.cycle)
                position += self.programs[numbers[len(self.done) - 1]].n_tokens
            if valid and int(dut.cmd_ready.value):
                _, begin, _ = commands[given]
                position = 0 if begin else position
                base = position
                self.begun.append(self.cycle + 1)
                self.issues.append([])
                given, valid = given + 1, False
            self.cycle += 1
            assert self.cycle < 20_000
            await FallingEdge(dut.clk)
        for place, (number, _, tokens) in enumerate(commands):
            issues, end = self.programs[number].times(0)
            assert self.issues[place] == [
                (at, unit, token, tokens[token])
                for at, (unit, _, _, token, _) in zip(
                    issues, self.programs[number].items, strict=True
                )
            ]
            assert self.valid_from[place] - self.begun[place] == end + TOKEN_CYCLES - 2
        running = sum(at - begin for at, begin in zip(self.valid_from, self.begun, strict=True))
        assert int(dut.count_cycles.value) == running
        assert int(dut.count_wait.value) == self.cycle - running
        assert int(dut.count_issued.value) == sum(map(len, self.issues))


@cocotb.test()
async def commands_and_results_stall_at_random(dut: Any) -> None:
    rng = random.Random(3)
    host = Host(dut, lambda: rng.random() < 0.2, lambda: rng.random() < 0.3)
    await host.start()
    await host.execute([0, 2, 1, 2, 0, 1, 2])
    held = [taken - first for taken, first in zip(host.done, host.valid_from, strict=True)]
    assert min(held) == 0 < max(held)


@cocotb.test()
async def a_host_that_never_waits_costs_only_the_hand_over(dut: Any) -> None:
    host = Host(dut, lambda: True, lambda: True)
    await host.start()
    numbers = [2, 0, 1, 2, 2]
    await host.execute(numbers)
    for place, number in enumerate(numbers[:-1]):
        _, end = host.programs[number].times(0)
        assert host.begun[place + 1] - host.begun[place] == end + TOKEN_CYCLES
