"""The one loop is never held for long: not by a relist of ten thousand claims, nor by their audit, nor by an
extractor that is as costly as admission allows, a new kind of request on a large cluster, a rule for all its
pools, or a search that does not end.

What is measured is the CPU time the loop's own thread spends from one turn of the loop to the next. Other
processes do not count, so a busy machine does not fail the test; other threads do not count either, so
probes are timed as well, by the wall clock.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from harness import objects as o
from harness.controllers import until

from sharing_affinity.engine import Engine, Options, Reason
from sharing_affinity.runtime import audit
from sharing_affinity.runtime.conditions import PodConditions
from sharing_affinity.runtime.controller import Controller
from sharing_affinity.runtime.events import Recorder
from sharing_affinity.runtime.kinds import CLAIMS, FEEDS
from sharing_affinity.runtime.metrics import Metrics
from sharing_affinity.runtime.pacing import Pacer
from sharing_affinity.runtime.reflector import Known, ListBegun, ListEnded, _slices
from sharing_affinity.runtime.replica import tune_collector
from sharing_affinity.runtime.views import Views

CLAIM_COUNT = 10_000
NODES = 50
BOUND = 0.3
"""Seconds of CPU: three times the 100 ms that are promised, for machines that are slower or shared. Measured
are 20 to 80 ms, the most of it by the garbage collector."""

Json = dict[str, Any]


class Leader:
    """Leads for ever, and has settled its term."""

    leading = True
    term = 0
    since = 0.0


class Holds:
    """Watches the loop it is made in."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.gap = 0.0

    async def watch(self) -> None:
        while True:
            cpu, wall = time.thread_time(), time.monotonic()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - cpu)
            self.gap = max(self.gap, time.monotonic() - wall)
            # Let the other threads have the interpreter.
            await asyncio.sleep(0.001)


@asynccontextmanager
async def watched(what: str) -> AsyncIterator[Holds]:
    holds = Holds()
    task = asyncio.create_task(holds.watch())
    await asyncio.sleep(0)
    try:
        yield holds
    finally:
        task.cancel()
        print(f"{what}: held for {holds.longest * 1000:.1f} ms of CPU, {holds.gap * 1000:.1f} ms in all")


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The garbage collector as the operator's process has it."""
    before = gc.get_threshold()
    gc.collect()
    tune_collector()
    yield
    gc.set_threshold(*before)


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    nothing = cast(Any, None)
    pacer = Pacer(1, 1)

    def wall() -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    made = Controller(
        Engine(Options(fence_settle=0)),
        writer=nothing,
        lead=Leader(),
        recorder=Recorder(
            nothing, pacer=pacer, identity="x", namespace="x", clock=time.monotonic, wall=wall, new_id=str
        ),
        conditions=PodConditions(
            nothing, pacer=pacer, clock=time.monotonic, wall=wall, leading=lambda: False
        ),
        views=Views(nothing, pacer=pacer, wall=wall, leading=lambda: False),
        metrics=Metrics(),
    )
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.wait([task])


async def observe(controller: Controller, *raws: Json) -> None:
    for raw in raws:
        kind = next(kind for kind in FEEDS if kind.kind == raw["kind"])
        known = Known(kind)
        known.begin()
        await controller.deliver(kind, known.page([raw]))


async def publish(controller: Controller, nodes: int = NODES) -> None:
    await observe(controller, o.device_class())
    for number in range(nodes):
        name = f"node-{number:02}"
        devices = [o.device(f"eth{index}", slots="64") for index in range(8)]
        await observe(
            controller, o.node(name), o.metadata_slice(pool=name), o.device_slice(devices, pool=name)
        )


def held(number: int) -> Json:
    """An allocated and reserved claim."""
    pool, device = f"node-{number % NODES:02}", f"eth{number // NODES % 8}"
    raw = o.allocated(o.claim(f"c{number}", device), device, pool=pool)
    raw["status"]["reservedFor"] = [{"resource": "pods", "name": f"p{number}", "uid": f"p{number}"}]
    raw["metadata"]["resourceVersion"] = str(1000 + number)
    return raw


async def relist(controller: Controller, known: Known, claims: list[Json]) -> None:
    """As the reflector delivers it: pages of 500, a hundred changes at a time."""
    known.begin()
    await controller.deliver(CLAIMS, [ListBegun()])
    for start in range(0, len(claims), 500):
        for changes in _slices(known.page(claims[start : start + 500])):
            await controller.deliver(CLAIMS, changes)
            await asyncio.sleep(0)
    await controller.deliver(CLAIMS, [*known.end("100000"), ListEnded()])
    await controller.ask(lambda engine: None)


