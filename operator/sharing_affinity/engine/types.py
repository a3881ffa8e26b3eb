"""What goes into the engine and what comes out of it. All of it values; nothing here has behaviour.

Times are seconds since the epoch (float), passed in by the caller. Objects go in as decoded v1 JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sharing_affinity.api import BadObject, names
from sharing_affinity.api.keys import KeyMap
from sharing_affinity.api.reasons import NoticeReason
from sharing_affinity.api.reasons import Reason as Reason
from sharing_affinity.api.record import Record

PodKey = tuple[str, str]
"""Namespace and name of a pod."""
PoolId = tuple[str, str]
"""Driver and pool name."""


@dataclass(frozen=True, slots=True)
class Options:
    """How an engine behaves; the defaults are the operator's defaults."""

    sharing_affinity: bool = True
    """Gate DRASharingAffinity; off withholds every affinity pool."""
    scoring: bool = True
    """Gate DRASharingAffinityScoring; off is upstream's first-fit order exactly, and nodes by name."""
    scheduler_names: frozenset[str] = frozenset({names.DEFAULT_SCHEDULER})
    rule_fences: bool = False
    """Count a DeviceTaintRule with our key as the fence. Only for clusters whose schedulers all honour rules
    (1.37)."""
    fence_settle: float = 10.0
    """Seconds a fence must have stood before its device is used (H4)."""
    cool_down: float = 30.0
    """Seconds during which a cleared claim of a live pod may only return to its old node (H7)."""
    exclusion: float = 60.0
    """Seconds a node is excluded for a pod after a foreign deallocation; doubles each time up to 16-fold."""
    grace: float = 120.0
    """Seconds an own allocation may wait unused while others want its devices (H8)."""


@dataclass(frozen=True, slots=True)
class Applied:
    """An object was listed, added or modified. ``raw`` carries ``kind`` and ``apiVersion``.

    Kinds: Node, DeviceClass, DeviceTaintRule, ResourceSlice, SharingAffinitySlice, ResourceClaim, Pod,
    PersistentVolumeClaim, PersistentVolume; others are ignored. Only v1 forms of resource.k8s.io are read
    (DeviceTaintRule also v1beta2 and v1alpha3).
    """

    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Gone:
    """An object was deleted. A ``uid`` that is not the known object's is a late event and changes nothing."""

    kind: str
    namespace: str
    name: str
    uid: str


Event = Applied | Gone


@dataclass(frozen=True, slots=True)
class Changes:
    """What an event changed. ``pods`` are worth another :meth:`Engine.decide`; ``pools`` need their views
    rewritten; ``slices`` are SharingAffinitySlices whose status may differ now; ``problem`` is set when the
    object was refused."""

    pods: frozenset[PodKey] = frozenset()
    pools: frozenset[PoolId] = frozenset()
    slices: frozenset[str] = frozenset()
    problem: BadObject | None = None


@dataclass(frozen=True, slots=True)
class ClaimWrite:
    """One allocation to write (reference: allocation write recipe).

    ``allocation`` is the whole ``status.allocation`` JSON, ``record`` goes into the claim's annotation with
    an attempt id of the writer's. ``resource_version`` is of the claim the decision was made on.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    allocation: Mapping[str, Any]
    record: Record


@dataclass(frozen=True, slots=True)
class Excluded:
    """How many devices that match the selectors of a pod's requests were out of the question: locked to
    other values, or because the claim supplies no key. Once per request, on all nodes, visited or not."""

    conflicts: int = 0
    no_keys: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """All unallocated claims of the pod go to ``node``. Nothing is assumed yet: call :meth:`Engine.assume`
    with it.

    ``after`` are UIDs of assumed claims this decision relies on; its writes wait for their confirmation (H8).
    ``reused`` is how many of its devices were locked to the same values before.
    """

    pod: PodKey
    pod_uid: str
    node: str
    writes: tuple[ClaimWrite, ...]
    after: frozenset[str] = frozenset()
    excluded: Excluded = Excluded()
    reused: int = 0


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """The one decisive reason against one device, in words its reader may see (no other tenant's claims)."""

    driver: str
    pool: str
    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Why a node does not do; ``devices`` where the devices decide it."""

    node: str
    reason: str
    devices: tuple[DeviceVerdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole tree behind a message, for ``explain``. ``rest`` counts nodes by reason that were not looked
    at one by one."""

    nodes: tuple[NodeVerdict, ...] = ()
    total_nodes: int = 0
    rest: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The pod is ours and cannot be placed now. ``message`` is one line for an Event on the pod.

    ``retry_at``: when time alone may change the answer (a cool-down or exclusion ends, a fence settles).
    """

    reason: Reason
    message: str
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    retry_at: float | None = None
    excluded: Excluded = Excluded()
    claim: str = ""
    """The claim of the pod that has to change, where one has."""


@dataclass(frozen=True, slots=True)
class NotServed:
    """The pod is not for this operator to place. An empty ``message`` means: say nothing."""

    reason: Reason
    message: str = ""


Decision = Placed | Unplaced | NotServed


@dataclass(frozen=True, slots=True)
class Release:
    """An own allocation nobody uses: clear it, with ``resource_version`` as precondition (H8)."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    reason: str


class DeviceState(StrEnum):
    CLEAN = "Clean"
    LOCKED = "Locked"
    UNRECONSTRUCTABLE = "Unreconstructable"
    UNKNOWN = "Unknown"
    """Held while its pool is gone or incomplete: takes nothing new, re-derived on return (H6)."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim on a device. ``assumed``: decided by us and not yet seen in the watch."""

    namespace: str
    name: str
    uid: str
    request: str
    share_id: str
    keys: KeyMap | None
    consumed: tuple[tuple[str, str], ...]
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class DeviceLock:
    """One row of the lock table. ``capacity`` has (name, consumed, total) as quantity texts."""

    device: str
    state: DeviceState
    keys: KeyMap
    holders: tuple[Holder, ...]
    capacity: tuple[tuple[str, str, str], ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PoolLocks:
    """One affinity pool. ``status`` is True when its devices may be allocated; ``reason`` is a condition
    reason (Joined, Incomplete, Invalid, Unfenced, FencedWithoutMetadata, ManagedByScheduler, Gone,
    GateOff)."""

    driver: str
    pool: str
    generation: int
    node: str
    status: bool
    reason: str
    message: str
    extractors: tuple[tuple[str, str], ...]
    devices: tuple[DeviceLock, ...]


@dataclass(frozen=True, slots=True)
class SliceStatus:
    """The conditions of one SharingAffinitySlice: Accepted and Joined. ``estimated_cost`` is the worst case
    of all its expressions together, None when one does not compile."""

    accepted: bool
    accepted_reason: str
    accepted_message: str
    joined: bool
    joined_reason: str
    joined_message: str
    estimated_cost: int | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something people should hear of.

    ``kind``/``namespace``/``name`` is the object to put the Event on."""

    reason: NoticeReason
    kind: str
    namespace: str
    name: str
    message: str
