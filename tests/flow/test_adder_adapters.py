"""Ternary adapters in the adder arrays: import, refusals, losses, times, C = R."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import romsim
from romsim.cycle import CycleModel
from romsim.description_point import point_of_description
from romsim.rates import adapter_ranks, prefill_cycles, timing_model
from romsim_compiler.description import Description
from romsim_compiler.lora_adders import adder_runs, lora_parts
from romsim_compiler.trit_words import pack_trits
from romsim_models.errors import FormatError, SpecError
from romsim_models.registry import open_model
from tests.command_line import run_command
from tests.tiny_chips import tiny_spec, write_adapter

SPEC = tiny_spec("tiny-ternary")


def compiled(folder: Path, adapters: dict[str, Path], **options: Any) -> Description:
    options = {"target": "small-ternary", "lora_path": "adders", "context": 48, **options}
    return romsim.compile("tiny-ternary", folder, adapters=adapters, **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of one rank on all matrices; of odd ones on some; of a rank in two blocks."""
    folder = tmp_path_factory.mktemp("peft")
    some: dict[str, Any] = {
        "rank": 5,
        "parts": ("attn_k", "ffn_down"),
        "layers": [1],
        "use_rslora": True,
    }
    return {
        "all": write_adapter(folder / "all", SPEC, is_ternary=True),
        "some": write_adapter(folder / "some", SPEC, is_ternary=True, seed=1, **some),
        "wide": write_adapter(
            folder / "wide", SPEC, is_ternary=True, seed=2, rank=40, parts=("attn_v", "ffn_up")
        ),
    }


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Description:
    return compiled(tmp_path_factory.mktemp("chip") / "chip", folders)


def test_an_adapter_that_is_ternary_is_taken_as_it_is(
    chip: Description, folders: dict[str, Path]
) -> None:
    from romsim_models.lora import read_adapter

    for name, folder in folders.items():
        adapter = read_adapter(folder, SPEC)
        entry = chip.manifest["adapters"][name]
        assert entry["forced"] == []
        # A's scale is a float32; B's is one times the scaling, which is 2, or no power of two
        assert {errors[0] for errors in entry["factor_errors"].values()} == {0.0}
        assert max(errors[1] for errors in entry["factor_errors"].values()) < 2.0**-23
        for projection in (p for g in chip.loras[name].groups.values() for p in g.ternary):
            held = adapter.targets[projection.tensor]
            for factor, values in ((projection.a, held.a), (projection.b, held.b)):
                trits = factor.trits[: values.shape[0], : values.shape[1]]
                np.testing.assert_array_equal(trits, np.sign(values))
                assert np.count_nonzero(factor.trits) == np.count_nonzero(values)
                scaling = 1.0 if values is held.a else held.scaling
                size = np.abs(values).max() * scaling
                assert 0 <= size - factor.multiplier * 2.0**factor.exponent < size * 2.0**-23
                assert factor.multiplier < 1 << 24


@pytest.mark.parametrize("name", ["all", "some", "wide"])
def test_cycle_model_and_reference_agree(
    name: str, chip: Description, folders: dict[str, Path]
) -> None:
    options: dict[str, Any] = {"level": "values", "adapter": name, "loras": {name: folders[name]}}
    assert romsim.verify(chip, tokens=[3, 200, 77], n_new=3, **options).passed
    plain = CycleModel(chip).prefill([3, 200, 77]).logits
    assert (CycleModel(chip).prefill([3, 200, 77], adapter=name).logits != plain).any()


