"""Builders of Kubernetes objects for tests of the engine: the smallest JSON that the API server would accept.

The vocabulary is that of the cases: driver ``net.example.com``, pool and node ``node-a``, devices ``eth1``
and ``eth2`` with 16 slots and a default of 1, and an extractor of the key ``subnet`` guarded on kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

JSON = dict[str, Any]

DRIVER = "net.example.com"
CLASS = "shared-nic"
SLOTS = f"{DRIVER}/slots"
FENCE = {"key": "sharingaffinity.dev/managed", "effect": "NoSchedule"}
_GUARD = 'has(object.kind) && object.kind == "NICConfig"'
SUBNET = {
    "name": "subnet",
    "expression": f'{_GUARD} && has(object.subnetID) ? object.subnetID : ""',
}
PKEY = {
    "name": "pkey",
    "expression": f'{_GUARD} && has(object.ibPKey) ? object.ibPKey : ""',
}
EPOCH = "2026-01-01T00:00:00Z"

_versions = itertools.count(1000)


def meta(name: str, namespace: str = "", uid: str = "", created: str = EPOCH, **more: Any) -> JSON:
    """Metadata with a UID that follows from the name and a fresh resourceVersion."""
    result: JSON = {
        "name": name,
        "uid": uid or f"uid-{namespace}-{name}",
        "resourceVersion": str(next(_versions)),
        "creationTimestamp": created,
        **more,
    }
    if namespace:
        result["namespace"] = namespace
    return result


def node(name: str = "node-a", labels: JSON | None = None, **spec: Any) -> JSON:
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110", **spec.pop("allocatable", {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta(name, labels={"kubernetes.io/hostname": name, **(labels or {})}),
        "spec": spec,
        "status": {"allocatable": allocatable},
    }


def device(name: str = "eth1", slots: str | None = "16", default: str | None = "1", **more: Any) -> JSON:
    """A shareable, fenced device. ``slots=None``: without capacity; ``fence=False``: without the taint."""
    result: JSON = {"name": name, "allowMultipleAllocations": True}
    if slots is not None:
        capacity: JSON = {"value": slots}
        if default is not None:
            capacity["requestPolicy"] = {"default": default, "validRange": {"min": "0"}}
        result["capacity"] = {SLOTS: capacity}
    taints = [FENCE] if more.pop("fence", True) else []
    taints += more.pop("taints", [])
    if taints:
        result["taints"] = taints
    result.update(more)
    return result


def device_slice(
    devices: Sequence[JSON] | None = None,
    name: str = "",
    pool: str = "node-a",
    generation: int = 1,
    count: int = 1,
    driver: str = DRIVER,
    **spec: Any,
) -> JSON:
    """A ResourceSlice of the pool, on the node of the pool's name unless told otherwise."""
    where: JSON = {"nodeName": pool}
    if {"nodeName", "allNodes", "nodeSelector", "perDeviceNodeSelection"} & set(spec):
        where = {}
    body: JSON = {
        "driver": driver,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
        **where,
        **spec,
    }
    if devices is None and "sharedCounters" not in spec:
        devices = [device("eth1"), device("eth2")]
    if devices is not None:
        body["devices"] = list(devices)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": meta(name or f"{pool}-dev"),
        "spec": body,
    }


def metadata_slice(
    extractors: Sequence[JSON] = (SUBNET,),
    name: str = "",
    pool: str = "node-a",
    generation: int = 1,
    count: int = 2,
    driver: str = DRIVER,
) -> JSON:
    return {
        "apiVersion": "sharingaffinity.dev/v1alpha1",
        "kind": "SharingAffinitySlice",
        "metadata": meta(name or f"{pool}-meta"),
        "spec": {
            "driver": driver,
            "nodeName": pool,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "sharingAffinity": list(extractors),
        },
    }


