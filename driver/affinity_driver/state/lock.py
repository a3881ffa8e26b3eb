"""One writer at a time on this node, between threads and between processes.

Two driver processes overlap during a rolling update, and the kubelet may call either. The checkpoint is
read, judged and written under this lock; hardware is programmed outside of it, so that a slow device delays
nobody else.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
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
    """A lock for each key of one ``kind``, between threads and processes; the kernel frees those of the dead.

    A key is one byte of the file ``path``, locked through an open file description of its own. These locks
    know nothing of ``NodeLock``'s, which may be on the same file.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self._path = path
        self._kind = kind

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        """Hold the lock of ``key``, waiting as long as it takes."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, self._byte(key))
            yield
        finally:
            os.close(descriptor)

    def take(self, key: str) -> int | None:
        """Take the lock of ``key`` until the returned descriptor is closed; None where somebody has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, self._byte(key))
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def _byte(self, key: str) -> bytes:
        """``struct flock`` for the key's byte."""
        digest = hashlib.sha256(f"{self._kind}/{key}".encode()).digest()
        position = int.from_bytes(digest[:8]) >> 2
        return struct.pack("hhqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, position, 1, 0)
