"""Shared kernels: every piece is done once, whoever does it."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

from romsim.cycle.compiled import shared_kernel
from romsim.cycle.kernels_sharing import CLAIMED, CLIPPED, FINISHED, fetch_add
from romsim.cycle.workers import Workers


@shared_kernel
def mark(counters: Any, marks: Any, rounds: Any) -> None:
    """Add 1 to each mark, with some work in between."""
    while True:
        piece = fetch_add(counters, CLAIMED, 1)
        if piece >= marks.shape[0]:
            return
        value = np.int64(piece)
        for _ in range(rounds):
            value = value * np.int64(6364136223846793005) + np.int64(1442695040888963407)
        fetch_add(counters, CLIPPED, value & np.int64(1))
        marks[piece] += 1
        fetch_add(counters, FINISHED, 1)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
@pytest.mark.parametrize("n_pieces", [1, 2, 7, 1000])
def test_every_piece_is_done_once_and_counted(n_threads: int, n_pieces: int) -> None:
    workers = Workers(n_threads)
    expected = None
    for rounds in (0, 1000):
        for _ in range(20):
            marks = np.zeros(n_pieces, np.int64)
            clipped = workers.run(mark, (marks, rounds), n_pieces=n_pieces)
            assert marks.tolist() == [1] * n_pieces
            if rounds:
                expected = clipped if expected is None else expected
                assert clipped == expected


def workers_alive() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "romsim-cycle"]


def test_workers_start_when_there_is_something_to_share_and_end_with_their_owner() -> None:
    gc.collect()
    before = set(workers_alive())
    workers = Workers(3)
    workers.run(mark, (np.zeros(1, np.int64), 0), n_pieces=1)
    assert set(workers_alive()) <= before
    workers.run(mark, (np.zeros(4, np.int64), 0), n_pieces=4)
    mine = set(workers_alive()) - before
    assert len(mine) == 2
    del workers
    gc.collect()
    for thread in mine:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_a_worker_that_is_late_takes_nothing() -> None:
    """The main thread finishes alone; the job that a worker finds later has no piece left."""
    workers = Workers(2)
    for _ in range(200):
        marks = np.zeros(2, np.int64)
        workers.run(mark, (marks, 0), n_pieces=2)
        assert marks.tolist() == [1, 1]
    time.sleep(0)
    assert marks.tolist() == [1, 1]
