"""One writer at a time on this node, between threads and between processes.

Two driver processes overlap during a rolling update, and the kubelet may call either. The checkpoint is
read, judged and written under this lock; hardware is programmed outside of it, so that a slow device delays
nobody else.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from affinity_driver.claims.errors import BusyError

POLL = 0.02


class NodeLock:
    """A mutex plus flock on ``path``. ``timeout`` is the longest wait in seconds, far below the kubelet's
    45.
    """

    def __init__(self, path: Path, timeout: float = 10.0) -> None:
        self._path = path
        self._timeout = timeout
        self._mutex = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises BusyError when somebody else keeps it for longer than the timeout."""
        deadline = time.monotonic() + self._timeout
        if not self._mutex.acquire(timeout=self._timeout):
            raise BusyError("the driver's state is locked by another call; will be retried")
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _flock(descriptor, deadline)
                yield
            finally:
                os.close(descriptor)
        finally:
            self._mutex.release()


def _flock(descriptor: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BusyError("the driver's state is locked by another instance; will be retried") from None
            time.sleep(POLL)
        else:
            return


class KeyedLocks:
    """A mutex for each key that is in use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        """Hold the mutex of ``key``, waiting as long as it takes."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)
