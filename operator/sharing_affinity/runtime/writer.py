"""Writing allocations, and knowing afterwards whether they were written.

An allocation takes two writes to its claim. The first is metadata: the finalizer without which nobody would
deallocate the claim later, and the record annotation with a fresh attempt id. The second is the status,
with the resourceVersion that the first returned. In between the lease is checked again, and no write is
given more time than the lease surely lasts.

A status write without an answer may have happened, or may still happen. It is *unknown*, and its device
stays assumed, until one of two things is known: the claim has an allocation; or a conditional metadata
write, the removal of the record, succeeded while the claim had none. After that removal the claim has
another resourceVersion, so the lost write can never land. A GET alone proves nothing. The same removal is
what a new leader does to every unallocated claim with a record before it decides anything, and what tidies
up claims that others deallocated.

No typed models here: the status that goes back is the one that came, unknown fields and the nulls of opaque
parameters included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, Final

import structlog

from sharing_affinity.api import names, quantity
from sharing_affinity.api.decoding import decode
from sharing_affinity.api.record import encode
from sharing_affinity.engine import ClaimWrite, Release
from sharing_affinity.runtime import wire
from sharing_affinity.runtime.client import MERGE_PATCH, ApiError, Client, NoAnswerError
from sharing_affinity.runtime.kinds import CLAIMS
from sharing_affinity.runtime.pacing import Pacer, backoff

BINDING_HINT: Final = "resourceclaims/binding"

log = structlog.get_logger("writer")


class Outcome(Enum):
    """How a write ended. For all but `WRITTEN` and `UNKNOWN` it is certain that no allocation of ours
    stands."""

    WRITTEN = "written"
    #: The claim changed since the decision; decide again.
    CONFLICT = "conflict"
    #: The claim is gone, or another one has its name.
    GONE = "gone"
    #: Somebody else has allocated the claim.
    TAKEN = "taken"
    #: The API server refuses this allocation; the message says why.
    REJECTED = "rejected"
    #: We lack a permission; no allocation at all will succeed.
    FORBIDDEN = "forbidden"
    #: The API server dropped fields of the allocation (a feature gate is off); it has been cleared again.
    DROPPED = "dropped"
    #: Not attempted to the end: the server is overloaded or away, nothing was changed.
    RETRY = "retry"
    #: The lease no longer covers writing; nothing was written.
    NO_LEASE = "no lease"
    #: Unknown, and we may no longer find out: the lease is lost. The claim stays assumed.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one write. ``resource_version`` is the claim's afterwards, where it is known."""

    uid: str
    outcome: Outcome
    message: str = ""
    resource_version: str = ""


