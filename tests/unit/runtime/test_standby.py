"""A standby keeps up with the cluster, and does and keeps no more than that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from harness import objects as o
from harness.controllers import Lead, controller, until

from sharing_affinity.engine import Applied
from sharing_affinity.runtime.kinds import CLAIMS, FEEDS
from sharing_affinity.runtime.reflector import Removal, Upsert


async def test_a_standby_rests_and_does_not_remember_what_it_need_not_show() -> None:
    tested = controller()
    turns = 0
    tidy = tested._tidy

    def count() -> None:
        nonlocal turns
        turns += 1
        tidy()

    tested._tidy = count  # type: ignore[method-assign]
    task = asyncio.create_task(tested.run())
    for raw in (o.metadata_slice(), o.device_slice()):
        kind = next(kind for kind in FEEDS if kind.kind == raw["kind"])
        meta = raw["metadata"]
        await tested.deliver(kind, [Upsert(raw), Removal(raw["kind"], "", meta["name"], meta["uid"])])
    await tested.ask(lambda engine: None)
    await asyncio.sleep(0.6)
    turns = 0
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.wait([task], timeout=2)

    assert turns < 10
    assert not tested._dirty_pools
    assert not tested._dirty_slices


async def test_a_standby_does_not_tell_later_what_its_leader_has_told() -> None:
    """Somebody tolerates the fence, for months."""
    tested = controller()
    task = asyncio.create_task(tested.run())
    for raw in (o.metadata_slice(), o.device_slice()):
        await tested.deliver(next(kind for kind in FEEDS if kind.kind == raw["kind"]), [Upsert(raw)])
    claim = o.claim("breach", "A")
    await tested.deliver(CLAIMS, [Upsert(claim), Upsert(o.allocated(claim))])
    await tested.ask(lambda engine: None)
    tested.poke()
    await until(lambda: tested._untold)
    task.cancel()
    await asyncio.wait([task], timeout=2)

    assert tested._engine.notices() == ()


class Told:
    """Takes views and Events, and keeps what Events are about."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def emit(self, about: Any, *_: object) -> None:
        self.names.append(about.name)

    def reset(self) -> None: ...

    async def sweep(self, *_: object) -> None: ...


@pytest.mark.parametrize(("later", "told"), [(20.0, ["breach"]), (40.0, [])])
async def test_a_breach_of_the_fence_while_nobody_leads_is_told(later: float, told: list[str]) -> None:
    """The leader has died, and its lease has still to run out."""
    lead, everything, now = Lead(), Told(), 1000.0
    clock: Callable[[], float] = lambda: now  # noqa: E731
    tested = controller(lead=lead, recorder=everything, views=everything, clock=clock)
    claim = o.claim("breach", "A")
    for raw in (o.metadata_slice(), o.device_slice(), claim, o.allocated(claim)):
        tested._engine.observe(Applied(raw), now)
    tested._follow_leadership()
    now += later
    tested._follow_leadership()
    lead.leading = True
    tested._settle(tested._engine, 1, 0)
    await asyncio.sleep(0)

    assert everything.names == told
