"""The engine's public face."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sharing_affinity.engine.types import (
    Changes,
    Decision,
    Event,
    Notice,
    Options,
    Placed,
    PodKey,
    PoolId,
    PoolLocks,
    Release,
    SliceStatus,
)


class Engine:
    """Decides which claims go to which devices. See the module for the order of calls.

    Two layers: *confirmed* is what was observed; *assumed* are decisions whose writes are not settled. Every
    question is answered on both together, except where it says otherwise.
    """

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()

    def observe(self, event: Event, now: float = 0.0) -> Changes:
        """Take an object in. Never raises for a bad object: it is refused alone and reported in the changes.

        Late events are harmless: an older resourceVersion of the same UID, or the deletion of another UID,
        changes nothing. A claim seen with an allocation ends its assumption.
        """
        raise NotImplementedError

    def extract(self, budget: int = 1) -> int:
        """Run at most ``budget`` extractor evaluations that decisions or locks wait for; how many remain
        (H10).

        One evaluation is bounded by the cost limit; call it in a loop against your own time slice, until it
        returns 0, before deciding.
        """
        raise NotImplementedError

    def pods(self) -> tuple[PodKey, ...]:
        """Pods to decide on, in order: priority descending, creationTimestamp, namespace/name (H12)."""
        raise NotImplementedError

    def decide(self, pod: PodKey, now: float, new_uuid: Callable[[], str]) -> Decision:
        """Where the pod's claims go. Changes nothing.

        ``new_uuid`` gives share IDs (lower-case RFC 4122). ``now`` becomes the allocationTimestamp in whole
        seconds.
        """
        raise NotImplementedError

    def assume(self, placement: Placed) -> None:
        """Count the placement's claims as allocated until they are seen, confirmed or forgotten."""
        raise NotImplementedError

    def confirm(self, uid: str) -> None:
        """The write of this claim succeeded. It stays assumed until the watch shows it, but may no longer be
        forgotten and no longer holds back writes that depend on it. Idempotent."""
        raise NotImplementedError

    def forget(self, uid: str) -> Changes:
        """The write of this claim did certainly not happen: drop its assumption. Idempotent per claim UID."""
        raise NotImplementedError

    def assumed(self) -> tuple[str, ...]:
        """UIDs of claims that are assumed now."""
        raise NotImplementedError

    def releases(self, now: float) -> tuple[Release, ...]:
        """Own allocations to free (H8). Pure; call it after events that matter and now and then."""
        raise NotImplementedError

    def notices(self) -> tuple[Notice, ...]:
        """What people should hear of, since the last call."""
        raise NotImplementedError

    def lock_table(self, pools: Iterable[PoolId] | None = None) -> tuple[PoolLocks, ...]:
        """The lock state of all affinity pools, or of some, sorted by driver and pool."""
        raise NotImplementedError

    def slice_status(self, name: str) -> SliceStatus | None:
        """Conditions for one SharingAffinitySlice, ``None`` when there is none of that name."""
        raise NotImplementedError

    def audit(self, claims: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        """Compare the confirmed layer with a consistent list of claims; one line per difference (H9).

        Call it when the feed has passed the list's resourceVersion. Changes nothing.
        """
        raise NotImplementedError

    def rebuild(self, claims: Iterable[Mapping[str, Any]] | None = None, now: float = 0.0) -> Changes:
        """Derive the claim state anew from a list (or from what was observed), then re-apply the
        assumptions."""
        raise NotImplementedError