class Writer:
    """Writes to claims. ``budget`` gives the seconds a write may take by the lease (0 or less: none
    allowed)."""

    def __init__(
        self,
        client: Client,
        *,
        budget: Callable[[], float],
        pacer: Pacer,
        new_id: Callable[[], str],
        random: Random,
        concurrency: int = 16,
        timeout: float = 8.0,
    ) -> None:
        self._client, self._budget, self._pacer = client, budget, pacer
        self._new_id, self._random = new_id, random
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout = timeout

    async def write(self, order: ClaimWrite, finalizers: Sequence[str] = ()) -> Result:
        """Write one allocation by the recipe and return only when the outcome is known, or cannot be.

        ``finalizers`` are those of the claim in the version that was decided on.
        """
        async with self._slots:
            try:
                prepared = await self._step(lambda within: self._prepare(order, finalizers, within))
            except _Ended as ended:
                return Result(order.uid, ended.outcome, ended.message)
            except NoAnswerError as error:
                # The status was not sent, so no allocation can come of this attempt.
                return Result(order.uid, Outcome.RETRY, str(error))
            if prepared["metadata"]["uid"] != order.uid:
                return Result(order.uid, Outcome.GONE)
            if (prepared.get("status") or {}).get("allocation"):
                return Result(order.uid, Outcome.TAKEN)
            wanted = {
                **prepared,
                "status": {**(prepared.get("status") or {}), "allocation": order.allocation},
            }
            try:
                written = await self._step(lambda within: self._put_status(wanted, within))
            except _Ended as ended:
                if ended.outcome is Outcome.CONFLICT:
                    # Something in between may have repeated our request, and this is the answer to its echo.
                    return await self.settle(order)
                return Result(order.uid, ended.outcome, ended.message)
            except NoAnswerError as error:
                if not error.sent:
                    return Result(order.uid, Outcome.RETRY, str(error))
                log.warning("outcome unknown", claim=f"{order.namespace}/{order.name}", problem=str(error))
                return await self.settle(order)
        return await self._judge(order, written)

    async def settle(self, order: ClaimWrite) -> Result:
        """Find out what became of an attempt, trying as long as the lease is ours."""
        delays = backoff(self._random, first=0.1, limit=5.0)
        while self._budget() > 0:
            try:
                found = await self._get(order.namespace, order.name)
                if found is None or found["metadata"]["uid"] != order.uid:
                    return Result(order.uid, Outcome.GONE)
                if (found.get("status") or {}).get("allocation"):
                    return await self._judge(order, found)
                cleaned = await self._remove_record(found)
                version = cleaned["metadata"]["resourceVersion"]
                return Result(order.uid, Outcome.CONFLICT, "the write was not applied", version)
            except ApiError as error:
                if error.status == 404:
                    return Result(order.uid, Outcome.GONE)
                if error.status != 409:
                    log.warning(
                        "cannot settle yet", claim=f"{order.namespace}/{order.name}", problem=str(error)
                    )
            except NoAnswerError as error:
                log.warning("cannot settle yet", claim=f"{order.namespace}/{order.name}", problem=str(error))
            await asyncio.sleep(next(delays))
        return Result(order.uid, Outcome.UNKNOWN, "the lease ended before the outcome was known")

    async def refute(self, namespace: str, name: str, uid: str) -> bool:
        """Make sure that no earlier attempt on this claim can land any more.

        True: the claim has no allocation and none can come of a lost write. False: it has one. A claim that
        is gone counts as True. Raises `ApiError` or `NoAnswerError` when it could not be told; then nothing
        is sure.
        """
        async with self._slots:
            for _ in range(10):
                found = await self._get(namespace, name)
                if found is None or found["metadata"]["uid"] != uid:
                    return True
                if (found.get("status") or {}).get("allocation"):
                    return False
                try:
                    await self._remove_record(found)
                    return True
                except ApiError as error:
                    if error.status == 404:
                        return True
                    if error.status != 409:
                        raise
            raise NoAnswerError(f"claim {namespace}/{name} changes too often")

    async def disown(self, claim: Mapping[str, Any]) -> None:
        """Take the record off a claim as it was read; its allocation stays, as if somebody else's. Raises
        `ApiError` (409 where the claim has changed) or `NoAnswerError`."""
        meta = claim["metadata"]
        await self._pacer.wait()
        await self._change_metadata(
            meta["namespace"],
            meta["name"],
            meta["uid"],
            meta["resourceVersion"],
            {names.RECORD_ANNOTATION: None},
            list(meta.get("finalizers") or ()),
            self._timeout,
        )

    async def release(self, order: Release) -> Result:
        """Clear an allocation nobody uses, then take record and finalizer off the claim."""
        async with self._slots:
            try:
                found = await self._step(lambda within: self._fetch(order.namespace, order.name, within))
                if found is None or found["metadata"]["uid"] != order.uid:
                    return Result(order.uid, Outcome.GONE)
                status = found.get("status") or {}
                if found["metadata"]["resourceVersion"] != order.resource_version:
                    return Result(order.uid, Outcome.CONFLICT, "the claim has changed")
                if not status.get("allocation") or status.get("reservedFor"):
                    return Result(order.uid, Outcome.CONFLICT, "the claim is reserved or not allocated")
                cleared = {key: value for key, value in status.items() if key != "allocation"}
                written = await self._step(
                    lambda within: self._put_status({**found, "status": cleared}, within)
                )
                await self._remove_record(written)
            except _Ended as ended:
                return Result(order.uid, ended.outcome, ended.message)
            except ApiError as error:
                # Cleared, but somebody was quicker with the next change: the tidying comes later.
                return Result(order.uid, Outcome.WRITTEN, str(error))
            except NoAnswerError as error:
                return Result(order.uid, Outcome.RETRY, str(error))
        return Result(order.uid, Outcome.WRITTEN)

    async def _judge(self, order: ClaimWrite, stored: Mapping[str, Any]) -> Result:
        """Compare what the server holds with what was sent."""
        version = stored["metadata"]["resourceVersion"]
        allocation = (stored.get("status") or {}).get("allocation")
        if not same_devices(order.allocation, allocation):
            return Result(order.uid, Outcome.TAKEN, "allocated by somebody else", version)
        lost = missing_fields(order.allocation, allocation)
        if not lost:
            return Result(order.uid, Outcome.WRITTEN, "", version)
        message = "the API server dropped " + ", ".join(lost) + ": a feature gate that is needed is off"
        log.error("fields dropped", claim=f"{order.namespace}/{order.name}", fields=lost)
        status = {key: value for key, value in (stored.get("status") or {}).items() if key != "allocation"}
        try:
            cleared = await self._step(lambda within: self._put_status({**stored, "status": status}, within))
            await self._remove_record(cleared)
        except (_Ended, ApiError, NoAnswerError) as error:
            # It stands, and it holds its device like anybody's.
            return Result(order.uid, Outcome.WRITTEN, f"{message}; it could not be cleared: {error}", version)
        return Result(order.uid, Outcome.DROPPED, message, version)

    async def _prepare(self, order: ClaimWrite, finalizers: Sequence[str], within: float) -> Any:
        record = encode(order.record.with_attempt(self._new_id()))
        return await self._change_metadata(
            order.namespace,
            order.name,
            order.uid,
            order.resource_version,
            {names.RECORD_ANNOTATION: record},
            list(dict.fromkeys((*finalizers, names.DELETE_PROTECTION_FINALIZER))),
            within,
        )

    async def _change_metadata(
        self,
        namespace: str,
        name: str,
        uid: str,
        version: str,
        annotations: Mapping[str, str | None],
        finalizers: list[str],
        within: float,
    ) -> Any:
        """Set annotations (None: remove) and finalizers, provided the claim has this uid and resourceVersion.

        A patch does in one request; one that the server refuses because it can't send the claim's own opaque
        parameters through JSON unchanged is made again in protobuf form.
        """
        path = CLAIMS.item(namespace, name)
        try:
            return await self._client.request(
                "PATCH",
                path,
                content_type=MERGE_PATCH,
                body={
                    "metadata": {
                        "uid": uid,
                        "resourceVersion": version,
                        "finalizers": finalizers,
                        "annotations": annotations,
                    }
                },
                within=within,
            )
        except ApiError as error:
            if (
                error.status != 422
                or "spec: Invalid value" not in str(error)
                or "immutable" not in str(error)
            ):
                raise
        body = await self._client.exchange("GET", path, accept=wire.MEDIA_TYPE, within=within)
        found = wire.read_metadata(body)
        if (found.uid, found.resource_version) != (uid, version):
            raise ApiError(409, "Conflict", "the claim has changed")
        text = await self._client.exchange(
            "PUT",
            path,
            wire.with_metadata(body, annotations, finalizers),
            content_type=wire.MEDIA_TYPE,
            within=within,
        )
        return decode(text)

    async def _put_status(self, claim: Mapping[str, Any], within: float) -> Any:
        # The subresource takes nothing but the status, and the server keeps the managed fields it has: of the
        # rest only what identifies the version goes out, which is half of the bytes.
        meta = claim["metadata"]
        identity = {key: meta[key] for key in ("namespace", "name", "uid", "resourceVersion")}
        return await self._client.request(
            "PUT",
            CLAIMS.item(meta["namespace"], meta["name"], "status"),
            body={
                "apiVersion": CLAIMS.group_version,
                "kind": CLAIMS.kind,
                "metadata": identity,
                "status": claim["status"],
            },
            within=within,
        )

    async def _get(self, namespace: str, name: str) -> Any:
        await self._pacer.wait()
        return await self._fetch(namespace, name, self._timeout)

    async def _fetch(self, namespace: str, name: str, within: float) -> Any:
        try:
            return await self._client.request("GET", CLAIMS.item(namespace, name), within=within)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _remove_record(self, claim: Mapping[str, Any]) -> Any:
        """Take the record off an unallocated claim, and the finalizer with it, provided it has not changed.

        When the record is not there any more, the claim has moved on from the version any lost write was
        made for, and there is nothing to do.
        """
        meta = claim["metadata"]
        if names.RECORD_ANNOTATION not in (meta.get("annotations") or {}):
            return claim
        kept = [name for name in meta.get("finalizers") or () if name != names.DELETE_PROTECTION_FINALIZER]
        await self._pacer.wait()
        return await self._change_metadata(
            meta["namespace"],
            meta["name"],
            meta["uid"],
            meta["resourceVersion"],
            {names.RECORD_ANNOTATION: None},
            kept,
            self._timeout,
        )

    async def _step(self, send: Callable[[float], Awaitable[Any]]) -> Any:
        """One write under the lease, repeated while the server says it is too busy to have done anything."""
        for attempt in range(4):
            await self._pacer.wait()
            within = min(self._timeout, self._budget())
            if within <= 0:
                raise _Ended(Outcome.NO_LEASE, "the lease does not cover a write now")
            try:
                return await send(within)
            except ApiError as error:
                if error.status != 429 or attempt == 3:
                    raise _Ended(*classify(error)) from error
                await asyncio.sleep(min(error.retry_after or 0.5, 5.0) * (1 + self._random.random() / 2))
        raise AssertionError("unreachable")


