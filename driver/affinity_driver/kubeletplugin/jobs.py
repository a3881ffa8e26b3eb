"""Work on claims that may take longer than the caller waits.

The kubelet gives up on a call after 45 seconds and calls again a minute later. Work on hardware cannot be
given up half-way, so each claim's work runs in another thread; the call waits for it within its
deadline and otherwise says so, and the work goes on. The next call of the same kind for the same claim joins
it, and picks up its result. After a call of another kind it does not: what is asked for last is done last.

The pool of threads is larger than the number of claims a node can have: thirty claims that wait for one slow
device must not keep a claim for another device from starting. Idle threads are used again; one is only made
when none is idle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_JOBS = 1024


class ClaimJobs(Generic[T]):
    """One job after the other for each claim UID, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._last: dict[str, tuple[str, Future[T]]] = {}
        self._pool = ThreadPoolExecutor(MAX_JOBS, thread_name_prefix="claim")

    def submit(self, operation: str, uid: str, work: Callable[[], T]) -> Future[T]:
        """Start ``work``, or join the claim's last job where it is the same operation and not done yet."""
        future: Future[T] = Future()
        with self._guard:
            last, before = self._last.get(uid, ("", None))
            if before is not None and last == operation:
                return before
            self._last[uid] = (operation, future)
        self._pool.submit(self._run, uid, future, work, before)
        return future

    def drain(self, seconds: float) -> bool:
        """Wait until no job runs; False where some still do after ``seconds``."""
        with self._guard:
            last = [future for _, future in self._last.values()]
        return not wait(last, timeout=seconds).not_done

    def _run(self, uid: str, future: Future[T], work: Callable[[], T], before: Future[T] | None) -> None:
        if before is not None:
            wait([before])
        try:
            result = work()
        except BaseException as error:
            self._forget(uid, future)
            future.set_exception(error)
        else:
            self._forget(uid, future)
            future.set_result(result)

    def _forget(self, uid: str, future: Future[T]) -> None:
        with self._guard:
            if self._last[uid][1] is future:
                del self._last[uid]
