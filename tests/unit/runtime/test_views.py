"""Views are written by the leader alone."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from sharing_affinity.engine import PoolId, PoolLocks
from sharing_affinity.runtime.pacing import Pacer
from sharing_affinity.runtime.views import Views, view_name

DRIVER = "net.example.com"


class Server:
    """Keeps the names of views. ``between`` is called before every request."""

    def __init__(self, *views: str) -> None:
        self.views = set(views)
        self.asked: list[tuple[str, str]] = []
        self.between: Callable[[], None] = lambda: None

    async def request(self, method: str, path: str, **_: Any) -> Any:
        self.between()
        await asyncio.sleep(0)
        name = path.partition("/sharingaffinitypools/")[2].partition("/")[0]
        self.asked.append((method, name))
        if method == "PATCH":
            self.views.add(name)
        elif method == "DELETE":
            self.views.discard(name)
        return {"items": [{"metadata": {"name": name}} for name in sorted(self.views)]}


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
        await asyncio.sleep(0.05)
        assert {name for _, name in server.asked} == {view_name(*pool_id("node-0"))}
        await views.sweep(())
        assert "gone" in server.views

        # It leads again, and is told everything anew.
        server.between, lead.leading = lambda: None, True
        await asyncio.sleep(0.05)
        assert {name for _, name in server.asked if name} == {view_name(*pool_id("node-0"))}
