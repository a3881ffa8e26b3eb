"""One decision: which node a pod's claims go to, and which devices there.

All unallocated claims of the pod that affinity pools can serve are placed together on one node, or none is.
The order of work: is the pod ours, are its claims whole; are all extractions it could meet made and good
(H10); which nodes pass the pod's own constraints; then node by node the device search, until one does. Reads
the world, changes nothing in it but the queue of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sharing_affinity.allocator import Abort, Builder, NodeError, Problem, Search, Solution
from sharing_affinity.allocator.model import Requests
from sharing_affinity.allocator.result import allocation
from sharing_affinity.api import Claim, DeviceClass, Node, Pod, Record, RecordedResult, RequestSpec
from sharing_affinity.api.objects import DeviceConfig
from sharing_affinity.api.reader import format_time
from sharing_affinity.engine.candidates import Choice, choose, ordered
from sharing_affinity.engine.diagnosing import CLOSED, NO_DEVICE, fold_diagnosis, judge_node
from sharing_affinity.engine.matching import (
    Matches,
    NotIndexed,
    Signature,
    TooManySignatures,
    signature,
)
from sharing_affinity.engine.openings import SetId
from sharing_affinity.engine.types import (
    ClaimWrite,
    Decision,
    DeviceVerdict,
    Diagnosis,
    Excluded,
    NodeVerdict,
    NotServed,
    Placed,
    PodKey,
    Reason,
    Unplaced,
)
from sharing_affinity.engine.world import World
from sharing_affinity.extraction import (
    ClaimError,
    Extracted,
    Extraction,
    SliceError,
    Unsatisfied,
    in_scope_configs,
)
from sharing_affinity.nodes import (
    Demand,
    Fit,
    needs_topology,
    resource_fit,
    static_reason,
    topology_reason,
    volume_reason,
)
from sharing_affinity.pools import Pool

MAX_STEPS: Final = 200_000
"""Devices one search may try on one node before it gives the node up."""
MAX_ALL_STEPS: Final = 500_000
"""The same for all nodes of one decision together."""
_ANY: Final = RequestSpec("", (), "ExactCount", 1, False, (), {})
MAX_COMPARED: Final = 16
"""Nodes that fit and are compared for packing before the best of them is taken."""
DETAIL: Final = 32
"""Nodes without openings that a diagnosis looks at one by one."""


class _Pending(Exception):  # noqa: N818 - an answer, not an error
    """An extraction that has not been made yet."""


@dataclass(slots=True)
class Case:
    """A pod with its claims, sorted by what has to happen to them."""

    pod: Pod
    ours: tuple[Claim, ...] = ()
    others: tuple[Claim, ...] = ()
    allocated: tuple[Claim, ...] = ()
    keys: dict[tuple[SetId, int, str], Extraction] = field(default_factory=dict)


@dataclass(slots=True)
class _Log:
    """What is noted on the way, for a diagnosis and for when to try again."""

    verdicts: dict[str, tuple[str, tuple[DeviceVerdict, ...]]] = field(default_factory=dict)
    rest: dict[str, int] = field(default_factory=dict)
    retry: list[float] = field(default_factory=list)
    steps: int = MAX_ALL_STEPS
    placed: list[tuple[Pod, Node]] | None = None


class Decider:
    """Decides for pods against one world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def decide(self, key: PodKey, now: float, new_uuid: Callable[[], str], detail: int = DETAIL) -> Decision:
        """See :meth:`Engine.decide`; ``detail`` nodes without openings are looked at for the diagnosis."""
        try:
            case = self.open_case(key)
            if not isinstance(case, Case):
                return case
            problem = self.extraction_problem(case)
        except _Pending:
            return Unplaced(Reason.EXTRACTION_PENDING, "its sharing-affinity keys are still being extracted")
        except NotIndexed:
            return Unplaced(Reason.EXTRACTION_PENDING, "devices for its requests are still being looked up")
        except TooManySignatures:
            return Unplaced(
                Reason.UNSUPPORTED,
                "its claims select devices in too many different ways at once; use fewer different selectors",
            )
        return problem or self._place(case, now, new_uuid, detail)

    def completable(self, key: PodKey, now: float) -> bool:
        """Whether the rest of a pod's claims can be placed; only a certain no is a no."""
        decision = self.decide(key, now, lambda: "")
        return not (
            isinstance(decision, Unplaced) and decision.reason is Reason.NO_NODE and decision.retry_at is None
        )

    # --- is it ours -----------------------------------------------------------------------------------------

    def open_case(self, key: PodKey) -> Case | NotServed | Unplaced:
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
        if world.stale_pools:
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
        for claim in claims:
            fenced, stock, neither = self._reach(claim)
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
            newer = self._newer_class(claim)
            if newer is not None:
                return Unplaced(
                    Reason.UNSUPPORTED,
                    f"claim {claim.meta.name}: DeviceClass {newer.meta.name} uses {newer.unsupported[0]}, "
                    "which this version does not implement",
                )
            unknown = self._unknown_class(claim)
            if unknown:
                return Unplaced(
                    Reason.NO_NODE,
                    f"claim {claim.meta.name}: DeviceClass {unknown} does not exist; create it, or make the "
                    "claim anew with another",
                    claim=claim.meta.name,
                )
            if stock and not neither:
                if self._only_stock(claim):
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
        case.ours, case.others = tuple(ours), tuple(others)
        return None

    def _reach(self, claim: Claim) -> tuple[list[str], list[str], list[str]]:
        """Requests by what could serve them at all: affinity pools, only stock pools, nothing."""
        fenced: list[str] = []
        stock: list[str] = []
        neither: list[str] = []
        holding = [r for r in claim.requests if not all(spec.admin for _, spec in r.alternatives())]
        for request in holding or claim.requests:
            found = [m for _, spec in request.alternatives() for m in self._matches(spec)]
            if any(m.affinity for m in found):
                fenced.append(request.name)
            elif any(m.stock for m in found):
                stock.append(request.name)
            else:
                neither.append(request.name)
        return fenced, stock, neither

    def _newer_class(self, claim: Claim) -> DeviceClass | None:
        """A DeviceClass of the claim with fields that this version does not know."""
        for request in claim.requests:
            for _, spec in request.alternatives():
                device_class = self._world.classes.get(spec.device_class)
                if device_class is not None and device_class.unsupported:
                    return device_class
        return None

    def _unknown_class(self, claim: Claim) -> str:
        """A DeviceClass that some request cannot do without, and that is not there."""
        for request in claim.requests:
            named = [spec.device_class for _, spec in request.alternatives()]
            if not any(name in self._world.classes for name in named):
                return named[0]
        return ""

    def _only_stock(self, claim: Claim) -> bool:
        return all(
            any(m.stock for _, spec in request.alternatives() for m in self._matches(spec))
            for request in claim.requests
        )

    def _matches(self, spec: RequestSpec) -> tuple[Matches, ...]:
        device_class = self._world.classes.get(spec.device_class)
        return (self._world.matches.matches(device_class, spec),) if device_class is not None else ()

    # --- extraction before anything else (H10) --------------------------------------------------------------

    def extraction_problem(self, case: Case) -> Unplaced | None:
        """An author's error that ends the attempt whatever the order of search. Raises when not all is
        known."""
        found: list[tuple[Pool, Claim, SliceError | ClaimError]] = []
        pending = False
        for index, claim in enumerate(case.ours):
            for request in claim.requests:
                for name, spec in request.alternatives():
                    if spec.admin:
                        continue
                    for matches in self._matches(spec):
                        for pools in matches.sets.values():
                            pool = self._world.pools[next(iter(pools))]
                            outcome = self.outcome(case, pool, index, name)
                            if outcome is None:
                                pending = pending or self._witness(case, pools) is not None
                            elif isinstance(outcome, SliceError | ClaimError):
                                witness = self._witness(case, pools)
                                if witness is not None:
                                    found.append((witness, claim, outcome))
        if pending:
            raise _Pending
        if not found:
            return None
        slices = [f for f in found if isinstance(f[2], SliceError)]
        pool, claim, outcome = min(slices or found, key=lambda f: (f[0].id, f[1].key, str(f[2])))
        if isinstance(outcome, SliceError):
            return Unplaced(
                Reason.SLICE_ERROR,
                f"CEL expression {outcome.key} of pool {pool.name} (driver {pool.driver}) failed to evaluate "
                f"against the opaque config of claim {claim.meta.name}: {outcome.message}; "
                "the driver has to publish a working extractor",
            )
        return Unplaced(
            Reason.CLAIM_ERROR,
            f"claim {claim.meta.name} contradicts itself: {outcome.message}; "
            "make it anew with one value for each key; until then its pod stays pending",
            claim=claim.meta.name,
        )

    def _witness(self, case: Case, pools: Iterable[tuple[str, str]]) -> Pool | None:
        """A pool of these on some node that passes the pod's own constraints."""
        world = self._world
        for pool_id in sorted(pools):
            pool = world.pools[pool_id]
            names = {m.node_name for m in pool.members}
            nodes = (world.nodes[n] for n in sorted(names) if n in world.nodes) if "" not in names else None
            for node in nodes if nodes is not None else world.nodes.values():
                here = any(np.pool.id == pool_id for np in world.node_pools(node))
                if here and not self._constraint(case, node):
                    return pool
        return None

    def outcome(self, case: Case, pool: Pool, index: int, name: str) -> Extraction | None:
        """The extraction for a request on a pool; ``None`` (and queued) when it has not been made.

        The case remembers it: it is the same for every pool of an extractor set.
        """
        key = ((pool.driver, pool.extractors), index, name)
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

    # --- nodes ----------------------------------------------------------------------------------------------

    def _constraint(self, case: Case, node: Node) -> str:
        """What keeps the pod off a node for good: the node itself, volumes, claims allocated elsewhere."""
        world = self._world
        reason = static_reason(case.pod, node)
        if reason:
            return reason
        for claim in case.allocated:
            held = world.allocation_of(claim)
            selector = held.node_selector if held is not None else None
            if selector is not None and not selector.matches(node.name, node.labels):
                return "node(s) where another claim of the pod is not available"
        return volume_reason(case.pod, node, world.volume_claims, world.volumes)

    def _time_constraint(self, case: Case, node: Node, now: float) -> tuple[str, float | None]:
        """What keeps the pod off a node for a while, and until when."""
        world = self._world
        for claim in case.ours:
            cleared = world.cleared.get(claim.meta.uid)
            if cleared is not None and now < cleared.until and cleared.node != node.name:
                return "node(s) other than the one its claim was just freed on", cleared.until
        if node.name == case.pod.nominated_node:
            return "", None
        exclusion = world.exclusions.get((case.pod.key, case.pod.meta.uid), {}).get(node.name)
        if exclusion is not None and now < exclusion.until:
            return "node(s) where the scheduler took the claim's allocation back", exclusion.until
        return "", None

    # --- placing --------------------------------------------------------------------------------------------

    def _place(self, case: Case, now: float, new_uuid: Callable[[], str], detail: int) -> Decision:
        world = self._world
        choice = choose(
            world, case.pod, case.ours, case.allocated, self._matches, partial(self.keys_of, case)
        )
        log = _Log()
        try:
            best = self._best(case, choice, now, log)
        except Abort as abort:
            # Evaluated beforehand, so only an extractor set no witness was found for gets here.
            reason = Reason.SLICE_ERROR if isinstance(abort.cause, SliceError) else Reason.CLAIM_ERROR
            text = str(getattr(abort.cause, "message", abort.cause))
            return Unplaced(
                reason, f"{text}; the driver has to publish a working extractor, or the claim other values"
            )
        if best is None:
            self._judge_rest(case, choice, now, log, detail)
            retry_at = min((t for t in log.retry if t > now), default=None)
            verdicts = tuple(NodeVerdict(n, *v) for n, v in sorted(log.verdicts.items()))
            diagnosis = Diagnosis(verdicts, len(world.nodes), tuple(sorted(log.rest.items())))
            excluded = self._excluded(case)
            return Unplaced(Reason.NO_NODE, fold_diagnosis(diagnosis), diagnosis, retry_at, excluded)
        return self.placement(case, *best, now, new_uuid)

    def _excluded(self, case: Case) -> Excluded:
        conflicts = no_keys = 0
        for index, claim in enumerate(case.ours):
            for request in claim.requests:
                for name, spec in request.alternatives():
                    for matches in self._matches(spec) if not spec.admin else ():
                        for extractors, tally in matches.where.tallies.items():
                            pools = matches.sets.get(extractors)
                            if not pools:
                                continue
                            keys = self.keys_of(case, self._world.pools[next(iter(pools))], index, name)
                            if isinstance(keys, Extracted):
                                conflicts += tally.locked.total() - tally.locked[keys.keys]
                            elif isinstance(keys, Unsatisfied):
                                no_keys += tally.devices
        return Excluded(conflicts, no_keys)

    def _best(self, case: Case, choice: Choice, now: float, log: _Log) -> tuple[Solution, Node] | None:
        """The first node that needs no new lock; else, of the first nodes that fit, the one that needs
        fewest."""
        best: tuple[Solution, Node] | None = None
        later: list[Node] = []
        fitting = 0
        single = sum(len(c.requests) for c in case.ours) == 1
        for node, packed in ordered(self._world, case.pod, choice, now):
            fit = self._fit(case, node, now, log)
            if fit.reason:
                log.verdicts[node.name] = (fit.reason, ())
                continue
            if fit.preempting:
                later.append(node)
                continue
            solution = self._try_node(case, node, now, log)
            if solution is None:
                continue
            fitting += 1
            if best is None or solution.new_locks < best[0].new_locks:
                best = (solution, node)
            enough = fitting >= MAX_COMPARED or (single and not packed)
            if not self._world.options.scoring or not solution.new_locks or enough:
                break
            if node.name == case.pod.nominated_node:
                break
        for node in later if best is None else ():
            solution = self._try_node(case, node, now, log)
            if solution is not None:
                return (solution, node)
        return best

    def _fit(self, case: Case, node: Node, now: float, log: _Log) -> Fit:
        world = self._world
        reason = self._constraint(case, node)
        if not reason and (needs_topology(case.pod) or world.usage.repelling):
            if log.placed is None:
                nodes = world.nodes
                log.placed = [(p, nodes[n]) for p, n in world.usage.placed() if n in nodes]
            reason = topology_reason(case.pod, node, log.placed, world.nodes.values())
        if not reason:
            reason, until = self._time_constraint(case, node, now)
            if until is not None:
                log.retry.append(until)
        if reason:
            return Fit(reason)
        return resource_fit(Demand(case.pod, world.extended), node, world.usage.load(node.name))

    def _judge_rest(self, case: Case, choice: Choice, now: float, log: _Log, detail: int) -> None:
        """Reasons for the nodes that were not visited: ``detail`` of them one by one, the others by
        number."""
        world = self._world
        excluded = 0 if choice.only is None else sum(n not in choice.only for n in world.nodes)
        if excluded:
            log.rest[choice.why] = excluded
        left = [
            name
            for name in sorted({n for names in choice.matching for n in names})
            if name in world.nodes
            and name not in log.verdicts
            and (choice.only is None or name in choice.only)
        ]
        for name in left[:detail]:
            node = world.nodes[name]
            fit = self._fit(case, node, now, log)
            if fit.reason:
                log.verdicts[name] = (fit.reason, ())
            else:
                self._try_node(case, node, now, log)
        if len(left) > detail:
            log.rest[CLOSED] = len(left) - detail
        none = len(world.nodes) - len(log.verdicts) - sum(log.rest.values())
        if none > 0:
            log.rest[NO_DEVICE] = none

    def _try_node(self, case: Case, node: Node, now: float, log: _Log) -> Solution | None:
        world = self._world
        try:
            problem = self._others_elsewhere(case, node) if case.others else ""
            if problem:
                log.verdicts[node.name] = (problem, ())
                return None
            requests = self.requests_on(case, node)
            search = self.search(case, requests, now, min(log.steps, MAX_STEPS))
            try:
                solution = search.run()
            finally:
                log.steps -= search.steps
        except NodeError as error:
            log.verdicts[node.name] = (str(error), ())
            return None
        if solution is None:
            leaves = [leaf for claim in requests for request in claim for leaf in request]
            affine = [c for leaf in leaves for c in leaf.candidates if c.pool.affinity]
            log.retry.extend(t for c in affine if (t := world.settles_at(c.id)) > now)
            verdict = judge_node(world, node, requests, partial(self.keys_of, case), now)
            log.verdicts[node.name] = (verdict.reason, verdict.devices)
        return solution

    def requests_on(self, case: Case, node: Node) -> Requests:
        """The case's claims prepared for one node. Raises :class:`NodeError`."""
        world = self._world
        builder = Builder(world.node_pools(node), world.classes, world.matches.candidates)
        return builder.requests(case.ours)

    def search(self, case: Case, requests: Requests, now: float, steps: int = MAX_STEPS) -> Search:
        """A search for the case's claims, not run yet."""
        world = self._world
        problem = Problem(
            case.ours, requests, world.options.scoring, steps, lambda device: world.settles_at(device) <= now
        )
        return Search(problem, world.ledger, partial(self.keys_of, case))

    def _others_elsewhere(self, case: Case, node: Node) -> str:
        """Whether claims that stock pools serve could be allocated here as well; the scheduler does that."""
        world = self._world
        builder = Builder(world.node_pools(node), world.classes, world.matches.candidates, managed=False)
        try:
            requests = builder.requests(case.others)
            search = Search(
                Problem(case.others, requests, False, MAX_STEPS),
                world.ledger,
                lambda _pool, _index, _name: Unsatisfied(()),
            )
            if search.run() is None:
                return "cannot allocate the pod's claims for ordinary pools"
        except NodeError as error:
            return str(error)
        return ""

    def placement(
        self, case: Case, solution: Solution, node: Node, now: float, new_uuid: Callable[[], str]
    ) -> Placed:
        """The solution as writes."""
        timestamp = format_time(now)
        writes = []
        for index, claim in enumerate(case.ours):
            chosen = solution.results[index]
            selected = [solution.selected[(index, i)] for i in range(len(claim.requests))]
            content = allocation(claim, chosen, selected, node.name, timestamp, new_uuid)
            results = tuple(
                RecordedResult(
                    entry["request"],
                    entry["driver"],
                    entry["pool"],
                    entry["device"],
                    entry.get("shareID", ""),
                    choice.keys,
                )
                for entry, choice in zip(content["devices"]["results"], chosen, strict=True)
            )
            meta = claim.meta
            writes.append(
                ClaimWrite(
                    meta.namespace,
                    meta.name,
                    meta.uid,
                    meta.resource_version,
                    content,
                    Record("", timestamp, results),
                )
            )
        after = frozenset(c.meta.uid for c in case.allocated if c.meta.uid in self._world.assumed)
        excluded = self._excluded(case)
        return Placed(
            case.pod.key, case.pod.meta.uid, node.name, tuple(writes), after, excluded, solution.reused
        )
