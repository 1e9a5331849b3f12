# amaranth: UnusedElaboratable=no
"""Instruction words: the fields that follow from a description."""

from __future__ import annotations

from pathlib import Path

import pytest

from romsim_compiler.description import Description
from romsim_rtl.encoding import FIELDS, encode
from tests.tiny_chips import compile_tiny


def field(word: int, name: str) -> int:
    """A field of an instruction word, with its sign."""
    at = 0
    for each, (bits, signed) in FIELDS.items():
        if each == name:
            value = word >> at & (1 << bits) - 1
            return value - (1 << bits) if signed and value >> (bits - 1) else value
        at += bits
    raise KeyError(name)


def shift_of(chip: Description, op: str, operand: str) -> int:
    (instruction,) = (i for i in chip.decode.instructions if (i.op, i.operand) == (op, operand))
    return field(encode(instruction, chip), "out_shift")


def test_embedding_with_one_scale_is_shifted_by_its_exponent(tmp_path: Path) -> None:
    # docs/numerics.md, section 5, embed: shift -E - F_R; section 4, head: F_in - F_out - E - a
    options = {"quantize": ["token_embd.weight=ternary"]}
    chip = compile_tiny("tiny-ternary", tmp_path / "build", **options)
    head = chip.groups["head"]
    assert head.group == 0
    assert head.in_frac - head.out_frac != -chip.numerics.residual_frac
    assert shift_of(chip, "embed", "head") == -head.multiplier_exp - 14
    wanted = head.in_frac - 16 - head.multiplier_exp - head.pre_shift
    assert shift_of(chip, "matvec", "head") == wanted


@pytest.mark.parametrize("name", ["tiny-int4", "tiny-int2"])
def test_embedding_with_scales_of_its_words_needs_no_shift(name: str, tmp_path: Path) -> None:
    chip = compile_tiny(name, tmp_path / "build")
    (embed,) = (i for i in chip.decode.instructions if i.op == "embed")
    assert shift_of(chip, "embed", embed.operand) == 0
