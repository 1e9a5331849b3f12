"""Where a slot of the KV cache lies: rows in order, or pages taken from a pool (docs/kv.md, 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from romsim_models.errors import CapacityError, SpecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PagePool", "RowMap"]


class PagePool:
    """Free pages, handed out so that a slot's tile is its number modulo the tiles.

    Parameters
    ----------
    n_pages
        Pages of the pool.
    n_colours
        Logical page ``i`` takes a page whose number is ``i`` modulo this.
    order
        In which free pages are offered; a permutation of all, ascending if ``None``.

    Raises
    ------
    SpecError
        If the order is no permutation.
    """

    def __init__(
        self, n_pages: int, *, n_colours: int = 1, order: Sequence[int] | None = None
    ) -> None:
        offered = list(range(n_pages)) if order is None else [int(page) for page in order]
        if sorted(offered) != list(range(n_pages)):
            raise SpecError(
                f"Order of pages must be a permutation of 0 to {n_pages - 1}, not {offered!r}"
            )
        self.n_pages = n_pages
        self._n_colours = n_colours
        self._free: list[list[int]] = [[] for _ in range(n_colours)]
        for page in reversed(offered):
            self._free[page % n_colours].append(page)

    @property
    def n_free(self) -> int:
        """Pages that nobody holds."""
        return sum(len(pages) for pages in self._free)

    def take(self, logical: int) -> int:
        """Return a free page for a sequence's page of that number.

        Raises
        ------
        CapacityError
            If there is none.
        """
        pages = self._free[logical % self._n_colours]
        if not pages:
            raise CapacityError(
                f"KV pool of {self.n_pages} pages must have a free one for page {logical} of the "
                f"sequence, but all are taken; free a sequence or raise attention.sram_kib"
            )
        return pages.pop()

    def give_back(self, page: int) -> None:
        """Take a page back: it is the next of its kind to be handed out."""
        self._free[page % self._n_colours].append(page)


class RowMap:
    """Rows of one sequence's slots, shared by all layers and heads.

    Parameters
    ----------
    n_slots
        Slots that there may be.
    block
        Slots of a page; 0 where rows are slots (contiguous, ring).
    pool
        Where pages come from.

    Attributes
    ----------
    rows
        int64 [n_slots]; entries of slots that were not reached yet mean nothing.
    table
        Page of each logical page in use.
    """

    def __init__(self, n_slots: int, *, block: int = 0, pool: PagePool | None = None) -> None:
        self.rows: NDArray[np.int64] = np.arange(n_slots, dtype=np.int64)
        self.table: list[int] = []
        self._block = block
        self._pool = pool

    def reach(self, slot: int) -> None:
        """Make sure that a slot has a row; slots are reached one after another."""
        if self._pool is None:
            return
        while len(self.table) * self._block <= slot:
            first = len(self.table) * self._block
            page = self._pool.take(len(self.table))
            self.table.append(page)
            inside = self.rows[first : first + self._block]
            inside[:] = page * self._block + np.arange(len(inside))

    def release(self) -> None:
        """Give every page back, the newest first, so that a prefix's pages go last."""
        if self._pool is not None:
            while self.table:
                self._pool.give_back(self.table.pop())
