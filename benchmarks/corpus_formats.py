"""Turn what a package ships into running text: one line a paragraph, an empty line between two.

The formats are those of the four texts of ``benchmarks.corpora`` and of nothing else; what does
not look as expected is an error, since a perplexity is worth nothing on a text read wrongly.
"""

from __future__ import annotations

import re
import struct
import zlib

from romsim_models.errors import FormatError

__all__ = ["paragraphs", "read_foldoc", "read_r_strings", "read_verse"]

# Headers of R's serialisation, XDR format, version 3 (R Internals, section 1.8), in UTF-8.
_R_MAGIC = b"X\n\x00\x00\x00\x03"
_STRSXP = 16
_CHARSXP = 9
_NA_STRING = -1


def read_r_strings(table: bytes, title: str) -> list[str]:
    """Read one character vector out of R's lazy-load table.

    Parameters
    ----------
    table
        A file ``Rdata.rdb``: chunks of a 4-byte length and a zlib stream.
    title
        First string of the vector that is wanted, letter case apart.

    Returns
    -------
    list of str
        The vector, one string a line of the book.

    Raises
    ------
    FormatError
        If the table is not what R writes, or holds no such vector.
    """
    position = 0
    while position < len(table):
        chunk = zlib.decompressobj()
        try:
            content = chunk.decompress(table[position + 4 :])
        except zlib.error as error:
            raise FormatError(
                f"R table must be zlib chunks, not {str(error)!r} at byte {position}"
            ) from error
        (n_bytes,) = struct.unpack_from(">I", table, position)
        if len(content) != n_bytes:
            raise FormatError(
                f"R chunk at byte {position} must hold {n_bytes} bytes, not {len(content)!r}"
            )
        lines = _read_character_vector(content, position)
        if lines and lines[0].casefold() == title.casefold():
            return lines
        position = len(table) - len(chunk.unused_data)
    raise FormatError(f"R table must hold a text with first line {title!r}, not none of it")


def _read_character_vector(content: bytes, chunk: int) -> list[str]:
    if not content.startswith(_R_MAGIC):
        raise FormatError(f"R chunk at byte {chunk} must be XDR of version 3, not {content[:6]!r}")
    # version, writer's version, oldest reader's version, length and name of the encoding
    (n_name,) = struct.unpack_from(">i", content, 14)
    position = 18 + n_name
    flags, n_strings = struct.unpack_from(">ii", content, position)
    if flags & 0xFF != _STRSXP:
        raise FormatError(
            f"R chunk at byte {chunk} must hold strings (type 16), not type {flags & 0xFF!r}"
        )
    position += 8
    lines = []
    for _ in range(n_strings):
        flags, n_bytes = struct.unpack_from(">ii", content, position)
        if flags & 0xFF != _CHARSXP or n_bytes == _NA_STRING:
            raise FormatError(f"R chunk at byte {chunk} must hold strings only, not an absent one")
        position += 8
        lines.append(content[position : position + n_bytes].decode())
        position += n_bytes
    return lines


def paragraphs(lines: list[str]) -> str:
    """Join the lines of each paragraph; paragraphs are parted by empty lines."""
    blocks = re.split(r"\n[ \t]*\n", "\n".join(lines))
    joined = (" ".join(block.split()) for block in blocks)
    return "\n\n".join(block for block in joined if block) + "\n"


def read_verse(text: str, first_line: str) -> str:
    """Keep a play's or a poem's lines, from a known first line on, without trailing spaces.

    Raises
    ------
    FormatError
        If the text has no such line.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    if first_line not in lines:
        raise FormatError(f"text must have a line {first_line!r}, not none of it")
    body = "\n".join(lines[lines.index(first_line) :])
    return re.sub(r"\n{3,}", "\n\n", body).strip() + "\n"


_LAST_PAGE = "Missing definition"  # of the editor's pages about the dictionary
_MIN_ENTRY = 300  # characters of prose; shorter entries are mostly "See ..."


def read_foldoc(text: str) -> str:
    """Make prose of the Free On-line Dictionary of Computing's DICT file.

    Headwords stand at the margin, bodies are indented by three. The editor's own pages, headwords
    that are no words ("!!!Batch", "16-bit"), tables and program text (indented further), dates and
    sources in brackets are left out, as are entries with less than 300 characters of prose.

    Raises
    ------
    FormatError
        If the text is not such a file.
    """
    if not text.lstrip().startswith("00-database"):
        raise FormatError(f"DICT file must start with '00-database', not {text.lstrip()[:20]!r}")
    entries = re.split(r"\n\n(?=\S)", text)
    heads = [entry.partition("\n")[0] for entry in entries]
    if _LAST_PAGE not in heads:
        raise FormatError(f"DICT file must have an entry {_LAST_PAGE!r}, not none of it")
    kept = []
    first = heads.index(_LAST_PAGE) + 1
    for head, entry in zip(heads[first:], entries[first:], strict=True):
        prose = _prose(entry.partition("\n\n")[2])
        if head[0].isalpha() and len(prose) >= _MIN_ENTRY:
            kept.append(f"{head.split('%%%')[0]}\n\n{prose}\n")
    return "\n".join(kept)


def _prose(body: str) -> str:
    kept = []
    for block in re.split(r"\n[ \t]*\n", body):
        lines = block.splitlines()
        if not lines or any(not re.match(r" {3}\S", line) for line in lines):
            continue
        sentence = " ".join(block.split())
        # <hardware, storage> and /pronunciation/
        sentence = re.sub(r"^(?:<[^>]*> |/[^/]*/ )+", "", sentence)
        if re.fullmatch(r"\[.*\]|\(\d{4}-\d\d-\d\d\)", sentence):
            continue
        kept.append(sentence.replace("{", "").replace("}", ""))
    return "\n\n".join(kept)
