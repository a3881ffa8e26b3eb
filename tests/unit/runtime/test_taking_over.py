"""A new leader allocates nothing until every lost write is refuted, and says what keeps it from that."""

from __future__ import annotations

import asyncio

from harness import objects as o
from harness.controllers import Lead, controller, until
from structlog.testing import capture_logs

from sharing_affinity.runtime.client import ApiError
from sharing_affinity.runtime.kinds import CLAIMS
from sharing_affinity.runtime.reflector import FeedStatus, Upsert


class Feed:
    """Has listed everything."""

    kind = CLAIMS
    synced = fresh = True
    status = FeedStatus(synced=True)

    def age(self) -> float:
        return 0.0

    async def relist(self) -> None: ...


class Writer:
    """Somebody's policy is against any change of the claim, at first."""

    def __init__(self) -> None:
        self.refusing = True

    async def refute(self, namespace: str, name: str, uid: str) -> bool:
        if self.refusing:
            raise ApiError(403, "Forbidden", f"policy labels denies the request for {name}")
        return True


class Views:
    def reset(self) -> None: ...

    async def sweep(self, *_: object) -> None: ...


async def test_what_keeps_a_new_leader_from_allocating_is_told_once() -> None:
    writer = Writer()
    tested = controller(feeds=[Feed()], writer=writer, lead=Lead(leading=True, term=1), views=Views())
    claim = o.claim("stuck", "A", annotations={"sharingaffinity.dev/allocation": "{}"})
    with capture_logs() as logs:
        task = asyncio.create_task(tested.run())
        await tested.deliver(CLAIMS, [Upsert(claim)])
        await until(lambda: any(entry["log_level"] == "warning" for entry in logs))
        assert not tested._settled_term
        writer.refusing = False
        await until(lambda: tested._settled_term)
    task.cancel()
    await asyncio.wait([task], timeout=2)

    told = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [(entry["claim"], entry["problem"]) for entry in told] == [
        ("default/stuck", "403 Forbidden: policy labels denies the request for stuck")
    ]
