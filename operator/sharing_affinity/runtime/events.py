"""Kubernetes Events about pods and claims: why something is pending, in words its owner may read.

Repeats are folded into one Event with a series count, and all Events share a small budget behind the claim
writes; what does not fit is dropped and counted, for an Event is never worth an allocation. Reasons are
stable: people alert on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from sharing_affinity.api import names
from sharing_affinity.api.keys import cut
from sharing_affinity.runtime.client import MERGE_PATCH, ApiError, Client, NoAnswerError
from sharing_affinity.runtime.kinds import EVENTS, FEEDS
from sharing_affinity.runtime.lease import micro_time
from sharing_affinity.runtime.pacing import Pacer

CONTROLLER: Final = "sharingaffinity.dev/operator"
NOTE_LIMIT: Final = 1000
_VERSIONS: Final = {kind.kind: kind.group_version for kind in FEEDS}

log = structlog.get_logger("events")


@dataclass(frozen=True, slots=True)
class About:
    """The object an Event is about."""

    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class _Series:
    name: str
    namespace: str
    count: int
    written: int
    told_at: float


class Recorder:
    """Takes Events at any rate and writes them at its own."""

    def __init__(
        self,
        client: Client,
        *,
        pacer: Pacer,
        identity: str,
        namespace: str,
        clock: Callable[[], float],
        wall: Callable[[], datetime.datetime],
        new_id: Callable[[], str],
        dropped: Callable[[], None] = lambda: None,
        waiting: int = 1000,
        remembered: int = 4096,
        fold: float = 600.0,
        repeat: float = 60.0,
    ) -> None:
        self._client, self._pacer = client, pacer
        self._identity, self._namespace = identity, namespace
        self._clock, self._wall, self._new_id, self._dropped = clock, wall, new_id, dropped
        self._queue: asyncio.Queue[tuple[About, str, str, str, str]] = asyncio.Queue(waiting)
        self._known: OrderedDict[tuple[About, str, str], _Series] = OrderedDict()
        self._remembered, self._fold, self._repeat = remembered, fold, repeat

    def emit(self, about: About, reason: str, note: str, *, warning: bool = True, decision: str = "") -> bool:
        """Tell ``note`` (cut to the API's limit) about an object. Never waits, never fails.

        ``decision`` is the id to find it by in the log. False: nothing new, an Event that was written before
        stands for it, or there is no room.
        """
        note = cut(note, NOTE_LIMIT)
        key = (about, reason, note)
        series = self._known.get(key)
        now = self._clock()
        if series is not None and now - series.told_at < self._fold:
            series.count += 1
            if now - series.told_at < self._repeat:
                return False
        try:
            self._queue.put_nowait((about, reason, note, "Warning" if warning else "Normal", decision))
        except asyncio.QueueFull:
            self._dropped()
            return False
        if series is None or now - series.told_at >= self._fold:
            series = self._known[key] = _Series("", about.namespace or self._namespace, 1, 0, now)
        series.told_at = now
        self._known.move_to_end(key)
        while len(self._known) > self._remembered:
            self._known.popitem(last=False)
        return True

    async def run(self) -> None:
        """Write Events for ever."""
        while True:
            about, reason, note, kind, decision = await self._queue.get()
            await self._pacer.wait()
            try:
                await self._write(about, reason, note, kind, decision)
            except (ApiError, NoAnswerError) as error:
                self._dropped()
                log.debug("event not written", about=f"{about.namespace}/{about.name}", problem=str(error))
            finally:
                self._queue.task_done()

    async def flush(self, seconds: float) -> None:
        """Give what is waiting a chance to be written."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._queue.join()

    async def _write(self, about: About, reason: str, note: str, kind: str, decision: str) -> None:
        series = self._known.get((about, reason, note))
        now = micro_time(self._wall())
        marked = {"annotations": {names.DECISION_ANNOTATION: decision}} if decision else {}
        if series is not None and series.name:
            try:
                await self._client.request(
                    "PATCH",
                    EVENTS.item(series.namespace, series.name),
                    content_type=MERGE_PATCH,
                    body={
                        "metadata": marked,
                        "series": {"count": max(2, series.count), "lastObservedTime": now},
                    },
                )
            except ApiError as error:
                if error.status != 404:
                    raise
                # Deleted by somebody: made anew below.
            else:
                return
        namespace = about.namespace or self._namespace
        body: dict[str, Any] = {
            "metadata": {
                "name": f"{about.name[:200]}.{self._new_id()[:13]}",
                "namespace": namespace,
                **marked,
            },
            "eventTime": now,
            "reportingController": CONTROLLER,
            "reportingInstance": self._identity[:128],
            "action": "Allocate",
            "reason": reason,
            "type": kind,
            "note": note,
            "regarding": {
                "apiVersion": _VERSIONS.get(about.kind, "v1"),
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
        }
        written = await self._client.request("POST", EVENTS.item(namespace, "")[:-1], body=body)
        if series is not None:
            series.name = written["metadata"]["name"]
