"""What happens to pods and claims while an allocation is being written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from harness import objects as o
from harness.controllers import Lead, controller, until

from sharing_affinity.engine import Applied, ClaimWrite, Decision, Engine, Options, PodKey
from sharing_affinity.runtime.controller import Controller
from sharing_affinity.runtime.kinds import FEEDS, PODS
from sharing_affinity.runtime.reflector import Removal, Upsert
from sharing_affinity.runtime.writer import Outcome, Result


class Silent:
    """Takes Events, conditions and views, and does nothing with them."""

    def __getattr__(self, _: str) -> Callable[..., bool]:
        return lambda *_args, **_more: False


class Writer:
    """Answers a write when it is told how that ends."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, asyncio.Future[Outcome]] = {}

    async def write(self, order: ClaimWrite, _finalizers: object) -> Result:
        answer = self._answers[order.name] = asyncio.get_running_loop().create_future()
        self.asked.append(order.name)
        return Result(order.uid, await answer, resource_version=order.resource_version)

    async def refute(self, *_: object) -> bool:
        return True

    def end(self, name: str, outcome: Outcome) -> None:
        self._answers[name].set_result(outcome)


@asynccontextmanager
async def running(writer: Writer, engine: Engine) -> AsyncIterator[Controller]:
    silent = Silent()
    for raw in (o.device_class(), o.node(), o.metadata_slice(), o.device_slice()):
        engine.observe(Applied(raw), time.time())
    lead = Lead(leading=True)
    tested = controller(engine, writer=writer, lead=lead, recorder=silent, conditions=silent, views=silent)
    task = asyncio.create_task(tested.run())
    yield tested
    task.cancel()
    await asyncio.wait([task], timeout=2)


async def observe(tested: Controller, *raws: dict[str, Any]) -> None:
    for raw in raws:
        await tested.deliver(next(kind for kind in FEEDS if kind.kind == raw["kind"]), [Upsert(raw)])


async def test_a_pod_of_the_same_name_that_comes_during_the_write_has_its_turn() -> None:
    """A StatefulSet's pod is deleted and made anew while the claim of the first is being written."""
    writer = Writer()
    async with running(writer, Engine(Options(fence_settle=0))) as tested:
        await observe(tested, o.claim("first", "A"), o.pod("web-0", ["first"], uid="one"))
        await until(lambda: writer.asked == ["first"])
        await tested.deliver(PODS, [Removal("Pod", "default", "web-0", "one")])
        await observe(tested, o.claim("second", "A"), o.pod("web-0", ["second"], uid="two"))
        await tested.ask(lambda engine: None)
        await until(lambda: not tested._ready)
        writer.end("first", Outcome.WRITTEN)

        await until(lambda: writer.asked == ["first", "second"])


async def test_a_pod_that_goes_during_a_write_that_fails_is_not_remembered() -> None:
    writer = Writer()
    async with running(writer, Engine(Options(fence_settle=0))) as tested:
        await observe(tested, o.claim("first", "A"), o.pod("job", ["first"], uid="one"))
        await until(lambda: writer.asked == ["first"])
        await tested.deliver(PODS, [Removal("Pod", "default", "job", "one")])
        writer.end("first", Outcome.CONFLICT)
        await until(lambda: not tested._outcomes)

        assert not tested._parked


class Meanwhile(Engine):
    """Something happens while a certain pod is being decided on."""

    def __init__(self) -> None:
        super().__init__(Options(fence_settle=0))
        self.pod: PodKey | None = None
        self.happens: Callable[[], None] = lambda: None

    def decide(self, pod: PodKey, now: float, new_uuid: Callable[[], str]) -> Decision:
        decision = super().decide(pod, now, new_uuid)
        if pod == self.pod:
            self.pod = None
            self.happens()
        return decision


async def test_a_write_waits_for_one_that_fails_while_it_is_decided() -> None:
    """Two pods share a claim. The second decision relies on a write that has failed, which the engine is not
    told yet: its own claim must not be written for a node that the shared one need not go to."""
    writer, engine, loop = Writer(), Meanwhile(), asyncio.get_running_loop()
    async with running(writer, engine) as tested:

        async def fail() -> None:
            writer.end("shared", Outcome.CONFLICT)
            await until(lambda: not tested._writing)

        await observe(tested, o.claim("shared", "A"), o.pod("one", ["shared"]))
        await until(lambda: writer.asked == ["shared"])
        engine.pod = ("default", "two")
        engine.happens = lambda: asyncio.run_coroutine_threadsafe(fail(), loop).result(5)
        await observe(tested, o.claim("own", "A"), o.pod("two", ["shared", "own"]))

        await until(lambda: len(writer.asked) > 1)
        assert writer.asked[1] == "shared"
