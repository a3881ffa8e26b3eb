"""The loop that keeps objects as they should be: nothing that goes wrong, however often, ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from affinity_driver.kube import ApiError, WatchEvent
from affinity_driver.publish import loop
from affinity_driver.publish.loop import Loop
from e2e.cluster import wait_for

SLICES = "/apis/example.com/v1/slices"
DOWN = ApiError(503, "ServiceUnavailable", "down")


class Watched:
    """An API server's watches: each ends by ``error``, if there is one, and shows one object otherwise."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.times = 0
        self._open = threading.Event()

    def watch(self, path: str, query: Mapping[str, str], seconds: int) -> Iterator[WatchEvent]:
        self.times += 1
        if self.error is not None:
            raise self.error
        yield WatchEvent("ADDED", {})
        self._open.wait(10)

    def close(self) -> None:
        self._open.set()


def started(api: Watched, sync: Callable[[], float], selector: Callable[[], str] = lambda: "", /) -> Loop:
    made = Loop(api, "test", sync, {SLICES: selector}, lambda error, times: None)  # type: ignore[arg-type]
    made.start()
    return made


def test_failures_without_end_do_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away for a day, or a right that is granted after one."""
    monkeypatch.setattr(loop, "MAX_BACKOFF", 0.0)
    api = Watched(DOWN)
    many = 1100  # the first power of two that no float holds is the 1024th
    passes: list[int] = []
    good = threading.Event()

    def sync() -> float:
        passes.append(1)
        if len(passes) <= many:
            raise DOWN
        good.set()
        return 60.0

    made = started(api, sync)
    assert good.wait(30), f"the loop ended after {len(passes)} passes"
    wait_for("watches to be tried again for as long", lambda: api.times > many)
    made.stop()
    made.join(5)


def test_a_watch_outlives_what_the_hardware_could_not_tell() -> None:
    """The selector asks the profile for its pool; what it raises must not make the loop blind."""
    api = Watched(None)
    selected: list[int] = []
    passes = threading.Semaphore(0)

    def selector() -> str:
        selected.append(1)
        if len(selected) == 1:
            raise OSError("no answer from the hardware")
        return ""

    def sync() -> float:
        passes.release()
        return 60.0

    made = started(api, sync, selector)
    assert passes.acquire(timeout=10)
    assert passes.acquire(timeout=10), "the watch ended, and nobody woke the loop any more"
    made.stop()
    api.close()
    made.join(5)
