"""Pacing: token buckets and back-off, as values without a clock of their own.

The API server is shared with everybody, so claims are written at ``--kube-api-qps`` with bursts of
``--kube-api-burst``, and everything that is only a view (Events, conditions, pool tables) has a small
bucket of its own: a storm of Events can delay Events, never an allocation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from random import Random


class TokenBucket:
    """``rate`` tokens per second, at most ``burst`` saved up. Times are seconds of any monotonic clock."""

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError("rate must be positive and burst at least 1")
        self.rate, self.burst = rate, burst
        self._tokens = burst
        self._at: float | None = None

    def reserve(self, now: float) -> float:
        """Take one token; the seconds to wait before acting on it (0.0 when it was there)."""
        if self._at is not None:
            self._tokens = min(self.burst, self._tokens + max(0.0, now - self._at) * self.rate)
        self._at = now
        self._tokens -= 1
        return 0.0 if self._tokens >= 0 else -self._tokens / self.rate

    def try_take(self, now: float) -> bool:
        """Take one token if there is one."""
        if self.reserve(now) == 0.0:
            return True
        self._tokens += 1
        return False


class Pacer:
    """A token bucket to await."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = TokenBucket(rate, burst)
        self._clock = clock

    async def wait(self) -> None:
        """Return when one more request may be sent."""
        delay = self._bucket.reserve(self._clock())
        if delay > 0:
            await asyncio.sleep(delay)


def backoff(random: Random, first: float = 0.5, limit: float = 30.0, factor: float = 2.0) -> Iterator[float]:
    """Endless delays in seconds: ``first``, doubled up to ``limit``, each with up to 50 % jitter on top."""
    delay = first
    while True:
        yield delay * (1 + random.random() / 2)
        delay = min(limit, delay * factor)
