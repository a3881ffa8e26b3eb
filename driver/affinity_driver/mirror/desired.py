"""The SharingAffinitySlices that another process's ResourceSlices need beside them; pure.

Whoever publishes the devices picks pool, generation and number of slices, and may change each at any time:
official libraries start again at generation 1 after a kubelet's wipe. So nothing is decided here. Node,
owners, pool and generation are copied from the newest generation of ResourceSlices, and the count is theirs
plus our own slices. While one side is ahead of the other, the pool is incomplete and nobody allocates from it
(design rule H5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from affinity_driver.json_types import JsonObject
from affinity_driver.publish.desired import METADATA_SLICES, entries, member_name, per_slice
from affinity_driver.publish.diff import Verb, Write, immutable, onto
from affinity_driver.publish.semantic import same
from sharing_affinity.api import Extractor, names

OURS = ("app.kubernetes.io/managed-by", "affinity-driver-metadata-sidecar")
"""The label of objects we wrote: a driver that publishes metadata of its own is left alone."""

CLOSED = 2**31 - 1
"""A count of slices that no pool has: what carries it belongs to no complete pool."""


def wanted(
    slices: Iterable[JsonObject], extractors: Mapping[str, Sequence[Extractor]]
) -> dict[str, tuple[JsonObject, ...]]:
    """Pool to its metadata slices, for all ResourceSlices of one driver.

    ``extractors`` are those of each pool. A pool is left out while its slices disagree about their number:
    the publisher is in the middle of a change, and what is there is incomplete anyhow.
    """
    ordered = sorted(slices, key=lambda item: (_pool(item), _name(item)))
    made: dict[str, tuple[JsonObject, ...]] = {}
    for pool, group in groupby(ordered, key=_pool):
        members = list(group)
        generation = max(map(_generation, members))
        newest = [item for item in members if _generation(item) == generation]
        counts = {item["spec"]["pool"]["resourceSliceCount"] for item in newest}
        if len(counts) == 1:
            made[pool] = _metadata(newest, generation, counts.pop(), extractors[pool])
    return made


def is_ours(item: JsonObject) -> bool:
    """Whether a metadata slice was written by a sidecar."""
    label, value = OURS
    return (item["metadata"].get("labels") or {}).get(label) == value


def plan(wanted: Sequence[JsonObject], existing: Sequence[JsonObject]) -> tuple[Write, ...]:
    """The next writes on the way from one pool's ``existing`` metadata slices (all ours) to ``wanted``.

    One slice is changed at once. Several are not, and part of them could make up a complete pool that lacks a
    key, since the publisher may change the number of its slices at any time. So several are first *closed*,
    by a count that no pool reaches; then written, closed; then opened, one after the other: slices that
    disagree about the count are an invalid pool. Each call gives the writes of one of these phases, none when
    all is as wanted; call again with what is there then.
    """
    if max(len(wanted), len(existing)) <= 1 or _same_but_count(wanted, existing):
        return _writes(wanted, existing)
    open_ones = [item for item in existing if item["spec"]["pool"]["resourceSliceCount"] != CLOSED]
    if open_ones:
        return tuple(Write(Verb.UPDATE, METADATA_SLICES, _closed(item)) for item in open_ones)
    return _writes([_closed(item) for item in wanted], existing)


def _writes(wanted: Sequence[JsonObject], existing: Sequence[JsonObject]) -> tuple[Write, ...]:
    there = {_name(item): item for item in existing}
    deletes, writes = [], []
    for body in wanted:
        before = there.pop(_name(body), None)
        if before is None:
            writes.append(Write(Verb.CREATE, METADATA_SLICES, body))
        elif immutable(before) != immutable(body):
            deletes.append(Write(Verb.DELETE, METADATA_SLICES, before))
            writes.append(Write(Verb.CREATE, METADATA_SLICES, _with_annotations(body, before)))
        elif not same(body["spec"], before["spec"]) or _owners(body) != _owners(before):
            writes.append(Write(Verb.UPDATE, METADATA_SLICES, onto(before, body)))
    deletes += [Write(Verb.DELETE, METADATA_SLICES, item) for item in there.values()]
    return (*deletes, *writes)


def _closed(item: JsonObject) -> JsonObject:
    spec = item["spec"]
    return {**item, "spec": {**spec, "pool": {**spec["pool"], "resourceSliceCount": CLOSED}}}


def _same_but_count(wanted: Sequence[JsonObject], existing: Sequence[JsonObject]) -> bool:
    return len(wanted) == len(existing) and all(
        _name(one) == _name(other)
        and same(_closed(one)["spec"], _closed(other)["spec"])
        and _owners(one) == _owners(other)
        for one, other in zip(wanted, existing, strict=True)
    )


def _metadata(
    members: Sequence[JsonObject], generation: int, count: int, extractors: Sequence[Extractor]
) -> tuple[JsonObject, ...]:
    first = members[0]["spec"]
    driver, pool = first["driver"], first["pool"]["name"]
    parts = per_slice(extractors)
    label, value = OURS
    return tuple(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.SLICE_KIND,
            "metadata": {
                "name": member_name(index, driver, pool),
                "labels": {label: value},
                "ownerReferences": _common_owners(members),
            },
            "spec": {
                "driver": driver,
                **_place(members),
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": count + len(parts)},
                "sharingAffinity": entries(part),
            },
        }
        for index, part in enumerate(parts)
    )


def _place(members: Sequence[JsonObject]) -> JsonObject:
    """Where the metadata applies: as the devices, and everywhere where they differ among themselves."""
    for field in ("nodeName", "nodeSelector"):
        found = members[0]["spec"].get(field)
        if found and all(item["spec"].get(field) == found for item in members):
            return {field: found}
    return {"allNodes": True}


def _common_owners(members: Sequence[JsonObject]) -> list[JsonObject]:
    """The owners all slices have: what collects the devices collects their metadata.

    Without ``blockOwnerDeletion``, which needs rights over the owner.
    """
    shared = set.intersection(*(_owners(item) for item in members))
    return [
        {field: value for field, value in owner.items() if field != "blockOwnerDeletion"}
        for owner in members[0]["metadata"].get("ownerReferences") or ()
        if owner["uid"] in shared
    ]


def _with_annotations(body: JsonObject, before: JsonObject) -> JsonObject:
    annotations = before["metadata"].get("annotations")
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}} if annotations else body


def _owners(item: JsonObject) -> set[str]:
    return {owner["uid"] for owner in item["metadata"].get("ownerReferences") or ()}


def _pool(item: JsonObject) -> str:
    return str(item["spec"]["pool"]["name"])


def _generation(item: JsonObject) -> int:
    return int(item["spec"]["pool"].get("generation", 0))


def _name(item: JsonObject) -> str:
    return str(item["metadata"]["name"])