async def test_a_relist_and_an_audit_of_ten_thousand_claims(controller: Controller) -> None:
    await publish(controller)
    claims = [held(number) for number in range(CLAIM_COUNT)]
    known = Known(CLAIMS)
    async with watched("first list") as first:
        await relist(controller, known, claims)
        await asyncio.sleep(1.0)
    async with watched("relist, half of it new") as again:
        for raw in claims[::2]:
            raw["metadata"]["resourceVersion"] = str(int(raw["metadata"]["resourceVersion"]) + 50_000)
        await relist(controller, known, claims)
        await asyncio.sleep(1.0)
    async with watched("relist, half of it gone") as gone:
        await relist(controller, known, claims[::2])
        await asyncio.sleep(1.0)
    async with watched("audit") as audited:
        differences = await audit.compare(controller, claims[::2], "100000")
        controller.tell(await controller.ask(Engine.misplaced))

    before = await controller.ask(Engine.fingerprint)
    async with watched("rebuild") as rebuilt:
        await controller.repair()
    assert await controller.ask(Engine.fingerprint) == before

    assert differences == ()
    table = await controller.ask(Engine.lock_table)
    assert sum(len(d.holders) for locks in table for d in locks.devices) == CLAIM_COUNT / 2
    for holds in (first, again, gone, audited, rebuilt):
        assert holds.longest < BOUND


async def test_an_audit_in_steps_finds_what_a_whole_one_finds(controller: Controller) -> None:
    await publish(controller)
    claims = [held(number) for number in range(500)]
    known = Known(CLAIMS)
    await relist(controller, known, claims)
    # One claim that memory never saw, and one that the list does not have.
    listed = [*claims[1:], held(600)]
    differences = await audit.compare(controller, listed, "100000")

    assert len(differences) == 2
    assert differences == await controller.ask(lambda engine: engine.audit(listed, "100000"))


async def test_a_hostile_extractor_leaves_the_loop_to_others(controller: Controller) -> None:
    inner = ", ".join(map(str, range(1, 13)))
    costly = {
        "name": "subnet",
        "expression": f'object.list.all(a, [{inner}].all(x, x > 0)) ? object.name : ""',
    }
    await observe(
        controller, o.device_class(), o.node(), o.metadata_slice([costly]), o.device_slice(), o.node("node-b")
    )
    hostile = o.claim("hostile")
    hostile["spec"]["devices"]["config"] = [
        o.config({"name": "a", "config": index, "list": [1] * 5000}) for index in range(32)
    ]
    async with watched("hostile extractor") as holds:
        await observe(controller, hostile, o.pod("hostile"))
        evaluated = controller._metrics.extractor_evaluations
        started = time.monotonic()
        while evaluated._value.get() < 3 and time.monotonic() - started < 30:  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0.01)
        assert evaluated._value.get() >= 3

    assert holds.longest < BOUND
    # The interpreter switches between threads: nobody waits for an evaluation to end.
    assert holds.gap < 2.0


def reasons(controller: Controller) -> Counter[Reason]:
    return Counter(parked.reason for parked in controller._parked.values())


async def test_new_kinds_of_requests_and_a_rule_on_a_large_cluster(controller: Controller) -> None:
    await publish(controller, 600)
    wanted = [o.request(selectors=[o.cel(f"device.driver != 'x{kind}'")], slots="65") for kind in range(8)]
    async with watched("eight new kinds of requests") as kinds:
        for number, request in enumerate(wanted):
            await observe(controller, o.claim(f"p{number}", "A", requests=[request]), o.pod(f"p{number}"))
        await until(lambda: reasons(controller)[Reason.NO_NODE] == len(wanted))
    async with watched("a rule for all pools") as rule:
        await observe(
            controller,
            {
                "apiVersion": "resource.k8s.io/v1beta2",
                "kind": "DeviceTaintRule",
                "metadata": o.meta("broken"),
                "spec": {
                    "deviceSelector": {"driver": o.DRIVER},
                    "taint": {"key": "example.com/broken", "effect": "NoSchedule"},
                },
            },
        )
        published = controller._engine._world.published
        await until(lambda: "broken" in published.rules and not published.stale)
    assert kinds.longest < BOUND
    assert rule.longest < BOUND


async def test_a_search_without_an_end_leaves_the_loop_to_others(controller: Controller) -> None:
    """Two requests of one claim can never have what they ask for; all pairs of devices are tried."""
    devices = [o.device(f"eth{i}", slots="64", attributes={"index": {"int": i}}) for i in range(64)]
    await observe(controller, o.device_class(), o.node(), o.metadata_slice(), o.device_slice(devices))
    wanted = [o.request(f"r{i}") for i in range(8)]
    claim = o.claim("hostile", "A", requests=wanted, constraints=[{"distinctAttribute": f"{o.DRIVER}/index"}])
    claim["spec"]["devices"]["requests"].append(o.request("never", slots="65"))
    async with watched("search without an end") as holds:
        await observe(controller, claim, o.pod("hostile"))
        await until(lambda: bool(reasons(controller)[Reason.NO_NODE]))
    assert holds.longest < BOUND
    assert holds.gap < 2.0
