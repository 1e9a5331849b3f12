"""What is written into the cache beside the simulation: once, whole, by one of several."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Elaboratable, Fragment, Module

from romsim.synthesis import synth
from romsim_compiler.description import Description
from romsim_compiler.reduced import one_layer
from romsim_models.errors import SpecError
from romsim_rtl import driver_build
from romsim_rtl.driver_build import BuildOptions, write_chip
from romsim_rtl.emit import emit_rtl
from romsim_rtl.rom_files import write_images
from tests.tiny_chips import compile_tiny, sized_target


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def test_two_writers_at_once_write_once(tmp_path: Path) -> None:
    written: list[Path] = []

    def write(folder: Path) -> None:
        written.append(folder)
        time.sleep(0.1)
        (folder / "file").write_text("whole")

    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(driver_build._cached(tmp_path, "x", write)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert found == [tmp_path / "x"] * 3
    assert (tmp_path / "x" / "file").read_text() == "whole"


def test_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver_build._cached(tmp_path, "x", interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]
    folder = driver_build._cached(tmp_path, "x", lambda made: (made / "file").touch())
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_killed_writer_leaves_nothing_that_is_taken_for_the_whole(tmp_path: Path) -> None:
    program = (
        "import time\\nfrom pathlib import Path\\nfrom romsim_rtl import driver_build\\n"
        "def write(folder):\\n"
        "    (folder / 'half').touch()\\n"
        f"    Path({str(tmp_path / 'begun')!r}).touch()\\n"
        "    time.sleep(600)\\n"
        f"driver_build._cached(Path({str(tmp_path)!r}), 'x', write)\\n"
    ).replace("\\n", chr(10))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writer = subprocess.Popen([sys.executable, "-c", program], env=environment)
    wait_for(tmp_path / "begun")
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(list(tmp_path.glob("x.partial-*"))) == 1
    folder = driver_build._cached(tmp_path, "x", lambda made: (made / "file").touch())
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert list(tmp_path.glob("x.partial-*")) == []


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Description:
    return compile_tiny("tiny-int4", tmp_path_factory.mktemp("driver_build") / "chip")


def test_images_of_a_reduced_program_share_all_else(chip: Description, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.mkdir()
    part.mkdir()
    write_images(chip, whole, image_format="bin")
    driver_build._ProgramWriter(one_layer(chip, 1), whole)(part)
    names = sorted(path.name for path in whole.iterdir())
    assert sorted(path.name for path in part.iterdir()) == names
    for name in names:
        is_same = (part / name).samefile(whole / name)
        assert is_same == (name != "program.bin"), name
    assert (part / "program.bin").stat().st_size == (whole / "program.bin").stat().st_size
    assert (part / "program.bin").read_bytes() != (whole / "program.bin").read_bytes()


def test_images_and_verilog_have_names_of_their_content(
    chip: Description, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = compile_tiny("tiny-int4", tmp_path / "other", context=64)
    keys = [driver_build._image_key(chip)]
    keys += [driver_build._image_key(chip, one_layer(chip, k)) for k in (0, 1)]
    keys += [driver_build._image_key(chip, one_layer(chip, 0, is_serial=True))]
    assert len(set(keys)) == len(keys)
    assert driver_build._image_key(chip, one_layer(chip, 0)) == keys[1]
    assert driver_build._shape_key(chip) != driver_build._shape_key(other)
    # found again in a cache whose path has a space and an accent
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "der Prüfung Ablage"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(driver_build, "Top", lambda description, die: description)
    monkeypatch.setattr(driver_build, "verilog_texts", lambda top: {"romsim_top.v": "module"})
    first = write_chip(chip)
    monkeypatch.setattr(driver_build, "verilog_texts", lambda top: pytest.fail("written anew"))
    assert write_chip(one_layer(chip, 0)) == first
    assert (first / "romsim_top.v").read_text() == "module"


def test_code_of_every_package_that_emission_asks_is_in_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver_build._SOURCES == ("romsim_compiler", "romsim_rtl")
    (tmp_path / "widths").mkdir()
    module = tmp_path / "widths" / "__init__.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(driver_build, "_SOURCES", ("widths", "romsim_rtl"))
    found = []
    for text in ("BITS = 40", "BITS = 41", "BITS = 40"):
        module.write_text(text)
        found.append(driver_build._code_digest.__wrapped__())
    assert found[0] == found[2] != found[1]


def test_a_refused_chip_is_not_complained_of_later(tmp_path: Path) -> None:
    """Amaranth warned of it when it was collected: in the midst of another chip, whose test failed.

    It does so from the first component on that is elaborated.
    """

    class Empty(Elaboratable):
        def elaborate(self, platform: Any) -> Module:
            return Module()

    Fragment.get(Empty(), None)
    target = sized_target("small", collect_cycles=0)
    chip = compile_tiny("tiny-int4", tmp_path / "chip", target=target)
    sentence = r"^collect_cycles of an RTL target must be at least 1, not 0$"
    ways: tuple[Callable[[], object], ...] = (
        lambda: write_chip(chip),
        lambda: emit_rtl(chip, tmp_path / "rtl"),
        lambda: synth(chip),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for refused in ways:
            with pytest.raises(SpecError, match=sentence):
                refused()
        gc.collect()
    assert not caught


def test_waves_that_there_are_not_are_refused() -> None:
    with pytest.raises(
        SpecError, match=f"^{re.escape('Waves must be one of fst, vcd, not True')}$"
    ):
        BuildOptions(waves=True)  # type: ignore[arg-type]
