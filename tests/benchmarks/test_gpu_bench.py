from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_bench import MODELS, main, plan_of
from romsim.decode_record import read_records
from romsim_models.errors import SpecError
from romsim_models.registry import named_models


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_models_are_the_default_one_and_two_shapes() -> None:
    assert MODELS == ("smollm2", "llama-3.2-3b", "llama-3-8b")
    for name in MODELS:
        plan = plan_of(name, is_quick=False)
        assert plan.batches[0] == 1
        assert len(plan.batches) > 1
        assert max(plan.contexts) <= named_models()[name].spec.max_seq_len


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_machine_without_a_gpu_is_told_with_the_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "bench.json"
    assert main(["--out", str(out)]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert done.err == (
        f"Device cuda must be there, but this PyTorch ({torch.__version__}) finds none; use "
        f"--device cpu, or a build of PyTorch for CUDA on a machine with a GPU\n"
    )
    assert not out.exists()


def test_default_model_is_measured_on_a_cpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "bench.json"
    assert main(["--device", "cpu", "--model", "smollm2", "--quick", "--out", str(out)]) == 0
    (record,) = read_records(out)
    assert [(s.context, s.batch) for s in record.steps] == [(64, 1), (64, 2)]
    assert (record.weights, record.number_format, record.device.kind) == ("file", "float32", "cpu")
    assert record.model.n_kv_heads == 3
    done = capsys.readouterr()
    assert done.err == "smollm2 on cpu\n"
    lines = done.out.splitlines()
    assert len(lines) == 5
    assert lines[1].startswith("  context    64, batch   1: ")
    assert lines[3].startswith("  missing: joules per token")


def test_small_model_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--model", "tiny-int4", "--quick", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert record["model"]["name"] == "tiny-int4"


def test_unknown_model_and_folder_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(
        SpecError, match=r"^Model to measure must be one of smollm2, .*, not 'gpt-2'$"
    ):
        plan_of("gpt-2", is_quick=True)
    assert main(["--device", "cpu", "--model", "gpt-2"]) == 2
    assert capsys.readouterr().err.startswith("Model to measure must be one of smollm2, ")
    missing = tmp_path / "none" / "x.json"
    assert main(["--device", "cpu", "--out", str(missing)]) == 2
    assert capsys.readouterr().err == (
        f"Record {missing} must be a file in a folder that exists; choose another one\n"
    )