def device_class(name: str = CLASS, config: Sequence[JSON] = (), **spec: Any) -> JSON:
    body: JSON = {"selectors": [cel(f'device.driver == "{DRIVER}"')], **spec}
    if config:
        body["config"] = [{"opaque": {"driver": DRIVER, "parameters": p}} for p in config]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": meta(name),
        "spec": body,
    }


def cel(expression: str) -> JSON:
    return {"cel": {"expression": expression}}


def nic(subnet: str | None = None, **more: Any) -> JSON:
    """Opaque parameters of the NIC driver."""
    result: JSON = {"apiVersion": f"{DRIVER}/v1", "kind": "NICConfig", **more}
    if subnet is not None:
        result["subnetID"] = subnet
    return result


def config(parameters: Any, requests: Iterable[str] = (), driver: str = DRIVER) -> JSON:
    result: JSON = {"opaque": {"driver": driver, "parameters": parameters}}
    if list(requests):
        result["requests"] = list(requests)
    return result


def request(name: str = "nic", device_class: str = CLASS, **spec: Any) -> JSON:
    if "slots" in spec:
        spec["capacity"] = {"requests": {SLOTS: spec.pop("slots")}}
    return {"name": name, "exactly": {"deviceClassName": device_class, **spec}}


def claim(
    name: str,
    subnet: str | None = None,
    *,
    requests: Sequence[JSON] | None = None,
    configs: Sequence[JSON] | None = None,
    constraints: Sequence[JSON] = (),
    namespace: str = "default",
    uid: str = "",
    allocation: JSON | None = None,
    **metadata: Any,
) -> JSON:
    """A claim with one request ``nic`` and, with a subnet, its config; everything can be given instead."""
    devices: JSON = {"requests": list(requests) if requests is not None else [request()]}
    if configs is None and subnet is not None:
        configs = [config(nic(subnet))]
    if configs:
        devices["config"] = list(configs)
    if constraints:
        devices["constraints"] = list(constraints)
    result: JSON = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": meta(name, namespace, uid, **metadata),
        "spec": {"devices": devices},
    }
    if allocation is not None:
        result["status"] = {"allocation": allocation}
    return result


def pod(
    name: str,
    claims: Sequence[str] = (),
    *,
    namespace: str = "default",
    created: str = EPOCH,
    uid: str = "",
    status: JSON | None = None,
    **spec: Any,
) -> JSON:
    """A pending pod that uses claims of the given names (its own name when none are given)."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, namespace, uid, created, labels={"app": name}),
        "spec": {
            "containers": [{"name": "main", "image": "example"}],
            "resourceClaims": [
                {"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(claims or [name])
            ],
            **spec,
        },
        "status": {"phase": "Pending", **(status or {})},
    }


def allocated(
    raw: JSON,
    device: str = "eth1",
    *,
    subnet: str | None = None,
    pool: str = "node-a",
    share: str | None = "",
    slots: str = "1",
    requests: Sequence[str] = ("nic",),
    driver: str = DRIVER,
    configs: Sequence[JSON] | None = None,
) -> JSON:
    """The claim with an allocation somebody made: one device for each of ``requests``.

    ``share=None`` makes it a dedicated one. Configs are those of the claim unless given.
    """
    results = []
    for index, name in enumerate(requests):
        result: JSON = {"request": name, "driver": driver, "pool": pool, "device": device}
        if share is not None:
            result["shareID"] = share or f"00000000-0000-4000-8000-{index:012d}"
            result["consumedCapacity"] = {SLOTS: slots}
        results.append(result)
    if configs is None:
        configs = raw["spec"]["devices"].get("config", [])
        if subnet is not None:
            configs = [config(nic(subnet))]
    allocation: JSON = {
        "devices": {"results": results, "config": [{"source": "FromClaim", **c} for c in configs]},
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pool]}]}
            ]
        },
        "allocationTimestamp": EPOCH,
    }
    return {
        **raw,
        "metadata": {**raw["metadata"], "resourceVersion": str(next(_versions))},
        "status": {"allocation": allocation},
    }
