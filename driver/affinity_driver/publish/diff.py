"""From what is there to what should be there: the writes of one publishing pass; pure.

Devices and extractors are one unit with one generation. Either everything is there, equal and of one
generation, and nothing is written; or a new generation is written as a whole, numbered ``max(both sides) +
1``. The kubelet deletes ResourceSlices whenever it restarts and never a SharingAffinitySlice, so the two
sides forget differently; only the maximum of both is newer than anything a reader may have seen (design
rule H5).

Metadata goes first, so that a reader who sees the new devices usually sees their extractors too. A mixture
of both generations is an incomplete pool in between, from which nobody allocates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from affinity_driver.json_types import JsonObject
from sharing_affinity.api import names

from .desired import METADATA_SLICES, RESOURCE_SLICES, Member
from .semantic import same


class Verb(StrEnum):
    """What to do with one object."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Write:
    """One request: the object to send, or (DELETE) the object as it was seen, for its preconditions."""

    verb: Verb
    collection: str
    body: JsonObject

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.body["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes of one pass in order; none when everything is as it should be."""

    generation: int
    writes: tuple[Write, ...]


def plan(members: Sequence[Member], existing: Mapping[str, Sequence[JsonObject]]) -> Plan:
    """What to write so that the API server holds exactly ``members``.

    ``existing`` maps each collection to all objects of this driver on this node; what belongs to no member
    is deleted.
    """
    seen = {collection: {_name(item): item for item in items} for collection, items in existing.items()}
    wanted = {(member.collection, member.name): member for member in members}
    stale = [
        Write(Verb.DELETE, collection, item)
        for collection, items in seen.items()
        for name, item in items.items()
        if (collection, name) not in wanted
    ]
    generations = {_generation(item) for items in seen.values() for item in items.values()}
    newest = max(generations, default=0)
    if not stale and _all_current(members, seen, newest):
        return Plan(newest, ())
    generation = newest + 1
    writes: list[Write] = []
    for member in members:
        body = member.with_generation(generation)
        there = seen.get(member.collection, {}).get(member.name)
        if there is None:
            writes.append(Write(Verb.CREATE, member.collection, body))
        elif immutable(there) != immutable(body):
            writes.append(Write(Verb.DELETE, member.collection, there))
            writes.append(Write(Verb.CREATE, member.collection, body))
        else:
            writes.append(Write(Verb.UPDATE, member.collection, onto(there, body)))
    return Plan(generation, tuple(sorted([*stale, *writes], key=_order)))


def keep_fence_age(bodies: Iterable[JsonObject], since: Mapping[str, str]) -> Iterator[JsonObject]:
    """The same ResourceSlices with the fence's ``timeAdded`` of devices that were fenced before (name to
    time).

    A republished fence is no younger for it: the operator waits on young fences (design rule H4), and a
    restart of the kubelet must not make it wait.
    """
    for body in bodies:
        devices = body["spec"].get("devices")
        if not devices:
            yield body
            continue
        aged = [
            {**device, "taints": [_aged(taint, since.get(device["name"])) for taint in device["taints"]]}
            if device.get("taints")
            else device
            for device in devices
        ]
        yield {**body, "spec": {**body["spec"], "devices": aged}}


def fence_ages(slices: Iterable[JsonObject]) -> dict[str, str]:
    """Device name to the time its fence was added, of every fenced device in ``slices``."""
    return {
        device["name"]: taint["timeAdded"]
        for item in slices
        for device in item["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("key") == names.FENCE_KEY and "timeAdded" in taint
    }


def unfenced_in_use(existing: Iterable[JsonObject]) -> bool:
    """Whether ResourceSlices are published with a device that stock kube-scheduler may allocate from."""
    return any(
        not any(taint.get("key") == names.FENCE_KEY for taint in device.get("taints") or ())
        for item in existing
        for device in item["spec"].get("devices") or ()
    )


def _aged(taint: JsonObject, since: str | None) -> JsonObject:
    if taint.get("key") != names.FENCE_KEY or since is None or "timeAdded" in taint:
        return taint
    return {**taint, "timeAdded": since}


def _all_current(
    members: Sequence[Member], seen: Mapping[str, Mapping[str, JsonObject]], generation: int
) -> bool:
    for member in members:
        there = seen.get(member.collection, {}).get(member.name)
        if there is None:
            return False
        body = member.with_generation(generation)
        if not same(body["spec"], there["spec"]) or not _owned(body, there):
            return False
    return True


def _owned(body: JsonObject, there: JsonObject) -> bool:
    """Whether the Node that is there now owns the object; a node made anew has another uid."""
    owners = {owner.get("uid") for owner in there["metadata"].get("ownerReferences") or ()}
    return {owner["uid"] for owner in body["metadata"]["ownerReferences"]} == owners


def onto(there: JsonObject, body: JsonObject) -> JsonObject:
    """``body`` as the replacement of exactly the version seen; labels and annotations of others survive."""
    metadata = {**there["metadata"], "ownerReferences": body["metadata"]["ownerReferences"]}
    metadata.pop("managedFields", None)
    return {**body, "metadata": metadata}


def _order(write: Write) -> tuple[int, int, str]:
    """Metadata, then devices; within each what goes away first, so that a device is never in two slices."""
    side = {METADATA_SLICES: 0, RESOURCE_SLICES: 1}[write.collection]
    return (side, {Verb.DELETE: 0, Verb.UPDATE: 1, Verb.CREATE: 2}[write.verb], write.name)


def immutable(item: JsonObject) -> tuple[object, ...]:
    """What no update of a slice can change."""
    spec = item["spec"]
    return (spec.get("driver"), spec.get("nodeName"), spec["pool"]["name"])


def _generation(item: JsonObject) -> int:
    return int(item["spec"]["pool"].get("generation", 0))


def _name(item: JsonObject) -> str:
    return str(item["metadata"]["name"])
