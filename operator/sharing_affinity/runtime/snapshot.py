"""One consistent look at a cluster, with the caller's own rights: for commands, not for the operator.

`read` lists what it is asked for and returns raw objects; `look` lists what the caller may see and says what
that leaves out; `follow` keeps an engine in step and tells when it changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from sharing_affinity.engine import Applied, Changes, Engine, Gone
from sharing_affinity.runtime.client import ApiError, Client
from sharing_affinity.runtime.kinds import CLAIMS, METADATA, SLICES, TAINT_RULES, Kind
from sharing_affinity.runtime.reflector import PAGE, Change, ListBegun, ListEnded, Reflector, Upsert

#: What the lock table follows from.
LOCK_KINDS = (SLICES, METADATA, TAINT_RULES, CLAIMS)


async def read(client: Client, kinds: Iterable[Kind]) -> list[dict[str, Any]]:
    """All objects of these kinds, with ``kind`` and ``apiVersion`` filled in. Raises `ApiError`,
    `NoAnswerError`."""

    lists = await asyncio.gather(*(_listed(client, kind) for kind in kinds))
    return [raw for objects in lists for raw in objects]


async def pages(client: Client, kind: Kind) -> AsyncIterator[dict[str, Any]]:
    """A consistent list of one kind, page by page. Raises `ApiError`, `NoAnswerError`."""
    params = {"limit": str(PAGE)}
    while True:
        page = await client.request("GET", kind.path, params=params)
        yield page
        if not (more := page["metadata"].get("continue")):
            return
        params["continue"] = more


async def _listed(client: Client, kind: Kind) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    typed = {"kind": kind.kind, "apiVersion": kind.group_version}
    try:
        async for page in pages(client, kind):
            found += [{**item, **typed} for item in page.get("items") or []]
    except ApiError as error:
        if error.status == 404 and kind.optional:
            return []
        raise
    return found


@dataclass(frozen=True, slots=True)
class Sight:
    """What a caller sees of some kinds: the objects, the kinds as they were read (perhaps within one
    namespace), and the kinds that were not, or not all, to be seen."""

    objects: list[dict[str, Any]]
    kinds: tuple[Kind, ...]
    unseen: tuple[Kind, ...]


async def look(client: Client, kinds: Iterable[Kind], namespace: str) -> Sight:
    """As `read`, but what the caller may not list is left out; of namespaced kinds ``namespace`` is tried
    then. Raises `ApiError` for anything but a lack of rights."""

    async def seen(kind: Kind) -> tuple[Kind | None, list[dict[str, Any]]]:
        tries = [kind, replace(kind, within=namespace)] if kind.namespaced else [kind]
        for attempt in tries:
            try:
                return attempt, await _listed(client, attempt)
            except ApiError as error:
                if error.status != 403:
                    raise
        return None, []

    asked = tuple(kinds)
    found = await asyncio.gather(*map(seen, asked))
    return Sight(
        [raw for _, objects in found for raw in objects],
        tuple(kind for kind, _ in found if kind is not None),
        tuple(kind or wanted for wanted, (kind, _) in zip(asked, found, strict=True) if kind is not wanted),
    )


def settle(engine: Engine) -> None:
    """Run all extractions that locks wait for."""
    while engine.extract(100):
        pass
    engine.settle()


async def follow(client: Client, engine: Engine, kinds: Iterable[Kind], now: float) -> AsyncIterator[None]:
    """Keep ``engine`` in step with the cluster; yields whenever the state is whole and has changed."""
    changed = asyncio.Event()
    listing = {kind.kind for kind in kinds}

    async def deliver(kind: Kind, changes: list[Change]) -> None:
        seen = Changes()
        for change in changes:
            match change:
                case ListBegun():
                    listing.add(kind.kind)
                case ListEnded():
                    listing.discard(kind.kind)
                    changed.set()
                case Upsert(raw):
                    seen = engine.observe(Applied(raw), now)
                case _:
                    seen = engine.observe(Gone(change.kind, change.namespace, change.name, change.uid), now)
            if seen.pools or seen.slices:
                changed.set()

    feeds = [Reflector(client, kind, deliver, random=Random()) for kind in kinds]
    tasks = [asyncio.create_task(feed.run()) for feed in feeds]
    try:
        while True:
            await changed.wait()
            # Changes come in bursts: one claim is several events.
            await asyncio.sleep(0.1)
            if listing:
                changed.clear()
                continue
            changed.clear()
            settle(engine)
            yield
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
