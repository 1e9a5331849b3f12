"""Same input, same bytes; and nothing in them says where or when they were made."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

import romsim
from romsim_compiler.description import Description
from tests.tiny_chips import compile_tiny, tree

SCRIPT = """
import locale, sys, time
import romsim
locale.setlocale(locale.LC_ALL, "")
time.tzset()
romsim.compile(
    "tiny-ternary", sys.argv[1], target="small-ternary", context=64,
    quantize=["blk.0.ffn_*=int4g32"],
)
romsim.compile(
    "tiny-int4", sys.argv[2], target="roma-7nm-g32", fit=True,
    adapters={"b": sys.argv[3], "a": sys.argv[3]},
)
"""


def compile_elsewhere(repository: Path, folder: Path, adapter: Path, **changes: str) -> None:
    folder.mkdir(parents=True)
    paths = [str(repository / part) for part in (".", "compiler", "models", "rtl")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **changes}
    subprocess.run(
        [sys.executable, "-c", SCRIPT, "one", "two", str(adapter)],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )


def test_bytes_depend_on_the_input_alone(
    repository: Path, tmp_path: Path, adapter_folder: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "a longer way to" / "the second"
    compile_elsewhere(repository, first, adapter_folder, PYTHONHASHSEED="1", TZ="UTC", LC_ALL="C")
    compile_elsewhere(
        repository,
        second,
        adapter_folder,
        PYTHONHASHSEED="4242",
        TZ="Asia/Kathmandu",
        LC_ALL="C.UTF-8",
        OMP_NUM_THREADS="1",
        NUMBA_NUM_THREADS="1",
    )
    files = tree(first)
    assert files == tree(second)
    assert len(files) >= 18
    secrets = [str(tmp_path), str(repository), str(Path.home()), str(adapter_folder.parent)]
    secrets += [datetime.date.today().isoformat(), os.uname().nodename]
    for name, data in files.items():
        for secret in secrets:
            if len(secret) > 3:
                assert secret.encode() not in data, (name, secret)


def test_an_earlier_description_is_replaced_by_the_same_bytes(tmp_path: Path) -> None:
    before = tree(compile_tiny("tiny-int4", tmp_path / "chip").path)
    assert tree(compile_tiny("tiny-int4", tmp_path / "chip").path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["chip"]


def test_rom_and_program_do_not_depend_on_adapters(
    chips: dict[str, Description], adapted: Description
) -> None:
    without, with_two = tree(chips["tiny-int4"].path), tree(adapted.path)
    added = {f"lora/{name}/lora.{end}" for name in ("story", "small") for end in ("json", "bin")}
    assert set(with_two) - set(without) == added
    for name, data in without.items():
        if name != "manifest.json":
            assert with_two[name] == data, name
    plain, other = dict(chips["tiny-int4"].manifest), dict(adapted.manifest)
    for manifest in (plain, other):
        for key in ("files", "adapters", "memory", "sha256"):
            manifest.pop(key)
    assert plain == other


def test_values_and_times_do_not_depend_on_threads(
    chips: dict[str, Description], monkeypatch: pytest.MonkeyPatch
) -> None:
    from romsim.cycle import CycleModel

    results = []
    for threads in (1, 2, 3):
        model = CycleModel(chips["tiny-int2"], threads=threads)
        done = model.prefill(list(range(30)))
        results.append((done.logits.tolist(), done.cycles))
    assert results[0] == results[1] == results[2]


def test_json_of_a_run_holds_no_wall_time(chips: dict[str, Description]) -> None:
    reports = [
        romsim.verify(chips["tiny-int4"], tokens=[1, 2], n_new=1, level="values") for _ in range(2)
    ]
    assert reports[0].to_json() == reports[1].to_json()
