"""One decision: which node a pod's claims go to, and which devices there.

All unallocated claims of the pod that affinity pools can serve are placed together on one node, or none is.
The order of work: is the pod ours, are its claims whole; are all extractions it could meet made and good
(H10); which nodes pass the pod's own constraints; then node by node the device search, until one does. Reads
the world, changes nothing in it but the queue of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sharing_affinity.allocator import Abort, Builder, NodeError, Problem, Search, Solution
from sharing_affinity.allocator.model import Requests
from sharing_affinity.allocator.result import allocation
from sharing_affinity.api import Claim, Node, Record, RecordedResult
from sharing_affinity.api.reader import format_time
from sharing_affinity.engine.candidates import Choice, choose, ordered
from sharing_affinity.engine.cases import Case, Cases
from sharing_affinity.engine.diagnosing import CLOSED, NO_DEVICE, fold_diagnosis, judge_node
from sharing_affinity.engine.matching import (
    NotIndexed,
    TooManySignatures,
)
from sharing_affinity.engine.types import (
    ClaimWrite,
    Decision,
    DeviceVerdict,
    Diagnosis,
    Excluded,
    NodeVerdict,
    Placed,
    PodKey,
    Reason,
    Unplaced,
)
from sharing_affinity.engine.world import World
from sharing_affinity.extraction import (
    ClaimError,
    Extracted,
    SliceError,
    Unsatisfied,
)
from sharing_affinity.nodes import (
    Demand,
    Fit,
    Neighbours,
    resource_fit,
    static_reason,
    volume_reason,
)
from sharing_affinity.pools import Pool

MAX_STEPS: Final = 200_000
"""Devices one search may try on one node before it gives the node up."""
MAX_ALL_STEPS: Final = 500_000
"""The same for all nodes of one decision together."""
MAX_COMPARED: Final = 16
"""Nodes that fit and are compared for packing before the best of them is taken."""
DETAIL: Final = 32
"""Nodes without openings that a diagnosis looks at one by one."""


SPENT: Final = "node(s) were not searched any more, after too many devices had been tried on others"


class _Pending(Exception):  # noqa: N818 - an answer, not an error
    """An extraction that has not been made yet."""


@dataclass(slots=True)
class _Log:
    """What is noted on the way, for a diagnosis and for when to try again."""

    verdicts: dict[str, tuple[str, tuple[DeviceVerdict, ...]]] = field(default_factory=dict)
    rest: dict[str, int] = field(default_factory=dict)
    retry: list[float] = field(default_factory=list)
    steps: int = MAX_ALL_STEPS
    neighbours: Neighbours | None = None


class Decider:
    """Decides for pods against one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cases = Cases(world)

    def decide(self, key: PodKey, now: float, new_uuid: Callable[[], str], detail: int = DETAIL) -> Decision:
        """See :meth:`Engine.decide`; ``detail`` nodes without openings are looked at for the diagnosis."""
        try:
            case = self.cases.open(key)
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

    # --- extraction before anything else (H10) --------------------------------------------------------------

    def extraction_problem(self, case: Case) -> Unplaced | None:
        """An author's error that ends the attempt whatever the order of search. Raises when not all is
        known."""
        found: list[tuple[Pool, Claim, SliceError | ClaimError]] = []
        pending = False
        for wish in case.holding():
            for pools in (pools for matches in wish.matches for pools in matches.sets.values()):
                pool = self._world.pools[next(iter(pools))]
                outcome = self.cases.outcome(case, pool, wish.claim, wish.name)
                if outcome is None:
                    pending = pending or self._witness(case, pools) is not None
                elif isinstance(outcome, SliceError | ClaimError):
                    witness = self._witness(case, pools)
                    if witness is not None:
                        found.append((witness, case.ours[wish.claim], outcome))
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
                here = any(np.pool.id == pool_id for np in world.published.node_pools(node))
                if here and not self._constraint(case, node):
                    return pool
        return None

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
            cleared = world.setbacks.cleared.get(claim.meta.uid)
            if cleared is not None and now < cleared.until and cleared.node != node.name:
                return "node(s) other than the one its claim was just freed on", cleared.until
        if node.name == case.pod.nominated_node:
            return "", None
        exclusion = world.setbacks.of(case.pod).get(node.name)
        if exclusion is not None and now < exclusion.until:
            return "node(s) where the claim's allocation was taken back", exclusion.until
        return "", None

    # --- placing --------------------------------------------------------------------------------------------

    def _place(self, case: Case, now: float, new_uuid: Callable[[], str], detail: int) -> Decision:
        world = self._world
        choice = choose(world, case, partial(self.cases.keys_of, case))
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
        for wish in case.holding():
            for matches in wish.matches:
                for extractors, tally in matches.where.tallies.items():
                    pools = matches.sets.get(extractors)
                    if not pools:
                        continue
                    pool = self._world.pools[next(iter(pools))]
                    keys = self.cases.keys_of(case, pool, wish.claim, wish.name)
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
        if not reason:
            if log.neighbours is None:
                log.neighbours = Neighbours(case.pod, world.usage, world.nodes)
            reason = log.neighbours.reason(node)
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
        only = choice.only
        if only is not None:
            # A nominated node has been looked at all the same.
            excluded = sum(n not in only and n not in log.verdicts for n in world.nodes)
            if excluded:
                log.rest[choice.why] = excluded
        left = [
            name
            for name in sorted({n for names in choice.matching for n in names})
            if name in world.nodes and name not in log.verdicts and (only is None or name in only)
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
        if log.steps <= 0:
            log.verdicts[node.name] = (SPENT, ())
            return None
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
            log.retry.extend(t for c in affine if (t := world.published.settles_at(c.id)) > now)
            verdict = judge_node(world, node, requests, partial(self.cases.keys_of, case), now)
            log.verdicts[node.name] = (verdict.reason, verdict.devices)
        return solution

    def requests_on(self, case: Case, node: Node) -> Requests:
        """The case's claims prepared for one node. Raises :class:`NodeError`."""
        world = self._world
        builder = Builder(world.published.node_pools(node), world.classes, world.matches.candidates)
        return builder.requests(case.ours)

    def search(self, case: Case, requests: Requests, now: float, steps: int = MAX_STEPS) -> Search:
        """A search for the case's claims, not run yet."""
        world = self._world
        problem = Problem(
            case.ours,
            requests,
            world.options.scoring,
            steps,
            lambda device: world.published.settles_at(device) <= now,
        )
        return Search(problem, world.ledger, partial(self.cases.keys_of, case))

    def _others_elsewhere(self, case: Case, node: Node) -> str:
        """Whether claims that stock pools serve could be allocated here as well; the scheduler does that."""
        world = self._world
        builder = Builder(
            world.published.node_pools(node), world.classes, world.matches.candidates, managed=False
        )
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
