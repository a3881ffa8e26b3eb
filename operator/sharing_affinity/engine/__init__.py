"""The engine: observe -> extract -> decide -> assume -> confirm | forget. Sans-IO; one task owns it.

It has no clock, no randomness and does no I/O: time and UUIDs are passed in, objects come as decoded JSON,
and decisions leave as values. So everything the operator decides can be replayed from a file.
"""

from __future__ import annotations

from sharing_affinity.engine.core import Engine
from sharing_affinity.engine.types import (
    Applied,
    Changes,
    ClaimWrite,
    Decision,
    DeviceLock,
    DeviceState,
    DeviceVerdict,
    Diagnosis,
    Event,
    Excluded,
    Gone,
    Holder,
    NodeVerdict,
    Notice,
    NotServed,
    Options,
    Placed,
    PodKey,
    PoolId,
    PoolLocks,
    Reason,
    Release,
    SliceStatus,
    Unplaced,
)

__all__ = [
    "Applied",
    "Changes",
    "ClaimWrite",
    "Decision",
    "DeviceLock",
    "DeviceState",
    "DeviceVerdict",
    "Diagnosis",
    "Engine",
    "Event",
    "Excluded",
    "Gone",
    "Holder",
    "NodeVerdict",
    "NotServed",
    "Notice",
    "Options",
    "Placed",
    "PodKey",
    "PoolId",
    "PoolLocks",
    "Reason",
    "Release",
    "SliceStatus",
    "Unplaced",
]
