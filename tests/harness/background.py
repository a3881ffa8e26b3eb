"""Something that goes on beside a test: pods that come and go, a look that is taken all the time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from e2e.cluster import wait_for

T = TypeVar("T")


class Background(threading.Thread, Generic[T]):
    """``with Background("load", step) as load:`` calls ``step`` with 0, 1, ... until the end of the block.

    ``results`` has what it returned. It ends with the first exception, which ``problem`` holds. ``pause``:
    seconds between two calls; ``patience``: seconds that the last one may take to end.
    """

    def __init__(
        self, name: str, step: Callable[[int], T], *, pause: float = 0.0, patience: float = 120.0
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._step, self._pause, self._patience = step, pause, patience
        self._ending = threading.Event()
        self.results: list[T] = []
        self.problem: BaseException | None = None

    def __enter__(self) -> Background[T]:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join(self._patience)

    def run(self) -> None:
        try:
            while not self._ending.wait(self._pause):
                self.results.append(self._step(len(self.results)))
        except BaseException as error:
            self.problem = error

    def more(self, count: int, seconds: float) -> None:
        """Wait until that many more calls have ended well, for ``seconds`` at most."""
        wanted = len(self.results) + count
        wait_for(f"{self.name} goes on", lambda: self.problem or len(self.results) >= wanted, seconds)
        assert self.problem is None
