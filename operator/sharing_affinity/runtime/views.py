"""What people look at: the SharingAffinityPool of each pool, and the conditions of each SharingAffinitySlice.

Views are written after the fact, never read back, and always behind claim writes: each object at most once
a second, all of them from one small budget. What counts is the last state handed in; states in between are
skipped.

`pool_status` and `slice_conditions` are pure; `Views` does the writing, by server-side apply, so that an
object that was edited or deleted by hand comes back.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import structlog

from sharing_affinity.api import names, quantity, reasons
from sharing_affinity.api.keys import cut
from sharing_affinity.engine import DeviceLock, DeviceState, PoolId, PoolLocks, SliceStatus
from sharing_affinity.runtime.client import APPLY, ApiError, Client, NoAnswerError
from sharing_affinity.runtime.kinds import METADATA, POOL_VIEWS
from sharing_affinity.runtime.pacing import Pacer

HOLDERS: Final = 16
DEVICES: Final = 1024
ROOM: Final = 600 * 1024
"""Bytes of the devices of a view: etcd takes 1.5 MiB, and the API server adds who wrote which field."""
VALUE: Final = 256
"""Characters of a lock's value that are shown."""
FIELD_MANAGER: Final = "sharing-affinity"

log = structlog.get_logger("views")


def view_name(driver: str, pool: str) -> str:
    """The name of a pool's view: readable, and unique by a hash of driver and pool."""
    digest = hashlib.sha256(f"{driver}\0{pool}".encode()).hexdigest()[:10]
    readable = re.sub(r"[^a-z0-9.-]+", "-", f"{pool}-{driver}".lower())
    readable = re.sub(r"\.[.-]+|-+\.", ".", readable).strip("-.")[:200].strip("-.") or "pool"
    return f"{readable}-{digest}"


def pool_status(locks: PoolLocks) -> dict[str, Any]:
    """``status`` of the view, without times."""
    # Held devices first: they are what somebody who looks wants to see.
    devices = sorted(locks.devices, key=lambda device: (not device.holders, _natural(device.device)))
    states = [device.state for device in devices]
    status: dict[str, Any] = {
        "generation": locks.generation,
        "keys": [name[:63] for name, _ in locks.extractors][:256],
        "summary": cut(", ".join(filter(None, map(_summary, devices))), 1024),
        "counts": {
            "devices": len(devices),
            "clean": states.count(DeviceState.CLEAN),
            "locked": states.count(DeviceState.LOCKED),
            "blocked": states.count(DeviceState.UNRECONSTRUCTABLE) + states.count(DeviceState.UNKNOWN),
            "holders": sum(len(device.holders) for device in devices),
        },
        "devices": list(_listed(devices[:DEVICES])),
        "conditions": [_condition(reasons.USABLE, locks.status, locks.reason, locks.message)],
    }
    if locks.node:
        status["nodeName"] = locks.node
    return status


def slice_conditions(status: SliceStatus, generation: int) -> list[dict[str, Any]]:
    """The conditions of a SharingAffinitySlice of this ``metadata.generation``, without times."""
    return [
        {**condition, "observedGeneration": generation}
        for condition in (
            _condition(reasons.ACCEPTED, status.accepted, status.accepted_reason, status.accepted_message),
            _condition(reasons.JOINED, status.joined, status.joined_reason, status.joined_message),
        )
    ]


def keep_times(
    wanted: list[dict[str, Any]], stored: Iterable[Mapping[str, Any]], now: str
) -> list[dict[str, Any]]:
    """``wanted`` with a lastTransitionTime: the stored one where the status has not changed."""
    known = {condition.get("type"): condition for condition in stored}
    result = []
    for condition in wanted:
        before = known.get(condition["type"])
        same = before is not None and before.get("status") == condition["status"]
        time = before.get("lastTransitionTime") if same and before is not None else None
        result.append({**condition, "lastTransitionTime": time or now})
    return result


def _condition(kind: str, status: bool, reason: str, message: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True" if status else "False",
        "reason": reason or "Unknown",
        "message": cut(message, 32768),
    }


