"""The campaign for the Lease goes on, whatever it meets."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

from sharing_affinity.runtime.client import AccessError, ApiError, Client
from sharing_affinity.runtime.lease import Elector, Timing


class Server:
    """Has no Lease yet. The first ``failures`` attempts find no credentials."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def request(self, method: str, path: str, **request: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise AccessError("no usable credentials for a cluster: the plugin has failed")
        if method == "GET":
            raise ApiError(404, "NotFound", "no such lease")
        return {**request["body"], "metadata": {"resourceVersion": "1"}}


async def test_credentials_that_come_late_are_waited_for() -> None:
    server = Server(failures=3)
    elector = Elector(
        lambda: cast(Client, server),
        namespace="system",
        name="operator",
        identity="me",
        timing=Timing(duration=5.0, renew=4.0, retry=0.05),
        random=Random(1),
    )
    elector.start()
    try:
        async with asyncio.timeout(10):
            while not elector.leading:  # noqa: ASYNC110 - another thread's state
                await asyncio.sleep(0.01)
    finally:
        elector.stop(release=False)
    assert server.failures == 0


class PausedServer:
    """The process stops for longer than its renew deadline, before its third write. Nobody else campaigns."""

    def __init__(self, pause: float) -> None:
        self.now, self.writes, self._pause = 0.0, 0, pause
        self.lease: dict[str, Any] | None = None

    async def __aenter__(self) -> PausedServer:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def request(self, method: str, path: str, **request: Any) -> Any:
        if method != "GET":
            self.writes += 1
            self.lease = {**request["body"], "metadata": {"resourceVersion": str(self.writes)}}
        elif self.writes == 2:
            self.now += self._pause
        if self.lease is None:
            raise ApiError(404, "NotFound", "no such lease")
        return self.lease


async def test_a_renewal_that_comes_after_the_deadline_begins_a_new_term() -> None:
    """Meanwhile writes were given up and views dropped; only a new term settles and tells all that."""
    timing = Timing(duration=15.0, renew=10.0, retry=0.05)
    server = PausedServer(timing.renew + 1.0)
    told: list[tuple[bool, int]] = []
    elector = Elector(
        lambda: cast(Client, server),
        namespace="system",
        name="operator",
        identity="me",
        timing=timing,
        changed=lambda: told.append((elector.leading, elector.term)),
        random=Random(1),
        clock=lambda: server.now,
    )
    elector.start()
    try:
        async with asyncio.timeout(10):
            while server.writes < 5:  # noqa: ASYNC110 - another thread's state
                await asyncio.sleep(0.01)
    finally:
        elector.stop(release=False)
    assert told[:3] == [(True, 1), (False, 1), (True, 2)]
