"""Work on claims that may take longer than the caller waits.

The kubelet gives up on a call after 45 seconds and calls again a minute later. Work on hardware cannot be
given up half-way, so each claim's work runs in another thread; the call waits for it within its
deadline and otherwise says so, and the work goes on. The next call for the same claim joins it, and picks
up its result.

The pool of threads is larger than the number of claims a node can have: thirty claims that wait for one slow
device must not keep a claim for another device from starting. Idle threads are used again; one is only made
when none is idle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_JOBS = 1024


class ClaimJobs(Generic[T]):
    """At most one running job per (operation, claim UID)."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: dict[tuple[str, str], Future[T]] = {}
        self._pool = ThreadPoolExecutor(MAX_JOBS, thread_name_prefix="claim")

    def submit(self, operation: str, uid: str, work: Callable[[], T]) -> Future[T]:
        """Start ``work``, or join the same operation on the same claim where it still runs."""
        key = (operation, uid)
        with self._guard:
            running = self._running.get(key)
            if running is not None:
                return running
            future: Future[T] = Future()
            self._running[key] = future
        self._pool.submit(self._run, key, future, work)
        return future

    def drain(self, seconds: float) -> bool:
        """Wait until no job runs; False where some still do after ``seconds``."""
        with self._guard:
            running = list(self._running.values())
        for future in running:
            try:
                future.exception(timeout=seconds)
            except TimeoutError:
                return False
        return True

    def _run(self, key: tuple[str, str], future: Future[T], work: Callable[[], T]) -> None:
        try:
            result = work()
        except BaseException as error:
            self._forget(key)
            future.set_exception(error)
        else:
            self._forget(key)
            future.set_result(result)

    def _forget(self, key: tuple[str, str]) -> None:
        with self._guard:
            del self._running[key]
