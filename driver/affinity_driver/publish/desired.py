"""What the API server should hold for one pool; pure.

A pool is two kinds of objects that belong together: ResourceSlices with the devices and
SharingAffinitySlices with the extractors. They share one generation, and everything else about them follows
from a ``Pool``. Order is part of the result: kube-scheduler and operator try devices first-fit in the order
of slice names and devices, so both are sorted, and the same pool always renders to the same bytes.

Counts (design rule H5): a SharingAffinitySlice counts all members of the pool; a ResourceSlice counts the
ResourceSlices alone, or all members under the ``count`` fence, which makes the pool incomplete for stock
schedulers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from affinity_driver.json_types import JsonObject
from sharing_affinity.api import Extractor, names

_T = TypeVar("_T")

RESOURCE_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
METADATA_SLICES = f"/apis/{names.API_VERSION}/{names.SLICE_PLURAL}"

MAX_DEVICES = 128
MAX_DEVICES_TAINTED = 64
"""Devices in one ResourceSlice, and where a device has taints, counters or list attributes
(resource/v1/types.go).
"""
MAX_NAME = 253


class Fence(StrEnum):
    """How stock kube-scheduler is kept from allocating devices of the pool."""

    TAINT = "taint"
    """A NoSchedule taint on every device, which the operator alone ignores. The default."""
    COUNT = "count"
    """An inflated resourceSliceCount: the KEP's own shape. Blocks ``allocationMode: All`` on the node;
    experimental.
    """
    NONE = "none"
    """No fence: the operator will not allocate from such a pool while it carries metadata."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device as the profile offers it; ``attributes`` and ``capacity`` are the JSON of a v1 device."""

    name: str
    attributes: JsonObject
    capacity: JsonObject
    shareable: bool = True
    taints: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """All that determines the objects of one pool. ``node_uid`` makes the Node their owner."""

    driver: str
    name: str
    node: str
    node_uid: str
    devices: tuple[Device, ...]
    extractors: tuple[Extractor, ...] = ()
    fence: Fence = Fence.TAINT


@dataclass(frozen=True, slots=True)
class Member:
    """One object of the pool, complete but for the generation, which ``with_generation`` adds."""

    collection: str
    name: str
    body: JsonObject

    def with_generation(self, generation: int) -> JsonObject:
        """The body to send for ``generation``."""
        spec = self.body["spec"]
        return {**self.body, "spec": {**spec, "pool": {**spec["pool"], "generation": generation}}}


def members(pool: Pool) -> tuple[Member, ...]:
    """The pool's objects in the order of writing: metadata first, then devices.

    A pool without devices still has one empty ResourceSlice: the driver is there and has nothing to offer.
    """
    size = MAX_DEVICES_TAINTED if pool.fence is Fence.TAINT or _limited(pool.devices) else MAX_DEVICES
    devices = _chunks(sorted(pool.devices, key=lambda device: natural(device.name)), size) or [[]]
    extractors = per_slice(pool.extractors)
    total = len(devices) + len(extractors)
    count = total if pool.fence is Fence.COUNT else len(devices)
    metadata = [_metadata_slice(pool, index, part, total) for index, part in enumerate(extractors)]
    return (*metadata, *(_device_slice(pool, index, part, count) for index, part in enumerate(devices)))


def member_name(index: int, driver: str, pool: str) -> str:
    """The name of a pool's ``index``-th object of a kind: stable, unique per pool, sorting in index order.

    Readable where it fits; where the pool's name is too long or no valid object name, a hash stands for the
    rest.
    """
    readable = f"{index:05x}-{driver}-{pool}"
    if len(readable) <= MAX_NAME and re.fullmatch(r"[a-z0-9.-]+", readable):
        return readable
    digest = hashlib.sha256(f"{driver}\0{pool}".encode()).hexdigest()[:16]
    stem = re.sub(r"[^a-z0-9.-]+", "-", readable.lower())[: MAX_NAME - 17].rstrip(".-")
    return f"{stem}-{digest}"


def per_slice(extractors: Sequence[Extractor]) -> list[list[Extractor]]:
    """A pool's extractors by name, as many together as one SharingAffinitySlice takes."""
    return _chunks(sorted(extractors, key=lambda extractor: extractor.name), names.MAX_EXTRACTORS_PER_SLICE)


def entries(extractors: Sequence[Extractor]) -> list[JsonObject]:
    """Extractors as a SharingAffinitySlice holds them."""
    return [{"name": extractor.name, "expression": extractor.expression} for extractor in extractors]


def declared(metadata: Sequence[JsonObject]) -> tuple[Extractor, ...]:
    """What one pool's SharingAffinitySlices declare, those of the newest generation; the reverse of
    ``entries``.
    """
    generations = [int(item["spec"]["pool"].get("generation", 0)) for item in metadata]
    return tuple(
        Extractor(entry["name"], entry["expression"])
        for item, generation in zip(metadata, generations, strict=True)
        if generation == max(generations)
        for entry in item["spec"]["sharingAffinity"]
    )


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key that puts ``eth2`` before ``eth10``."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"\d+|\D+", name))


def _metadata_slice(pool: Pool, index: int, extractors: Sequence[Extractor], total: int) -> Member:
    spec: JsonObject = {**_pool_part(pool, total), "sharingAffinity": entries(extractors)}
    return _member(pool, METADATA_SLICES, names.API_VERSION, names.SLICE_KIND, index, spec)


def _device_slice(pool: Pool, index: int, devices: Sequence[Device], count: int) -> Member:
    spec = {**_pool_part(pool, count), "devices": [_device(device, pool.fence) for device in devices]}
    return _member(pool, RESOURCE_SLICES, names.RESOURCE_API_VERSION, "ResourceSlice", index, spec)


def _device(device: Device, fence: Fence) -> JsonObject:
    body: JsonObject = {"name": device.name}
    if device.attributes:
        body["attributes"] = device.attributes
    if device.capacity:
        body["capacity"] = device.capacity
    if device.shareable:
        body["allowMultipleAllocations"] = True
    taints = list(device.taints)
    if fence is Fence.TAINT:
        taints.append({"key": names.FENCE_KEY, "effect": names.FENCE_EFFECT})
    if taints:
        body["taints"] = taints
    return body


def _pool_part(pool: Pool, count: int) -> JsonObject:
    return {
        "driver": pool.driver,
        "nodeName": pool.node,
        "pool": {"name": pool.name, "resourceSliceCount": count},
    }


def _member(pool: Pool, collection: str, version: str, kind: str, index: int, spec: JsonObject) -> Member:
    name = member_name(index, pool.driver, pool.name)
    owner = {"apiVersion": "v1", "kind": "Node", "name": pool.node, "uid": pool.node_uid, "controller": True}
    body: JsonObject = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": spec,
    }
    return Member(collection, name, body)


def _limited(devices: Sequence[Device]) -> bool:
    return any(
        device.taints
        or any(isinstance(value.get(kind), list) for value in device.attributes.values() for kind in value)
        for device in devices
    )


def _chunks(items: Sequence[_T], size: int) -> list[list[_T]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
