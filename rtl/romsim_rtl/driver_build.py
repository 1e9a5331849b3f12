# amaranth: UnusedElaboratable=no
"""The simulation of a description's chip: emitted, Verilated and compiled once for each content."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.die import Die
from romsim_rtl.emit import TOP_MODULE, verilog_texts
from romsim_rtl.logic_rom_verilog import LogicRomOptions, logic_rom_texts
from romsim_rtl.rom_files import program_words, write_images, write_program_image
from romsim_rtl.toolchain import make_safe_folder
from romsim_rtl.top import Top
from romsim_rtl.verilated import verilate

__all__ = ["WAVES", "BuildOptions", "ChipBuild", "build_chip", "chip_sources", "write_chip"]

WAVES = ("fst", "vcd")
"""Forms of waveforms; ``fst`` is smaller and needs zlib's header and library."""

_SOURCES = ("romsim_compiler", "romsim_rtl")
_WAVE_WIDTH = 4096  # bits of the widest signal that is shown

Progress = Callable[[str, float], None]
"""Called with a stage and the finished fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How a chip is compiled; nothing here changes a value or a cycle.

    Parameters
    ----------
    opt
        Optimisation of g++: "-O0" builds small chips fast, "-O3" runs large ones fast.
    threads
        Threads of the model.
    trace
        Whether the simulation can write every SRAM write and issue to a file, and begin with
        random memories.
    waves
        Form of the waveforms that it can write, one of `WAVES`; ``None`` for none.
    logic_rom
        Build the weights as logic instead of mask ROMs.

    Raises
    ------
    SpecError
        If there is no such form.
    """

    opt: str = "-O3"
    threads: int = 1
    trace: bool = False
    waves: str | None = None
    logic_rom: LogicRomOptions | None = None

    def __post_init__(self) -> None:
        if self.waves is not None and self.waves not in WAVES:
            raise SpecError(f"Waves must be one of {', '.join(WAVES)}, not {self.waves!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipBuild:
    """A simulation that can be run.

    Parameters
    ----------
    executable
        The program.
    images
        Folder of the ROM images, for ``+romdir=``.
    is_cached
        Whether the program was there already.
    """

    executable: Path
    images: Path
    is_cached: bool


def build_chip(
    description: Description,
    options: BuildOptions | None = None,
    *,
    die: Die | None = None,
    progress: Progress | None = None,
) -> ChipBuild:
    """Build the simulation of a chip, or take the one of the same content.

    The Verilog depends on shapes alone, so models of one shape share a build, and a chip with some
    of its instructions (`romsim_compiler.reduced`) has that of the whole. Weights as logic make it
    depend on them.

    Parameters
    ----------
    die
        What it is built for, if not for the description alone.

    Raises
    ------
    SpecError
        If the description has no images, or the RTL has no hardware for it.
    ToolError
        If a tool is missing or the build fails.
    """
    options = options or BuildOptions()
    say = progress or (lambda stage, fraction: None)
    sources, images = chip_sources(
        description, logic_rom=options.logic_rom, die=die, progress=progress
    )
    say("compiling", 0.2)
    # Only "unique" takes the first contents of memories and registers from the seed of a run.
    checks = ["+define+ROMSIM_TRACE", "--x-initial", "unique"] if options.trace else []
    flags = ["-DROMSIM_TRACE"] if options.trace else []
    if any(model.manifest["adapters"] for model in (die.models if die else [description])):
        flags.append("-DROMSIM_LORA")
    if description.target.kv.layout == "paged":
        flags.append("-DROMSIM_PAGES")
    if description.target.schedule.n_slots > 1:
        flags.append("-DROMSIM_SEQUENCES")
    waves: list[str] = []
    if options.waves is not None:
        waves = [f"--trace-{options.waves}", "--trace-max-width", f"{_WAVE_WIDTH}"]
    with as_file(files("romsim_rtl").joinpath("cpp")) as cpp:
        # Verilator's FST writer wants LZ4 for signals' names; what it needs of it is here
        fst = sorted(cpp.joinpath("fst").iterdir()) if options.waves == "fst" else []
        built = verilate(
            sources,
            TOP_MODULE,
            cpp=sorted(cpp.glob("*.cpp")),
            headers=[*sorted(cpp.glob("*.h")), *fst],
            threads=options.threads,
            opt=options.opt,
            args=[*waves, *checks, "-Wno-fatal"],
            cflags=[*flags, *(["-I.."] if fst else [])],
            ldflags=["-L.."] if fst else [],
        )
    say("compiling", 1.0)
    return ChipBuild(executable=built.executable, images=images, is_cached=built.is_cached)


def chip_sources(
    description: Description,
    *,
    logic_rom: LogicRomOptions | None = None,
    die: Die | None = None,
    progress: Progress | None = None,
) -> tuple[list[Path], Path]:
    """Write a chip's Verilog and ROM images into the cache, or take those of the same content.

    Parameters
    ----------
    logic_rom
        Write the weights as logic instead of mask ROMs.
    die
        What the Verilog is written for, if not for the description alone.

    Returns
    -------
    tuple
        The Verilog files in their order, and the folder of the images.

    Raises
    ------
    SpecError
        If the description has no images, or the RTL has no hardware for it.
    ToolError
        If yosys fails.
    """
    say = progress or (lambda stage, fraction: None)
    say("writing Verilog", 0.0)
    verilog = write_chip(description, logic_rom, die=die)
    say("writing ROM images", 0.1)
    whole, cache = description.whole, make_safe_folder()
    sizes = die.program_words if die else ()
    images = _cached(cache, f"images-{_image_key(whole, sizes=sizes)}", _ImageWriter(whole, sizes))
    if description is not whole:
        name = f"images-{_image_key(whole, description, sizes=sizes)}"
        images = _cached(cache, name, _ProgramWriter(description, images, sizes))
    names = (verilog / "filelist.f").read_text().split()
    return [verilog / name for name in names], images


def write_chip(
    description: Description,
    logic_rom: LogicRomOptions | None = None,
    *,
    die: Die | None = None,
) -> Path:
    """Write a chip's Verilog into the cache, or find it there; return the folder.

    Parameters
    ----------
    logic_rom
        Write the weights as logic instead of mask ROMs.
    die
        What it is written for, if not for the description alone.

    Raises
    ------
    SpecError
        If the description has no images, or the RTL has no hardware for it.
    ToolError
        If yosys or ABC fails.
    """
    if not description.has_images:
        raise SpecError(
            f"{description.path} must have ROM images to be simulated as RTL, but it was compiled "
            f"from a shape without weights; compile a model with weights"
        )
    whole = description.whole
    writer = _VerilogWriter(whole, logic_rom, die)
    return _cached(make_safe_folder(), f"chip-{writer.key()}", writer)


class _VerilogWriter:
    def __init__(
        self, description: Description, logic_rom: LogicRomOptions | None, die: Die | None
    ) -> None:
        self.description, self.logic_rom, self.die = description, logic_rom, die

    def key(self) -> str:
        """Name all that the Verilog is made from."""
        key = _shape_key(self.description)
        if self.die is not None:
            keys = sorted(_shape_key(model) for model in self.die.models)
            key = hashlib.sha256(json.dumps(keys).encode()).hexdigest()
        if self.logic_rom is None:
            return key
        facts = [self.logic_rom.style, self.logic_rom.bank_words, _image_key(self.description)]
        return hashlib.sha256(json.dumps([key, *facts]).encode()).hexdigest()

    def __call__(self, folder: Path) -> None:
        texts = verilog_texts(Top(description=self.description, die=self.die))
        if self.logic_rom is not None:
            texts = logic_rom_texts(texts, self.description, self.logic_rom)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        (folder / "filelist.f").write_text("".join(f"{name}\n" for name in texts))


class _ImageWriter:
    def __init__(self, description: Description, sizes: Sequence[int] = ()) -> None:
        self.description, self.sizes = description, sizes

    def __call__(self, folder: Path) -> None:
        write_images(self.description, folder, image_format="bin", sizes=self.sizes)


class _ProgramWriter:
    """Another program beside the images of the whole chip."""

    def __init__(self, description: Description, images: Path, sizes: Sequence[int] = ()) -> None:
        self.description, self.images, self.sizes = description, images, sizes

    def __call__(self, folder: Path) -> None:
        program = write_program_image(
            self.description, folder, image_format="bin", sizes=self.sizes
        )
        for path in sorted(self.images.iterdir()):
            if path.name != program:
                os.link(path, folder / path.name)


@cache
def _code_digest() -> bytes:
    """Digest of this package but the driver, and of the compiler: other code emits other Verilog.

    Widths and layouts are the compiler's functions, of which a description holds no trace.
    """
    digest = hashlib.sha256()
    for package in _SOURCES:
        for entry in sorted(files(package).iterdir(), key=lambda e: e.name):
            if entry.name.endswith(".py") and not entry.name.startswith("driver"):
                digest.update(f"{package}/{entry.name}".encode() + entry.read_bytes())
    for entry in sorted(files("romsim_rtl").joinpath("verilog").iterdir(), key=lambda e: e.name):
        digest.update(entry.name.encode() + entry.read_bytes())
    return digest.digest()


def _shape_key(description: Description) -> str:
    """Name all that the Verilog is made from."""
    placement = description.placement
    facts = {
        "target": description.target.to_json(),
        "spec": json.loads(description.spec.to_json()),
        "numerics": asdict(description.numerics),
        "context": description.context,
        "accuracy": description.manifest["accuracy"]["groups_with_rounded_terms"],
        "groups": [
            {k: v for k, v in group.items() if k not in ("grid", "multiplier", "pre_shift")}
            for group in placement["groups"]
        ],
        "increments": placement["phase_increments"],
        "query_scale": placement["query_scale"],
        "n_gains": [gain["length"] for gain in placement["gains"].values()],
    }
    digest = hashlib.sha256(_code_digest())
    digest.update(json.dumps(facts, sort_keys=True).encode())
    files_of = description.manifest["files"]
    for name in sorted(files_of):
        # an adapter's shape decides how large its memories are
        if name in ("tables.json", "program.json") or name.startswith("lora/"):
            digest.update(f"{name} {files_of[name]['sha256']}".encode())
    return digest.hexdigest()


def _image_key(
    description: Description,
    reduced: Description | None = None,
    *,
    sizes: Sequence[int] = (),
) -> str:
    digest = hashlib.sha256(_code_digest())
    digest.update(repr(tuple(sizes)).encode())
    # the description's file has one program; the others follow from it by the compiler's code
    digest.update(repr(program_words(reduced or description)).encode())
    digest.update(json.dumps(description.target.to_json(), sort_keys=True).encode())
    for name in ("rom.bin", "gains.bin", "placement.json", "program.json"):
        digest.update(description.manifest["files"][name]["sha256"].encode())
    return digest.hexdigest()


def _cached(cache: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Give the folder of that name, written whole by whoever needs it first."""
    final = cache / name
    with _locked(cache / f"{name}.lock"):
        if not final.is_dir():
            for stale in cache.glob(f"{name}.partial-*"):
                shutil.rmtree(stale, ignore_errors=True)  # of a writer that was killed
            partial = Path(tempfile.mkdtemp(prefix=f"{name}.partial-", dir=cache))
            try:
                write(partial)
                partial.chmod(0o755)
                partial.rename(final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)  # gone already if it was renamed
    os.utime(final)
    return final


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
