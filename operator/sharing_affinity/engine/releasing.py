"""Own allocations that nobody uses, to be freed (H8).

Only what the record proves to be ours and what is reserved for nobody is looked at; kube-controller-manager
takes back what has been used. A claim is freed when no live pod wants it any more, its node or its device is
gone or drained, or its pod has waited past the grace time while another pod waits for the same device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from sharing_affinity.api import Allocation, Claim, DeviceClass, Pod, RequestSpec
from sharing_affinity.api.reader import parse_time
from sharing_affinity.engine.matching import NotIndexed, Signature, signature
from sharing_affinity.engine.types import PodKey, PoolId, Release
from sharing_affinity.engine.world import World
from sharing_affinity.nodes import is_repelled


def is_own(claim: Claim) -> bool:
    """Whether the record says that the stored allocation is ours."""
    allocation = claim.allocation
    return allocation is not None and claim.record is not None and allocation.fits(claim.record)


Completable = Callable[[tuple[str, str], float], bool]
"""Whether a pod's remaining claims could still be placed beside those it has."""


def releases(world: World, now: float, completable: Completable) -> tuple[Release, ...]:
    """All of them, by namespace and name."""
    found = []
    others = _Others(world)
    for claim in [world.claims[key] for key in world.idle]:
        if claim.allocation is None or not is_own(claim):
            continue
        reason = _unused(world, claim, claim.allocation, others, now) or _stuck(
            world, claim, now, completable
        )
        if reason:
            meta = claim.meta
            found.append(Release(meta.namespace, meta.name, meta.uid, meta.resource_version, reason))
    return tuple(sorted(found, key=lambda r: (r.namespace, r.name)))


def _unused(world: World, claim: Claim, allocation: Allocation, others: _Others, now: float) -> str:
    pods = [world.pods[key] for key in world.pods_of_claim.get(claim.key, ())]
    live = [p for p in pods if not p.finished and not p.meta.deleting]
    if claim.owner_pod:
        live = [p for p in live if p.meta.uid == claim.owner_pod]
    if not live:
        return "no live pod references the claim"
    if any(p.node_name for p in live):
        # Bound, and about to be reserved by the scheduler or the controller.
        return ""
    node_name = allocation.node_selector.single_node() if allocation.node_selector is not None else None
    if node_name is not None and node_name not in world.nodes:
        return f"node {node_name} is gone"
    if node_name is not None and all(is_repelled(p, world.nodes[node_name], ("NoExecute",)) for p in live):
        return f"node {node_name} is tainted NoExecute"
    asked = {name: spec for request in claim.requests for name, spec in request.alternatives()}
    for result in allocation.results:
        pool = world.pools.get((result.driver, result.pool))
        if result.admin or pool is None or not pool.complete:
            continue
        device = next((d for d in pool.listed if d.name == result.device), None)
        if device is None:
            return f"device {result.pool}/{result.device} is gone"
        tolerations = asked[result.request].tolerations if result.request in asked else ()
        if any(
            t.effect == "NoExecute" and not any(x.tolerates(t) for x in tolerations) for t in device.taints
        ):
            return f"device {result.pool}/{result.device} is tainted NoExecute"
    return _waited_too_long(world, allocation, live, others, now)


def _stuck(world: World, claim: Claim, now: float, completable: Completable) -> str:
    """Its pod got only some of its claims, and the others cannot follow on that node. Of several pods that
    share the claim, one that can use it is enough to keep it."""
    pods = [world.pods[key] for key in world.pods_of_claim.get(claim.key, ())]
    live = [p for p in pods if not p.finished and not p.meta.deleting and not p.gates]
    if live and all(p.key in world.waiting and not _can_follow(world, p, now, completable) for p in live):
        return "the pod's other claims cannot be allocated on that node"
    return ""


def _can_follow(world: World, pod: Pod, now: float, completable: Completable) -> bool:
    others = (world.claims.get((pod.meta.namespace, entry.claim)) for entry in pod.claims)
    missing = any(c is not None and world.allocation_of(c) is None for c in others)
    return not missing or completable(pod.key, now)


def _waited_too_long(
    world: World, allocation: Allocation, live: list[Pod], others: _Others, now: float
) -> str:
    since = parse_time(allocation.timestamp)
    if since is None or now - since < world.options.grace:
        return ""
    pools = {(r.driver, r.pool) for r in allocation.results}
    if others.want(pools, {p.key for p in live}):
        return "its pod stayed unscheduled while another pod waits for the device"
    return ""


class _Others:
    """The pods that wait for devices, by what they ask for: looked at once for all claims, and only when one
    of these has waited too long."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asking: dict[Signature, set[PodKey]] | None = None
        self._specs: dict[Signature, tuple[DeviceClass, RequestSpec]] = {}
        self._pools: dict[Signature, Collection[PoolId]] = {}

    def want(self, pools: set[PoolId], but: set[PodKey]) -> bool:
        """Whether any of these pools could serve a pod other than ``but``, as far as that is known."""
        if self._asking is None:
            self._asking = self._ask()
        return any(
            not pods <= but and not pools.isdisjoint(self._serving(asked))
            for asked, pods in self._asking.items()
        )

    def _ask(self) -> dict[Signature, set[PodKey]]:
        world, waiting = self._world, self._world.waiting.keys()
        asking: dict[Signature, set[PodKey]] = {}
        for key in waiting:
            for entry in world.pods[key].claims:
                claim = world.claims.get((key[0], entry.claim))
                if claim is None or world.allocation_of(claim) is not None:
                    continue
                for request in claim.requests:
                    for _, spec in request.alternatives():
                        device_class = world.classes.get(spec.device_class)
                        if device_class is not None:
                            asked = signature(device_class, spec)
                            asking.setdefault(asked, set()).add(key)
                            self._specs[asked] = (device_class, spec)
        return asking

    def _serving(self, asked: Signature) -> Collection[PoolId]:
        """What no decision has asked for yet is looked up for the next time."""
        found = self._pools.get(asked)
        if found is None:
            try:
                found = self._world.matches.matches(*self._specs[asked]).affinity
            except NotIndexed:
                found = ()
            self._pools[asked] = found
        return found
