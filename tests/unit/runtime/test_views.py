"""Views are written by the leader alone, and those of pools that are there stay."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from harness.controllers import until

from sharing_affinity.engine import PoolId, PoolLocks
from sharing_affinity.runtime.pacing import Pacer
from sharing_affinity.runtime.views import Views, view_name

DRIVER = "net.example.com"


class Server:
    """Keeps the names of views. ``between`` is called before every request."""

    def __init__(self, *pools: str) -> None:
        self.pools = {view_name(*pool_id(pool)): pool for pool in pools}
        self.views = set(self.pools)
        self.asked: list[tuple[str, str]] = []
        self.between: Callable[[], None] = lambda: None
        self.pause: dict[str, float] = {}

    async def request(self, method: str, path: str, **_: Any) -> Any:
        self.between()
        await asyncio.sleep(self.pause.get(method, 0.0))
        name = path.partition("/sharingaffinitypools/")[2].partition("/")[0]
        self.asked.append((method, name))
        if method == "PATCH":
            self.views.add(name)
        elif method == "DELETE":
            self.views.discard(name)
        return {"items": [self.view(name) for name in sorted(self.views)]}

    def view(self, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": self.pools.get(name, "")}}


class Lead:
    leading = True


def locks(pool: str) -> PoolLocks:
    return PoolLocks(DRIVER, pool, 1, pool, True, "Joined", "", (), ())


def pool_id(pool: str) -> PoolId:
    return (DRIVER, pool)


@asynccontextmanager
async def running(server: Server, lead: Lead) -> AsyncIterator[Views]:
    views = Views(
        cast(Any, server),
        pacer=Pacer(1000, 1000),
        wall=lambda: datetime.datetime.now(datetime.UTC),
        leading=lambda: lead.leading,
        interval=0.001,
    )
    task = asyncio.create_task(views.run())
    yield views
    task.cancel()
    await asyncio.wait([task])


async def test_who_leads_no_more_writes_no_views() -> None:
    """A late one would stand beside the new leader's, which does not write again what it has written."""
    server, lead = Server("gone"), Lead()

    def lose() -> None:
        lead.leading = False

    server.between = lose
    async with running(server, lead) as views:
        pools = [f"node-{number}" for number in range(5)]
        views.show_pools(map(pool_id, pools), map(locks, pools))
        await until(lambda: server.asked)
        await asyncio.sleep(0.05)
        assert {name for _, name in server.asked} == {view_name(*pool_id("node-0"))}
        await views.sweep(())
        assert view_name(*pool_id("gone")) in server.views

        # It leads again, and is told everything anew.
        server.between, lead.leading = lambda: None, True
        await asyncio.sleep(0.05)
        assert {name for _, name in server.asked if name} == {view_name(*pool_id("node-0"))}


async def test_a_pool_that_comes_back_during_the_sweep_keeps_its_view() -> None:
    """The list of views is old when the last of many is deleted."""
    back = view_name(*pool_id("zz"))
    server, lead = Server("gone", "zz"), Lead()
    async with running(server, lead) as views:

        def show() -> None:
            if server.asked == [("GET", "")]:
                views.show_pools([pool_id("zz")], [locks("zz")])

        server.between = show
        server.pause["DELETE"] = 0.05
        await views.sweep(())
        assert server.views == {back}


async def test_views_of_many_pools_leave_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rule may concern every pool of the cluster, and change none of their views."""
    seen: list[int] = []
    turns = 0

    async def unchanged(*_: object) -> None:
        seen.append(turns)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    async with running(Server(), Lead()) as views:
        monkeypatch.setattr(views, "_pool", unchanged)
        pools = [f"node-{number}" for number in range(50)]
        views.show_pools(map(pool_id, pools), map(locks, pools))
        await until(lambda: len(seen) == len(pools))
    task.cancel()
    assert len(set(seen)) == len(pools)
