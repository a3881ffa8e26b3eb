"""What there is to decide for a pod: is it ours, are its claims whole, and which of them can affinity pools
serve (H12).

A :class:`Case` is opened once per decision. It remembers the keys that its claims yield, which are the same
for every pool of an extractor set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sharing_affinity.api import Claim, DeviceClass, Pod, RequestSpec
from sharing_affinity.api.objects import DeviceConfig
from sharing_affinity.engine.matching import Matches, NotIndexed, Signature, signature
from sharing_affinity.engine.types import NotServed, PodKey, Reason, Unplaced
from sharing_affinity.engine.world import World
from sharing_affinity.extraction import Extraction, Unsatisfied, in_scope_configs
from sharing_affinity.pools import Pool

_ANY: Final = RequestSpec("", (), "ExactCount", 1, False, (), {})


class Wish(NamedTuple):
    """One way to serve a request of ``Case.ours[claim]``: its result name, and what matches it (nothing when
    its class does not exist)."""

    claim: int
    name: str
    spec: RequestSpec
    device_class: DeviceClass | None
    matches: tuple[Matches, ...]


Wishes = tuple[tuple[Wish, ...], ...]
"""The alternatives of each request, in order."""


@dataclass(slots=True)
class Case:
    """A pod with its claims, sorted by what has to happen to them. ``wishes`` are those of ``ours``."""

    pod: Pod
    ours: tuple[Claim, ...] = ()
    others: tuple[Claim, ...] = ()
    allocated: tuple[Claim, ...] = ()
    wishes: Wishes = ()
    keys: dict[tuple[str, int, int, str], Extraction] = field(default_factory=dict)
    """By driver, extractors (the object: :mod:`published` has one for equal ones), claim and request."""

    def holding(self) -> Iterator[Wish]:
        """The wishes that lock what they get: all but those for admin access."""
        return (wish for wishes in self.wishes for wish in wishes if not wish.spec.admin)


class Cases:
    """Opens cases in one world, and answers what their requests match and yield."""

    def __init__(self, world: World) -> None:
        self._world = world

    def open(self, key: PodKey) -> Case | NotServed | Unplaced:
        """The pod with its claims, or why there is nothing to decide (H12)."""
        world = self._world
        pod = world.pods.get(key)
        if (
            pod is None
            or pod.finished
            or pod.meta.deleting
            or pod.scheduler not in world.options.scheduler_names
        ):
            return NotServed(Reason.NOT_OURS)
        claims: list[Claim] = []
        for entry in pod.claims:
            if entry.not_needed:
                continue
            claim = world.claims.get((pod.meta.namespace, entry.claim)) if entry.claim else None
            if claim is None or claim.meta.deleting:
                return NotServed(Reason.WAITING)
            if entry.generated and claim.owner_pod and claim.owner_pod != pod.meta.uid:
                return NotServed(Reason.WAITING)
            if claim not in claims:
                claims.append(claim)
        open_claims = [c for c in claims if world.allocation_of(c) is None]
        if world.published.stale:
            raise NotIndexed
        if not open_claims or pod.gates:
            extended = "" if pod.gates or pod.node_name else self._extended_problem(pod)
            return NotServed(Reason.UNSUPPORTED, extended) if extended else NotServed(Reason.NOT_OURS)
        world.matches.require(self.signatures(open_claims))
        case = Case(pod, allocated=tuple(c for c in claims if world.allocation_of(c) is not None))
        problem = self._sort_claims(case, open_claims)
        if problem is not None or case.ours:
            unserved = self._unserved(pod)
            if unserved:
                return NotServed(Reason.UNSUPPORTED, unserved)
            return problem if problem is not None else case
        return NotServed(Reason.NOT_OURS)

    def signatures(self, claims: Iterable[Claim]) -> Iterator[Signature]:
        """What has to be known of the devices for these claims."""
        for claim in claims:
            for request in claim.requests:
                for _, spec in request.alternatives():
                    device_class = self._world.classes.get(spec.device_class)
                    if device_class is not None:
                        yield signature(device_class, spec)

    def _extended_problem(self, pod: Pod) -> str:
        """A resource request that stands for devices which only claims of ours can have."""
        world = self._world
        for name in sorted(world.extended.keys() & pod.requests.keys()):
            device_class = world.classes[world.extended[name]]
            matches = world.matches.matches(device_class, _ANY)
            if matches.affinity and not matches.stock:
                return (
                    f"it requests the extended resource {name}, whose devices are in sharing-affinity pools; "
                    f"use a ResourceClaim of DeviceClass {device_class.meta.name} instead"
                )
        return ""

    def _unserved(self, pod: Pod) -> str:
        """Pods whose claims only the operator could allocate, but does not (one Event says why)."""
        if pod.node_name:
            return (
                "spec.nodeName is set, but claims for sharing-affinity devices need a pod that is scheduled; "
                "use a nodeSelector instead"
            )
        if pod.group:
            return (
                f"it belongs to the pod group {pod.group}, and affinity pools do not serve pod groups; "
                "use devices outside of them, or pods without a group"
            )
        if pod.unsupported:
            return f"{pod.unsupported[0]} is not implemented by this version; leave it out of the pod"
        return ""

    def _sort_claims(self, case: Case, claims: Sequence[Claim]) -> Unplaced | None:
        """Tell claims for affinity pools from others; a problem with one of ours ends it."""
        ours: list[Claim] = []
        others: list[Claim] = []
        wanted: list[tuple[Wish, ...]] = []
        for claim in claims:
            wishes = self._wishes(len(ours), claim)
            fenced, stock, neither = _reach(claim, wishes)
            if not fenced:
                others.append(claim)
                continue
            if claim.unsupported:
                return Unplaced(
                    Reason.UNSUPPORTED,
                    f"claim {claim.meta.name} uses {claim.unsupported[0]}, "
                    "which this version does not implement; leave it out, or use devices outside of "
                    "affinity pools",
                    claim=claim.meta.name,
                )
            newer = _newer_class(wishes)
            if newer is not None:
                return Unplaced(
                    Reason.UNSUPPORTED,
                    f"claim {claim.meta.name}: DeviceClass {newer.meta.name} uses {newer.unsupported[0]}, "
                    "which this version does not implement; use another class, or a newer version",
                )
            unknown = _unknown_class(wishes)
            if unknown:
                return Unplaced(
                    Reason.NO_NODE,
                    f"claim {claim.meta.name}: DeviceClass {unknown} does not exist; create it, or make the "
                    "claim anew with another",
                    claim=claim.meta.name,
                )
            if stock and not neither:
                if all(any(m.stock for wish in ways for m in wish.matches) for ways in wishes):
                    # Stock pools can serve all of it, so the scheduler will.
                    others.append(claim)
                    continue
                return Unplaced(
                    Reason.MIXED_CLAIM,
                    f"claim {claim.meta.name}: request {fenced[0]} needs fenced devices and request "
                    f"{stock[0]} needs devices of ordinary pools; split it into two claims",
                    claim=claim.meta.name,
                )
            ours.append(claim)
            wanted += wishes
        case.ours, case.others, case.wishes = tuple(ours), tuple(others), tuple(wanted)
        return None

    def _wishes(self, index: int, claim: Claim) -> Wishes:
        return tuple(
            tuple(self._wish(index, name, spec) for name, spec in request.alternatives())
            for request in claim.requests
        )

    def _wish(self, index: int, name: str, spec: RequestSpec) -> Wish:
        device_class = self._world.classes.get(spec.device_class)
        known = (self._world.matches.matches(device_class, spec),) if device_class is not None else ()
        return Wish(index, name, spec, device_class, known)

    def outcome(self, case: Case, pool: Pool, index: int, name: str) -> Extraction | None:
        """The extraction for a request on a pool; ``None`` (and queued) when it has not been made.

        The case remembers it: it is the same for every pool of an extractor set.
        """
        key = (pool.driver, id(pool.extractors), index, name)
        found = case.keys.get(key)
        if found is not None:
            return found
        configs = in_scope_configs(self._configs(case, index, name), pool.driver, name)
        found = self._world.extractions.outcome(pool.extractors, configs)
        if found is not None:
            case.keys[key] = found
        return found

    def _configs(self, case: Case, index: int, name: str) -> tuple[DeviceConfig, ...]:
        """The configs of a claim as its allocation would carry them for this alternative: class, then
        claim."""
        claim = case.ours[index]
        parent = name.partition("/")[0]
        request = next(r for r in claim.requests if r.name == parent)
        spec = dict(request.alternatives())[name]
        device_class = self._world.classes.get(spec.device_class)
        return (device_class.configs if device_class is not None else ()) + claim.configs

    def keys_of(self, case: Case, pool: Pool, index: int, name: str) -> Extraction:
        """As :meth:`outcome`; what is not extracted yet counts as missing."""
        outcome = self.outcome(case, pool, index, name)
        return outcome if outcome is not None else Unsatisfied(("(not extracted yet)",))


def _reach(claim: Claim, wishes: Wishes) -> tuple[list[str], list[str], list[str]]:
    """Requests by what could serve them at all: affinity pools, only stock pools, nothing. Those for admin
    access count only where there are no others."""
    fenced: list[str] = []
    stock: list[str] = []
    neither: list[str] = []
    named = [(request.name, ways) for request, ways in zip(claim.requests, wishes, strict=True)]
    holding = [entry for entry in named if not all(wish.spec.admin for wish in entry[1])]
    for name, ways in holding or named:
        found = [m for wish in ways for m in wish.matches]
        if any(m.affinity for m in found):
            fenced.append(name)
        elif any(m.stock for m in found):
            stock.append(name)
        else:
            neither.append(name)
    return fenced, stock, neither


def _newer_class(wishes: Wishes) -> DeviceClass | None:
    """A DeviceClass with fields that this version does not know."""
    classes = (wish.device_class for ways in wishes for wish in ways)
    return next((found for found in classes if found is not None and found.unsupported), None)


def _unknown_class(wishes: Wishes) -> str:
    """A DeviceClass that some request cannot do without, and that is not there."""
    for ways in wishes:
        if all(wish.device_class is None for wish in ways):
            return ways[0].spec.device_class
    return ""
