"""Threads that share large kernels; results never depend on how many there are."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from romsim.cycle.kernels_sharing import CLIPPED, N_COUNTERS, await_finish

__all__ = ["Workers"]

_Job = tuple[Callable[..., Any], tuple[Any, ...]]


class _Worker:
    """One working thread and the newest job that it was offered.

    A worker that is late finds an older job gone and the newest one in its place: jobs need no
    queue, since whoever offers a job also finishes it.
    """

    def __init__(self) -> None:
        self._job: _Job | None = None
        self._wake = threading.Lock()
        self._wake.acquire()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name="romsim-cycle", daemon=True)
        self._thread.start()

    def offer(self, job: _Job) -> None:
        self._job = job
        if self._wake.locked():
            self._wake.release()

    def stop(self) -> None:
        self._is_stopped = True
        if self._wake.locked():
            self._wake.release()

    def _serve(self) -> None:
        while True:
            self._wake.acquire()
            if self._is_stopped:
                return
            job, self._job = self._job, None
            if job is not None:
                kernel, arguments = job
                kernel(*arguments)


class Workers:
    """Runs shared kernels on this thread and on ``n_threads - 1`` workers.

    A shared kernel takes its counters first; it claims pieces until none is left, and works on
    whichever threads call it.

    Parameters
    ----------
    n_threads
        Threads in all, at least 1.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._workers: list[_Worker] = []

    def run(self, kernel: Callable[..., Any], arguments: tuple[Any, ...], *, n_pieces: int) -> int:
        """Run a kernel to the end of its ``n_pieces``; return the saturations that it counted."""
        counters = np.zeros(N_COUNTERS, np.int64)
        job = (kernel, (counters, *arguments))
        if self.n_threads > 1 and n_pieces > 1:
            for worker in self._started():
                worker.offer(job)
        kernel(*job[1])
        while not await_finish(counters, n_pieces):
            time.sleep(0)  # a worker holds a piece and was put aside: let it run
        return int(counters[CLIPPED])

    def _started(self) -> list[_Worker]:
        """Return the workers; the first call starts their threads."""
        while len(self._workers) < self.n_threads - 1:
            worker = _Worker()
            weakref.finalize(self, worker.stop)
            self._workers.append(worker)
        return self._workers
