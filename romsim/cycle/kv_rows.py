"""Where a slot of the KV cache lies: rows in order, or pages of a pool that sequences share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from romsim_models.errors import CapacityError, SpecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PageCopy", "PagePool", "RowMap"]


class PageCopy(NamedTuple):
    """A page whose first tokens were moved to another."""

    source: int
    target: int
    n_tokens: int


class PagePool:
    """Pages with reference counts, handed out so that a slot's tile is its number modulo the tiles.

    Parameters
    ----------
    n_pages
        Pages of the pool.
    n_colours
        Logical page ``i`` takes a page whose number is ``i`` modulo this.
    order
        In which free pages are offered; a permutation of all, ascending if ``None``.

    Attributes
    ----------
    reclaim
        Asked when no page of a colour is free: gives pages back and says whether it did.
    copies
        Copies of pages so far, in order.

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
        self.n_colours = n_colours
        self.reclaim: Callable[[], bool] | None = None
        self.copies: list[PageCopy] = []
        self._count = [0] * n_pages
        self._free: list[list[int]] = [[] for _ in range(n_colours)]
        for page in reversed(offered):
            self._free[page % n_colours].append(page)

    @property
    def n_free(self) -> int:
        """Pages that nobody holds."""
        return sum(len(pages) for pages in self._free)

    @property
    def copied(self) -> list[int]:
        """Tokens moved by each copy of a page so far, in order."""
        return [copy.n_tokens for copy in self.copies]

    def count(self, page: int) -> int:
        """Return how many hold a page."""
        return self._count[page]

    def lacks(self, logical: Iterable[int]) -> bool:
        """Whether the pages that nobody holds do not suffice for these logical pages."""
        needed = [0] * self.n_colours
        for number in logical:
            needed[number % self.n_colours] += 1
        return any(n > len(pages) for n, pages in zip(needed, self._free, strict=True))

    def take(self, logical: int) -> int:
        """Return a free page for a sequence's page of that number; its taker alone holds it.

        Raises
        ------
        CapacityError
            If there is none, and none can be reclaimed.
        """
        pages = self._free[logical % self.n_colours]
        while not pages and self.reclaim is not None and self.reclaim():
            pass
        if not pages:
            raise CapacityError(
                f"KV pool of {self.n_pages} pages must have a free one for page {logical} of the "
                f"sequence, but all are taken; free a sequence or raise attention.sram_kib"
            )
        page = pages.pop()
        self._count[page] = 1
        return page

    def share(self, page: int) -> None:
        """Let one more hold a page.

        Raises
        ------
        SpecError
            If nobody holds it.
        """
        self._check_held(page, "shared")
        self._count[page] += 1

    def give_back(self, page: int) -> None:
        """Let one fewer hold a page; the last one's is the next of its colour to be handed out.

        Raises
        ------
        SpecError
            If nobody holds it: it would be freed twice.
        """
        self._check_held(page, "freed")
        self._count[page] -= 1
        if not self._count[page]:
            self._free[page % self.n_colours].append(page)

    def _check_held(self, page: int, what: str) -> None:
        if not 0 <= page < self.n_pages or not self._count[page]:
            raise SpecError(
                f"Page to be {what} must be one that is held, not {page!r}; a sequence gives each "
                f"of its pages back once"
            )


class RowMap:
    """Rows of one sequence's slots, shared by all layers and heads.

    Parameters
    ----------
    n_slots
        Slots that there may be.
    block
        Slots of a page; 0 where rows are slots (contiguous, ring, slot map).
    pool
        Where pages come from.
    copy
        Called with the first row of a page, that of its copy, and the rows to be moved.

    Attributes
    ----------
    rows
        int64 [n_slots]; entries of slots that were not reached yet mean nothing.
    table
        Page of each logical page in use.
    n_written
        Slots that hold a token, or did.
    """

    def __init__(
        self,
        n_slots: int,
        *,
        block: int = 0,
        pool: PagePool | None = None,
        copy: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self.rows: NDArray[np.int64] = np.arange(n_slots, dtype=np.int64)
        self.table: list[int] = []
        self.n_written = 0
        self._block = block
        self._pool = pool
        self._copy = copy

    def reach(self, slot: int) -> None:
        """Make sure that a slot has a row; slots are reached one after another."""
        if self._pool is None:
            return
        while len(self.table) * self._block <= slot:
            self.table.append(-1)
            try:
                self._place(len(self.table) - 1, self._pool.take(len(self.table) - 1))
            except CapacityError:
                self.table.pop()
                raise

    def own(self, slot: int) -> None:
        """Make sure that nobody else holds a slot's page before it is written: copy on write."""
        if self._pool is None:
            return
        number = slot // self._block
        page = self.table[number]
        if self._pool.count(page) > 1:
            first = number * self._block
            fresh = self._pool.take(number)
            n_tokens = min(self._block, self.n_written - first)
            if n_tokens > 0:
                if self._copy is not None:
                    self._copy(page * self._block, fresh * self._block, n_tokens)
                self._pool.copies.append(PageCopy(page, fresh, n_tokens))
            self._place(number, fresh)
            self._pool.give_back(page)
        self.n_written = max(self.n_written, slot + 1)

    def _place(self, number: int, page: int) -> None:
        self.table[number] = page
        first = number * self._block
        inside = self.rows[first : first + self._block]
        inside[:] = page * self._block + np.arange(len(inside))

    def fork(self) -> RowMap:
        """Return the rows of a sequence with the same past, on the same pages."""
        pool = self._pool
        if pool is None:
            raise SpecError(
                "Sequence to be forked must lie in pages, not in rows of its own; compile with "
                "--kv layout=paged"
            )
        other = RowMap(len(self.rows), block=self._block, pool=pool, copy=self._copy)
        other.adopt(self.table, self.n_written)
        return other

    def adopt(self, pages: Sequence[int], n_written: int) -> None:
        """Begin a sequence with pages that others hold and ``n_written`` of their slots."""
        if self._pool is None or self.table:
            raise SpecError(
                f"Pages must be adopted by an empty sequence with a block table, not by one of "
                f"{len(self.table)} pages"
            )
        for number, page in enumerate(pages):
            self._pool.share(page)
            self.table.append(page)
            self._place(number, page)
        self.n_written = n_written

    def release(self) -> None:
        """Give every page back, the newest first, so that a prefix's pages go last."""
        self.n_written = 0
        if self._pool is not None:
            while self.table:
                self._pool.give_back(self.table.pop())
