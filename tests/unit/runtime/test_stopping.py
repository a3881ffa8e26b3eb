"""Everything that waits must end when it is told to, also when news comes in the same moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from harness import objects as o
from harness.controllers import Lead, controller

from sharing_affinity.engine import Applied, Decision, Engine, Options, Placed, PodKey
from sharing_affinity.runtime.kinds import CLAIMS
from sharing_affinity.runtime.reflector import Reflector


@pytest.mark.parametrize("turns", range(6))
async def test_a_controller_that_gets_news_while_it_is_cancelled_ends(turns: int) -> None:
    tested = controller()
    task = asyncio.create_task(tested.run())
    await asyncio.sleep(0.02)
    tested.poke()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=2)

    assert task.cancelled()


@pytest.mark.parametrize("turns", range(6))
async def test_a_feed_that_is_to_list_while_it_is_cancelled_ends(turns: int) -> None:
    class Refusing:
        async def request(self, *_: object, **__: object) -> object:
            from sharing_affinity.runtime.client import NoAnswerError

            raise NoAnswerError("nobody there", sent=False)

    async def deliver(*_: object) -> None: ...

    feed = Reflector(cast(Any, Refusing()), CLAIMS, deliver, random=Random(1))
    task = asyncio.create_task(feed.run())
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(feed.relist())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    waiting.cancel()
    await asyncio.wait([task], timeout=2)

    assert task.cancelled()


async def test_what_does_not_end_in_time_is_cut_short_and_told() -> None:
    tested = controller()
    hung = asyncio.create_task(asyncio.sleep(60))
    tested._writing["ns", "pod"] = cast(Any, hung)

    assert await tested.stop(0.05) is False
    await asyncio.wait([hung], timeout=1)
    assert hung.cancelled()


class Ending(Engine):
    """Comes to an end in the middle of a decision."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__(Options(fence_settle=0))
        self.end = end

    def decide(self, pod: PodKey, now: float, new_uuid: Callable[[], str]) -> Decision:
        decision = super().decide(pod, now, new_uuid)
        if isinstance(decision, Placed):
            self.end()
        return decision


class Writing:
    """A writer that must not be asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def write(self, *_: object) -> object:
        self.asked += 1
        raise AssertionError


@pytest.mark.parametrize("how", ["stop", "lease"])
async def test_what_is_decided_when_the_end_comes_is_not_written(how: str) -> None:
    """Decisions are made in a thread; the end may come meanwhile."""
    lead, writer = Lead(leading=True), Writing()
    decided = threading.Event()

    def end() -> None:
        if how == "stop":
            asyncio.run_coroutine_threadsafe(tested.stop(1), loop).result(5)
        else:
            lead.leading = False
        decided.set()

    loop = asyncio.get_running_loop()
    engine = Ending(end)
    for raw in (
        o.device_class(),
        o.node(),
        o.metadata_slice(),
        o.device_slice(),
        o.claim("p", "A"),
        o.pod("p"),
    ):
        engine.observe(Applied(raw), 1.0)
    tested = controller(engine, writer=writer, lead=lead)
    tested._ready.update(engine.pods())
    task = asyncio.create_task(tested.run())
    async with asyncio.timeout(10):
        while not decided.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)
        while engine.assumed():  # noqa: ASYNC110 - the controller's turn
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task], timeout=2)

    assert writer.asked == 0
    assert not tested._writing
    assert not engine.lock_table()[0].devices[0].holders
