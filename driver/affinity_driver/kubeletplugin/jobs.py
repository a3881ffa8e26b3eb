"""Work on claims that may take longer than the caller waits.

The kubelet gives up on a call after 45 seconds and calls again a minute later. Work on hardware cannot be
given up half-way, so each claim's work runs in a thread of its own; the call waits for it within its
deadline and otherwise says so, and the work goes on. The next call for the same claim joins it, and picks
up its result.

Threads of their own, not a pool: thirty claims that wait for one slow device must not keep a claim for
another device from starting. Their number is bounded by the claims on the node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class ClaimJobs(Generic[T]):
    """At most one running job per (operation, claim UID)."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: dict[tuple[str, str], Future[T]] = {}

    def submit(self, operation: str, uid: str, work: Callable[[], T]) -> Future[T]:
        """Start ``work``, or join the same operation on the same claim where it still runs."""
        key = (operation, uid)
        with self._guard:
            running = self._running.get(key)
            if running is not None:
                return running
            future: Future[T] = Future()
            self._running[key] = future
        thread = threading.Thread(
            target=self._run, args=(key, future, work), name=f"{operation}-{uid[:8]}", daemon=True
        )
        thread.start()
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
