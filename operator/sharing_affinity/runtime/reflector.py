"""List and watch: what the API server holds of one kind, as a stream of changes in the server's order.

Why our own: kopf never reports objects that vanished while it relisted, which would leave ghost
allocations, and the official client's watch re-encodes every object and loses the relist after 410.

Two halves. `Known` is pure: it remembers names, uids and resourceVersions and turns lists and watch events
into changes, deletions included; duplicates and late events become nothing. `Reflector` does the I/O and
survives all of it: connections that are cut or fall silent, 410, 429, 5xx, 403, a kind that is not served
(yet), lines that are not JSON. It resumes from the last resourceVersion it has *delivered* and relists only
when the server no longer has that.

Delivery is awaited, so a slow consumer slows the socket down instead of filling memory. Freshness is a
clock the consumer can read: the age of the last thing the server said on this feed, bookmarks included.
While a list is being read the feed counts as not synced, since half a list is a state that never was.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import structlog

from sharing_affinity.runtime.client import ApiError, Client, NoAnswerError
from sharing_affinity.runtime.kinds import Kind
from sharing_affinity.runtime.pacing import backoff

PAGE: Final = 500

log = structlog.get_logger("reflector")


@dataclass(frozen=True, slots=True)
class Upsert:
    """An object as the server has it now: raw JSON, with ``kind`` and ``apiVersion`` filled in."""

    raw: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Removal:
    """An object that is no more (or left the selection)."""

    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ListBegun:
    """What follows is a list: until it has ended, the state in between is one that never was."""


@dataclass(frozen=True, slots=True)
class ListEnded:
    """The list is complete; deletions it implies came before this."""


Change = Upsert | Removal | ListBegun | ListEnded


class Known:
    """What was last delivered of one kind, and what a list or an event changes about it."""

    __slots__ = ("_kind", "_objects", "_seen", "resource_version")

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._objects: dict[tuple[str, str], tuple[str, int]] = {}
        self._seen: set[tuple[str, str]] | None = None
        #: The point in the server's history this state stands for; 0 before the first list.
        self.resource_version = 0

    def __len__(self) -> int:
        return len(self._objects)

    def begin(self) -> None:
        """A list starts, or starts over."""
        self._seen = set()

    def page(self, items: list[dict[str, Any]]) -> list[Change]:
        """Changes of one page of a list."""
        assert self._seen is not None
        changes: list[Change] = []
        for raw in items:
            meta = raw["metadata"]
            self._seen.add((meta.get("namespace", ""), meta["name"]))
            changes.extend(self._upsert(raw))
        return changes

    def end(self, resource_version: str) -> list[Change]:
        """The list is complete: what it did not show is gone."""
        assert self._seen is not None
        changes: list[Change] = []
        for key in [key for key in self._objects if key not in self._seen]:
            uid, _ = self._objects.pop(key)
            changes.append(Removal(self._kind.kind, *key, uid))
        self._seen = None
        self.resource_version = _version(resource_version)
        return changes

    def event(self, event: dict[str, Any]) -> list[Change]:
        """Changes of one watch event (ADDED, MODIFIED, DELETED, BOOKMARK)."""
        raw = event["object"]
        meta = raw["metadata"]
        version = _version(meta["resourceVersion"])
        changes: list[Change] = []
        if event["type"] == "DELETED":
            key = (meta.get("namespace", ""), meta["name"])
            known = self._objects.get(key)
            # A late deletion of an earlier object of this name says nothing about the present one.
            if known is not None and known[0] == meta["uid"]:
                del self._objects[key]
                changes.append(Removal(self._kind.kind, *key, meta["uid"]))
        elif event["type"] != "BOOKMARK":
            changes = self._upsert(raw)
        self.resource_version = max(self.resource_version, version)
        return changes

    def forget(self) -> list[Change]:
        """The kind is not served (any more): everything is gone."""
        self.begin()
        return self.end("0")

    def _upsert(self, raw: dict[str, Any]) -> list[Change]:
        meta = raw["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        uid, version = meta["uid"], _version(meta["resourceVersion"])
        known = self._objects.get(key)
        changes: list[Change] = []
        if known is not None:
            if known[0] == uid:
                if version <= known[1]:
                    return []
            elif version < known[1]:
                return []
            else:
                changes.append(Removal(self._kind.kind, *key, known[0]))
        self._objects[key] = (uid, version)
        raw["kind"], raw["apiVersion"] = self._kind.kind, self._kind.group_version
        changes.append(Upsert(raw))
        return changes


def _version(text: str) -> int:
    # Kubernetes promises since 1.35 that resourceVersions of one resource are decimal numbers that compare.
    return int(text) if text else 0


@dataclass(slots=True)
class FeedStatus:
    """What a person or a probe wants to know of one feed."""

    synced: bool = False
    served: bool = True
    problem: str = "not read yet"
    heard_at: float | None = None
    #: When the last complete list was asked for; None before the first.
    listed_from: float | None = None
    lists: int = 0
    watches: int = 0
    events: int = 0


class Reflector:
    """Keeps one kind in step with the server for as long as `run` runs.

    ``deliver(kind, changes)`` is awaited with each batch of changes, in order. ``silence``: seconds without
    a byte after which a watch counts as dead (the server sends a bookmark about every minute).
    ``stale_after``: age in seconds of the last contact at which `fresh` turns false.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind,
        deliver: Callable[[Kind, list[Change]], Awaitable[None]],
        *,
        random: Random,
        silence: float = 75.0,
        stale_after: float = 100.0,
        page: int = PAGE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind = kind
        self.known = Known(kind)
        self.status = FeedStatus()
        self.silence, self.stale_after = silence, stale_after
        self._client, self._deliver, self._page = client, deliver, page
        self._random, self._clock = random, clock
        #: Everything the server had up to this resourceVersion has been delivered.
        self.delivered = 0
        self._delivering = False
        self._watching: asyncio.Future[None] | None = None
        self._relist = asyncio.Event()
        self._listed = asyncio.Condition()

    @property
    def synced(self) -> bool:
        """True when the last list is complete and delivered."""
        return self.status.synced

    def age(self) -> float:
        """Seconds since the server last said something on this feed; infinite before the first time."""
        return float("inf") if self.status.heard_at is None else self._clock() - self.status.heard_at

    @property
    def fresh(self) -> bool:
        """True when decisions may rest on this feed."""
        return self.status.synced and self.age() <= self.stale_after

    async def relist(self) -> None:
        """Return after a list that started after this call has been delivered.

        Lists are consistent reads (no resourceVersion, never 0), so afterwards the consumer knows at least
        everything that was committed before the call.
        """
        target = self.status.lists + 1
        self.status.synced = False
        self._relist.set()
        if self._watching is not None and not self._delivering:
            self._watching.cancel()
        async with self._listed:
            await self._listed.wait_for(lambda: self.status.lists >= target and not self._relist.is_set())

    async def passed(self, resource_version: int, within: float) -> bool:
        """Wait until everything up to ``resource_version`` has been delivered; False when time runs out."""
        deadline = self._clock() + within
        while self.delivered < resource_version:
            if self._clock() >= deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    async def run(self) -> None:
        """List and watch for ever. Only cancellation ends it, or an error that is a bug."""
        delays = self._fresh_backoff()
        while True:
            started, watches = self._clock(), self.status.watches
            try:
                if not self.status.synced or self._relist.is_set():
                    await self._list()
                if await self._watched():
                    continue
            except ApiError as error:
                if error.status == 410:
                    self.status.synced = False
                    log.info("relisting", kind=self.kind.kind, because=error.message)
                elif error.status == 404 and self.kind.optional:
                    await self._not_served()
                    delays = self._fresh_backoff()
                    await self._pause(60.0)
                    continue
                else:
                    self._trouble(str(error))
                if error.retry_after is not None:
                    await self._pause(min(error.retry_after, 30.0))
                    continue
            except NoAnswerError as error:
                self._trouble(str(error))
            else:
                # Ended by the server, as every watch is some day, and those of a busy server often: nothing
                # is wrong, and what happens meanwhile is waited for.
                if self._clock() - started > 1.0:
                    delays = self._fresh_backoff()
                    continue
            # A watch that was accepted and lasted a while did no harm: only what fails at once is backed
            # off from.
            if self._clock() - started > (1.0 if self.status.watches > watches else 10.0):
                delays = self._fresh_backoff()
            await self._pause(next(delays))

    async def _watched(self) -> bool:
        """Watch until the server ends it (False) or somebody wants a relist (True)."""
        if self._relist.is_set():
            return True
        self._watching = asyncio.ensure_future(self._watch())
        try:
            await self._watching
        except asyncio.CancelledError:
            # Either `relist` has cancelled the watch, or somebody cancels us.
            if not self._relist.is_set():
                raise
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
        finally:
            self._watching.cancel()
            self._watching = None
        return self._relist.is_set()

    def _fresh_backoff(self) -> Iterator[float]:
        return backoff(self._random, first=0.1, limit=15.0)

    def _trouble(self, problem: str) -> None:
        if problem != self.status.problem:
            log.warning("feed interrupted", kind=self.kind.kind, problem=problem)
        self.status.problem = problem

    async def _pause(self, seconds: float) -> None:
        # Not wait_for: on Python 3.11 it swallows a cancellation that comes together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._relist.wait()

    async def _not_served(self) -> None:
        if self.status.served:
            log.info("kind is not served, taken as empty", kind=self.kind.kind, api=self.kind.group_version)
        self._relist.clear()
        await self._deliver(self.kind, [ListBegun(), *self.known.forget(), ListEnded()])
        self.status.served, self.status.synced, self.status.problem = False, True, ""
        self._heard()
        await self._list_done()

    async def _list(self) -> None:
        self._relist.clear()
        self.status.synced = False
        params = {"limit": str(self._page)}
        if self.kind.field_selector:
            params["fieldSelector"] = self.kind.field_selector
        self.known.begin()
        await self._deliver(self.kind, [ListBegun()])
        begun = self._clock()
        page = asyncio.ensure_future(self._client.request("GET", self.kind.path, params=params))
        try:
            while True:
                answer = await page
                self._heard()
                if more := answer["metadata"].get("continue"):
                    # The server makes the next page while this one is taken in.
                    page = asyncio.ensure_future(
                        self._client.request("GET", self.kind.path, params={**params, "continue": more})
                    )
                for changes in _slices(self.known.page(answer.get("items") or [])):
                    await self._deliver(self.kind, changes)
                    await asyncio.sleep(0)
                if not more:
                    break
        finally:
            page.cancel()
        gone = self.known.end(answer["metadata"]["resourceVersion"])
        await self._deliver(self.kind, [*gone, ListEnded()])
        self.delivered = self.known.resource_version
        self.status.served, self.status.problem, self.status.listed_from = True, "", begun
        if not self._relist.is_set():
            self.status.synced = True
        await self._list_done()

    async def _list_done(self) -> None:
        async with self._listed:
            self.status.lists += 1
            self._listed.notify_all()

    async def _watch(self) -> None:
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self.known.resource_version),
            # Spread, so that the feeds of many clients are not renewed all at once.
            "timeoutSeconds": str(self._random.randint(300, 600)),
        }
        if self.kind.field_selector:
            params["fieldSelector"] = self.kind.field_selector
        stream = self._client.watch(self.kind.path, params, silence=self.silence)
        async with aclosing(stream):
            async for event in stream:
                self._heard()
                if event is None:
                    self.status.watches += 1
                    self.status.problem = ""
                    continue
                if event["type"] == "ERROR":
                    raise _in_stream(event["object"])
                self.status.events += 1
                await self._hand_over(self.known.event(event))
                if self._relist.is_set():
                    return

    async def _hand_over(self, changes: list[Change]) -> None:
        # A relist must not cut this short: what is known but was not delivered would never be delivered
        # again.
        if changes:
            self._delivering = True
            try:
                await self._deliver(self.kind, changes)
            finally:
                self._delivering = False
        self.delivered = self.known.resource_version

    def _heard(self) -> None:
        self.status.heard_at = self._clock()


def _in_stream(status: dict[str, Any]) -> ApiError:
    seconds = (status.get("details") or {}).get("retryAfterSeconds")
    return ApiError(
        int(status.get("code") or 500),
        str(status.get("reason") or ""),
        str(status.get("message") or "error in the watch"),
        retry_after=float(seconds) if seconds is not None else None,
    )


def _slices(changes: list[Change], size: int = 100) -> Iterator[list[Change]]:
    for start in range(0, len(changes), size):
        yield changes[start : start + size]