def _summary(device: DeviceLock) -> str:
    if not device.holders:
        return ""
    if device.state is DeviceState.LOCKED:
        lock = " ".join(f"{key}={cut(value, 40)}" for key, value in device.keys)
        return f"{device.device} {lock} ({len(device.holders)})"
    return f"{device.device} {device.state.value} ({len(device.holders)})"


def _listed(devices: Iterable[DeviceLock]) -> Iterator[dict[str, Any]]:
    """As many devices as there is room for."""
    room = ROOM
    for device in devices:
        view = _device(device)
        room -= len(json.dumps(view))
        if room < 0:
            return
        yield view


def _device(device: DeviceLock) -> dict[str, Any]:
    view: dict[str, Any] = {
        "name": device.device,
        "state": device.state.value,
        "holderCount": len(device.holders),
        "holders": [
            {
                "namespace": holder.namespace,
                "name": holder.name,
                "uid": holder.uid,
                "request": holder.request,
                **({"shareID": holder.share_id} if holder.share_id else {}),
            }
            for holder in device.holders[:HOLDERS]
        ],
    }
    if device.reason:
        view["message"] = cut(device.reason, 1024)
    if device.state is DeviceState.LOCKED:
        view["lock"] = {key: cut(value, VALUE) for key, value in device.keys}
    if device.capacity:
        view["capacity"] = {name: total for name, _, total in device.capacity[:64]}
        view["freeCapacity"] = {
            name: _free(consumed, total) for name, consumed, total in device.capacity[:64]
        }
    return view


def _free(consumed: str, total: str) -> str:
    left = quantity.parse(total) - quantity.parse(consumed)
    zero = quantity.from_int(0)
    return str(left if left > zero else zero)


