"""Pages with reference counts, copy on write, prefix tree: vectors, refusals, and law 5."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from romsim.cycle.kv_rows import PagePool, RowMap
from romsim.cycle.prefix_tree import PrefixNode, PrefixTree
from romsim_models.errors import CapacityError, SpecError


class Memory:
    """A row of SRAM is one number; whoever writes a page that others hold is caught."""

    def __init__(self, pool: PagePool, block: int) -> None:
        self.pool, self.block = pool, block
        self.rows = [-1] * (pool.n_pages * block)
        self.moved = 0

    def copy(self, source: int, target: int, n_rows: int) -> None:
        self.rows[target : target + n_rows] = self.rows[source : source + n_rows]
        self.moved += n_rows

    def new_map(self, n_slots: int) -> RowMap:
        return RowMap(n_slots, block=self.block, pool=self.pool, copy=self.copy)

    def write(self, rows: RowMap, slot: int, value: int) -> None:
        rows.reach(slot)
        rows.own(slot)
        assert self.pool.count(rows.table[slot // self.block]) == 1
        self.rows[rows.rows[slot]] = value

    def read(self, rows: RowMap, n: int) -> list[int]:
        return [self.rows[row] for row in rows.rows[:n]]


def sentence(text: str) -> str:
    return f"^{re.escape(text)}$"


def test_t1_06_copy_on_write_moves_what_is_there_and_saves_two_fifths() -> None:
    pool = PagePool(64)
    memory = Memory(pool, 16)
    parent = memory.new_map(64)
    for slot in range(37):
        memory.write(parent, slot, slot)
    assert len(parent.table) == 3
    forks = [parent.fork() for _ in range(3)]
    assert pool.n_pages - pool.n_free == 3
    for number, fork in enumerate(forks):
        for slot in range(37, 57):
            memory.write(fork, slot, 1000 * (number + 1) + slot)
    assert pool.copied == [5, 5, 5]  # the last page holds 37 - 32 tokens
    assert memory.moved == 15
    assert pool.n_pages - pool.n_free == 9
    assert sum(len(one.table) for one in (parent, *forks)) == 15
    assert memory.read(parent, 37) == list(range(37))
    for number, fork in enumerate(forks):
        own = [1000 * (number + 1) + slot for slot in range(37, 57)]
        assert memory.read(fork, 57) == [*range(37), *own]
    for one in (parent, *forks):
        one.release()
    assert pool.n_free == pool.n_pages
    assert not any(pool.count(page) for page in range(pool.n_pages))


def test_t1_06_the_last_to_hold_a_page_writes_without_a_copy() -> None:
    pool = PagePool(8)
    memory = Memory(pool, 4)
    parent = memory.new_map(8)
    memory.write(parent, 0, 7)
    child = parent.fork()
    parent.release()
    memory.write(child, 1, 8)
    assert pool.copied == []
    assert memory.read(child, 2) == [7, 8]


@pytest.mark.parametrize("width", [2, 4, 6])
def test_t1_06_beam_search_forks_survivors_and_prunes_the_rest(width: int) -> None:
    """Every step, beams descend from parents chosen anew; texts stay those of unshared beams."""
    pool = PagePool(256)
    memory = Memory(pool, 4)
    first = memory.new_map(64)
    for slot in range(10):
        memory.write(first, slot, slot)
    beams, texts = [first], [list(range(10))]
    chosen, peak, unshared = 1, 0, 0
    for step in range(30):
        grown, new_texts = [], []
        for number in range(width):
            chosen = (chosen * 1103515245 + 12345) % 2**31  # of no pattern
            parent = (chosen >> 16) % len(beams)
            child = beams[parent].fork()
            grown.append(child)
            new_texts.append([*texts[parent], 100 * step + number])
        for beam in beams:
            beam.release()
        beams, texts = grown, new_texts
        for beam, text in zip(beams, texts, strict=True):
            memory.write(beam, len(text) - 1, text[-1])
        peak = max(peak, pool.n_pages - pool.n_free)
        unshared = max(unshared, sum(len(beam.table) for beam in beams))
    assert [memory.read(b, len(t)) for b, t in zip(beams, texts, strict=True)] == texts
    assert peak < unshared
    assert all(1 <= moved <= 4 for moved in pool.copied)
    for beam in beams:
        beam.release()
    assert pool.n_free == pool.n_pages


def test_copies_stay_in_their_tiles() -> None:
    pool = PagePool(16, n_colours=4)
    memory = Memory(pool, 2)
    parent = memory.new_map(8)
    for slot in range(7):
        memory.write(parent, slot, slot)
    child = parent.fork()
    for slot in (1, 2, 4, 7):
        memory.write(child, slot, -slot)
    assert [page % 4 for page in child.table] == [0, 1, 2, 3]
    assert memory.read(child, 8) == [0, -1, -2, 3, -4, 5, 6, -7]
    assert memory.read(parent, 7) == list(range(7))


def test_errors_of_pages() -> None:
    pool = PagePool(2)
    memory = Memory(pool, 4)
    rows = memory.new_map(16)
    for slot in range(8):
        memory.write(rows, slot, slot)
    told = (
        "KV pool of 2 pages must have a free one for page {} of the sequence, but all are taken; "
        "free a sequence or raise attention.sram_kib"
    )
    with pytest.raises(CapacityError, match=sentence(told.format(2))):
        memory.write(rows, 8, 8)
    assert len(rows.table) == 2  # as it was
    child = rows.fork()
    with pytest.raises(CapacityError, match=sentence(told.format(0))):
        memory.write(child, 3, 9)
    assert child.table == rows.table
    page = rows.table[0]
    child.release()
    rows.release()
    double = (
        "Page to be {} must be one that is held, not {}; a sequence gives each of its pages back "
        "once"
    )
    with pytest.raises(SpecError, match=sentence(double.format("freed", page))):
        pool.give_back(page)
    with pytest.raises(SpecError, match=sentence(double.format("shared", 5))):
        pool.share(5)
    with pytest.raises(
        SpecError,
        match=sentence(
            "Sequence to be forked must lie in pages, not in rows of its own; compile with --kv "
            "layout=paged"
        ),
    ):
        RowMap(8).fork()
    memory.write(rows, 0, 0)
    with pytest.raises(
        SpecError,
        match=sentence(
            "Pages must be adopted by an empty sequence with a block table, not by one of 1 pages"
        ),
    ):
        rows.adopt([0], 4)


# --- Prefix tree --------------------------------------------------------------------------------


def taken(pool: PagePool, n: int) -> list[int]:
    return [pool.take(i) for i in range(n)]


def test_t2_12_tree_vectors() -> None:
    pool = PagePool(64)
    tree = PrefixTree(pool, 1)
    lengths = []
    for tokens in ([1, 2, 3], [1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 5, 6, 7], [8, 9, 10, 11, 12]):
        pages = taken(pool, len(tokens))
        lengths.append(tree.insert("a", tokens, pages)[0])
        for page in pages:  # the sequence ends
            pool.give_back(page)
    assert lengths == [0, 3, 2, 4, 0]
    assert len(tree.match("a", [1, 2, 3, 13, 14])[0]) == 3
    assert tree.n_pages == 3 + 2 + 2 + 5 == pool.n_pages - pool.n_free
    assert tree.match("b", [1, 2, 3])[0] == []
    while tree.evict():
        pass
    assert pool.n_free == 64


def test_t2_12_tree_matches_whole_pages_and_gives_those_that_were_inserted() -> None:
    pool = PagePool(64)
    tree = PrefixTree(pool, 4)
    pages = taken(pool, 4)
    known, _ = tree.insert("a", list(range(15)), pages)  # the fourth page is not whole
    assert known == 0
    assert tree.match("a", list(range(15)))[0] == pages[:3]
    assert tree.match("a", [*range(7), 99, 98])[0] == pages[:1]
    assert tree.match("a", [0, 1, 2])[0] == []
    with pytest.raises(
        SpecError,
        match=sentence("Prefix of 3 pages of tokens must come with as many pages, not 1"),
    ):
        tree.insert("a", list(range(12)), [0])


def test_t2_12_tree_forgets_the_leaf_used_longest_ago_and_never_a_locked_one() -> None:
    pool = PagePool(8)
    tree = PrefixTree(pool, 1)
    for tokens in ([1, 2], [1, 3], [4]):
        pages = taken(pool, len(tokens))
        tree.insert("a", tokens, pages)
        for page in pages:
            pool.give_back(page)
    tree.match("a", [1, 2])
    _, node = tree.match("a", [1, 3])
    tree.lock(node)
    assert tree.evict()  # [4]: used before both
    assert tree.match("a", [4])[0] == []
    assert tree.evict()  # [1, 2]: [1, 3] is locked
    assert len(tree.match("a", [1, 2])[0]) == 1
    assert not tree.evict()
    tree.unlock(node)
    assert tree.evict()
    assert tree.evict()  # [1], a leaf by now
    assert pool.n_free == 8
    with pytest.raises(
        SpecError, match=sentence("Prefix to be unlocked must be locked, not free; unlock it once")
    ):
        tree.unlock(node)


def test_a_full_pool_takes_what_the_tree_can_forget() -> None:
    pool = PagePool(4, n_colours=2)
    tree = PrefixTree(pool, 1)
    pool.reclaim = tree.evict
    pages = taken(pool, 4)
    _, node = tree.insert("a", [1, 2, 3, 4], pages)
    for page in pages:
        pool.give_back(page)
    tree.lock(node)
    with pytest.raises(CapacityError, match=r"^KV pool of 4 pages"):
        pool.take(0)
    tree.unlock(node)
    assert pool.take(0) % 2 == 0
    assert tree.n_pages == 0


# --- Law 5 ----------------------------------------------------------------------------------------


class Sharing(RuleBasedStateMachine):
    """Sequences that start from known prefixes, grow, fork, rewrite and end, in a small pool."""

    slots = 24
    live: Bundle[int] = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(14, n_colours=2)
        self.memory = Memory(self.pool, 4)
        self.tree = PrefixTree(self.pool, 4)
        self.pool.reclaim = self.reclaim
        self.maps: dict[int, RowMap] = {}
        self.texts: dict[int, list[int]] = {}
        self.locks: dict[int, PrefixNode] = {}
        self.n_made = 0

    def reclaim(self) -> bool:
        locked = {id(node): list(node.pages) for node in self.tree.nodes() if node.n_locks}
        done = self.tree.evict()
        left = {id(node): list(node.pages) for node in self.tree.nodes()}
        assert all(left.get(key) == pages for key, pages in locked.items())
        return done

    def add(self, rows: RowMap, text: list[int], node: PrefixNode | None) -> int:
        self.n_made += 1
        self.maps[self.n_made], self.texts[self.n_made] = rows, text
        if node is not None:
            self.tree.lock(node)
            self.locks[self.n_made] = node
        return self.n_made

    def grow(self, one: int, tokens: list[int]) -> None:
        for token in tokens[: self.slots - len(self.texts[one])]:
            try:
                self.memory.write(self.maps[one], len(self.texts[one]), token)
            except CapacityError:
                return
            self.texts[one].append(token)

    @rule(target=live, prompt=st.lists(st.integers(0, 1), min_size=1, max_size=16))
    def start(self, prompt: list[int]) -> int:
        pages, node = self.tree.match("a", prompt)
        rows = self.memory.new_map(self.slots)
        found = 4 * len(pages)
        one = self.add(rows, prompt[:found], node)
        rows.adopt(pages, found)
        assert self.memory.read(rows, found) == prompt[:found]  # what was computed then
        self.grow(one, prompt[found:])
        return one

    @rule(one=live, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def append(self, one: int, tokens: list[int]) -> None:
        self.grow(one, tokens)

    @rule(target=live, one=live)
    def fork(self, one: int) -> int:
        return self.add(self.maps[one].fork(), list(self.texts[one]), self.locks.get(one))

    @rule(one=live, data=st.data(), token=st.integers(0, 1))
    def rewrite(self, one: int, data: st.DataObject, token: int) -> None:
        """As a ring or a slot of H2O is written anew; the text is none that the tree may know."""
        if not self.texts[one]:
            return
        slot = data.draw(st.integers(0, len(self.texts[one]) - 1))
        try:
            self.memory.write(self.maps[one], slot, token + 2)
        except CapacityError:
            return
        self.texts[one][slot] = token + 2

    @rule(one=live)
    def remember(self, one: int) -> None:
        self.tree.insert("a", self.texts[one], self.maps[one].table)

    @rule(one=consumes(live))
    def end(self, one: int) -> None:
        self.maps.pop(one).release()
        del self.texts[one]
        if one in self.locks:
            self.tree.unlock(self.locks.pop(one))

    @rule(prompt=st.lists(st.integers(0, 1), min_size=8, max_size=16))
    def another_adapter(self, prompt: list[int]) -> None:
        assert self.tree.match("b", prompt)[0] == []

    @precondition(lambda self: self.n_made > 0)
    @rule()
    def evict(self) -> None:
        self.reclaim()

    @invariant()
    def counts_are_the_entries_of_tables_and_tree(self) -> None:
        held = Counter(page for rows in self.maps.values() for page in rows.table)
        held.update(page for node in self.tree.nodes() for page in node.pages)
        counts = [self.pool.count(page) for page in range(self.pool.n_pages)]
        assert counts == [held[page] for page in range(self.pool.n_pages)]
        assert self.pool.n_free == counts.count(0)
        assert all(0 < moved <= 4 for moved in self.pool.copied)

    @invariant()
    def every_sequence_reads_its_own_text(self) -> None:
        for one, rows in self.maps.items():
            assert self.memory.read(rows, len(self.texts[one])) == self.texts[one]

    @invariant()
    def pages_keep_their_colours(self) -> None:
        for rows in self.maps.values():
            assert all(page % 2 == number % 2 for number, page in enumerate(rows.table))


TestLaw5 = Sharing.TestCase
TestLaw5.settings = settings(
    deadline=None, derandomize=True, database=None, max_examples=60, stateful_step_count=40
)