class _Ended(Exception):  # noqa: N818 - an early end, not an error
    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome, self.message = outcome, message


def classify(error: ApiError) -> tuple[Outcome, str]:
    """What an answer other than success means for a write of an allocation."""
    text = "; ".join((error.message, *(cause for cause in error.causes if cause not in error.message)))
    if error.status == 404:
        # Also when the namespace is going away.
        return Outcome.GONE, text
    if error.status == 409:
        return Outcome.CONFLICT, text
    if error.status == 429:
        return Outcome.RETRY, text
    if error.status == 403 and "is being terminated" in text:
        return Outcome.GONE, text
    if error.status in (401, 403) or (error.status == 422 and BINDING_HINT in text):
        # The granular authorization answers 422 where 403 is meant.
        return Outcome.FORBIDDEN, text
    return Outcome.REJECTED, text


def same_devices(sent: Mapping[str, Any], stored: Mapping[str, Any] | None) -> bool:
    """Whether the stored allocation is the one that was sent: same devices for the same requests, same
    shares."""
    return stored is not None and _identity(sent) == _identity(stored)


def _identity(allocation: Mapping[str, Any]) -> tuple[tuple[str | None, ...], ...]:
    results = (allocation.get("devices") or {}).get("results") or ()
    return tuple(
        tuple(result.get(field) for field in ("request", "driver", "pool", "device", "shareID"))
        for result in results
    )


