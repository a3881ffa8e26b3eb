"""The engine's public face."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sharing_affinity.allocator import Selectors
from sharing_affinity.api import parse_allocation
from sharing_affinity.engine import auditing, releasing, views
from sharing_affinity.engine.deciding import Decider
from sharing_affinity.engine.extracting import Extractions
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
from sharing_affinity.engine.world import Assumption, World, merged


class Engine:
    """Decides which claims go to which devices. See the module for the order of calls.

    Two layers: *confirmed* is what was observed; *assumed* are decisions whose writes are not settled. Every
    question is answered on both together, except where it says otherwise.
    """

    def __init__(
        self,
        options: Options | None = None,
        extractions: Extractions | None = None,
        selectors: Selectors | None = None,
    ) -> None:
        """``extractions`` and ``selectors`` may be another engine's: they only remember what content
        yields."""
        self.options = options or Options()
        self._world = World(self.options, extractions, selectors)
        self._decider = Decider(self._world)
        self._settled = Changes()
        self._turn = False
        """Evaluations and look-ups take turns, so that neither keeps out the other."""

    @property
    def extractions(self) -> Extractions:
        """The extraction stage, for its counters."""
        return self._world.extractions

    def observe(self, event: Event, now: float = 0.0) -> Changes:
        """Take an object in. Never raises for a bad object: it is refused alone and reported in the changes.

        Late events are harmless: an older resourceVersion of the same object, anything of a UID that is gone,
        or the deletion of another UID, changes nothing. A claim seen with an allocation ends its assumption;
        a writer whose PUT succeeded may observe the response, which is the claim as the watch will show it.
        """
        return self._world.observe(event, now)

    def extract(self, budget: int = 1) -> int:
        """Take at most ``budget`` steps of what decisions or locks wait for; how many remain, at the least
        (H10). A step is one extractor evaluation, one selector evaluation, or one pool looked at.

        One step is bounded by the cost limit; call it in a loop against your own time slice, until it
        returns 0, before deciding. A decision that still meets something new says so and queues it.
        """
        world = self._world
        for _ in range(budget):
            if world.published.stale:
                self._settled = merged(self._settled, world.refresh_stale(1))
            elif world.matches.busy and (self._turn or not world.extractions.busy):
                self._turn = False
                world.matches.work()
            elif world.extractions.busy:
                self._turn = True
                world.extractions.run(1)
            else:
                break
        if not world.extractions.busy and world.unextracted:
            self._settled = merged(self._settled, world.settle_extractions())
        return len(world.published.stale) + world.matches.waiting + world.extractions.waiting

    @property
    def finished(self) -> int:
        """How often something that decisions waited for has become known; when it grows, they can be made
        again."""
        return self._world.extractions.evaluations + self._world.matches.finished

    def settle(self) -> Changes:
        """What :meth:`extract` changed since the last call: locks of holders that had waited for it."""
        settled, self._settled = self._settled, Changes()
        return settled

    def pods(self) -> tuple[PodKey, ...]:
        """Pods to decide on, in order: priority descending, creationTimestamp, namespace/name (H12)."""
        return self._world.waiting.in_order()

    def decide(self, pod: PodKey, now: float, new_uuid: Callable[[], str]) -> Decision:
        """Where the pod's claims go. Changes nothing (but the queue of :meth:`extract`).

        ``new_uuid`` gives share IDs (lower-case RFC 4122). ``now`` becomes the allocationTimestamp in whole
        seconds.
        """
        return self._decider.decide(pod, now, new_uuid)

    def explain(self, pod: PodKey, now: float) -> Decision:
        """As :meth:`decide`, but every node is looked at for the diagnosis, however many there are."""
        return self._decider.decide(pod, now, lambda: "", detail=1 << 30)

    def assume(self, placement: Placed) -> Changes:
        """Count the placement's claims as allocated until they are seen, confirmed or forgotten."""
        for write in placement.writes:
            assumption = Assumption(
                key=(write.namespace, write.name),
                pod=placement.pod,
                node=placement.node,
                allocation=parse_allocation(write.allocation, write.name),
                record=write.record,
            )
            self._world.assume(write.uid, assumption)
        # The next pod of the same kind is likely, and its decision need not wait for this one's bookkeeping.
        claims = [self._world.claims.get((write.namespace, write.name)) for write in placement.writes]
        self._world.matches.follow(self._decider.cases.signatures(c for c in claims if c is not None))
        results = [r for write in placement.writes for r in write.record.results]
        return Changes(pools=frozenset((r.driver, r.pool) for r in results))

    def confirm(self, uid: str, resource_version: str = "") -> Changes:
        """The write of this claim succeeded, with this resourceVersion. It stays assumed until the watch
        shows the claim, but no longer holds back writes that depend on it. Idempotent."""
        return self._world.confirm(uid, resource_version)

    def forget(self, uid: str) -> Changes:
        """The write of this claim did certainly not happen: drop its assumption. Idempotent per claim UID; a
        confirmed one is not forgotten any more."""
        assumption = self._world.assumed.get(uid)
        if assumption is None or assumption.confirmed:
            return Changes()
        return self._world.release_assumption(uid)

    def assumed(self) -> tuple[str, ...]:
        """UIDs of claims that are assumed now."""
        return tuple(self._world.assumed)

    def pinned_node(self, pod: PodKey) -> str:
        """The node that a pod's claims, all of them allocated, tie it to; empty when there is none."""
        return self._world.pinned_if_whole(pod)

    def releases(self, now: float) -> tuple[Release, ...]:
        """Own allocations to free (H8). Pure; call it after events that matter and now and then."""
        return releasing.releases(self._world, now, self._decider.completable)

    def notices(self) -> tuple[Notice, ...]:
        """What people should hear of, since the last call."""
        found = tuple(self._world.notices)
        self._world.notices.clear()
        return found

    def lock_table(self, pools: Iterable[PoolId] | None = None) -> tuple[PoolLocks, ...]:
        """The lock state of all affinity pools, or of some, sorted by driver and pool."""
        return views.lock_table(self._world, pools)

    def affinity_pools(self) -> tuple[PoolId, ...]:
        """The pools :meth:`lock_table` has rows for, those that are gone and still held included."""
        return views.affinity_pools(self._world)

    def slice_status(self, name: str) -> SliceStatus | None:
        """Conditions for one SharingAffinitySlice, ``None`` when there is none of that name."""
        return views.slice_status(self._world, name)

    def audit(self, claims: Iterable[Mapping[str, Any]], version: str = "") -> tuple[str, ...]:
        """Compare the confirmed layer with a consistent list of claims; one line per difference (H9).

        Call it when the feed has passed the list's resourceVersion, ``version``. Changes nothing.
        """
        return tuple(line for lines in self.audit_steps(claims, version) for line in lines)

    def audit_steps(
        self, claims: Iterable[Mapping[str, Any]], version: str = "", step: int = auditing.STEP
    ) -> Iterator[tuple[str, ...]]:
        """:meth:`audit` in steps of at most ``step`` claims each; events may be observed between them."""
        return auditing.audit(self._world, claims, version, step)

    def misplaced(self) -> tuple[Notice, ...]:
        """Bound pods whose claim points to another node (H7), for the audit to report."""
        return auditing.misplaced(self._world)

    def rebuild(self, claims: Iterable[Mapping[str, Any]] | None = None, now: float = 0.0) -> Changes:
        """Derive the claim state anew from a list (or from what was observed), then re-apply the
        assumptions."""
        return auditing.rebuild(self._world, claims, now)

    def rebuild_steps(self, step: int = auditing.STEP) -> Iterator[Changes]:
        """:meth:`rebuild` from what was observed, at most ``step`` claims at a time; events may be observed
        between steps, but decide only after the last."""
        return self._world.rederive_steps(step)

    def fingerprint(self) -> object:
        """All derived state as one comparable value: equal for engines that know the same objects."""
        return views.fingerprint(self._world)
