"""How tiles share the rows of an adapter's A (docs/machine.md, section 3).

Timing needs this and no arrays, so that it stands apart from the words: their module loads numpy.
"""

from __future__ import annotations

__all__ = ["part_sum_cycles", "row_parts"]


def row_parts(n_rows: int, n_words: int, n_tiles: int) -> tuple[int, int]:
    """Return how many tiles share a row of A, and the words of a row in each of them.

    Parameters
    ----------
    n_rows, n_words
        Rows of A of a group, and words of one.
    n_tiles
        ``T``.
    """
    parts = 1
    while 2 * parts * n_rows <= n_tiles and parts < n_words:
        parts *= 2
    return parts, -(-n_words // parts)


def part_sum_cycles(n_tiles: int) -> int:
    """Return the cycles in which the parts of a row of A are added: two levels of a tree in one."""
    return ((n_tiles - 1).bit_length() + 1) // 2
