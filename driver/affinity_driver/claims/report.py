"""What ``status.devices`` of a claim says about our devices of it (KEP-4817); pure.

The entries are for the claim's owner: is my device there, what is it set up for, and if not, why. They tell
of nobody else: of a refused claim the condition carries the same sentence as the pod's event.

There is no ``observedGeneration``: ResourceClaims have no ``metadata.generation``, since what they ask for
cannot be changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from affinity_driver.json_types import JsonObject
from affinity_driver.state.model import PreparedClaim, Share

from .errors import HardwareError, IncompatibleError, PrepareError

READY = "Ready"
LOCKED = "AffinityLocked"
MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What a profile says of one prepared share: free-form ``data`` (at most 10 KiB as JSON), and
    ``network`` where it is a network interface (``interfaceName``, ``ips`` as CIDR, ``hardwareAddress``).
    """

    data: JsonObject = field(default_factory=dict)
    network: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a claim is not prepared; ``claim`` holds the shares it was to have."""

    claim: PreparedClaim
    reason: str
    message: str


def refusal_of(claim: PreparedClaim, error: PrepareError) -> Refusal | None:
    """What to report of a failed prepare; None where waiting is all there is to it."""
    if isinstance(error, IncompatibleError):
        return Refusal(claim, "Incompatible", str(error))
    if isinstance(error, HardwareError):
        return Refusal(claim, "HardwareFailed", str(error))
    return None


def prepared_entries(
    driver: str, claim: PreparedClaim, report: Callable[[Share], DeviceReport]
) -> list[JsonObject]:
    """The entries of a prepared claim, without times."""
    made = []
    for share in claim.holders_first:
        told = report(share)
        entry = _entry(
            driver, share, ("True", "Prepared", "the device is set up for this claim"), _lock(share)
        )
        if told.data:
            entry["data"] = told.data
        if told.network:
            entry["networkData"] = told.network
        made.append(entry)
    return _distinct(made)


def refused_entries(driver: str, refusal: Refusal) -> list[JsonObject]:
    """The entries of a claim that could not be prepared, without times."""
    ready = ("False", refusal.reason, refusal.message)
    locked = ("False", "NotPrepared", "the claim holds no device")
    return _distinct([_entry(driver, share, ready, locked) for share in refusal.claim.shares])


def identity(entry: JsonObject) -> tuple[str, str, str, str]:
    """The keys of the list map ``status.devices``, which are also those of an allocation result."""
    return (entry["driver"], entry["pool"], entry["device"], entry.get("shareID") or "")


def timed(entries: Sequence[JsonObject], existing: Sequence[JsonObject], now: str) -> list[JsonObject]:
    """``entries`` with ``lastTransitionTime``: of the condition that is there with the same status, else
    ``now``.
    """
    there = {
        (identity(entry), condition["type"], condition["status"]): condition["lastTransitionTime"]
        for entry in existing
        for condition in entry.get("conditions") or ()
    }
    return [
        {
            **entry,
            "conditions": [
                {
                    **condition,
                    "lastTransitionTime": there.get(
                        (identity(entry), condition["type"], condition["status"]), now
                    ),
                }
                for condition in entry["conditions"]
            ],
        }
        for entry in entries
    ]


def _lock(share: Share) -> tuple[str, str, str]:
    if share.admin:
        return ("False", "AdminAccess", "admin access holds no device")
    if not share.keys:
        return ("False", "NoKeys", "the device has no affinity keys")
    keys = ", ".join(f"{key}={json.dumps(value)}" for key, value in sorted(share.keys.items()))
    return ("True", "Locked", keys)


def _entry(
    driver: str, share: Share, ready: tuple[str, str, str], locked: tuple[str, str, str]
) -> JsonObject:
    entry: JsonObject = {"driver": driver, "pool": share.pool, "device": share.device}
    if share.share_id is not None:
        entry["shareID"] = share.share_id
    entry["conditions"] = [
        {"type": name, "status": status, "reason": reason, "message": message[:MAX_MESSAGE]}
        for name, (status, reason, message) in ((READY, ready), (LOCKED, locked))
    ]
    return entry


def _distinct(entries: Sequence[JsonObject]) -> list[JsonObject]:
    """The first entry of each identity: two requests may have one dedicated device with admin access."""
    return list({identity(entry): entry for entry in reversed(entries)}.values())[::-1]
