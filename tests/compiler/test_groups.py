from __future__ import annotations

from dataclasses import replace

import pytest

from romsim_compiler.formats import WeightFormat, parse_format
from romsim_compiler.groups import Group, build_groups, layer_groups, layer_shapes, tensor_shapes
from romsim_models.shapes import SHAPES, TINY
from romsim_models.spec import ModelSpec
from romsim_models.tensors import expected_shapes

SPEC = TINY["tiny-int2"]  # 4 heads of 32, 1 key/value head, 128 wide, not tied
INT4 = parse_format("int4")


def all_int4(tensor: str) -> WeightFormat:
    return INT4


def rows_of(group: Group) -> list[tuple[str, int, int]]:
    return [(m.operator, m.first_row, m.n_rows) for m in group.members]


@pytest.mark.parametrize("spec", [*SHAPES.values(), *TINY.values()], ids=lambda s: s.name)
def test_shapes_are_those_of_the_model_s_matrices(spec: ModelSpec) -> None:
    wanted = {name: shape for name, shape in expected_shapes(spec).items() if len(shape) == 2}
    assert tensor_shapes(spec) == wanted


def test_shapes_of_a_layer() -> None:
    assert layer_shapes(SPEC) == {
        "attn_q": (128, 128), "attn_k": (32, 128), "attn_v": (32, 128), "attn_output": (128, 128),
        "ffn_gate": (256, 128), "ffn_up": (256, 128), "ffn_down": (128, 256),
    }  # fmt: skip


def test_matrices_of_one_input_and_format_are_fused() -> None:
    groups = layer_groups(SPEC, 1, all_int4)
    assert [(g.name, g.layer, g.n_rows, g.n_cols) for g in groups] == [
        ("L1.qkv", 1, 192, 128),
        ("L1.o", 1, 128, 128),
        ("L1.gu", 1, 512, 128),
        ("L1.down", 1, 128, 256),
    ]
    assert rows_of(groups[0]) == [("q", 0, 128), ("k", 128, 32), ("v", 160, 32)]
    assert rows_of(groups[2]) == [("gate", 0, 256), ("up", 256, 256)]
    assert [m.tensor for m in groups[0].members] == [
        f"blk.1.attn_{part}.weight" for part in ("q", "k", "v")
    ]


def test_matrices_of_different_formats_are_not() -> None:
    wide = parse_format("int8")
    groups = layer_groups(SPEC, 0, lambda name: wide if "attn_k" in name else INT4)
    assert [g.name for g in groups] == ["L0.q", "L0.k", "L0.v", "L0.o", "L0.gu", "L0.down"]
    assert [rows_of(g) for g in groups[:3]] == [[("q", 0, 128)], [("k", 0, 32)], [("v", 0, 32)]]
    assert [g.fmt.name for g in groups[:3]] == ["int4g32", "int8g32", "int4g32"]


def test_matrices_with_one_scale_each_are_never_fused() -> None:
    groups = layer_groups(SPEC, 0, lambda _: parse_format("ternary"))
    assert [g.name.split(".")[1] for g in groups] == ["q", "k", "v", "o", "gate", "up", "down"]


@pytest.mark.parametrize(
    ("is_tied", "input_in_rom", "head_in_rom", "expected"),
    [
        (False, True, True, [("head", "output.weight"), ("embd", "token_embd.weight")]),
        (True, True, True, [("head", "token_embd.weight")]),
        (True, True, False, [("embd", "token_embd.weight")]),
        (True, False, True, [("head", "token_embd.weight")]),
        (False, False, True, [("head", "output.weight")]),
        (False, False, False, []),
    ],
)
def test_embedding_is_there_once_if_it_is_tied(
    is_tied: bool, input_in_rom: bool, head_in_rom: bool, expected: list[tuple[str, str]]
) -> None:
    spec = replace(SPEC, tie_embeddings=is_tied)
    groups = build_groups(spec, all_int4, input_in_rom=input_in_rom, head_in_rom=head_in_rom)
    assert len(groups) == 4 * spec.n_layers + len(expected)
    assert [g.layer for g in groups[:-1]][:4] == [0, 0, 0, 0]
    outside = [g for g in groups if g.layer < 0]
    assert [(g.name, g.members[0].tensor) for g in outside] == expected
    assert all((g.n_rows, g.n_cols) == (spec.vocab_size, spec.dim) for g in outside)
