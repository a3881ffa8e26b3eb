"""What the operator has written into a cluster, and taking it back once no operator runs any more.

Nothing of it blocks a deletion: the finalizer on allocated claims is Kubernetes' own, which its controller
takes off with the last user. But an allocation that was written for a pod that never came would hold its
device for ever, conditions would go on telling what nobody looks after, and a fence by rule would keep
devices from everybody. `find` lists it, a `Remover` takes it back. What drivers wrote is theirs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from sharing_affinity.api import names, reasons
from sharing_affinity.api.record import decode, matches
from sharing_affinity.engine import Release
from sharing_affinity.runtime import lease, snapshot
from sharing_affinity.runtime.client import MERGE_PATCH, ApiError, Client
from sharing_affinity.runtime.kinds import CLAIMS, LEASES, METADATA, PODS, POOL_VIEWS, SLICES, TAINT_RULES
from sharing_affinity.runtime.pacing import Pacer
from sharing_affinity.runtime.writer import Outcome, Writer

STRATEGIC_PATCH = "application/strategic-merge-patch+json"
LEASE = "sharing-affinity-operator"
PREFIX = f"{names.GROUP}/"
#: Condition types that the operator puts on SharingAffinitySlices; others are their driver's.
SLICE_CONDITIONS = frozenset({reasons.ACCEPTED, reasons.JOINED})


class Action(StrEnum):
    """What is done about a leftover."""

    FREE = "free the allocation, which no pod uses, and take record and finalizer off"
    REFUTE = "take record and finalizer off: the claim was never allocated"
    DISOWN = "take the record off; allocation and finalizer stay with the pods that use them"
    CONDITIONS = "take the operator's conditions off"
    DELETE = "delete"
    OPEN = "delete: its devices become open to every scheduler"


@dataclass(frozen=True, slots=True)
class Leftover:
    """One object and what is done about it. ``raw`` is the object as read."""

    kind: str
    namespace: str
    name: str
    action: Action
    raw: Mapping[str, Any] = dataclasses.field(repr=False)


class OperatorRunsError(Exception):
    """Somebody renews the Lease: what is taken away now would come back."""


async def ensure_stopped(client: Client, namespace: str) -> None:
    """Return when no operator can be leading. Raises `OperatorRunsError`, `ApiError`, `NoAnswerError`.

    A clean stop gives the Lease back. One whose holder was killed is watched for as long as it lasts, since
    clocks of two machines are never compared.
    """
    seen = await _lease(client, namespace, None)
    if seen is None or not seen.holder:
        return
    while lease.decide("", seen, time.monotonic()) is lease.Act.WAIT:
        await asyncio.sleep(0.5)
        found = await _lease(client, namespace, seen)
        if found is None or not found.holder:
            return
        if found.resource_version != seen.resource_version:
            raise OperatorRunsError(f"{found.holder} holds the Lease {namespace}/{LEASE} and renews it")


async def _lease(client: Client, namespace: str, before: lease.Seen | None) -> lease.Seen | None:
    try:
        raw = await client.request("GET", LEASES.item(namespace, LEASE))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return lease.observe(before, raw, time.monotonic())


async def find(client: Client, namespace: str) -> list[Leftover]:
    """Everything of the operator's that is stored, in the order in which it is best removed.

    ``namespace`` is the Lease's. Custom resources that are not served any more have none.
    """
    kinds = [
        CLAIMS,
        PODS,
        TAINT_RULES,
        *(dataclasses.replace(k, optional=True) for k in (METADATA, POOL_VIEWS)),
    ]
    objects: dict[str, list[dict[str, Any]]] = {kind.kind: [] for kind in kinds}
    for raw in await snapshot.read(client, kinds):
        objects[raw["kind"]].append(raw)
    used = set(_used_claims(objects["Pod"]))
    found = [
        _leftover(claim, _claim_action(claim, used))
        for claim in objects["ResourceClaim"]
        if names.RECORD_ANNOTATION in (claim["metadata"].get("annotations") or {})
    ]
    found += [_leftover(pod, Action.CONDITIONS) for pod in objects["Pod"] if any(_ours_on_pod(pod))]
    found += [
        _leftover(s, Action.CONDITIONS) for s in objects["SharingAffinitySlice"] if any(_ours_on_slice(s))
    ]
    found += [_leftover(view, Action.DELETE) for view in objects["SharingAffinityPool"]]
    found += [_leftover(rule, Action.OPEN) for rule in objects["DeviceTaintRule"] if _fences(rule)]
    try:
        raw = await client.request("GET", LEASES.item(namespace, LEASE))
        found.append(_leftover({**raw, "kind": "Lease"}, Action.DELETE))
    except ApiError as error:
        if error.status != 404:
            raise
    return found


async def fenced_devices(client: Client) -> dict[str, int]:
    """By driver, how many devices carry the fence in their own slices: only their driver can open them."""
    counts: dict[str, int] = {}
    for raw in await snapshot.read(client, [SLICES]):
        for device in raw["spec"].get("devices") or ():
            if any(taint.get("key") == names.FENCE_KEY for taint in device.get("taints") or ()):
                counts[raw["spec"]["driver"]] = counts.get(raw["spec"]["driver"], 0) + 1
    return counts


class Remover:
    """Takes leftovers back, one after the other, at a pace that leaves the API server to others."""

    def __init__(self, client: Client, rate: float = 50.0) -> None:
        self._client = client
        self._pacer = Pacer(rate, rate)
        self._writer = Writer(
            client,
            # There is no operator, hence no lease that a write has to fit into.
            budget=lambda: math.inf,
            pacer=self._pacer,
            new_id=lambda: uuid.uuid4().hex,
            random=Random(),
        )

    async def remove(self, leftover: Leftover) -> str:
        """Take one leftover back: empty when it is gone, else why it is not. An object that has changed since
        it was read is left alone. Raises `NoAnswerError`."""
        try:
            return await self._remove(leftover)
        except ApiError as error:
            return "" if error.status == 404 else str(error)

    async def _remove(self, leftover: Leftover) -> str:
        meta = leftover.raw["metadata"]
        match leftover.action:
            case Action.FREE:
                order = Release(
                    meta["namespace"], meta["name"], meta["uid"], meta["resourceVersion"], "uninstalled"
                )
                result = await self._writer.release(order)
                return "" if result.outcome is Outcome.GONE else result.message
            case Action.REFUTE:
                refuted = await self._writer.refute(meta["namespace"], meta["name"], meta["uid"])
                return "" if refuted else "the claim was allocated meanwhile"
            case Action.DISOWN:
                await self._writer.disown(leftover.raw)
                return ""
            case Action.CONDITIONS:
                await self._take_conditions_off(leftover)
                return ""
            case Action.DELETE | Action.OPEN:
                kind = {"SharingAffinityPool": POOL_VIEWS, "DeviceTaintRule": TAINT_RULES, "Lease": LEASES}
                path = kind[leftover.kind].item(leftover.namespace, leftover.name)
                await self._pacer.wait()
                await self._client.request("DELETE", path, body={"preconditions": {"uid": meta["uid"]}})
                return ""

    async def _take_conditions_off(self, leftover: Leftover) -> None:
        meta = leftover.raw["metadata"]
        await self._pacer.wait()
        if leftover.kind == "Pod":
            gone = [{"type": kind, "$patch": "delete"} for kind in _ours_on_pod(leftover.raw)]
            body = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": gone}}
            path = PODS.item(meta["namespace"], meta["name"], "status")
            await self._client.request("PATCH", path, body=body, content_type=STRATEGIC_PATCH)
            return
        ours = set(_ours_on_slice(leftover.raw))
        status = leftover.raw["status"]
        kept = [condition for condition in status["conditions"] if condition["type"] not in ours]
        body = {
            "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            "status": {"conditions": kept, "estimatedCost": None},
        }
        path = METADATA.item("", meta["name"], "status")
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def _leftover(raw: Mapping[str, Any], action: Action) -> Leftover:
    meta = raw["metadata"]
    return Leftover(raw["kind"], meta.get("namespace", ""), meta["name"], action, raw)


def _claim_action(claim: Mapping[str, Any], used: set[tuple[str, str]]) -> Action:
    meta, status = claim["metadata"], claim.get("status") or {}
    if not status.get("allocation"):
        return Action.REFUTE
    if status.get("reservedFor") or (meta["namespace"], meta["name"]) in used or not _allocated_by_us(claim):
        return Action.DISOWN
    return Action.FREE


def _allocated_by_us(claim: Mapping[str, Any]) -> bool:
    """Whether the record fits the stored allocation (H2)."""
    record = decode(claim["metadata"]["annotations"][names.RECORD_ANNOTATION])
    allocation = claim["status"]["allocation"]
    stored = [
        (r["request"], r["driver"], r["pool"], r["device"], r.get("shareID") or "")
        for r in (allocation.get("devices") or {}).get("results") or ()
    ]
    return record is not None and matches(record, allocation.get("allocationTimestamp", ""), stored)


def _used_claims(pods: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Namespace and name of every claim that a pod refers to, also one that has ended: its kubelet may not be
    done with it."""
    for pod in pods:
        namespace = pod["metadata"]["namespace"]
        direct = (entry.get("resourceClaimName") for entry in pod["spec"].get("resourceClaims") or ())
        statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        made = (entry.get("resourceClaimName") for entry in statuses)
        yield from ((namespace, name) for name in (*direct, *made) if name)


def _ours_on_pod(pod: Mapping[str, Any]) -> Iterator[str]:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"].startswith(PREFIX):
            yield condition["type"]


def _ours_on_slice(raw: Mapping[str, Any]) -> Iterator[str]:
    for condition in (raw.get("status") or {}).get("conditions") or ():
        if condition["type"] in SLICE_CONDITIONS:
            yield condition["type"]


def _fences(rule: Mapping[str, Any]) -> bool:
    return bool(rule["spec"].get("taint", {}).get("key") == names.FENCE_KEY)
