"""The comparison with GPUs: both sides itemised, ratios only where there is one, the command."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import romsim
from romsim.chip_decode import decode_on_chip
from romsim.compare_tables import comparison_lines, rows_csv
from romsim.cost_inputs import cost_template, read_cost_inputs
from romsim.decode_record import DecodeRecord, Device, MeasuredStep, model_of, write_records
from romsim.description_point import area_of_description, point_of_description
from romsim.energy import estimate_energy
from romsim.gpu_compare import GpuComparison, compare_with_gpus
from romsim.gpu_roofline import all_gpus
from romsim.gpu_tables import gpus
from romsim.rates import timing_model
from romsim_compiler.description import Description
from romsim_compiler.memory_map import kv_bytes_per_token
from romsim_models.errors import CapacityError, SpecError
from romsim_models.shapes import SHAPES
from romsim_models.spec import ModelSpec
from tests.command_line import run_command

SCHEMA = Path(romsim.__file__).parent / "schemas" / "compare.schema.json"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Description:
    """LLaMA-3.2-3B without weights."""
    folder = tmp_path_factory.mktemp("llama") / "chip"
    return romsim.compile("llama-3.2-3b", folder, target="roma-7nm-g32", fit=True, context=2048)


def made_record(
    spec: ModelSpec, *, context: int, batch: int = 1, kind: str = "cuda", step_s: float = 0.01
) -> DecodeRecord:
    return DecodeRecord(
        record_version=1,
        device=Device(
            kind=kind,  # type: ignore[arg-type]
            name="NVIDIA H200" if kind == "cuda" else "a CPU",
            n_threads=None,
            memory_gb=141.0,
            driver="580.1",
            versions={"torch": "2.13", "cuda": "13.0"},
        ),
        model=model_of(spec),
        weights="random",
        number_format="bfloat16",
        framework="PyTorch",
        steps=(
            MeasuredStep(
                context=context,
                batch=batch,
                graphs=True,
                n_steps=8,
                turns_s=(step_s, step_s / 2, step_s * 2),
                step_s=step_s,
                bytes_per_step=1e9,
                bandwidth_share=0.5,
                joules_per_token=0.7,
            ),
        ),
        missing=("one thing: a reason",),
    )


def compared(description: Description, **options: Any) -> GpuComparison:
    return compare_with_gpus(description, **{"cost_inputs": read_cost_inputs(), **options})


def test_chips_side_is_the_compiled_programs(tiny: Description) -> None:
    chip, area = decode_on_chip(tiny, 40), area_of_description(tiny)
    assert chip.area_mm2 == area.total_mm2
    assert chip.cycles == timing_model(tiny).decode_cycles([39])[0]
    assert chip.tokens_per_s == tiny.target.clock_mhz * 1e6 / chip.cycles
    assert sum(chip.cycles_by_resource.values()) == chip.cycles
    assert chip.joules_per_token.mid == pytest.approx(
        1e-12 * estimate_energy(point_of_description(tiny), 40, area=area).token_pj.mid
    )
    assert sum(j.mid for j in chip.joules_by_unit.values()) == pytest.approx(
        chip.joules_per_token.mid
    )
    assert sum(a.mid for a in chip.area_by_unit_mm2.values()) == pytest.approx(chip.area_mm2.mid)
    gating = [chip.gating_joules[name].mid for name in ("switching", "isolated", "gated")]
    assert gating == sorted(gating, reverse=True)


def test_chips_bytes_are_its_weights_and_its_cache(tiny: Description) -> None:
    chip, spec = decode_on_chip(tiny, 40), tiny.spec
    items = {item.name: item.bytes for item in chip.items}
    layer = spec.dim * (2 * spec.q_dim + 2 * spec.kv_dim + 3 * spec.hidden_dim)
    assert chip.bits_per_weight == 4 + 32 / 32  # a 16-bit scale and a 16-bit minimum for 32
    assert items["weights of the layers"] == spec.n_layers * layer * 5 / 8
    assert items["LM head"] == spec.vocab_size * spec.dim * chip.head_bits_per_weight / 8  # type: ignore[operator]
    assert items["embedding rows"] == spec.dim * chip.head_bits_per_weight / 8  # type: ignore[operator]
    token = 2 * spec.n_layers * spec.n_kv_heads * spec.head_dim * 8.25 / 8
    assert items["KV read"] == 40 * token
    assert items["KV written"] == token
    assert chip.bytes_per_token == sum(items.values())


def test_head_that_is_not_on_the_chip_is_told(paper: Description) -> None:
    chip = decode_on_chip(paper, 100)
    assert "LM head" not in {item.name for item in chip.items}
    assert chip.head_bits_per_weight is None
    assert chip.notes[1:] == (
        "The LM head is off-chip: its time, energy and area are in no figure.",
        "The input embedding is off-chip: its row is read by the host.",
        "Target tom-7nm is not executable: no value was computed on it.",
        "The description has no weights: its ROM bits are counted, not known.",
    )


def test_every_part_is_compared_at_one_sequence_and_at_its_best_batch(llama: Description) -> None:
    made = compared(llama)
    roofs = {
        (r.decode.gpu.name, r.weight_format, r.streams): r.decode.batch for r in made.rooflines
    }
    assert len(roofs) == 2 * 3 * len(gpus())
    assert all(
        (b == 1) if streams == "one sequence" else (b > 1) for (*_, streams), b in roofs.items()
    )
    assert roofs["H200", "4-bit", "best batch"] > roofs["H200", "fp16", "best batch"]
    kinds = {row.kind for row in made.rows}
    assert kinds == {"compiled program", "roofline", "published"}
    own = next(r for r in made.rooflines if r.weight_format == "as on the chip")
    assert (own.weight_bits, own.head_bits) == (5, 8.5)


def test_ratios_are_the_chips_rate_over_theirs(llama: Description) -> None:
    made = compared(llama, names=["H100"])
    chip = made.chip
    for row in made.rows:
        if row.kind != "roofline":
            continue
        assert row.chip_times_faster is not None
        assert row.chip_times_aggregate is not None
        assert row.chip_times_joules is not None
        assert row.chip_times_faster.mid == chip.tokens_per_s / row.tokens_per_s.mid
        assert row.chip_times_faster.low == chip.tokens_per_s / row.tokens_per_s.high
        assert row.chip_times_aggregate.mid == (
            chip.aggregate_tokens_per_s / row.aggregate_tokens_per_s.mid
        )
        assert row.joules_per_token is not None
        assert row.chip_times_joules.high == (row.joules_per_token.high / chip.joules_per_token.low)
        assert row.joules_basis == "rated power: an upper limit"
    one, many = (
        next(r for r in made.rows if r.weight_format == "fp16" and r.streams == streams)
        for streams in ("one sequence", "best batch")
    )
    assert one.tokens_per_s == one.aggregate_tokens_per_s
    assert many.aggregate_tokens_per_s.mid > 10 * many.tokens_per_s.mid


def test_published_rates_are_those_of_the_same_shape_and_parts(llama: Description) -> None:
    def found(made: GpuComparison) -> list[tuple[str, int | None, bool]]:
        return [
            (r.device, r.context, r.chip_times_faster is not None)
            for r in made.rows
            if r.kind == "published"
        ]

    assert found(compared(llama)) == [
        ("RTX 4090", 256, False),
        ("RTX 4090", 2048, False),
        ("Jetson Orin Nano Super", None, False),
    ]
    assert found(compared(llama, context=2048, names=["RTX 4090"])) == [
        ("RTX 4090", 256, False),
        ("RTX 4090", 2048, True),
    ]
    assert found(compared(llama, names=["H100"])) == []
    assert (
        "No published rate of this model on these parts is known to this package."
        in compared(llama, names=["H100"]).missing
    )


def test_measured_rate_stands_beside_the_chip_at_the_same_context_only(llama: Description) -> None:
    records = [
        ("a", made_record(llama.spec, context=1024)),
        ("b", made_record(llama.spec, context=512, batch=8)),
    ]
    made = compared(llama, names=["H200"], records=records)
    same, other = (row for row in made.rows if row.kind == "measured")
    assert (same.tokens_per_s.low, same.tokens_per_s.mid, same.tokens_per_s.high) == (50, 100, 200)
    assert same.chip_times_faster is not None
    assert same.chip_times_faster.mid == made.chip.tokens_per_s / 100
    assert same.joules_basis == "NVML's counter of the device"
    assert same.framework == "PyTorch, CUDA graphs"
    assert "cuda 13.0, torch 2.13, driver 580.1" in same.source
    assert (other.streams, other.aggregate_tokens_per_s.mid) == ("batch 8", 800)
    assert other.chip_times_faster is None
    assert other.warnings == ("measured at 512 tokens, not at 1024",)
    assert made.missing[0] == "NVIDIA H200: one thing: a reason"


def test_what_was_not_measured_is_told(llama: Description) -> None:
    assert compared(llama).missing[0] == (
        "No rate was measured: give --device cuda (or cpu), or --measured FILE with what `make "
        "gpu-bench` wrote."
    )
    record = made_record(llama.spec, context=1024, kind="cpu")
    assert compared(llama, records=[("a", record)]).missing[0] == (
        "No rate was measured on a GPU: the measured rows are a CPU's."
    )


def test_record_of_another_model_is_refused(llama: Description) -> None:
    record = made_record(replace(llama.spec, n_kv_heads=24), context=1024)
    with pytest.raises(
        SpecError,
        match=r"^mha\.json: n_kv_heads of the measured model 'llama-3\.2-3b' must be 8, as in "
        r"'llama-3\.2-3b', not 24; measure this model$",
    ):
        compared(llama, records=[("mha.json", record)])


def test_file_with_records_of_several_models_gives_those_of_this_one(
    tiny: Description, tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    other = made_record(SHAPES["llama-3-8b"], context=96)
    write_records(path, (other, made_record(tiny.spec, context=96)))
    made = romsim.compare(tiny, measured=[path])
    assert [record.model.name for record in made.records] == ["tiny-int4"]
    assert made.notes[-1] == "bench.json: records of other models are left out: llama-3-8b."
    write_records(path, (other,))
    with pytest.raises(
        SpecError,
        match=rf"^{path}: dim of the measured model 'llama-3-8b' must be 64, as in 'tiny-int4', "
        r"not 4096; measure this model$",
    ):
        romsim.compare(tiny, measured=[path])


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_no_size_of_a_cache_follows_from_query_heads_or_width(name: str) -> None:
    """Twice the query heads leave every KV byte as it is; twice the KV heads double them all."""
    spec = SHAPES[name]

    def kv(of: ModelSpec) -> list[float]:
        return [kv_bytes_per_token(of, 16)] + [
            item.bytes
            for decode in all_gpus(of, weight_bits=16, context=777)
            for item in decode.items
            if item.name.startswith("KV")
        ]

    queries = replace(spec, n_heads=2 * spec.n_heads)
    wider = replace(spec, dim=2 * spec.dim)
    assert kv(queries) == kv(wider) == kv(spec)
    doubled = replace(spec, n_heads=2 * spec.n_heads, n_kv_heads=2 * spec.n_kv_heads)
    assert kv(doubled) == [2 * one for one in kv(spec)]
    assert kv(spec)[0] == 4 * spec.n_layers * spec.n_kv_heads * spec.head_dim


def test_cache_is_told_with_its_heads(llama: Description) -> None:
    assert compared(llama).kv_sentence == (
        "59,136 B a token on the chip (2 x 28 layers x 8 KV heads x 128 x 8.25 b / 8), 114,688 B "
        "on a GPU (16 b); 24 query heads share 8"
    )


def test_model_too_large_for_a_part_is_shared_or_told(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("large") / "chip"
    large = romsim.compile("llama-3-70b", folder, target="roma-7nm-g32", fit=True, context=64)
    made = compared(large, names=["RTX 4090", "H100", "Jetson Orin"])
    fp16 = {
        (row.device, row.streams): row
        for row in made.rows
        if row.kind == "roofline" and row.weight_format == "fp16"
    }
    assert list(fp16) == [
        ("8 x RTX 4090", "one sequence"),
        ("8 x RTX 4090", "best batch"),
        ("2 x H100", "one sequence"),
        ("2 x H100", "best batch"),
        ("Jetson Orin", "one sequence"),
    ]
    orin = fp16["Jetson Orin", "one sequence"]
    assert orin.chip_times_faster is None
    assert orin.warnings == (
        "141.1 GB of weights and KV do not fit 90% of 1 x 64 GB of Jetson Orin",
    )
    assert fp16["2 x H100", "one sequence"].chip_times_faster is not None
    priced = {one.device for one in made.costs if one.format == "fp16"}
    assert priced == {"8 x RTX 4090", "2 x H100"}
    assert sum("does not fit" in line for line in comparison_lines(made)) == 1
    assert made.bill.n_dies > 8
    assert made.notes[-1] == (
        f"The chip is larger than a reticle's field: its cost is that of {made.bill.n_dies} equal "
        f"dies, without links."
    )


def test_json_matches_the_schema_and_has_no_figure_that_is_none(
    tiny: Description, llama: Description, paper: Description
) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    for description, context in ((tiny, 50), (llama, 1024), (paper, 128)):
        record = made_record(description.spec, context=context)
        made = compared(description, context=context, records=[("x", record)])
        values = json.loads(json.dumps(made.to_json(), allow_nan=False))
        validator.validate(values)
        for row in values["rows"]:
            for value in row.values():
                if isinstance(value, dict):
                    assert 0 <= value["low"] <= value["mid"] <= value["high"] < math.inf


def test_csv_has_a_line_for_each_row_and_its_cost(llama: Description) -> None:
    made = compared(llama, records=[("x", made_record(llama.spec, context=1024))])
    lines = list(csv.DictReader(io.StringIO(rows_csv(made))))
    assert len(lines) == len(made.rows)
    assert float(lines[0]["tokens_per_s_mid"]) == made.chip.tokens_per_s
    assert float(lines[0]["usd_per_million_tokens_mid"]) == (
        made.costs[0].usd_per_million_tokens.mid
    )
    (measured,) = (line for line in lines if line["kind"] == "measured")
    assert measured["usd_per_year_mid"] == ""
    assert float(measured["joules_per_token_mid"]) == 0.7
    assert [line["kind"] for line in lines].count("roofline") == 42


def test_text_keeps_one_sequence_and_batches_apart(llama: Description) -> None:
    record = made_record(llama.spec, context=1024)
    lines = comparison_lines(compared(llama, records=[("x", record)]))
    assert lines[0] == ("llama-3.2-3b at 1,024 tokens of context: roma-7nm-g32-fit against GPUs")
    text = "\n".join(lines)
    for heading in ("Rooflines, one sequence.", "Rooflines, best batch", "Measured", "Published"):
        assert heading in text
    assert "A calculation from the inputs listed, not a quote" in text
    assert "warning: Achieved share of bandwidth (low) is 15%, outside 30% to 95%" in text
    assert "  KV      59,136 B a token on the chip" in text
    assert all(line == line.rstrip() for line in lines)
    assert any(line.startswith("    share: ROMA (arXiv:2503.12988)") for line in lines)
    assert any(line.startswith("    parts: ") and "unverified" in line for line in lines)
    many = lines.index(next(line for line in lines if line.startswith("Rooflines, best batch")))
    assert "tokens/s, all" in lines[many + 1]
    assert "limit" not in lines[many + 1]


def test_technology_that_the_wafer_price_is_not_for_is_told(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from tests.tiny_chips import compile_tiny, sized_target

    folder = tmp_path_factory.mktemp("old") / "chip"
    target = sized_target("small", technology="sky130")
    made = compared(compile_tiny("tiny-int4", folder, target=target), context=32)
    assert (
        "The built-in wafer price is of the 7 nm class, and the chip's technology is sky130: set "
        "[wafer.price] in a cost file." in made.notes
    )


def test_context_that_does_not_fit_is_refused(tiny: Description) -> None:
    with pytest.raises(
        CapacityError,
        match=rf"^Context must be at most 96 tokens in {tiny.path}, not 97; compile with a "
        r"larger --context$",
    ):
        decode_on_chip(tiny, 97)


def test_command(tiny: Description, capsys: Capture) -> None:
    done = run_command(capsys, "compare", tiny.path, "--json", "--gpu", "h100")
    assert (done.code, done.err) == (0, "")
    values = done.json()
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(values)
    assert values == json.loads(json.dumps(romsim.compare(tiny, gpus=["H100"]).to_json()))
    assert values["context"] == 96
    done = run_command(capsys, "compare", tiny.path, "--gpu", "h100")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == comparison_lines(romsim.compare(tiny, gpus=["H100"]))


def test_command_measures_saves_and_shows_again(
    tiny: Description, capsys: Capture, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    saved, table = tmp_path / "record.json", tmp_path / "rates.csv"
    options = ["--device", "cpu", "--batch", 2, "--steps", 1, "--turns", 2, "--context", 20]
    done = run_command(
        capsys, "compare", tiny.path, *options, "--save", saved, "--csv", table, "--json"
    )
    assert (done.code, done.err) == (0, "")
    (row,) = (row for row in done.json()["rows"] if row["kind"] == "measured")
    assert (row["side"], row["batch"], row["context"]) == ("cpu", 2, 20)
    assert "file weights" in row["source"]
    again = run_command(
        capsys, "compare", tiny.path, "--context", 20, "--measured", saved, "--json"
    )
    assert again.json() == done.json()
    assert "measured" in table.read_text()
    assert sorted(tmp_path.iterdir()) == [table, saved]


def test_shape_is_measured_with_random_weights(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SHAPES["llama-3.2-1b"], n_layers=1, vocab_size=512, bos_id=1, eos_ids=(2,))
    monkeypatch.setitem(SHAPES, "llama-3.2-1b", spec)
    folder = tmp_path_factory.mktemp("small") / "chip"
    shape = romsim.compile("llama-3.2-1b", folder, target="roma-7nm-g32", fit=True, context=8)
    made = romsim.compare(shape, device="cpu", n_steps=1, n_turns=1)
    assert made.records[0].weights == "random"
    assert made.records[0].model.vocab_size == 512


def test_command_writes_cost_inputs_that_it_takes_back(
    tiny: Description, capsys: Capture, tmp_path: Path
) -> None:
    mine = tmp_path / "cost.toml"
    done = run_command(capsys, "compare", tiny.path, "--write-cost", mine, "--json")
    assert done.code == 0
    assert mine.read_text() == cost_template()
    mine.write_text(mine.read_text().replace("mid = 40000000", "mid = 90000000"))
    other = run_command(capsys, "compare", tiny.path, "--cost", mine, "--json")
    before, after = (d.json()["cost"]["chip"]["development_usd"]["mid"] for d in (done, other))
    assert after == pytest.approx(before * 9 / 4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--batch", "2"], "--batch must be used with --device, not without; add --device"),
        (["--steps", "0"], "--steps must be used with --device, not without; add --device"),
        (["--save", "x"], "--save must be used with --device, not without; add --device"),
        (["--context", "0"], "Context must be at least 1 token, the new one, not 0"),
        (["--fraction", "1.2"], "Share of bandwidth must be above 0 and at most 1, not 1.2"),
        (["--context", "200"], "Context must be at most 96 tokens in {}, not 200; compile with "
         "a larger --context"),
        (
            ["--gpu", "h10"],
            "GPU must be one of A100, H100, H200, B200, RTX 4090, Jetson Orin, Jetson Thor, not "
            "'h10'; did you mean 'H100'?",
        ),
        (["--device", "tpu"], "Device must be cpu or cuda, not 'tpu'"),
        (
            ["--device", "cpu", "--save", "none/x.json"],
            "Record none/x.json must be a file in a folder that exists; choose another one",
        ),
        (
            ["--csv", "none/x.csv"],
            "Table none/x.csv must be writable, not 'No such file or directory'; choose another "
            "file",
        ),
        (
            ["--device", "cpu", "--steps", "0"],
            "n_steps must be 1 or more, not 0",
        ),
    ],
)  # fmt: skip
def test_command_refuses(
    options: list[str], sentence: str, tiny: Description, capsys: Capture
) -> None:
    done = run_command(capsys, "compare", tiny.path, *options)
    assert done.code == 2
    assert done.sentence() == f"romsim: {sentence.format(tiny.path)}"


def test_share_that_is_given_is_taken_and_told(tiny: Description) -> None:
    made = romsim.compare(tiny, gpus=["H100"], fraction=0.2)
    for roof in made.rooflines:
        assert roof.decode.fraction.mid == 0.2
        assert roof.decode.fraction.source == "given by the user"
    assert any("is 20%, outside 30% to 95%" in w for row in made.rows for w in row.warnings)
