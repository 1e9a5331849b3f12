"""Measured decoding: what a step computes, what is timed, what a record says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import torch

import romsim
from romsim.decode_bench import DecodeBench, repeated_checkpoint
from romsim.decode_device import check_device, describe_device
from romsim.decode_measure import FRAMEWORK, Plan, measure_decode
from romsim.decode_record import (
    DecodeRecord,
    Device,
    check_same_model,
    model_of,
    read_records,
    write_records,
)
from romsim.nvml import NvmlError
from romsim_models.errors import CapacityError, SpecError
from romsim_models.reference import FloatDecoder
from romsim_models.shapes import SHAPES, TINY
from romsim_models.synthetic import synthetic_checkpoint

SPEC = TINY["tiny-int4"]
SCHEMA = Path(romsim.__file__).parent / "schemas" / "decode-records.schema.json"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def record(plan: Plan | None = None) -> DecodeRecord:
    """A record of a tiny model whose every step takes a quarter of a second by a made-up clock."""
    ticks = itertools.count()
    return measure_decode(
        synthetic_checkpoint(SPEC),
        plan or Plan(contexts=(8, 16), batches=(1, 4), n_steps=2, n_turns=3),
        clock=lambda: 0.5 * next(ticks),
        is_random=True,
    )


def test_steps_are_timed_by_turns_and_only_they() -> None:
    made = record()
    assert [(s.context, s.batch) for s in made.steps] == [(8, 1), (8, 4), (16, 1), (16, 4)]
    for step in made.steps:
        assert step.turns_s == (0.25, 0.25, 0.25)
        assert step.step_s == 0.25
        assert (step.tokens_per_s, step.aggregate_tokens_per_s) == (4.0, 4.0 * step.batch)
        assert (step.graphs, step.bandwidth_share, step.joules_per_token) == (False, None, None)
    assert (
        made.steps[0].bytes_per_step < made.steps[1].bytes_per_step < made.steps[3].bytes_per_step
    )
    assert (made.weights, made.number_format, made.framework) == ("random", "float32", FRAMEWORK)
    assert made.missing == (
        "joules per token: NVML measures NVIDIA's devices, and this is a CPU",
        "CUDA graphs: this is a CPU",
    )


def test_median_turn_counts() -> None:
    times = iter([0.0, 2.0, 10.0, 11.0, 20.0, 29.0])
    made = measure_decode(
        synthetic_checkpoint(SPEC),
        Plan(contexts=(4,), n_steps=1, n_turns=3),
        clock=lambda: next(times),
    )
    assert made.steps[0].turns_s == (2.0, 1.0, 9.0)
    assert made.steps[0].step_s == 2.0


def test_step_is_a_step_of_the_decoder_at_that_context() -> None:
    """The first step reads token 0 after a cache of zeros; the next reads what it chose."""
    checkpoint = synthetic_checkpoint(SPEC)
    bench = DecodeBench(checkpoint, device="cpu", number_format="float32")
    step = bench.stepper(6, 2, graphs=False)
    seen = []
    forward = FloatDecoder.forward

    def watched(self: FloatDecoder, tokens: object, **options: object) -> torch.Tensor:
        logits = forward(self, tokens, **options)  # type: ignore[arg-type]
        seen.append((torch.as_tensor(tokens).clone(), logits.clone(), options["cache"]))
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FloatDecoder, "forward", watched)
        step()
        step()
    decoder = FloatDecoder(checkpoint)
    cache = decoder.new_cache(batch=2, max_tokens=6)
    cache.n_tokens = 5
    expected = decoder.step([0, 0], cache)
    torch.testing.assert_close(seen[0][1][:, 0], expected)
    assert seen[1][0][:, 0].tolist() == expected.argmax(-1).tolist()
    assert all(options.n_tokens == 6 for _, _, options in seen)  # type: ignore[attr-defined]


@pytest.mark.parametrize("number_format", ["float32", "bfloat16"])
def test_bits_of_weights_and_cache_are_those_of_the_format(number_format: str) -> None:
    bench = DecodeBench(
        synthetic_checkpoint(SPEC),
        device="cpu",
        number_format=number_format,  # type: ignore[arg-type]
    )
    width = 4 if number_format == "float32" else 2
    items = {item.name: item.bytes for item in bench.step_items(10, 3)}
    assert bench.bits == 8 * width
    assert items["KV read"] == 3 * 10 * 2 * SPEC.n_layers * SPEC.n_kv_heads * SPEC.head_dim * width
    assert items["LM head"] == SPEC.vocab_size * SPEC.dim * width


def test_repeated_weights_have_a_models_shapes_and_keep_norms() -> None:
    spec = SHAPES["smollm2"]
    checkpoint = repeated_checkpoint(spec)
    again = repeated_checkpoint(spec)
    for name in ("token_embd.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
        values = checkpoint.read(name).dequantize()
        assert values.shape == checkpoint.shape(name)
        assert (values == again.read(name).dequantize()).all()
    down = checkpoint.read("blk.0.ffn_down.weight").dequantize()
    assert down.std() == pytest.approx(spec.hidden_dim**-0.5, rel=0.02)
    rows = checkpoint.read_rows("blk.0.ffn_down.weight", 3, 5).dequantize()
    assert (rows == down[3:5]).all()


def test_device_is_described() -> None:
    device = describe_device("cpu")
    assert (device.kind, device.n_threads, device.memory_gb, device.part) == ("cpu", 1, None, None)
    assert device.name
    assert device.versions["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A10", None),
    ],
)
def test_part_is_known_by_the_devices_name(name: str, part: str | None) -> None:
    device = Device(
        kind="cuda", name=name, n_threads=None, memory_gb=80, driver="1", versions={"torch": "2"}
    )
    assert device.part == part
    assert device.model_copy(update={"kind": "cpu"}).part is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_missing_cuda_is_told_with_the_remedy() -> None:
    with pytest.raises(
        SpecError,
        match=r"^Device cuda must be there, but this PyTorch \(\S+\) finds none; use --device cpu, "
        r"or a build of PyTorch for CUDA on a machine with a GPU$",
    ):
        check_device("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_is_measured_with_and_without_graphs() -> None:
    made = measure_decode(
        synthetic_checkpoint(SPEC), Plan(contexts=(16,), batches=(1, 2)), device="cuda"
    )
    assert [s.graphs for s in made.steps] == [False, True, False, True]
    assert made.device.kind == "cuda"


def test_impossible_request_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^Device must be cpu or cuda, not 'tpu'$"):
        check_device("tpu")
    with pytest.raises(
        SpecError, match=r"^contexts to measure must be 1 or more each, not \[4, 0\]$"
    ):
        Plan(contexts=(4, 0))
    with pytest.raises(SpecError, match=r"^batches to measure must be 1 or more each, not \[\]$"):
        Plan(contexts=(4,), batches=())
    with pytest.raises(SpecError, match=r"^n_turns must be 1 or more, not 0$"):
        Plan(contexts=(4,), n_turns=0)
    bench = DecodeBench(synthetic_checkpoint(SPEC), device="cpu", number_format="float32")
    with pytest.raises(
        SpecError, match=r"^CUDA graphs must be used with --device cuda, not with cpu$"
    ):
        bench.stepper(4, 1, graphs=True)
    with pytest.raises(
        SpecError, match=r"^Context to measure must be at most the model's 512 tokens, not 513$"
    ):
        bench.stepper(513, 1, graphs=False)
    with pytest.raises(
        SpecError, match=r"^Number format must be one of float32, float16, bfloat16, not 'int4'$"
    ):
        DecodeBench(
            synthetic_checkpoint(SPEC),
            device="cpu",
            number_format="int4",  # type: ignore[arg-type]
        )


def test_record_survives_its_file_and_matches_its_schema(tmp_path: Path) -> None:
    made, path = record(), tmp_path / "record.json"
    write_records(path, (made, made))
    assert read_records(path) == (made, made)
    values = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(values)
    assert values["records"][0]["steps"][1]["aggregate_tokens_per_s"] == 16.0
    assert list(tmp_path.iterdir()) == [path]


def test_record_of_a_model_with_other_kv_heads_is_refused() -> None:
    """Its cache would be as many times too large as there are query heads to a KV head."""
    made = record(Plan(contexts=(4,), n_steps=1, n_turns=1))
    check_same_model(made, SPEC, "x.json")
    check_same_model(made, replace(SPEC, name="renamed"), "x.json")
    with pytest.raises(
        SpecError,
        match=r"^x\.json: n_kv_heads of the measured model 'tiny-int4' must be 4, as in "
        r"'tiny-int4', not 2; measure this model$",
    ):
        check_same_model(made, replace(SPEC, n_kv_heads=4), "x.json")
    assert model_of(SPEC).n_kv_heads == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{",
            r"Measured file x\.json must be readable JSON, not 'no JSON'; make one with `romsim "
            r"compare CHIP --device cpu --save FILE` or `make gpu-bench`",
        ),
        ("[]", r"x\.json: records must be a list of at least one, not None"),
        ('{"records": []}', r"x\.json: records must be a list of at least one, not \[\]"),
        ('{"records": [3]}', r"x\.json: records\.0 must be a record with steps; measure again"),
        (
            '{"records": [{"steps": []}]}',
            r"x\.json: records\.0\.record_version must be valid: field required",
        ),
    ],
)
def test_file_that_is_no_record_is_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text(text)
    with pytest.raises(SpecError, match=rf"^{message}$"):
        read_records(Path("x.json"))


def test_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"^Measured file none/x\.json must be readable JSON, not 'No such file or directory'",
    ):
        read_records(Path("none/x.json"))


class FakeNvml:
    """A counter that adds 3 J whenever it is read."""

    reads = itertools.count()

    def __enter__(self) -> FakeNvml:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def driver(self) -> str:
        return "580.1"

    def joules(self, uuid: str) -> float:
        assert uuid == "GPU-one"
        return 3.0 * next(self.reads)


@pytest.fixture
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A CPU that passes for an H200: what the measurement asks of CUDA is answered here."""
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=141e9, uuid="one")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr("romsim.decode_bench._UncheckedDecoder", lambda *a, **k: None)
    monkeypatch.setattr("romsim.decode_bench.Nvml", FakeNvml)
    monkeypatch.setattr("romsim.decode_device.Nvml", FakeNvml)
    monkeypatch.setattr(DecodeBench, "stepper", lambda *a, **k: lambda: None)
    return monkeypatch


