"""What the users of a unit keep to and where they look, for proofs that a mutant is no fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from romsim_rtl.encoding import FIELDS, OPS
from romsim_rtl.mutant_design import Look, Rule
from tests.rtl.test_lside_chip import SIZES
from tests.rtl.test_vector_unit import SHAPES
from tests.rtl.vector_bench import Shape

__all__ = ["CODE_BITS", "LOOKS", "RULES"]

CODE_BITS = 8
"""No format has more; the digits of a code are its planes."""


def _field(name: str, most: int, *, least: int = 0, when: str = "start") -> Rule:
    """Say the largest and least value that programs have in a field of the instruction."""
    at = 0
    for one, (bits, _) in FIELDS.items():
        if one == name:
            return Rule(when=when, port="instr", at=at, bits=bits, most=most, least=least)
        at += bits
    raise KeyError(name)


def _vector_rules(shape: Shape) -> tuple[Rule, ...]:
    """Give what docs/rtl.md and docs/machine.md promise to unit V."""
    n_words = -(-shape.dim // shape.word_codes)
    longest = max(shape.dim, shape.hidden_dim, shape.n_heads * shape.head_dim)
    n_planes = CODE_BITS // (1 if shape.encoding == "ternary" else shape.lane_bits)
    return (
        Rule(when="start", port="busy", most=0),
        _field("op", max(OPS.values())),
        _field("token", shape.n_inflight - 1),
        _field("planes", n_planes),
        _field("n_cols", longest if shape.has_sub_norms else shape.dim),
        _field("gain_base", shape.n_gain_words - 1),
        Rule(when="ly_valid", port="ly_token", bits=3, most=shape.n_inflight - 1),
        Rule(when="em_valid", port="em_word", bits=10, most=n_words - 1),
        Rule(when="em_valid", port="em_plane", bits=4, most=n_planes - 1),
    )


def _lside_rules() -> tuple[Rule, ...]:
    """Give what docs/rtl.md and docs/machine.md promise to unit L."""
    n_planes = CODE_BITS // SIZES.lane_bits
    return (
        Rule(when="start", port="busy", most=0),
        Rule(when="embed", port="busy", most=0),
        Rule(when="embed", port="start", most=0),
        *(
            _field(name, most, least=least, when=when)
            for when in ("start", "embed")
            for name, most, least in (
                ("planes", n_planes, 1),
                ("ks_log2", 2, 0),
                ("base", SIZES.rom_rows - 1, 0),
            )
        ),
    )


def _looks(when: str, *ports: str) -> list[Look]:
    return [Look(port=port, when=when) for port in ports]


_LANES = range(SIZES.n_lanes)
RULES: Mapping[str, Sequence[Rule]] = {
    "vector_unit": _vector_rules(next(iter(SHAPES.values()))),
    "lside": _lside_rules(),
    "ltile_rows": [
        Rule(when=stage, port="ks_log2", bits=4, most=2)  # as the test builds it
        for stage in ("v_pre", "v_times", "v_round")
    ],
}
"""What users of a unit, in the shape that is mutated, keep to."""
LOOKS: Mapping[str, Sequence[Look]] = {
    "vector_unit": [
        *_looks("o_en", "o_addr"),
        *_looks("l_en", "l_addr"),
        *_looks("d_en", "d_addr"),
        *_looks("bc_kind", "bc_token", "bc_layer", "bc_pos", "bc_block", "bc_mask"),
        *_looks("bc_kind", "bc_codes__0", "bc_shift__0", "bc_sum__0"),
    ],
    "lside": [
        *_looks("em_valid", "em_word", "em_plane", "em_data"),
        *_looks("ly_valid", "ly_token", "ly_head", "ly_row", "ly_mask"),
        *_looks("ly_valid", *(f"ly_data__{lane}" for lane in _LANES)),
        *(Look(port=f"ly_data__{lane}", when="ly_mask", at=lane) for lane in _LANES),
    ],
}
"""Where users of a unit look at its outputs, as docs/rtl.md, section 3, says."""
