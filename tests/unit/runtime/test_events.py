"""Events about what goes on come back when somebody has deleted them."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any, cast

from sharing_affinity.runtime.client import ApiError
from sharing_affinity.runtime.events import About, Recorder
from sharing_affinity.runtime.pacing import Pacer

POD = About("Pod", "default", "pod", "uid")


class Server:
    def __init__(self) -> None:
        self.events: set[str] = set()
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **request: Any) -> Any:
        self.asked.append(method)
        if method == "POST":
            self.events.add(request["body"]["metadata"]["name"])
            return request["body"]
        if path.rpartition("/")[2] not in self.events:
            raise ApiError(404, "NotFound", "no such event")
        return {}


async def test_an_event_that_was_deleted_is_made_anew() -> None:
    server, now = Server(), 0.0
    recorder = Recorder(
        cast(Any, server),
        pacer=Pacer(1000, 1000),
        identity="me",
        namespace="system",
        clock=lambda: now,
        wall=lambda: datetime.datetime.now(datetime.UTC),
        new_id=lambda: str(len(server.asked)),
    )
    task = asyncio.create_task(recorder.run())
    for deleted in (False, False, True, False):
        if deleted:
            server.events.clear()
        recorder.emit(POD, "NoDevice", "waits for a device")
        await recorder.flush(1.0)
        now += 61.0
    task.cancel()
    await asyncio.wait([task])

    assert server.asked == ["POST", "PATCH", "PATCH", "POST", "PATCH"]
    assert len(server.events) == 1