def on_cuda(batches: tuple[int, ...] = (1, 4)) -> DecodeRecord:
    ticks = itertools.count()
    return measure_decode(
        synthetic_checkpoint(SPEC),
        Plan(contexts=(16,), batches=batches, n_steps=4, n_turns=1),
        device="cuda",
        clock=lambda: 2.0 * next(ticks),
    )


@pytest.mark.usefixtures("pretended_cuda")
def test_gpu_is_measured_with_graphs_off_and_on_with_joules_and_share() -> None:
    made = on_cuda()
    assert [(s.batch, s.graphs) for s in made.steps] == [
        (1, False),
        (1, True),
        (4, False),
        (4, True),
    ]
    assert (made.number_format, made.missing) == ("bfloat16", ())
    assert (made.device.name, made.device.driver, made.device.memory_gb) == (
        "NVIDIA H200",
        "580.1",
        141.0,
    )
    for step in made.steps:
        assert step.step_s == 0.5
        # The counter runs over two seconds: four steps, 3 J.
        assert step.joules_per_token == pytest.approx(3 / 4 / step.batch)
        assert step.bandwidth_share == pytest.approx(step.bytes_per_step / 0.5 / 4.8e12)


def test_what_a_gpu_cannot_do_is_recorded_and_the_rest_kept(
    pretended_cuda: pytest.MonkeyPatch,
) -> None:
    def stepper(bench: DecodeBench, context: int, batch: int, *, graphs: bool) -> object:
        if batch > 1:
            raise torch.cuda.OutOfMemoryError("out of memory")
        if graphs:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return lambda: None

    def refuse(nvml: FakeNvml, uuid: str) -> float:
        raise NvmlError("NVML must answer, not refuse with 3 (Not Supported)")

    pretended_cuda.setattr(DecodeBench, "stepper", stepper)
    pretended_cuda.setattr(FakeNvml, "joules", refuse)
    made = on_cuda()
    assert [(s.batch, s.graphs, s.joules_per_token) for s in made.steps] == [(1, False, None)]
    assert made.missing == (
        "joules per token: NVML must answer, not refuse with 3 (Not Supported)",
        "CUDA graphs at context 16, batch 1: operation not permitted when stream is capturing",
        "4 sequences of 16 tokens must fit the device's memory, but they do not; measure a smaller "
        "model, batch or context",
    )
    with pytest.raises(
        CapacityError, match=r"^8 sequences of 16 tokens must fit the device's memory"
    ):
        on_cuda(batches=(8,))
