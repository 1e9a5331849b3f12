"""The instruction word: fields, widths and meaning, and how a program becomes its ROM image.

Every unit sees the whole word while its instruction runs; a field that an operator does not use
is 0. Numbers come from the description; nothing is computed here but shifts between fracs.
"""

from __future__ import annotations

from collections.abc import Mapping

from romsim_compiler.description import Description
from romsim_compiler.issue import is_woken, rom_operand
from romsim_compiler.program import Instruction, PlacedGroup, Program
from romsim_models.errors import ScheduleError
from romsim_models.spec import ModelSpec

__all__ = [
    "FIELDS",
    "LORA_GROUPS",
    "OPS",
    "WORD_BITS",
    "encode",
    "encode_program",
    "first_row",
    "gain_bases",
    "group_fracs",
    "pack",
]

OPS = {
    name: number
    for number, name in enumerate(
        (
            "end",  # no instruction: the program is over
            "embed",
            "sincos",
            "norm",
            "matvec",
            "lora",
            "rope",
            "attn",
            "attn_out",
            "resid",
            "glu",
        )
    )
}

FIELDS: dict[str, tuple[int, bool]] = {
    # name: (bits, signed)
    "op": (4, False),
    "unit": (2, False),  # 0 V, 1 L, 2 H
    "wait": (3, False),  # bit 0 V, bit 1 L, bit 2 H must be idle
    "rom": (2, False),  # bit 0 reads a matrix, bit 1 another than was read last
    "token": (3, False),  # in-flight index, selects buffers and is added to the position
    "slot": (4, False),
    "layer": (8, False),
    "to_y": (1, False),  # attn_out, glu: write int32 to Y instead of MXINT8 to the x buffer
    "from_y": (1, False),  # norm: read Y instead of X
    # matvec, embed: where and how to read ROM
    "base": (24, False),  # lora: the group's entry in an adapter's part of the adapter table
    "steps": (20, False),
    "wpc": (8, False),
    "planes": (4, False),
    "ks_log2": (4, False),
    "n_rows": (20, False),
    "n_cols": (16, False),  # columns of the matrix, or length of the normalised vector
    "grid": (8, True),  # gamma
    # F_in - F_out - gamma (- E with a whole-matrix scale); embed: -E - F_R, or 0 with scales
    "out_shift": (8, True),
    "offset": (8, False),
    "has_scales": (1, False),  # scales stand in the words
    "has_minimum": (1, False),
    "is_head": (1, False),  # results are logits: running argmax
    "pre_shift": (6, False),
    # matvec with a whole-matrix scale: M; norm: SK
    "multiplier": (24, False),
    # norm
    "gain_base": (20, False),  # first gain, in words of VL gains
    "gain_shift": (8, True),  # 22 + g - F_y
    "eps_term": (63, False),  # E0
    "group_words": (8, False),  # blocks of 32 that share one scale
    "first_row": (20, False),  # where in Y the first row goes: split groups share a vector
}

LORA_GROUPS = ("qkv", "o", "gu", "down")
"""Groups of a layer that an adapter may extend, in the order of the adapter table."""

WORD_BITS = sum(bits for bits, _ in FIELDS.values())


def pack(values: Mapping[str, int]) -> int:
    """Return the instruction word of the given fields, the first field in the lowest bits.

    Raises
    ------
    ScheduleError
        If a field is unknown or its value does not fit.
    """
    unknown = set(values) - set(FIELDS)
    if unknown:
        raise ScheduleError(f"Instruction field must be known, not {sorted(unknown)[0]!r}")
    word, at = 0, 0
    for name, (bits, signed) in FIELDS.items():
        value = int(values.get(name, 0))
        low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
        if not low <= value < high:
            raise ScheduleError(
                f"Instruction field {name!r} must be from {low} to {high - 1}, not {value}"
            )
        word |= (value & ((1 << bits) - 1)) << at
        at += bits
    return word


