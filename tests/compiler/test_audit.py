from __future__ import annotations

from collections.abc import Mapping as NameMap
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from romsim_compiler import audit as audit_module
from romsim_compiler import quantize
from romsim_compiler.audit import AuditReport, audit, audit_description
from romsim_compiler.formats import WeightFormat
from romsim_compiler.gains import GainVector, gain_vector
from romsim_compiler.grid import choose_grid
from romsim_compiler.groups import build_groups, tensor_shapes
from romsim_compiler.mapping import map_group
from romsim_compiler.program import PlacedGroup
from romsim_compiler.quantize import open_tensor
from romsim_compiler.rom_image import pack_group
from romsim_compiler.rope import phase_increments, query_scale
from romsim_compiler.tables import tables
from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import EncodedTensor, Tensor
from romsim_models.errors import DescriptionError
from romsim_models.synthetic import synthetic_checkpoint
from romsim_models.tensors import expected_shapes
from tests.compiler.rom_arrays import make_array, make_format, make_spec, random_words

SPEC = make_spec()
ARRAY = make_array(n_tiles=3, n_cells=4, word_codes=32, lane_bits=4)


class EncodedStore:
    """A model whose matrices are shipped in Q4_1 and whose embedding is in Q8_0."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        plain = synthetic_checkpoint(SPEC)
        rng = np.random.default_rng(1)
        for name, shape in expected_shapes(SPEC).items():
            if len(shape) == 1:
                self.tensors[name] = plain.read(name)
                continue
            is_wide = name == "token_embd.weight"
            codes = rng.integers(-128 if is_wide else 0, 128 if is_wide else 16, shape)
            groups = (shape[0], shape[1] // 32)
            self.tensors[name] = EncodedTensor(
                name=name,
                shape=(shape[0], shape[1]),
                format="q8_0" if is_wide else "q4_1",
                code_bits=8 if is_wide else 4,
                code_offset=0,
                group_size=32,
                codes=codes.astype(np.int8) if is_wide else codes.astype(np.uint8),
                scale_bits=random_words(rng, groups),
                minimum_bits=None if is_wide else random_words(rng, groups),
            )

    def formats(self) -> NameMap[str, str]:
        return {name: tensor.format for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def read_rows(self, name: str, first: int, last: int) -> Tensor:
        tensor = self.tensors[name]
        assert isinstance(tensor, EncodedTensor)
        return tensor.rows(first, last)

    def digest(self) -> str:
        return "0" * 64


class Chip:
    """A burnt model in memory."""

    def __init__(self, checkpoint: Checkpoint, formats: dict[str, str]) -> None:
        self.checkpoint = checkpoint
        self.formats = {name: make_format(text) for name, text in formats.items()}
        self.groups: list[PlacedGroup] = []
        pieces = []
        base = 0
        for group in build_groups(SPEC, self.formats.__getitem__):
            sources = [open_tensor(checkpoint, m.tensor, group.fmt) for m in group.members]
            grid = choose_grid(sources)
            mapping = map_group(group.n_rows, group.n_cols, group.fmt.planes(ARRAY), ARRAY, 32)
            fmt = group.fmt
            self.groups.append(
                PlacedGroup(
                    name=group.name, layer=group.layer, mapping=mapping, base=base,
                    code_bits=fmt.code_bits, kind=fmt.kind, offset=fmt.offset, group=fmt.group,
                    has_minimum=fmt.has_minimum, grid=grid.grid, in_frac=16, out_frac=16,
                    multiplier=sources[0].multiplier, multiplier_exp=sources[0].exponent,
                    pre_shift=grid.pre_shift,
                    members=tuple(
                        (m.tensor, m.operator, m.first_row, m.n_rows) for m in group.members
                    ),
                )
            )  # fmt: skip
            pieces.append(pack_group(sources, mapping, ARRAY))
            base += mapping.n_words
        self.words = np.concatenate(pieces)
        self.gains: dict[str, GainVector] = {}
        for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
            values = checkpoint.read(f"{name}.weight").dequantize()
            self.gains[name] = gain_vector(name, values, eps=SPEC.norm_eps)

    def audit(self) -> AuditReport:
        return audit(
            self.groups,
            lambda base, n: self.words[base : base + n],
            self.gains.values(),
            self.checkpoint,
            self.formats.__getitem__,
            array=ARRAY,
        )


def quantised_chip(name: str) -> Chip:
    return Chip(synthetic_checkpoint(SPEC), dict.fromkeys(tensor_shapes(SPEC), name))


def shipped_chip() -> Chip:
    formats = dict.fromkeys(tensor_shapes(SPEC), "q4_1") | {"token_embd.weight": "q8_0"}
    checkpoint = Checkpoint(spec=SPEC, kind="gguf", name="fake", store=EncodedStore())
    return Chip(checkpoint, formats)


N_CODES = sum(n_rows * n_cols for n_rows, n_cols in tensor_shapes(SPEC).values())


def test_a_shipped_model_is_burnt_without_a_difference() -> None:
    report = shipped_chip().audit()
    assert report.differences == ()
    assert report.n_differences == 0
    assert report.n_codes == N_CODES
    assert report.n_scales == N_CODES // 32
    assert report.n_minima == (N_CODES - 300 * 64) // 32
    assert report.n_gains == 3 * 64
    assert report.n_constants == 5 * 7 + 3 * 5


@pytest.mark.parametrize(
    ("name", "n_scales"), [("int4g32", N_CODES // 32), ("int8g32", N_CODES // 32), ("ternary", 8)]
)
def test_a_quantised_model_is_burnt_without_a_difference(name: str, n_scales: int) -> None:
    report = quantised_chip(name).audit()
    assert (report.n_differences, report.n_codes, report.n_scales) == (0, N_CODES, n_scales)


def test_streamed_matrices_are_audited_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    chips = [shipped_chip(), quantised_chip("ternary")]
    monkeypatch.setattr(audit_module, "WHOLE_WEIGHTS", 1000)
    monkeypatch.setattr(audit_module, "BLOCK_WEIGHTS", 1000)
    monkeypatch.setattr(quantize, "WHOLE_WEIGHTS", 1000)
    for chip in chips:
        report = chip.audit()
        assert (report.n_differences, report.n_codes) == (0, N_CODES)
    chips[0].words[-1, -1, -1, 3] ^= 0x10
    assert chips[0].audit().n_differences == 1


def test_a_swapped_nibble_is_found_and_named() -> None:
    chip = shipped_chip()
    tensor = chip.checkpoint.read("blk.0.attn_q.weight")
    assert isinstance(tensor, EncodedTensor)
    low, high = (int(c) for c in tensor.codes[0, :2])
    assert low != high
    byte = chip.words[0, 0, 0, 0]
    chip.words[0, 0, 0, 0] = (byte >> 4) | (byte << 4)
    report = chip.audit()
    assert report.n_differences == 2
    assert [str(d) for d in report.differences] == [
        f"code [0, 0] of 'blk.0.attn_q.weight' must be {low} as in the model file, not {high}",
        f"code [0, 1] of 'blk.0.attn_q.weight' must be {high} as in the model file, not {low}",
    ]


def test_every_kind_of_fault_is_found() -> None:
    faults: dict[str, int] = {"scale": 16, "minimum": 18}
    for kind, byte in faults.items():
        chip = shipped_chip()
        chip.words[0, 0, 0, byte] ^= 1
        report = chip.audit()
        assert [(d.subject, d.kind, d.place) for d in report.differences] == [
            ("blk.0.attn_q.weight", kind, (0, 0))
        ]
    chip = shipped_chip()
    chip.words[chip.groups[0].mapping.n_words - 1, -1, -1, 5] = 1  # beyond row 127 of L0.qkv
    differences = chip.audit().differences
    assert [str(d) for d in differences] == [
        "padding of 'L0.qkv' must be 0 as in the model file, not set in 1 words"
    ]


def test_wrong_constants_are_found() -> None:
    chip = quantised_chip("ternary")
    first = chip.groups[0]
    chip.groups[0] = replace(
        first, grid=first.grid + 1, pre_shift=first.pre_shift + 1, multiplier=first.multiplier - 1
    )
    kinds = [d.kind for d in chip.audit().differences]
    assert kinds == ["grid", "pre-shift", "scale"]
    chip = shipped_chip()
    chip.groups[1] = replace(chip.groups[1], offset=8)
    assert [str(d) for d in chip.audit().differences] == [
        "offset of 'L0.o' must be 0 as in the model file, not 8"
    ]


def test_wrong_gains_are_found() -> None:
    chip = shipped_chip()
    gain = chip.gains["output_norm"]
    values = gain.values.copy()
    values[7] += 1
    chip.gains["output_norm"] = replace(gain, values=values, shift=gain.shift + 1)
    report = chip.audit()
    assert [(d.subject, d.kind, d.place) for d in report.differences] == [
        ("output_norm", "shift", ()),
        ("output_norm", "gain", (7,)),
    ]
    chip.gains["output_norm"] = replace(gain, values=values[:-1].copy())
    assert [d.kind for d in chip.audit().differences] == ["length"]


def test_only_the_first_ten_differences_are_kept() -> None:
    chip = shipped_chip()
    chip.words[0] ^= 0xFF
    report = chip.audit()
    assert len(report.differences) == 10
    assert report.n_differences > 100
    assert len(report.to_json()["differences"]) == 10
    assert report.to_json()["n_codes"] == N_CODES


def test_members_that_are_swapped_are_found() -> None:
    """Rows of k where v should be: same shape, same format."""
    chip = shipped_chip()
    q, k, v = chip.groups[0].members
    swapped = ((k[0], *v[1:]), (v[0], *k[1:]))
    chip.groups[0] = replace(chip.groups[0], members=(q, swapped[1], swapped[0]))
    assert chip.audit().n_differences > 1000


def test_another_model_is_refused() -> None:
    chip = shipped_chip()
    q, *rest = chip.groups[0].members
    chip.groups[0] = replace(chip.groups[0], members=((*q[:3], 63), *rest))
    with pytest.raises(
        DescriptionError,
        match=r"^Shape of tensor 'blk\.0\.attn_q\.weight' must be \[63, 64\] as in the "
        r"description, not \[64, 64\]; audit against the model that was compiled$",
    ):
        chip.audit()


def as_description(chip: Chip, choices: dict[str, str]) -> Any:
    return SimpleNamespace(
        manifest={"model": {"choices": choices}},
        groups={g.name: g for g in chip.groups},
        rom_words=lambda base, n: chip.words[base : base + n],
        gains=chip.gains,
        target=SimpleNamespace(array=ARRAY, embedding=SimpleNamespace(input="rom", head="rom")),
        tables=dict(tables()),
        phase_increments=phase_increments(SPEC),
        query_scale=query_scale(SPEC.head_dim),
    )


def test_a_description_is_audited_with_its_tables() -> None:
    chip = shipped_chip()
    description = as_description(chip, {})
    seen: list[tuple[str, float]] = []
    report = audit_description(
        description, chip.checkpoint, progress=lambda stage, part: seen.append((stage, part))
    )
    n_entries = 257 + 257 + 1025 + 96 + 128 + 16 + 1
    assert (report.n_differences, report.n_constants) == (0, 50 + n_entries)
    assert seen[0] == ("reading L0.qkv", 0.0)
    assert [stage for stage, _ in seen[1:]] == [
        f"reading {name}" for name in ("L0.o", "L0.gu", "L0.down", "head")
    ]
    description.tables["SIG"] = description.tables["SIG"] + (np.arange(1025) == 40)
    description.tables["EXP"] = description.tables["EXP"][:-1]
    description.phase_increments = description.phase_increments + (np.arange(16) == 3)
    description.query_scale -= 1
    differences = audit_description(description, chip.checkpoint).differences
    assert [(d.subject, d.kind, d.place) for d in differences] == [
        ("EXP", "length", ()),
        ("SIG", "entry", (40,)),
        ("phase increments", "entry", (3,)),
        ("head_dim", "query scale", ()),
    ]


def test_a_quantised_description_names_its_formats() -> None:
    chip = quantised_chip("int4g32")
    choices = dict.fromkeys(tensor_shapes(SPEC), "int4g32")
    assert audit_description(as_description(chip, choices), chip.checkpoint).n_differences == 0
    with pytest.raises(
        DescriptionError,
        match=r"^Format of tensor 'blk\.0\.attn_q\.weight' must be recorded in the description "
        r"where the file has it in 'f32', but it is not; compile again from this file$",
    ):
        audit_description(as_description(chip, {}), chip.checkpoint)


def test_formats_are_those_of_the_choice() -> None:
    chip = quantised_chip("int8g32")
    wrong: dict[str, WeightFormat] = chip.formats | {
        f"blk.0.attn_{p}.weight": make_format("int8g64") for p in "qkv"
    }
    chip.formats = wrong  # not the group that was asked for
    assert chip.audit().n_differences > 100
