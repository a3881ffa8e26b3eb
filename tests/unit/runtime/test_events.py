"""Events about what goes on come back when somebody has deleted them or they could not be written."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any, cast

from sharing_affinity.runtime.client import ApiError, NoAnswerError
from sharing_affinity.runtime.events import About, Recorder
from sharing_affinity.runtime.pacing import Pacer

POD = About("Pod", "default", "pod", "uid")


class Server:
    def __init__(self) -> None:
        self.events: set[str] = set()
        self.asked: list[str] = []
        self.away = False

    async def request(self, method: str, path: str, **request: Any) -> Any:
        self.asked.append(method)
        if self.away:
            raise NoAnswerError("no answer in 30.0 s")
        if method == "POST":
            self.events.add(request["body"]["metadata"]["name"])
            return request["body"]
        if path.rpartition("/")[2] not in self.events:
            raise ApiError(404, "NotFound", "no such event")
        return {}


def recorder_for(server: Server, clock: Callable[[], float]) -> Recorder:
    return Recorder(
        cast(Any, server),
        pacer=Pacer(1000, 1000),
        identity="me",
        namespace="system",
        clock=clock,
        wall=lambda: datetime.datetime.now(datetime.UTC),
        new_id=lambda: str(len(server.asked)),
    )


async def test_an_event_that_was_deleted_is_made_anew() -> None:
    server, now = Server(), 0.0
    recorder = recorder_for(server, lambda: now)
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


async def test_an_event_that_could_not_be_written_is_written_with_the_next_repetition() -> None:
    server, now = Server(), 0.0
    recorder = recorder_for(server, lambda: now)
    task = asyncio.create_task(recorder.run())
    for server.away in (True, False, False):
        recorder.emit(POD, "NoDevice", "waits for a device")
        await recorder.flush(1.0)
        now += 61.0
    task.cancel()
    await asyncio.wait([task])

    assert server.asked == ["POST", "POST", "PATCH"]
    assert len(server.events) == 1