def _matrix(group: PlacedGroup) -> dict[str, int]:
    mapping = group.mapping
    return {
        "base": group.base,
        "steps": mapping.steps,
        "wpc": mapping.wpc,
        "planes": mapping.planes,
        "ks_log2": mapping.ks.bit_length() - 1,
        "n_rows": mapping.n_rows,
        "n_cols": mapping.n_cols,
        "grid": group.grid,
        "out_shift": group.in_frac
        - group.out_frac
        - (group.grid if group.group else group.multiplier_exp + group.pre_shift),
        "offset": group.offset,
        "has_scales": int(group.group > 0),
        "has_minimum": int(group.has_minimum),
        "is_head": int(group.name == "head"),
        "pre_shift": group.pre_shift,
        "multiplier": group.multiplier,
        "group_words": max(1, group.group // 32),
    }


def first_row(group: PlacedGroup, spec: ModelSpec) -> int:
    """Return where a group's first row stands in q | k | v or gate | up, or 0."""
    return {
        "k": spec.q_dim,
        "v": spec.q_dim + spec.kv_dim,
        "up": spec.hidden_dim,
    }.get(group.members[0][1], 0)


def group_fracs(description: Description, layer: int, kind: str) -> tuple[int, int]:
    """Return the fraction bits of a group's input and output; split groups have the same."""
    split = {"qkv": "q", "gu": "gate"}.get(kind, kind)
    groups = description.groups
    group = groups.get(f"L{layer}.{kind}") or groups[f"L{layer}.{split}"]
    return group.in_frac, group.out_frac


def encode(instruction: Instruction, description: Description, *, wakes: bool = False) -> int:
    """Return the word of one instruction of a description.

    Parameters
    ----------
    wakes
        Whether it reads another matrix than the one that was read last.
    """
    values: dict[str, int] = {
        "op": OPS[instruction.op],
        "unit": "VLH".index(instruction.unit),
        "wait": sum(1 << "VLH".index(u) for u in instruction.wait),
        "rom": int(rom_operand(instruction) != "") + 2 * wakes,
        "token": instruction.token,
        "slot": instruction.slot,
        "layer": max(0, instruction.layer),
        "to_y": int(instruction.target == "Y"),
        "from_y": int(instruction.source == "Y"),
    }
    if instruction.op in ("matvec", "embed") and instruction.operand:
        group = description.groups[instruction.operand]
        values |= _matrix(group) | {"first_row": first_row(group, description.spec)}
        if instruction.op == "embed":  # a row is no product: only the scale's exponent counts
            values["out_shift"] = (
                0 if group.group else -group.multiplier_exp - description.numerics.residual_frac
            )
    elif instruction.op == "lora":
        kind = LORA_GROUPS.index(instruction.operand.rpartition(".")[2])
        values["base"] = instruction.layer * len(LORA_GROUPS) + kind
    elif instruction.op == "norm":
        gain = description.gains[instruction.operand]
        values |= {
            "n_cols": gain.values.size,
            "gain_base": gain_bases(description)[instruction.operand],
            "gain_shift": 22 + gain.shift - gain.out_frac,
            "eps_term": gain.eps_term,
            "multiplier": gain.root,
        }
    return pack(values)


def gain_bases(description: Description) -> dict[str, int]:
    """Return each gain vector's first word in the gain ROM, words of VL gains, in order."""
    lanes = description.target.vector.n_lanes
    bases, at = {}, 0
    for name, gain in description.gains.items():
        bases[name] = at
        at += -(-gain.values.size // lanes)
    return bases


def encode_program(program: Program, description: Description) -> list[int]:
    """Return a program's words, ended by an ``end`` word."""
    woken = is_woken(program.instructions)
    words = [
        encode(one, description, wakes=wakes)
        for one, wakes in zip(program.instructions, woken, strict=True)
    ]
    return [*words, pack({"op": OPS["end"]})]
