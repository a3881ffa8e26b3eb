"""Everything that waits must end when it is told to, also when news comes in the same moment."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

import pytest

from sharing_affinity.engine import Engine, Options
from sharing_affinity.runtime.controller import Controller
from sharing_affinity.runtime.kinds import CLAIMS
from sharing_affinity.runtime.metrics import Metrics
from sharing_affinity.runtime.reflector import Reflector


class Standby:
    """Never leads."""

    leading = False
    term = 0


def controller() -> Controller:
    """One that writes nothing, since it does not lead."""
    nothing = cast(Any, None)
    return Controller(
        Engine(Options()),
        writer=nothing,
        lead=Standby(),
        recorder=nothing,
        conditions=nothing,
        views=nothing,
        metrics=Metrics(),
    )


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
