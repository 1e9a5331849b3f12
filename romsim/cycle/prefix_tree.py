"""A radix tree of token prefixes whose keys and values are in pages: match, lock, evict the oldest.

The tree holds one reference to each of its pages. Edges are whole pages of tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from romsim.cycle.kv_rows import PagePool
from romsim_models.errors import SpecError

__all__ = ["PrefixNode", "PrefixTree"]

_Page = tuple[int, ...]  # tokens


@dataclass(eq=False, slots=True)
class PrefixNode:
    """A node: the edge that leads to it, and what hangs below."""

    tokens: tuple[_Page, ...]
    pages: list[int]
    parent: PrefixNode | None
    children: dict[_Page, PrefixNode] = field(default_factory=dict)
    n_locks: int = 0
    last_use: int = 0


class PrefixTree:
    """Prefixes by namespace: whatever else keys and values depend on (adapter, codec, rotation).

    Parameters
    ----------
    pool
        Of the pages.
    block
        Tokens of a page.

    Attributes
    ----------
    n_forgotten
        Pages given back so far because their room was needed.
    """

    def __init__(self, pool: PagePool, block: int) -> None:
        self._pool, self._block = pool, block
        self.n_forgotten = 0
        self._roots: dict[Hashable, PrefixNode] = {}
        self._clock = 0

    @property
    def n_pages(self) -> int:
        """Pages that the tree holds."""
        return sum(len(node.pages) for node in self.nodes())

    def nodes(self) -> Iterator[PrefixNode]:
        """Yield every node but the roots."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def match(self, key: Hashable, tokens: Sequence[int]) -> tuple[list[int], PrefixNode]:
        """Return the pages of the longest known prefix, whole pages, and the node where it ends.

        Parameters
        ----------
        key
            Namespace: a prefix that was computed under another is not found.
        """
        node = self._root(key)
        wanted = self._split_tokens(tokens)
        pages: list[int] = []
        self._touch(node)
        while len(pages) < len(wanted):
            child = node.children.get(wanted[len(pages)])
            if child is None:
                break
            same = _common(child.tokens, wanted[len(pages) :])
            node = child if same == len(child.tokens) else self._split(child, same)
            self._touch(node)
            pages += node.pages
        return pages, node

    def insert(
        self, key: Hashable, tokens: Sequence[int], pages: Sequence[int]
    ) -> tuple[int, PrefixNode]:
        """Make a sequence's whole pages known; return the tokens that were so already, and the end.

        Pages of a part that was known are not held: the caller's own stay its own.

        Raises
        ------
        SpecError
            If there are fewer pages than whole pages of tokens.
        """
        wanted = self._split_tokens(tokens)
        if len(pages) < len(wanted):
            raise SpecError(
                f"Prefix of {len(wanted)} pages of tokens must come with as many pages, not "
                f"{len(pages)}"
            )
        known, node = self.match(key, tokens)
        if len(known) < len(wanted):
            rest = list(pages[len(known) : len(wanted)])
            for page in rest:
                self._pool.share(page)
            leaf = PrefixNode(wanted[len(known) :], rest, node)
            node.children[leaf.tokens[0]] = leaf
            self._touch(leaf)
            node = leaf
        return len(known) * self._block, node

    def lock(self, node: PrefixNode) -> None:
        """Keep a node and all above it while a sequence uses them."""
        above: PrefixNode | None = node
        while above is not None:
            above.n_locks += 1
            above = above.parent

    def unlock(self, node: PrefixNode) -> None:
        """Undo one :meth:`lock`.

        Raises
        ------
        SpecError
            If it is not locked.
        """
        if not node.n_locks:
            raise SpecError("Prefix to be unlocked must be locked, not free; unlock it once")
        above: PrefixNode | None = node
        while above is not None:
            above.n_locks -= 1
            above = above.parent

    def evict(self) -> bool:
        """Forget the unlocked leaf that was used longest ago; return whether there was one."""
        leaves = [node for node in self.nodes() if not node.children and not node.n_locks]
        if not leaves:
            return False
        oldest = min(leaves, key=lambda node: node.last_use)
        parent = oldest.parent
        assert parent is not None  # roots are never among the nodes
        del parent.children[oldest.tokens[0]]
        for page in reversed(oldest.pages):
            self._pool.give_back(page)
        self.n_forgotten += len(oldest.pages)
        return True

    def _root(self, key: Hashable) -> PrefixNode:
        return self._roots.setdefault(key, PrefixNode((), [], None))

    def _split_tokens(self, tokens: Sequence[int]) -> tuple[_Page, ...]:
        size = self._block
        whole = len(tokens) // size * size
        return tuple(tuple(tokens[at : at + size]) for at in range(0, whole, size))

    def _split(self, child: PrefixNode, n_pages: int) -> PrefixNode:
        """Cut an edge after ``n_pages``; return the new node in its middle."""
        parent = child.parent
        assert parent is not None
        middle = PrefixNode(child.tokens[:n_pages], child.pages[:n_pages], parent)
        middle.n_locks, middle.last_use = child.n_locks, child.last_use
        parent.children[middle.tokens[0]] = middle
        child.tokens, child.pages, child.parent = (
            child.tokens[n_pages:],
            child.pages[n_pages:],
            middle,
        )
        middle.children[child.tokens[0]] = child
        return middle

    def _touch(self, node: PrefixNode) -> None:
        self._clock += 1
        node.last_use = self._clock


def _common(one: Sequence[_Page], other: Sequence[_Page]) -> int:
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n
