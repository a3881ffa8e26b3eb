"""The loop that keeps the API server at what the driver offers.

A pass lists, plans and writes. What changes meanwhile wakes the loop: the kubelet's wipe, somebody's edit,
our own writes (which then find nothing to do).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

import structlog

from affinity_driver.json_types import JsonObject
from affinity_driver.kube import Api, ApiError
from sharing_affinity.api import Extractor

from .desired import METADATA_SLICES, RESOURCE_SLICES, Fence, Member, Pool, declared, members
from .diff import Verb, Write, fence_ages, keep_fence_age, plan, unfenced_in_use
from .loop import Loop
from .override import Override, carries, stored, with_override, without
from .semantic import differences, gates_of
from .validate import problems

MAX_MESSAGE = 4096
MANY_FAILURES = 5
CALM_RENEWALS, CALM_WINDOW, CALM_SECONDS = 6, 60.0, 15.0
"""After six renewals within a minute each further one waits 15 s: each costs every scheduler a look."""


class PublishObserver(Protocol):
    """Who wants to know what publishing did: metrics and events."""

    def published(self, generation: int, slices: int, writes: int) -> None:
        """A pass ended well; ``writes`` is 0 when nothing had to change."""
        ...

    def publish_failed(self) -> None:
        """A pass ended with an error and will be tried again."""
        ...

    def dropped_fields(self, collection: str, paths: Sequence[str]) -> None:
        """The API server stored an object without some of its fields."""
        ...

    def problem(self, reason: str, message: str) -> None:
        """Something that a person has to put right; told once per process."""
        ...


class DroppedFieldsError(Exception):
    """The API server accepted an object and dropped fields of it, as it does when their feature is off.

    ``paths`` are the dropped fields, ``gates`` the feature gates that would explain it.
    """

    def __init__(self, collection: str, name: str, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self.gates = tuple(gates_of(list(paths)))
        because = f"; feature gate {', '.join(self.gates)} seems to be off" if self.gates else ""
        kind = collection.rpartition("/")[2]
        super().__init__(f"{kind} {name}: the API server dropped {', '.join(paths[:5])}{because}")


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """Times in seconds. ``settle`` is the wait between fencing devices that were open, and giving them
    extractors.
    """

    resync: float = 30.0
    settle: float = 30.0


class Publisher:
    """Keeps the objects of one pool published. ``pool`` is asked anew in each pass; ``wake`` asks for one."""

    def __init__(
        self,
        api: Api,
        pool: Callable[[], Pool],
        observer: PublishObserver,
        options: PublisherOptions = PublisherOptions(),
    ) -> None:
        self._api = api
        self._pool = pool
        self._observer = observer
        self._options = options
        watched = dict.fromkeys((RESOURCE_SLICES, METADATA_SLICES), self._selector)
        self._loop = Loop(api, "publish", self.sync, watched, self._failed, self._calm)
        self._fenced_since: dict[str, str] = {}
        self._settled_at: float | None = None
        self._rolled_out: Override | None = None
        self._extractors: tuple[Extractor, ...] | None = None
        self._as_stored: dict[tuple[str, str], tuple[JsonObject, JsonObject]] = {}
        self._dropped: dict[tuple[str, str], str] = {}
        self._reported: set[str] = set()
        self._renewals: deque[float] = deque(maxlen=CALM_RENEWALS)
        self._log = structlog.get_logger("affinity_driver.publish")

    def start(self) -> None:
        """Start publishing and watching."""
        self._loop.start()

    def stop(self) -> None:
        """Stop. What is published stays: deleting it would make pods unschedulable at each restart of the
        driver.
        """
        self._loop.stop()

    def join(self, seconds: float) -> None:
        """After ``stop``: wait for a pass in progress, at most so many seconds."""
        self._loop.join(seconds)

    def wake(self) -> None:
        """Ask for a pass now."""
        self._loop.wake()

    def sync(self) -> float:
        """One pass; the seconds until the next one is due. Raises ApiError; reports DroppedFieldsError
        itself.
        """
        pool = self._pool()
        wrong = problems(pool)
        if wrong:
            self._report("PoolInvalid", "faulty pool, not published: " + "; ".join(wrong))
            return self._options.resync
        existing = {path: self._list(path, pool) for path in (RESOURCE_SLICES, METADATA_SLICES)}
        override = self._override(pool, existing[METADATA_SLICES])
        if override is not None:
            pool = replace(pool, extractors=override.extractors)
        settling = self._settling(pool, existing)
        if settling > 0:
            pool = replace(pool, extractors=())
        self._fenced_since.update(fence_ages(existing[RESOURCE_SLICES]))
        wanted = {(member.collection, member.name): member for member in members(pool)}
        if override is not None and pool.extractors:
            first = next(iter(wanted.values()))
            wanted[first.collection, first.name] = replace(first, body=with_override(first.body, override))
        todo = plan([self._as_accepted(member) for member in wanted.values()], existing)
        for write in todo.writes:
            self._perform(write, wanted.get((write.collection, write.name)), todo.generation)
        if settling <= 0:
            self._extractors = pool.extractors
        self._dropped = {key: text for key, text in self._dropped.items() if key in wanted}
        self._tell_in_status(list(wanted.values()), existing[METADATA_SLICES])
        if todo.writes:
            self._log.info("published", pool=pool.name, generation=todo.generation, writes=len(todo.writes))
            self._renewals.append(time.monotonic())
        self._observer.published(todo.generation, len(wanted), len(todo.writes))
        return settling if settling > 0 else self._options.resync

    def extractors(self) -> tuple[Extractor, ...]:
        """The extractors that are published, by which claims have to be judged too; its own while none are.

        Asks the API server until a pass has ended well: an earlier version may have published, or another
        instance may be doing so. Raises ApiError.
        """
        if self._extractors is not None:
            return self._extractors
        pool = self._pool()
        return declared(self._list(METADATA_SLICES, pool)) or pool.extractors

    def _override(self, pool: Pool, metadata: list[JsonObject]) -> Override | None:
        """What was rolled out on the pool. Ends it, on the server too, when our own extractors are the same.

        Remembered while the pool has no metadata, as when a new fence settles.
        """
        if metadata:
            self._rolled_out = stored(metadata)
        if self._rolled_out is None or not pool.extractors or not self._rolled_out.over(pool.extractors):
            return self._rolled_out if pool.extractors else None
        for index, item in enumerate(metadata):
            if carries(item):
                path = f"{METADATA_SLICES}/{item['metadata']['name']}"
                metadata[index] = self._api.update(path, without(item))
        self._log.info("the rolled-out extractors are this version's own now", pool=pool.name)
        self._rolled_out = None
        return None

    def _settling(self, pool: Pool, existing: Mapping[str, Sequence[JsonObject]]) -> float:
        """Seconds until extractors may be published (design rule H4): schedulers have to see a new fence
        first.
        """
        if pool.fence is not Fence.TAINT or not pool.extractors:
            self._settled_at = None
            return 0.0
        now = time.monotonic()  # what counts is how long schedulers have had, not what the clock is put to
        slices = existing[RESOURCE_SLICES]
        if unfenced_in_use(slices):
            self._settled_at = now + self._options.settle
            self._fenced_since.clear()
            self._log.info("fencing devices that were open to every scheduler", settle=self._options.settle)
        elif self._settled_at is None and not existing[METADATA_SLICES] and (ages := fence_ages(slices)):
            # Fenced without metadata: an earlier process ended while it waited.
            # Never more than the full wait, whatever the server's clock says.
            age = max(0.0, time.time() - max(map(_seconds, ages.values())))
            self._settled_at = now + self._options.settle - age
        return max(0.0, self._settled_at - now) if self._settled_at is not None else 0.0

    def _as_accepted(self, member: Member) -> Member:
        """``member`` as the API server stored it when it last dropped fields of it, to compare with; else
        every pass would write again.
        """
        sent, stored = self._as_stored.get((member.collection, member.name), (None, None))
        if stored is None or sent != member.body["spec"]:
            return member
        return replace(member, body={**member.body, "spec": stored})

    def _list(self, collection: str, pool: Pool) -> list[JsonObject]:
        selector = f"spec.driver={pool.driver},spec.nodeName={pool.node}"
        try:
            found = self._api.list(collection, {"fieldSelector": selector})
        except ApiError as error:
            if error.code == 404 and collection == METADATA_SLICES and not pool.extractors:
                return []  # Uninstalled with all custom resources; devices alone need none of them.
            raise
        items: list[JsonObject] = found.get("items") or []
        return items

    def _perform(self, write: Write, wanted: Member | None, generation: int) -> None:
        path = f"{write.collection}/{write.name}"
        if write.verb is Verb.DELETE or wanted is None:
            metadata = write.body["metadata"]
            self._api.delete(path, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
            return
        # In full each time, also what was dropped the last time: the feature may be on by now.
        whole = {**write.body, "spec": wanted.with_generation(generation)["spec"]}
        (body,) = keep_fence_age([whole], self._fenced_since)
        if write.verb is Verb.CREATE:
            stored = self._api.create(write.collection, body)
        else:
            stored = self._api.update(path, body)
        self._fenced_since.update(fence_ages([stored]))
        key = (write.collection, write.name)
        self._dropped.pop(key, None)
        dropped = list(differences(body["spec"], stored.get("spec"), "spec"))
        if dropped:
            self._as_stored[key] = (
                wanted.body["spec"],
                _sans_generation(stored),
            )
            self._observer.dropped_fields(write.collection, dropped)
            self._dropped[key] = str(DroppedFieldsError(write.collection, write.name, dropped))
            self._report("DroppedFields", self._dropped[key])

    def _tell_in_status(self, wanted: Sequence[Member], metadata: Sequence[JsonObject]) -> None:
        """The condition ``Published`` on our SharingAffinitySlices, written when it changes.

        A ResourceSlice has no status. What was listed before this pass is good enough to compare with: a
        condition that is wrong for one pass is put right in the next.
        """
        stored = {item["metadata"]["name"]: item for item in metadata}
        problem = "; ".join(self._dropped[key] for key in sorted(self._dropped))
        condition = {
            "type": "Published",
            "status": "False" if problem else "True",
            "reason": "DroppedFields" if problem else "AsWanted",
            "message": problem[:MAX_MESSAGE] or "devices and extractors are stored as the driver sent them",
        }
        for member in wanted:
            if member.collection != METADATA_SLICES:
                continue
            conditions = (stored.get(member.name, {}).get("status") or {}).get("conditions") or []
            before: JsonObject = next((c for c in conditions if c["type"] == condition["type"]), {})
            if all(before.get(field) == value for field, value in condition.items()):
                continue
            same_status = before.get("status") == condition["status"]
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            since = before["lastTransitionTime"] if same_status else now
            body = {
                "apiVersion": member.body["apiVersion"],
                "kind": member.body["kind"],
                "metadata": {"name": member.name},
                "status": {"conditions": [{**condition, "lastTransitionTime": since}]},
            }
            self._api.apply_status(f"{member.collection}/{member.name}", body, "affinity-driver", force=True)

    def _report(self, reason: str, message: str) -> None:
        if message not in self._reported:
            self._reported.add(message)
            self._log.error("cannot publish as wanted", reason=reason, problem=message)
            self._observer.problem(reason, message)

    def _failed(self, error: Exception, times: int) -> None:
        self._observer.publish_failed()
        if times == MANY_FAILURES and isinstance(error, ApiError):
            self._report("PublishFailing", f"devices cannot be published: {error}")

    def _calm(self) -> float:
        """Seconds to stay calm: the pool was renewed so often lately that somebody must be undoing it each
        time.
        """
        full = len(self._renewals) == CALM_RENEWALS
        if not full or time.monotonic() - self._renewals[0] >= CALM_WINDOW:
            return 0.0
        self._report("SlicesContested", "something else keeps changing this driver's slices")
        return CALM_SECONDS

    def _selector(self) -> str:
        pool = self._pool()
        return f"spec.driver={pool.driver},spec.nodeName={pool.node}"


def _sans_generation(body: JsonObject) -> JsonObject:
    spec = body["spec"]
    return {**spec, "pool": {key: value for key, value in spec["pool"].items() if key != "generation"}}


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
