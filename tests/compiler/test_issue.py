"""Power gating of ROM banks in the issue rule: what is hidden, and what is paid."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from romsim_compiler.issue import is_woken, issue_times, rom_operand
from romsim_compiler.program import Instruction

OPS = {"embed": "V", "norm": "V", "matvec": "L", "attn": "H"}


def instruction(op: str, operand: str = "", wait: tuple[str, ...] = ()) -> Instruction:
    return Instruction(op=op, unit=OPS[op], wait=wait, layer=0, token=0, slot=0, operand=operand)


@st.composite
def programs(draw: st.DrawFn) -> list[Instruction]:
    made = []
    for _ in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(sorted(OPS)))
        operand = draw(st.sampled_from(["a", "b", "c"])) if op in ("matvec", "embed") else ""
        wait = draw(st.sets(st.sampled_from("VLH")))
        made.append(instruction(op, operand, tuple(sorted(wait - {OPS[op]}))))
    return made


@given(programs(), st.data())
def test_without_wake_cycles_only_units_are_waited_for(
    program: list[Instruction], data: st.DataObject
) -> None:
    n = len(program)
    durations = data.draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    idle = {"V": 0, "L": 0, "H": 0}
    at, expected = -1, []
    for one, duration in zip(program, durations, strict=True):
        at = max([at + 1, *(idle[unit] for unit in (one.unit, *one.wait))])
        idle[one.unit] = at + duration
        expected.append((at, at + duration))
    assert issue_times(program, durations, wake_cycles=0) == expected


@given(programs(), st.integers(0, 60), st.data())
def test_a_matrix_is_read_after_its_banks_woke_and_nothing_else_waits(
    program: list[Instruction], wake: int, data: st.DataObject
) -> None:
    n = len(program)
    durations = data.draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    times = issue_times(program, durations, wake_cycles=wake)
    before, read, on = -1, 0, ""
    for one, (at, idle) in zip(program, times, strict=True):
        ready = [before + 1]
        for unit in (one.unit, *one.wait):
            ready += [
                t[1]
                for i, t in zip(program, times, strict=True)
                if i.unit == unit and t < (at, idle)
            ]
        matrix = rom_operand(one)
        if matrix and matrix != on:
            ready.append(read + wake)
        assert at == max(ready)
        if matrix:
            read, on = at, matrix
        before = at


@given(st.lists(st.integers(1, 80), min_size=1, max_size=10), st.integers(1, 80))
def test_waking_is_hidden_behind_a_longer_instruction(durations: list[int], wake: int) -> None:
    program = [instruction("matvec", f"m{index}") for index in range(len(durations))]
    gated = issue_times(program, durations, wake_cycles=wake)
    always_on = issue_times(program, durations, wake_cycles=0)
    paid = wake + sum(max(0, wake - duration) for duration in durations[:-1])
    assert gated[-1][0] - always_on[-1][0] == paid


def test_a_matrix_that_is_on_is_read_at_once() -> None:
    program = [instruction("embed", "e"), *(instruction("matvec", m) for m in "aab")]
    assert is_woken(program) == [True, True, False, True]
    times = issue_times(program, [3, 5, 5, 5], wake_cycles=10)
    assert [at for at, _ in times] == [10, 20, 25, 35]


def test_a_row_from_off_chip_wakes_nothing() -> None:
    program = [instruction("embed"), instruction("norm", "gain"), instruction("matvec", "a")]
    assert is_woken(program) == [False, False, True]
    assert [at for at, _ in issue_times(program, [3, 4, 5], wake_cycles=6)] == [0, 3, 6]


def test_attention_hides_what_its_matrices_need() -> None:
    program = [
        instruction("matvec", "qkv"),
        instruction("attn", wait=("L",)),
        instruction("matvec", "o", ("H",)),
    ]
    for wake, at in ((0, 50), (49, 50), (100, 100)):
        times = issue_times(program, [10, 40, 10], wake_cycles=wake)
        assert times[2][0] - times[0][0] == at