def missing_fields(sent: Any, stored: Any, path: str = "allocation") -> list[str]:
    """Paths of what was sent and is not stored. Quantities compare by value.

    A missing allocationTimestamp is fine: its gates are off, and then nobody wants it.
    """
    if isinstance(sent, Mapping):
        if not isinstance(stored, Mapping):
            return [path] if sent else []
        found: list[str] = []
        for key, value in sent.items():
            if key == "parameters":
                # Opaque, returned as sent; a null inside is a value there.
                if value != stored.get(key):
                    found.append(f"{path}.{key}")
            elif path == "allocation" and key == "allocationTimestamp" and stored.get(key) is None:
                continue
            else:
                found.extend(missing_fields(value, stored.get(key), f"{path}.{key}"))
        return found
    if isinstance(sent, list | tuple):
        if not sent and stored is None:
            return []
        if not isinstance(stored, list) or len(stored) != len(sent):
            return [path]
        return [
            lost
            for index, (one, other) in enumerate(zip(sent, stored, strict=True))
            for lost in missing_fields(one, other, f"{path}[{index}]")
        ]
    if sent == stored or (sent in (None, "", False) and stored is None):
        return []
    if ".consumedCapacity." in path and isinstance(sent, str) and isinstance(stored, str):
        try:
            return [] if quantity.parse(sent) == quantity.parse(stored) else [path]
        except quantity.QuantityError:
            return [path]
    return [path]
