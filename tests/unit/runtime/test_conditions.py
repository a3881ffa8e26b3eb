"""The condition of pods tells what is, not what another leader has seen to since."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any, cast

from harness import objects as o

from sharing_affinity.runtime.conditions import PodConditions
from sharing_affinity.runtime.pacing import Pacer

POD = ("default", "pod")


class Server:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **_: Any) -> Any:
        self.asked.append(f"{method} {path}")
        return {}


async def test_a_pod_that_runs_is_not_told_to_wait_by_a_leader_of_old() -> None:
    """Its claims could not be allocated when the lease was lost; the next leader could."""
    server, leading = Server(), False
    conditions = PodConditions(
        cast(Any, server),
        pacer=Pacer(1000, 1000),
        clock=lambda: asyncio.get_running_loop().time(),
        wall=lambda: datetime.datetime.now(datetime.UTC),
        leading=lambda: leading,
        settle=0.0,
    )
    task = asyncio.create_task(conditions.run())
    pending = o.pod("pod")
    conditions.observed(POD, pending)
    conditions.failed(POD, pending["metadata"]["uid"], "FailedAffinityAllocation", "0/1 nodes are available")
    await asyncio.sleep(0.05)
    conditions.observed(POD, o.pod("pod", nodeName="node-a", status={"phase": "Running"}))
    leading = True
    await asyncio.sleep(0.6)
    task.cancel()
    await asyncio.wait([task])

    assert server.asked == []
