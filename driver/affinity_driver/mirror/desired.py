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
    """The writes that turn one pool's ``existing`` metadata slices (all ours) into ``wanted``, in order.

    Several slices cannot be changed at once, and two old with one new of the same generation would be a
    complete pool that lacks a key. So where extractors change and more than one slice is concerned, the old
    ones go first: a pool without metadata is withheld.
    """
    there = {_name(item): item for item in existing}
    changed = [_extractors(item) for item in wanted] != [_extractors(item) for item in existing]
    anew = changed and bool(existing) and max(len(wanted), len(existing)) > 1
    deletes, writes = [], []
    for body in wanted:
        before = there.pop(_name(body), None)
        if before is None:
            writes.append(Write(Verb.CREATE, METADATA_SLICES, body))
        elif anew or immutable(before) != immutable(body):
            deletes.append(Write(Verb.DELETE, METADATA_SLICES, before))
            writes.append(Write(Verb.CREATE, METADATA_SLICES, _with_annotations(body, before)))
        elif not same(body["spec"], before["spec"]) or _owners(body) != _owners(before):
            writes.append(Write(Verb.UPDATE, METADATA_SLICES, onto(before, body)))
    deletes += [Write(Verb.DELETE, METADATA_SLICES, item) for item in there.values()]
    return (*deletes, *writes)


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


def _extractors(item: JsonObject) -> tuple[str, object]:
    return _name(item), item["spec"]["sharingAffinity"]


def _pool(item: JsonObject) -> str:
    return str(item["spec"]["pool"]["name"])


def _generation(item: JsonObject) -> int:
    return int(item["spec"]["pool"].get("generation", 0))


def _name(item: JsonObject) -> str:
    return str(item["metadata"]["name"])