def _natural(text: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", text) if part]


class Views:
    """Writes views while this replica leads. Hand states in with `show_pools` and `show_slice`."""

    def __init__(
        self,
        client: Client,
        *,
        pacer: Pacer,
        wall: Callable[[], datetime.datetime],
        leading: Callable[[], bool],
        interval: float = 1.0,
    ) -> None:
        self._client, self._pacer, self._wall = client, pacer, wall
        self._leading = leading
        self._interval = interval
        self._pools: dict[PoolId, PoolLocks | None] = {}
        self._slices: dict[str, tuple[str, int, Mapping[str, Any], SliceStatus]] = {}
        self._written: dict[PoolId, dict[str, Any]] = {}
        self._conditions: dict[str, tuple[Sequence[Mapping[str, Any]], int | None]] = {}
        self._work = asyncio.Event()

    def show_pools(self, wanted: Iterable[PoolId], table: Iterable[PoolLocks]) -> None:
        """The present state of the pools ``wanted``; one that is not in the table is gone."""
        present = {(locks.driver, locks.pool): locks for locks in table}
        for pool in wanted:
            self._pools[pool] = present.get(pool)
        self._work.set()

    def show_slice(
        self, name: str, uid: str, generation: int, stored: Mapping[str, Any], status: SliceStatus
    ) -> None:
        """The present state of one SharingAffinitySlice; ``stored`` is its status now."""
        self._slices[name] = (uid, generation, stored, status)
        self._work.set()

    def reset(self) -> None:
        """Forget what was written: this replica starts to lead, or has stopped."""
        self._pools.clear()
        self._slices.clear()
        self._written.clear()
        self._conditions.clear()

    async def run(self) -> None:
        """Write for ever. What another leader has to tell by now is dropped: a new term is told everything
        anew."""
        while True:
            await self._work.wait()
            self._work.clear()
            pools, self._pools = self._pools, {}
            slices, self._slices = self._slices, {}
            for pool, locks in pools.items():
                await asyncio.sleep(0)  # most views are as they were, and making them takes time, too
                if pool in self._pools or not self._leading():
                    continue
                try:
                    await self._pool(pool, locks)
                except (ApiError, NoAnswerError) as error:
                    log.debug("view not written", pool="/".join(pool), problem=str(error))
                    self._pools.setdefault(pool, locks)
            for name, state in slices.items():
                if name in self._slices or not self._leading():
                    continue
                try:
                    await self._slice(name, *state)
                except (ApiError, NoAnswerError) as error:
                    log.debug("conditions not written", slice=name, problem=str(error))
                    if not isinstance(error, ApiError) or error.status not in (404, 409, 422):
                        self._slices.setdefault(name, state)
            await asyncio.sleep(self._interval)
            if self._pools or self._slices:
                self._work.set()

    async def sweep(self, present: Iterable[PoolId]) -> None:
        """Delete views of pools that are no more; done once by a new leader."""
        wanted = {view_name(*pool) for pool in present}
        found = await self._client.request("GET", POOL_VIEWS.path)
        for view in found["items"]:
            name, spec = view["metadata"]["name"], view["spec"]
            pool = (spec["driver"], spec["pool"])
            # One that has come since, while others were deleted.
            come = (pool in self._written or pool in self._pools) and name == view_name(*pool)
            if name not in wanted and not come and self._leading():
                await self._delete(name)

    async def _pool(self, pool: PoolId, locks: PoolLocks | None) -> None:
        name = view_name(*pool)
        if locks is None:
            self._written.pop(pool, None)
            await self._delete(name)
            return
        status = pool_status(locks)
        before = self._written.get(pool)
        if before is not None and _timeless(before) == status:
            return
        stored: list[Mapping[str, Any]] = before["conditions"] if before is not None else []
        if before is None:
            await self._pacer.wait()
            made = await self._client.request(
                "PATCH",
                POOL_VIEWS.item("", name),
                params={"fieldManager": FIELD_MANAGER, "force": "true"},
                content_type=APPLY,
                body={
                    "apiVersion": names.API_VERSION,
                    "kind": names.POOL_KIND,
                    "metadata": {"name": name},
                    "spec": {"driver": pool[0], "pool": pool[1]},
                },
            )
            stored = (made.get("status") or {}).get("conditions") or []
        status["conditions"] = keep_times(status["conditions"], stored, self._now())
        await self._pacer.wait()
        try:
            await self._apply_status(POOL_VIEWS.item("", name, "status"), names.POOL_KIND, name, status)
        except ApiError as error:
            # Deleted by hand: made anew next time.
            self._written.pop(pool, None)
            if error.status == 404:
                self._pools.setdefault(pool, locks)
                return
            raise
        self._written[pool] = status

    async def _slice(
        self, name: str, uid: str, generation: int, stored: Mapping[str, Any], status: SliceStatus
    ) -> None:
        wanted = slice_conditions(status, generation)
        ours = {condition["type"] for condition in wanted}
        kept = [c for c in stored.get("conditions") or () if c.get("type") in ours]
        known, cost = self._conditions.get(uid, (kept, stored.get("estimatedCost")))
        if [_untimed(condition) for condition in known] == wanted and cost == status.estimated_cost:
            return
        conditions = keep_times(wanted, known, self._now())
        content: dict[str, Any] = {"conditions": conditions}
        if status.estimated_cost is not None:
            content["estimatedCost"] = min(status.estimated_cost, 2**63 - 1)
        await self._pacer.wait()
        await self._apply_status(METADATA.item("", name, "status"), names.SLICE_KIND, name, content, uid)
        self._conditions[uid] = (conditions, status.estimated_cost)
        while len(self._conditions) > 10_000:
            self._conditions.pop(next(iter(self._conditions)))

    async def _apply_status(
        self, path: str, kind: str, name: str, status: Mapping[str, Any], uid: str = ""
    ) -> None:
        await self._client.request(
            "PATCH",
            path,
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            content_type=APPLY,
            body={
                "apiVersion": names.API_VERSION,
                "kind": kind,
                # With its uid, an object that is gone isn't brought back by its own status.
                "metadata": {"name": name, **({"uid": uid} if uid else {})},
                "status": status,
            },
        )

    async def _delete(self, name: str) -> None:
        await self._pacer.wait()
        try:
            await self._client.request("DELETE", POOL_VIEWS.item("", name))
        except ApiError as error:
            if error.status != 404:
                raise

    def _now(self) -> str:
        return self._wall().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _timeless(status: Mapping[str, Any]) -> dict[str, Any]:
    return {**status, "conditions": [_untimed(condition) for condition in status["conditions"]]}


def _untimed(condition: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in condition.items() if key != "lastTransitionTime"}
