from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from romsim_compiler.description import Description
from romsim_compiler.formats import SHIPPED_FORMATS, parse_format
from romsim_compiler.groups import build_groups
from romsim_compiler.issue import issue_times
from romsim_compiler.program import Instruction, Program
from romsim_compiler.reduced import one_layer
from romsim_compiler.schedule import build_decode, build_prefill
from romsim_models.shapes import SHAPES, TINY
from tests.tiny_chips import compile_tiny, sized_target

SPEC = TINY["tiny-int4"]
GROUPS = build_groups(SPEC, lambda _: SHIPPED_FORMATS["q4_1"])


@pytest.fixture(scope="module")
def interleaved(tmp_path_factory: pytest.TempPathFactory) -> Description:
    target = sized_target("small", n_inflight=3)
    return compile_tiny("tiny-int4", tmp_path_factory.mktemp("interleaved"), target=target)


def test_decode_program_has_the_documented_order() -> None:
    program = build_decode(SPEC, GROUPS)
    ops = [i.op for i in program.instructions]
    layer = [
        "norm", "matvec", "lora", "rope", "attn", "attn_out", "matvec", "lora", "resid",
        "norm", "matvec", "lora", "glu", "matvec", "lora", "resid",
    ]  # fmt: skip
    assert ops == ["embed", "sincos", *layer * SPEC.n_layers, "norm", "matvec"]


def test_program_survives_writing_and_reading() -> None:
    program = build_prefill(SPEC, GROUPS, 3, with_head=True)
    assert Program.from_json(program.to_json()) == program


def test_matrices_of_different_formats_are_not_fused() -> None:
    q4, q8 = SHIPPED_FORMATS["q4_1"], SHIPPED_FORMATS["q8_0"]
    groups = build_groups(SPEC, lambda t: q8 if "attn_v" in t else q4)
    names = [g.name for g in groups if g.layer == 0]
    assert names == ["L0.q", "L0.k", "L0.v", "L0.o", "L0.gu", "L0.down"]
    ops = [i.operand for i in build_decode(SPEC, groups).instructions if i.layer == 0 and i.operand]
    assert ops[1:5] == ["L0.q", "L0.k", "L0.v", "L0.qkv"]  # three matrices, one adapter


def test_whole_matrix_scales_are_not_fused() -> None:
    groups = build_groups(SHAPES["bitnet-2b-4t"], lambda _: parse_format("ternary"))
    assert [g.name for g in groups if g.layer == 0] == [
        "L0.q", "L0.k", "L0.v", "L0.o", "L0.gate", "L0.up", "L0.down",
    ]  # fmt: skip


def test_sub_norms_stand_after_attention_and_activation() -> None:
    spec = replace(SPEC, has_sub_norms=True)
    program = build_decode(spec, GROUPS)
    ops = [(i.op, i.operand) for i in program.instructions if i.layer == 0]
    assert ops[ops.index(("attn_out", "")) + 1] == ("norm", "blk.0.attn_sub_norm")
    assert ops[ops.index(("glu", "")) + 1] == ("norm", "blk.0.ffn_sub_norm")


def _must_precede(i: Instruction, j: Instruction) -> bool:
    """Whether j needs i complete: same token, and j reads or overwrites what i touches."""
    return i.token == j.token


def _check_dependencies(instructions: Sequence[Instruction], random: Any) -> None:
    durations = [random.randint(1, 40) for _ in instructions]
    times = issue_times(instructions, durations, wake_cycles=0)
    # A token's matrix and adapter instructions of one input may run together; nothing else may.
    for j, after in enumerate(instructions):
        for i in range(j):
            before = instructions[i]
            if not _must_precede(before, after) or {before.unit, after.unit} == {"L", "H"}:
                continue
            if before.unit != after.unit:
                assert times[i][1] <= times[j][0], (before, after)


@pytest.mark.parametrize("n_tokens", [1, 2, 3])
@given(st.randoms(use_true_random=False))
def test_nothing_of_a_token_overlaps_what_it_depends_on(n_tokens: int, random: Any) -> None:
    program = build_prefill(SPEC, GROUPS, n_tokens, with_head=True)
    _check_dependencies(program.instructions, random)


@given(st.randoms(use_true_random=False))
def test_keys_of_earlier_tokens_are_written_before_attention_reads_them(random: Any) -> None:
    program = build_prefill(SPEC, GROUPS, 3, with_head=True).instructions
    durations = [random.randint(1, 40) for _ in program]
    times = issue_times(program, durations, wake_cycles=0)
    pairs = zip(program, times, strict=True)
    written = {(i.layer, i.token): end for i, (_, end) in pairs if i.op == "rope"}
    for instruction, (start, _) in zip(program, times, strict=True):
        if instruction.op == "attn":
            for token in range(instruction.token + 1):
                assert written[instruction.layer, token] <= start


def test_each_prompt_token_is_a_stage_behind_the_one_before() -> None:
    program = build_prefill(SPEC, GROUPS, 2, with_head=False).instructions
    start = next(n for n, i in enumerate(program) if i.op == "attn")
    assert [(i.op, i.token) for i in program[start : start + 7]] == [
        ("attn", 0), ("rope", 1), ("attn_out", 0), ("attn", 1), ("matvec", 0), ("lora", 0),
        ("attn_out", 1),
    ]  # fmt: skip
    first = next(n for n, i in enumerate(program) if i.layer == 1)
    assert [(i.op, i.layer, i.token) for i in program[first : first + 3]] == [
        ("norm", 1, 0), ("resid", 0, 1), ("matvec", 1, 0),
    ]  # fmt: skip


@given(st.randoms(use_true_random=False))
def test_one_layer_of_an_interleaved_program_keeps_its_dependencies(
    interleaved: Description, random: Any
) -> None:
    for layer in range(2):
        reduced = one_layer(interleaved, layer).prefill(3, True)
        assert {i.layer for i in reduced.instructions} == {-1, layer}
        _check_dependencies(reduced.instructions, random)


def test_issue_is_tight() -> None:
    def at(unit: str, *wait: str) -> Instruction:
        return Instruction(op="norm", unit=unit, wait=wait, layer=0, token=0, slot=0)

    program = [at("V"), at("L", "V"), at("H"), at("V", "L", "H")]
    assert issue_times(program, [10, 5, 40, 1], wake_cycles=0) == [
        (0, 10),
        (10, 15),
        (11, 51),
        (51, 52),
    ]


def test_prefill_overlaps_tokens() -> None:
    one = build_prefill(SPEC, GROUPS, 1, with_head=False)
    two = build_prefill(SPEC, GROUPS, 2, with_head=False)
    cost = {"matvec": 50, "attn": 30, "lora": 2}

    def end(program: Program) -> int:
        durations = [cost.get(i.op, 20) for i in program.instructions]
        return max(idle for _, idle in issue_times(program.instructions, durations, wake_cycles=0))

    assert end(two) < 2 * end(one)
