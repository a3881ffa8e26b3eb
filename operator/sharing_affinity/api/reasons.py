"""Every reason that people may meet in an Event or a condition, and the types of the conditions.

In one place, since people alert on them and documentation explains each: a reason is never renamed, and a new
one needs its paragraph in docs/troubleshooting.md (a test compares).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

ACCEPTED: Final = "Accepted"
"""Condition of a SharingAffinitySlice: it compiles, within cost. Reasons: :class:`SliceReason`."""
JOINED: Final = "Joined"
"""Condition of a SharingAffinitySlice: its pool is complete, valid and fenced. Reasons: :class:`PoolState`
and ``Obsolete``."""
USABLE: Final = "Usable"
"""Condition of a SharingAffinityPool. Reasons: :class:`PoolState` and ``Gone``."""
CLAIMS_ALLOCATED: Final = "sharingaffinity.dev/ClaimsAllocated"
"""Condition of a Pod, there while it is False. Reasons: :data:`POD_CONDITION_REASONS`."""


class Reason(StrEnum):
    """Why a pod was not placed, or is not served: reasons of Events and of the pod's condition."""

    NO_NODE = "FailedAffinityAllocation"
    SLICE_ERROR = "SharingAffinitySliceError"
    CLAIM_ERROR = "SharingAffinityClaimError"
    MIXED_CLAIM = "SharingAffinityMixedClaim"
    UNSUPPORTED = "SharingAffinityUnsupported"
    # Nobody is told of these; they label metrics.
    NOT_OURS = "NotOurs"
    WAITING = "WaitingForClaims"
    EXTRACTION_PENDING = "ExtractionPending"


class NoticeReason(StrEnum):
    """Reasons of Events that no decision about a pod led to."""

    ALLOCATION_REJECTED = "AllocationRejected"
    """The API server refuses an allocation (on the pod)."""
    FENCE_BREACHED = "FenceBreached"
    """Another allocator gave out a fenced device (on the claim, H4)."""
    MISPLACED = "Misplaced"
    """A pod runs elsewhere than its claim is allocated for (on the pod, H7)."""


class PoolState(StrEnum):
    """Reasons of the conditions Joined and Usable."""

    STOCK = "Stock"
    JOINED = "Joined"
    INCOMPLETE = "Incomplete"
    INVALID = "Invalid"
    UNSUPPORTED = "Unsupported"
    UNFENCED = "Unfenced"
    FENCED_WITHOUT_METADATA = "FencedWithoutMetadata"
    MANAGED_BY_SCHEDULER = "ManagedByScheduler"
    GATE_OFF = "GateOff"


OBSOLETE: Final = "Obsolete"
"""Joined is False: another generation has replaced the slice's."""
GONE: Final = "Gone"
"""Usable is False: no slice of the pool is left, and claims still hold its devices."""


class SliceReason(StrEnum):
    """Reasons of the condition Accepted."""

    COMPILES = "Compiles"
    DOES_NOT_COMPILE = "DoesNotCompile"
    TOO_EXPENSIVE = "TooExpensive"


POD_CONDITION_REASONS: Final = (
    Reason.NO_NODE,
    Reason.SLICE_ERROR,
    Reason.CLAIM_ERROR,
    Reason.MIXED_CLAIM,
    Reason.UNSUPPORTED,
    NoticeReason.ALLOCATION_REJECTED,
)
EVENT_REASONS: Final = (*POD_CONDITION_REASONS, NoticeReason.FENCE_BREACHED, NoticeReason.MISPLACED)
#: Reasons of conditions by the condition's type.
CONDITION_REASONS: Final = {
    ACCEPTED: tuple(SliceReason),
    JOINED: (*PoolState, OBSOLETE),
    USABLE: (*PoolState, GONE),
    CLAIMS_ALLOCATED: POD_CONDITION_REASONS,
}
