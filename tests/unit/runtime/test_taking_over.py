"""A new leader allocates nothing until every lost write is refuted, and says what keeps it from that."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from harness import objects as o
from structlog.testing import capture_logs

from sharing_affinity.engine import Engine, Options
from sharing_affinity.runtime.client import ApiError
from sharing_affinity.runtime.controller import Controller
from sharing_affinity.runtime.kinds import CLAIMS
from sharing_affinity.runtime.metrics import Metrics
from sharing_affinity.runtime.reflector import FeedStatus, Upsert


class Lead:
    leading = True
    term = 1
    since = 0.0


class Feed:
    """Has listed everything."""

    kind = CLAIMS
    synced = fresh = True
    status = FeedStatus(synced=True)

    def age(self) -> float:
        return 0.0

    async def relist(self) -> None: ...


class Writer:
    """Somebody's policy is against any change of the claim, at first."""

    def __init__(self) -> None:
        self.refusing = True

    async def refute(self, namespace: str, name: str, uid: str) -> bool:
        if self.refusing:
            raise ApiError(403, "Forbidden", f"policy labels denies the request for {name}")
        return True


class Views:
    def reset(self) -> None: ...

    async def sweep(self, *_: object) -> None: ...


async def test_what_keeps_a_new_leader_from_allocating_is_told_once() -> None:
    writer, nothing = Writer(), cast(Any, None)
    tested = Controller(
        Engine(Options()),
        feeds=[cast(Any, Feed())],
        writer=cast(Any, writer),
        lead=Lead(),
        recorder=nothing,
        conditions=nothing,
        views=cast(Any, Views()),
        metrics=Metrics(),
    )
    claim = o.claim("stuck", "A", annotations={"sharingaffinity.dev/allocation": "{}"})
    with capture_logs() as logs:
        task = asyncio.create_task(tested.run())
        await tested.deliver(CLAIMS, [Upsert(claim)])
        async with asyncio.timeout(60):
            while not any(e["log_level"] == "warning" for e in logs):  # noqa: ASYNC110 - the log
                await asyncio.sleep(0.05)
        assert not tested._settled_term
        writer.refusing = False
        async with asyncio.timeout(60):
            while not tested._settled_term:  # noqa: ASYNC110 - the controller's own state
                await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task], timeout=2)

    told = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [(entry["claim"], entry["problem"]) for entry in told] == [
        ("default/stuck", "403 Forbidden: policy labels denies the request for stuck")
    ]