def test_a_row_of_z_and_of_d_by_hand(chip: Description) -> None:
    """Numerics, section 6, with Python's integers, on one matrix's factors."""
    from romsim.cycle.adapters import load_adapter
    from romsim.cycle.weights import MatrixInput

    (image,) = chip.loras["some"].groups["L1.down"].ternary
    rng = np.random.default_rng(0)
    codes, shifts = (
        rng.integers(-127, 128, SPEC.hidden_dim),
        rng.integers(0, 20, SPEC.hidden_dim // 32),
    )
    blocks = codes.reshape(-1, 32)
    vector = MatrixInput(codes=codes.astype(np.int16), shifts=shifts, sums=blocks.sum(axis=1))

    def rne(value: int, shift: int) -> int:
        if shift < 0:
            return value << -shift
        low, rest = divmod(value, 1 << shift)
        return low + (2 * rest > 1 << shift or (2 * rest == 1 << shift and low & 1))

    def product(factor: Any, row: int, inputs: list[int], places: int) -> int:
        total = sum(int(t) * x for t, x in zip(factor.trits[row], inputs, strict=True))
        scaled = rne(total, factor.pre_shift) * factor.multiplier
        return rne(scaled, places - factor.exponent - factor.pre_shift)

    inputs = [int(c) << int(shifts[k // 32]) for k, c in enumerate(codes)]
    z = [product(image.a, row, inputs, 16 - 16) for row in range(5)]
    length = max(abs(v).bit_length() for v in z)
    shift = max(0, length - 7)
    if any(abs(rne(v, shift)) == 128 for v in z):
        shift += 1
    coded = [rne(v, shift) << shift for v in z]
    (projection,) = load_adapter(chip.loras["some"])["L1.down"].projections
    delta = np.zeros(SPEC.dim, np.int32)
    coded_z: list[MatrixInput] = []
    fracs = {"in_frac": 16, "linear_frac": 16, "out_frac": 14}
    clipped = projection.apply(vector, **fracs, delta=delta, coded=coded_z)
    assert [int(c) << shift for c in coded_z[0].codes[:5]] == coded
    assert clipped == 0
    assert delta.tolist() == [product(image.b, row, coded, 16 - 14) for row in range(SPEC.dim)]


def test_an_adapter_of_zeros_is_no_adapter(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "none", SPEC, size=0.0)
    chip = compiled(tmp_path / "chip", {"none": folder}, force_ternary_adapter=True)
    entry = chip.manifest["adapters"]["none"]
    assert (entry["error"], len(entry["forced"])) == (0.0, 14)  # A is not ternary, B is zero
    plain, zero = CycleModel(chip), CycleModel(chip)
    assert (plain.prefill([9, 8]).logits == zero.prefill([9, 8], adapter="none").logits).all()
    assert plain.saturations == zero.saturations == 0


def test_an_adapter_that_is_not_ternary_is_refused_or_its_loss_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_adapter(tmp_path / "float", SPEC, rank=4, parts=("attn_q",), layers=[0])
    with pytest.raises(
        FormatError,
        match=r"^Factor A of 'blk\.0\.attn_q\.weight', element \[0, 1\], must be 0 or 0\.\d+ in "
        r"magnitude, as those before it, to run in the adder arrays, not -?0\.\d+; train the "
        r"factor ternary, add --force-ternary-adapter, or use lora\.path 'int8'$",
    ):
        compiled(tmp_path / "chip", {"float": folder})
    assert not (tmp_path / "chip").exists()
    arguments = ["compile", "tiny-ternary", "--target", "small-ternary", "-o", tmp_path / "chip"]
    arguments += ["--lora", folder, "--lora-path", "adders", "--force-ternary-adapter"]
    done = run_command(capsys, *arguments)
    assert done.code == 0
    entry = romsim.load(tmp_path / "chip").manifest["adapters"]["float"]
    assert entry["forced"] == ["blk.0.attn_q.weight"]
    ((a, b),) = entry["factor_errors"].values()
    # a matrix of normal numbers, rounded by its mean magnitude, loses about half
    assert 0.4 < a < 0.6
    assert 0.4 < b < 0.6
    assert 0.6 < entry["error"] < 0.8
    assert (
        f"  forced    float: 1 of 1 matrices made ternary; worst blk.0.attn_q.weight: relative "
        f"errors of A {100 * a:.1f} %, of B {100 * b:.1f} %, of B·A {100 * entry['error']:.1f} %"
    ) in done.out.splitlines()


def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    def refused(sentence: str, **options: Any) -> None:
        with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
            compiled(tmp_path / "chip", {"all": folders["all"]}, **options)

    refused(
        "array.encoding of target 'small' must be 'ternary' with lora.path 'adders', not "
        "'unsigned'; use a target such as 'small-ternary', or lora.path 'int8'",
        target="small",
    )
    refused(
        "--force-ternary-adapter must be used with an adapter on lora.path 'adders', not with 1 on "
        "'int8'; add --lora-path adders and --lora",
        lora_path="int8",
        force_ternary_adapter=True,
    )
    refused("lora.path must be 'int8' or 'adders', not 'both'", lora_path="both")


@pytest.mark.parametrize("name", [None, "all", "some", "wide"])
def test_times_are_those_of_the_closed_form(name: str | None, chip: Description) -> None:
    ranks = adapter_ranks(chip, name)
    model, timing = CycleModel(chip), timing_model(chip)
    assert model.prefill([5, 6, 7], adapter=name).cycles == prefill_cycles(chip, 3, adapter=name)
    done = model.step(9, adapter=name)
    assert done.cycles == timing.decode_cycles([3], ranks)[0]
    if name == "all":  # equal layers folded
        assert point_of_description(chip).decode_cycles([3], rank=8) == [done.cycles]
    times = {i.operand: (issue, idle) for i, issue, idle in done.timeline if i.op == "lora"}
    after = {i.operand: idle for i, _, idle in done.timeline if i.op == "matvec"}
    for layer in range(SPEC.n_layers):
        issue, idle = times[f"L{layer}.down"]
        assert issue == after[f"L{layer}.down"]  # in unit L, after its matrix
        if not any(ranks.get(f"L{layer}.down", ())):
            assert idle - issue == 2


def test_words_and_bits_of_the_trits(chip: Description) -> None:
    target = chip.target
    array = target.array
    n_words = 0
    for name, image in chip.loras["wide"].groups.items():
        parts, n_cols = lora_parts(SPEC, name.partition(".")[2])
        runs = [r for r in adder_runs(parts, n_cols, image.ranks, target) if r.is_there]
        (projection,) = image.ternary
        for run, factor in zip(runs, (projection.a, projection.b), strict=True):
            n_words += run.mapping.n_words
            words = pack_trits(factor.trits, run.mapping, target)
            read = np.zeros_like(factor.trits)
            m = run.mapping
            for row, column in np.ndindex(*factor.trits.shape):
                word, lane = divmod(column, array.word_codes)
                step, inside = divmod(row, m.rows_per_step)
                tile, local = divmod(inside, array.n_cells // m.ks)
                address, cell = step * m.wpc + word % m.wpc, local * m.ks + word // m.wpc
                code = words[address, tile, cell, lane // 4] >> 2 * (lane % 4) & 3
                read[row, column] = (0, 1, -1)[code]
            np.testing.assert_array_equal(read, factor.trits)
            assert np.bitwise_count(words).sum() == np.count_nonzero(factor.trits)
    bits = n_words * array.n_tiles * array.n_cells * array.word_codes * 2
    assert chip.loras["wide"].sram_bits(SPEC, target) == bits
    assert chip.manifest["adapters"]["wide"]["sram_bytes"] == bits // 8
    entries = chip.manifest["adapters"].values()
    assert chip.manifest["memory"]["lora_bytes"] == sum(e["sram_bytes"] for e in entries)


def test_a_chip_of_the_other_path_has_no_trace_of_this_one(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    adapters = {"all": folders["all"]}
    plain = compiled(tmp_path / "a", adapters, lora_path=None)
    same = compiled(tmp_path / "b", adapters, lora_path="int8")
    assert plain.manifest["sha256"] == same.manifest["sha256"]
    assert "lora" not in plain.manifest["target"]
    assert {i.unit for i in plain.decode.instructions if i.op == "lora"} == {"H"}
    other = compiled(tmp_path / "c", adapters)
    assert other.manifest["target"]["lora"] == {"path": "adders"}
    assert {i.unit for i in other.decode.instructions if i.op == "lora"} == {"L"}


def test_perplexity_of_a_forced_adapter_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = open_model("stories-ternary").spec
    folder = write_adapter(tmp_path / "tale", spec, rank=4, parts=("ffn_down",), size=0.3)
    out = tmp_path / "chip"
    done = run_command(
        capsys, "compile", "stories-ternary", "--target", "small-ternary", "--context", 64, "-o",
        out, "--lora", folder, "--lora-path", "adders", "--force-ternary-adapter", "--json",
    )  # fmt: skip
    assert done.code == 0
    measured = done.json()["adapters"]["tale"]["quality"]
    assert measured["n_tokens"] == 512
    assert measured["saturations"] == 0
    assert abs(measured["change_percent"]) > 0.01
    plain = run_command(capsys, "perplexity", out, "--tokens", 16, "--json").json()
    adapter = ["--adapter", "tale", "--lora", folder]
    adapted = run_command(capsys, "perplexity", out, "--tokens", 16, *adapter, "--json").json()
    assert plain["float_perplexity"] != adapted["float_perplexity"]
    assert plain["chip_perplexity"] != adapted["chip_perplexity"]


def test_manifest_is_as_its_schema_says(chip: Description) -> None:
    file = resources.files("romsim_compiler") / "schemas" / "manifest.schema.json"
    schema = json.loads(file.read_text(encoding="utf-8"))
    manifest = json.loads((chip.path / "manifest.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(manifest)
    manifest["target"]["lora"]["path"] = "both"
    assert not validator.is_valid(manifest)
