from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from romsim_models.errors import SpecError
from romsim_rtl import toolchain
from romsim_rtl.toolchain import ToolError
from romsim_rtl.verilated import verilate

ADDER = """\
module adder(input wire clk, input wire [7:0] a, input wire [7:0] b, output reg [8:0] sum);
  always @(posedge clk) sum <= {1'b0, a} + {1'b0, b};
endmodule
"""
DRIVER = """\
#include <cstdio>
#include "Vadder.h"
#include "operands.h"
int main(int argc, char** argv) {
  VerilatedContext context;
  context.commandArgs(argc, argv);
  Vadder top{&context};
  top.a = A;
  top.b = B;
  top.clk = 0;
  top.eval();
  top.clk = 1;
  top.eval();
  std::printf("%d\\n", static_cast<int>(top.sum));
  top.final();
}
"""
# Stands for Verilator and its compilers where only the cache is looked at.
FAKE = """\
#!/bin/sh
test "$1" = --version && { echo "Verilator 5.040 2025-08-30"; exit; }
echo built >> "$FAKE_LOG"
test -n "$FAKE_FAIL" && { echo "%Error: top.v:1:1: syntax error"; exit 7; }
while test -n "$FAKE_WAIT" && ! test -e "$FAKE_WAIT"; do sleep 0.02; done
cp top.v objects/simulation
chmod +x objects/simulation
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    folder: Path
    log: Path
    cache: Path

    def n_builds(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.cache.iterdir() if ".partial-" in path.name)

    def sources(self) -> tuple[list[Path], list[Path]]:
        return [self.folder / "top.v"], [self.folder / "main.cpp"]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    program = tmp_path / "bin" / "verilator"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAKE_FAIL", "")
    monkeypatch.setenv("FAKE_WAIT", "")
    monkeypatch.setattr(toolchain, "wheel_root", lambda: None)
    (tmp_path / "top.v").write_text("module top;\nendmodule\n")
    (tmp_path / "main.cpp").write_text("int main() {}\n")
    return Workshop(folder=tmp_path, log=tmp_path / "log", cache=tmp_path / "cache" / "rtl")


def start_builder(workshop: Workshop) -> subprocess.Popen[bytes]:
    files, cpp = workshop.sources()
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from romsim_rtl import toolchain, verilated\n"
        "toolchain.wheel_root = lambda: None\n"
        f"verilated.verilate([Path({str(files[0])!r})], 'top', cpp=[Path({str(cpp[0])!r})])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the builder did not get there"
        time.sleep(0.02)


def test_second_build_of_the_same_content_is_taken_from_the_cache(workshop: Workshop) -> None:
    files, cpp = workshop.sources()
    first = verilate(files, "top", cpp=cpp)
    second = verilate(files, "top", cpp=cpp, jobs=1)
    assert (first.is_cached, second.is_cached) == (False, True)
    assert first.executable == second.executable
    assert workshop.n_builds() == 1


def test_same_content_in_another_folder_is_the_same_build(
    workshop: Workshop, tmp_path: Path
) -> None:
    files, cpp = workshop.sources()
    first = verilate(files, "top", cpp=cpp)
    copies = [tmp_path / "other place" / path.name for path in (*files, *cpp)]
    copies[0].parent.mkdir()
    for copy, path in zip(copies, (*files, *cpp), strict=True):
        copy.write_bytes(path.read_bytes())
    second = verilate([copies[0]], "top", cpp=[copies[1]])
    assert second.is_cached
    assert second.key == first.key


def test_each_change_of_content_or_flag_is_another_build(workshop: Workshop) -> None:
    files, cpp = workshop.sources()
    keys = [
        verilate(files, "top", cpp=cpp).key,
        verilate(files, "other", cpp=cpp).key,
        verilate(files, "top", cpp=cpp, opt="-O2").key,
        verilate(files, "top", cpp=cpp, threads=2).key,
        verilate(files, "top", cpp=cpp, args=["--trace-fst"]).key,
        verilate(files, "top", cpp=cpp, cflags=["-DX"]).key,
        verilate(files, "top", cpp=cpp, ldflags=["-lm"]).key,
    ]
    files[0].write_text("module top;\n\nendmodule\n")
    keys.append(verilate(files, "top", cpp=cpp).key)
    header = workshop.folder / "x.h"
    header.write_text("#define X 1\n")
    keys.append(verilate(files, "top", cpp=cpp, headers=[header]).key)
    header.write_text("#define X 2\n")
    keys.append(verilate(files, "top", cpp=cpp, headers=[header]).key)
    assert len(set(keys)) == len(keys)


def test_failed_build_names_its_first_error_and_leaves_nothing_to_be_taken_for_a_build(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, cpp = workshop.sources()
    monkeypatch.setenv("FAKE_FAIL", "yes")
    pattern = (
        r"^Verilator build of 'top' must succeed, not exit with 7; first error: "
        r"'%Error: top\.v:1:1: syntax error', log: '(?P<log>[^']+)'$"
    )
    with pytest.raises(ToolError, match=pattern) as caught:
        verilate(files, "top", cpp=cpp)
    match = re.search(pattern, str(caught.value))
    assert match is not None
    assert "syntax error" in Path(match["log"]).read_text()
    assert workshop.leftovers() == []
    monkeypatch.setenv("FAKE_FAIL", "")
    assert not verilate(files, "top", cpp=cpp).is_cached
    assert workshop.n_builds() == 2
    assert not Path(match["log"]).exists()


def test_killed_builder_leaves_no_broken_cache(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = workshop.folder / "gate"
    monkeypatch.setenv("FAKE_WAIT", str(gate))
    builder = start_builder(workshop)
    wait_until(lambda: workshop.n_builds() == 1)
    builder.kill()
    builder.wait()
    gate.touch()  # lets the orphaned compiler end
    assert len(workshop.leftovers()) == 1
    files, cpp = workshop.sources()
    build = verilate(files, "top", cpp=cpp)
    assert not build.is_cached
    assert build.executable.read_text() == files[0].read_text()
    assert workshop.leftovers() == []


def test_interrupted_builder_ends_its_compilers_and_cleans_up(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WAIT", str(workshop.folder / "never"))
    builder = start_builder(workshop)
    wait_until(lambda: workshop.n_builds() == 1)
    builder.send_signal(signal.SIGINT)
    assert builder.wait(timeout=60) != 0
    assert workshop.leftovers() == []


def test_two_builders_at_once_build_once(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = workshop.folder / "gate"
    monkeypatch.setenv("FAKE_WAIT", str(gate))
    builders = [start_builder(workshop), start_builder(workshop)]
    wait_until(lambda: workshop.n_builds() == 1)
    gate.touch()
    assert [builder.wait(timeout=60) for builder in builders] == [0, 0]
    assert workshop.n_builds() == 1


def test_build_whose_executable_was_taken_away_is_made_again(workshop: Workshop) -> None:
    files, cpp = workshop.sources()
    verilate(files, "top", cpp=cpp).executable.unlink()
    again = verilate(files, "top", cpp=cpp)
    assert not again.is_cached
    assert again.executable.is_file()


def test_copy_of_the_executable_is_put_where_asked(workshop: Workshop) -> None:
    files, cpp = workshop.sources()
    out = workshop.folder / "deep folder" / "simulation"
    build = verilate(files, "top", cpp=cpp, out=out)
    assert out.read_bytes() == build.executable.read_bytes()
    assert os.access(out, os.X_OK)
    assert [path.name for path in out.parent.iterdir()] == ["simulation"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"threads": 0}, "threads must be 1 or more, not 0"),
        ({"jobs": 0}, "jobs must be 1 or more, not 0"),
        ({"opt": "-Ofast"}, "opt must be one of -O0, -O1, -O2, -O3 and -Os, not '-Ofast'"),
        ({"cpp": []}, "a simulation must have a C++ driver, not 'none'"),
    ],
)
def test_impossible_option_is_refused(
    options: dict[str, object], sentence: str, workshop: Workshop
) -> None:
    files, cpp = workshop.sources()
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        verilate(files, "top", **{"cpp": cpp, **options})  # type: ignore[arg-type]


def test_files_that_would_meet_in_the_build_folder_are_refused(workshop: Workshop) -> None:
    files, cpp = workshop.sources()
    twin = workshop.folder / "twin" / "top.v"
    twin.parent.mkdir()
    twin.write_text("")
    sentence = f"source names must be different, not '{files[0]}' and '{twin}'; rename one"
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        verilate([*files, twin], "top", cpp=cpp)


def test_source_with_a_space_in_its_name_is_refused(workshop: Workshop) -> None:
    _, cpp = workshop.sources()
    spaced = workshop.folder / "my top.v"
    spaced.write_text("")
    sentence = "source name must be letters, digits and _.+- only, not 'my top.v'; rename it"
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        verilate([spaced], "top", cpp=cpp)


def test_missing_source_is_said(workshop: Workshop) -> None:
    _, cpp = workshop.sources()
    gone = workshop.folder / "gone.v"
    sentence = f"source '{gone}' must be a file, not missing; generate it first"
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        verilate([gone], "top", cpp=cpp)


@pytest.mark.parametrize("missing", ["g++", "make", "perl"])
def test_missing_compiler_is_named_with_its_package(
    missing: str, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workshop.folder / "bin"
    for name in {"g++", "make", "perl"} - {missing}:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    files, cpp = workshop.sources()
    sentence = f"{missing} must be installed, not missing from PATH; apt-get install {missing}"
    with pytest.raises(ToolError, match=f"^{re.escape(sentence)}$"):
        verilate(files, "top", cpp=cpp)


@pytest.mark.verilator
def test_real_model_runs_from_a_folder_with_spaces_and_accents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "meine Prüfung"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("ROMSIM_CACHE", str(folder / "the cache"))
    (folder / "adder.v").write_text(ADDER)
    (folder / "main.cpp").write_text(DRIVER)
    header = folder / "operands.h"
    results = []
    for operands in ("#define A 200\n#define B 100\n", "#define A 255\n#define B 255\n"):
        header.write_text(operands)
        build = verilate(
            [folder / "adder.v"],
            "adder",
            cpp=[folder / "main.cpp"],
            headers=[header],
            opt="-O0",
        )
        done = subprocess.run([build.executable], capture_output=True, text=True, check=True)
        results.append((build.is_cached, done.stdout))
    # The second build also shows that kept run-time objects link.
    assert results == [(False, "300\n"), (False, "510\n")]
    log = (build.executable.parent / "build.log").read_text()
    assert "-o verilated.o" not in log
