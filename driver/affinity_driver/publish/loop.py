"""A loop that keeps something on the API server as it should be: pass after pass, woken by watches.

One thread makes the passes, each watched resource has another that wakes it; a resync covers what a watch
misses. Errors are never fatal: they are logged, told, and tried again with back-off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from affinity_driver.kube import Api, ApiError

WATCH_SECONDS = 300
MAX_BACKOFF = 60.0
COALESCE = 0.05
"""Seconds: changes come in bursts (the kubelet's wipe, our own writes), and one pass serves all of them."""


class Loop:
    """Calls ``sync``, which returns the seconds until it wants to be called next.

    ``watched`` maps each collection to what gives the field selector of its watch. ``failed`` hears of each
    failure, with its number in a row. ``calm`` gives seconds to wait before the next pass whatever happens.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        sync: Callable[[], float],
        watched: Mapping[str, Callable[[], str]],
        failed: Callable[[Exception, int], None],
        calm: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._api = api
        self._name = name
        self._sync = sync
        self._watched = watched
        self._failed = failed
        self._calm = calm
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._log = structlog.get_logger(f"affinity_driver.{name}")

    def start(self) -> None:
        """Start passes and watches."""
        self._threads = [threading.Thread(target=self._run, name=self._name, daemon=True)]
        for path in self._watched:
            name = f"watch-{path.rpartition('/')[2]}"
            self._threads.append(threading.Thread(target=self._watch, args=(path,), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No further pass."""
        self._stopping.set()
        self._wake.set()

    def join(self, seconds: float) -> None:
        """After ``stop``: wait for a pass in progress, at most so many seconds."""
        if self._threads:
            self._threads[0].join(seconds)

    def wake(self) -> None:
        """Ask for a pass now."""
        self._wake.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                pause = self._sync()
                failures = 0
            except ApiError as error:
                failures += 1
                conflict = error.code == 409 and failures < 5
                pause = 0.2 if conflict else _backoff(0.5, failures)
                self._log.warning("pass failed, will retry", error=str(error), seconds=pause)
                self._failed(error, failures)
            except Exception as error:
                failures += 1
                pause = _backoff(0.5, failures)
                self._log.exception("pass failed unexpectedly, will retry", seconds=pause)
                self._failed(error, failures)
            if self._wake.wait(pause):
                self._stopping.wait(min(pause, 1.0) if failures else COALESCE)
            self._stopping.wait(self._calm())

    def _watch(self, collection: str) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                query = {"fieldSelector": self._watched[collection]()}
                # Without a resourceVersion the watch begins with what is there: one wake-up too many, none
                # missed.
                for event in self._api.watch(collection, query, WATCH_SECONDS):
                    failures = 0
                    if self._stopping.is_set():
                        return
                    if event.type != "BOOKMARK":
                        self._wake.set()
            except ApiError as error:
                failures += 1
                self._log.debug("watch ended", collection=collection, error=str(error))
            except Exception:
                failures += 1
                self._log.exception("watch failed unexpectedly, will retry", collection=collection)
            self._stopping.wait(_backoff(0.2, failures))


def _backoff(first: float, failures: int) -> float:
    """``first`` seconds doubled with each failure; a power beyond all floats must not end the thread."""
    return min(MAX_BACKOFF, first * 2.0 ** min(failures, 10))
