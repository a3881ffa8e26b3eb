"""The device search: upstream's structured allocator of 1.37, depth first with backtracking, plus affinity.

Claims in order, requests in order, alternatives in order, devices in order; the next device of one request
comes after the previous one; every new request starts over; the first complete solution wins (reference:
first-fit order). All state of the search lives in a few dictionaries that only the transaction changes, so
leaving a branch is ``undo`` to a mark and nothing else.

Affinity sits between capacity and commitment: a device of an affinity pool is viable when the request's keys
are complete and the device is clean or locked to the same keys, by what is allocated and by what this search
has already chosen. Admin access takes no part in it (settled semantics 7).

With packing on, a request looks at compatible locked devices first, then at the others, each in upstream's
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from sharing_affinity.allocator import capacity, constraints
from sharing_affinity.allocator.capacity import CapacityError, Demand
from sharing_affinity.allocator.model import (
    Abort,
    Candidate,
    Chosen,
    KeysOf,
    Leaf,
    NodeError,
    Problem,
    Solution,
)
from sharing_affinity.allocator.transaction import Transaction
from sharing_affinity.api import KeyMap, Quantity, names
from sharing_affinity.extraction import ClaimError, Extracted, SliceError
from sharing_affinity.locks import DeviceId, Ledger, LockState
from sharing_affinity.pools import Pool

_NOTHING: Final[Mapping[str, Quantity]] = {}


class _Outcome(Enum):
    DONE = auto()
    FAILED = auto()
    TOO_MANY = auto()
    """More results than a claim can hold: no other device of an earlier request can change that."""


class Search:
    """One attempt for the claims of one pod on one node."""

    def __init__(self, problem: Problem, ledger: Ledger, keys_of: KeysOf) -> None:
        self._problem = problem
        self._ledger = ledger
        self._keys_of = keys_of
        self._tx = Transaction()
        self._results: list[list[Chosen]] = [[] for _ in problem.claims]
        self._taken: dict[DeviceId, frozenset[int]] = {}
        self._shares: dict[DeviceId, Mapping[str, Quantity]] = {}
        self._locks: dict[DeviceId, KeyMap] = {}
        self._counters: dict[tuple[tuple[str, str], str, str], Quantity] = {}
        self._attributes: dict[tuple[int, int], tuple[constraints.AttributeValue, ...]] = {}
        self._selected: dict[tuple[int, int], Leaf] = {}
        self._available: dict[tuple[str, str], dict[tuple[str, str], Quantity]] = {}
        self._demands: dict[tuple[int, int], Demand] = {}
        self.steps = 0
        self.backtracks = 0

    def run(self) -> Solution | None:
        """The first solution, or ``None``. Raises :class:`NodeError` and :class:`Abort`."""
        self._check_sizes()
        try:
            outcome = self._place(0, 0)
        except CapacityError as error:
            raise NodeError(str(error)) from None
        except RecursionError:
            raise NodeError("the pod's claims ask for too many devices to search for") from None
        if outcome is not _Outcome.DONE:
            self.assert_pristine()
            return None
        results = tuple(tuple(chosen) for chosen in self._results)
        taken = {c.candidate.id for r in results for c in r if c.keys}
        reused = sum(self._ledger.occupancy(device).state is LockState.LOCKED for device in taken)
        return Solution(results, dict(self._selected), len(taken) - reused, reused)

    def assert_pristine(self) -> None:
        """After a failed search nothing tentative is left; a leak is a bug worth stopping for."""
        leaked = [name for name, state in self.state().items() if state]
        if leaked:
            raise AssertionError(f"the search left tentative state behind: {', '.join(leaked)}")

    def state(self) -> Mapping[str, object]:
        """The tentative state, for tests; everything in it is empty at rest."""
        return {
            "results": [c for results in self._results for c in results],
            "taken": self._taken,
            "shares": self._shares,
            "locks": self._locks,
            "counters": self._counters,
            "attributes": self._attributes,
            "selected": self._selected,
        }

    def _check_sizes(self) -> None:
        for claim, requests in zip(self._problem.claims, self._problem.requests, strict=True):
            total = 0
            for request, leaves in zip(claim.requests, requests, strict=True):
                total += min(leaf.count for leaf in leaves)
                if total > names.MAX_RESULTS_PER_CLAIM:
                    raise NodeError(
                        f"claim {claim.meta.name}, request {request.name}: needs more than "
                        f"{names.MAX_RESULTS_PER_CLAIM} devices"
                    )

    # --- the walk ---

    def _place(self, claim: int, request: int) -> _Outcome:
        """Everything from one request on."""
        requests = self._problem.requests
        if claim >= len(requests):
            return _Outcome.DONE
        if request >= len(requests[claim]):
            outcome = self._place(claim + 1, 0)
            # The limit is per claim, so hitting it is an ordinary failure for the claims before.
            return _Outcome.FAILED if outcome is _Outcome.TOO_MANY else outcome
        leaves = requests[claim][request]
        if not self._problem.claims[claim].requests[request].first_available:
            return self._place_leaf(claim, request, leaves[0])
        all_too_many = True
        for leaf in leaves:
            outcome = self._place_leaf(claim, request, leaf)
            if outcome is _Outcome.DONE:
                return outcome
            all_too_many = all_too_many and outcome is _Outcome.TOO_MANY
        return _Outcome.TOO_MANY if all_too_many else _Outcome.FAILED

    def _place_leaf(self, claim: int, request: int, leaf: Leaf) -> _Outcome:
        if leaf.all_devices and not leaf.candidates:
            return _Outcome.FAILED
        mark = self._tx.mark()
        self._tx.put(self._selected, (claim, request), leaf)
        order = leaf.candidates if leaf.all_devices else self._ordered(leaf)
        outcome = self._place_device(request, leaf, order, 0, 0)
        if outcome is not _Outcome.DONE:
            self._tx.undo(mark)
        return outcome

    def _ordered(self, leaf: Leaf) -> tuple[Candidate, ...]:
        """Compatible locked devices first when packing; sorting is stable, so upstream's order breaks
        ties."""
        if not self._problem.pack or leaf.spec.admin:
            return leaf.candidates
        pool: Pool | None = None
        wanted: KeyMap | None = None
        packed: list[Candidate] = []
        others: list[Candidate] = []
        for candidate in leaf.candidates:
            if candidate.pool is not pool:
                # Candidates come pool by pool.
                pool = candidate.pool
                extraction = self._keys_of(pool, leaf.claim, leaf.name) if pool.affinity else None
                wanted = extraction.keys if isinstance(extraction, Extracted) else None
            if wanted is not None and self._is_locked_to(wanted, candidate.id):
                packed.append(candidate)
            else:
                others.append(candidate)
        return (*packed, *others)

    def _is_locked_to(self, keys: KeyMap, device: DeviceId) -> bool:
        """Whether holders or this search have locked a device to just these keys."""
        occupancy = self._ledger.occupancy(device)
        if occupancy.state is LockState.CLEAN:
            return self._locks.get(device) == keys
        return occupancy.state is LockState.LOCKED and occupancy.keys == keys

    def _place_device(
        self, request: int, leaf: Leaf, order: tuple[Candidate, ...], index: int, start: int
    ) -> _Outcome:
        """Device number ``index`` of a request, from ``start`` in the order on, and everything after it."""
        if index >= leaf.count:
            return self._place(leaf.claim, request + 1)
        if leaf.count - index > names.MAX_RESULTS_PER_CLAIM - len(self._results[leaf.claim]):
            return _Outcome.TOO_MANY
        # In mode All every device has its turn: only the one that is up may be taken.
        stop = start + 1 if leaf.all_devices else len(order)
        for position in range(start, stop):
            candidate = order[position]
            self.steps += 1
            if self.steps > self._problem.max_steps:
                raise NodeError(f"the search was given up after {self._problem.max_steps} steps")
            mark = self._tx.mark()
            if not self._take(leaf, candidate):
                self._tx.undo(mark)
                continue
            outcome = self._place_device(request, leaf, order, index + 1, position + 1)
            if outcome is _Outcome.DONE:
                return outcome
            self.backtracks += 1
            self._tx.undo(mark)
            if outcome is _Outcome.TOO_MANY:
                return outcome
        return _Outcome.FAILED

    # --- one device ---

    def _take(self, leaf: Leaf, candidate: Candidate) -> bool:
        """Check a candidate in upstream's order and commit it. The caller undoes what a refusal left
        half-way."""
        admin, device = leaf.spec.admin, candidate.entry.device
        occupancy = self._ledger.occupancy(candidate.id)
        taken = self._taken.get(candidate.id, frozenset())
        if admin:
            if leaf.claim in taken:
                return False
        elif occupancy.dedicated or taken or (occupancy.shared and not device.allow_multiple):
            # Shares on a device that no longer allows them block it too; capacity alone would not.
            return False
        if candidate.error:
            raise NodeError(candidate.error)
        demand = self._demand(leaf, candidate)
        if demand.problem:
            return False
        before = self._shares.get(candidate.id)
        if not admin and capacity.fits(
            demand.amounts, device.capacity, occupancy.consumed, before or _NOTHING
        ):
            return False
        keys: KeyMap = ()
        if candidate.pool.affinity and not admin:
            found = self._affinity(leaf, candidate)
            if found is None:
                return False
            keys = found
        shared_already = device.allow_multiple and (occupancy.shared or before is not None)
        if device.counters and not shared_already and not self._draw_counters(candidate):
            return False
        if self._is_repelled(leaf, candidate) or not self._satisfy_constraints(leaf, candidate):
            return False
        if device.allow_multiple:
            if not admin:
                self._tx.put(self._shares, candidate.id, _sum(before or _NOTHING, demand.amounts))
        else:
            self._tx.put(self._taken, candidate.id, taken | {leaf.claim})
        consumed = demand.amounts if device.allow_multiple else _NOTHING
        chosen = Chosen(leaf, candidate, device.allow_multiple, consumed, keys)
        self._tx.append(self._results[leaf.claim], chosen)
        return True

    def _demand(self, leaf: Leaf, candidate: Candidate) -> Demand:
        key = (id(leaf.spec), id(candidate.entry.device))
        found = self._demands.get(key)
        if found is None:
            found = capacity.demand(leaf.spec.capacity, candidate.entry.device.capacity)
            self._demands[key] = found
        return found

    def _affinity(self, leaf: Leaf, candidate: Candidate) -> KeyMap | None:
        """The keys under which the device may be taken, with the tentative lock set, or ``None``."""
        if not self._problem.settled(candidate.id):
            return None
        extraction = self._keys_of(candidate.pool, leaf.claim, leaf.name)
        if isinstance(extraction, SliceError | ClaimError):
            raise Abort(extraction)
        if not isinstance(extraction, Extracted):
            return None
        occupancy = self._ledger.occupancy(candidate.id)
        if occupancy.state is LockState.UNRECONSTRUCTABLE:
            return None
        if occupancy.state is LockState.LOCKED and occupancy.keys != extraction.keys:
            return None
        tentative = self._locks.get(candidate.id)
        if tentative is None:
            self._tx.put(self._locks, candidate.id, extraction.keys)
        elif tentative != extraction.keys:
            return None
        return extraction.keys

    def _is_repelled(self, leaf: Leaf, candidate: Candidate) -> bool:
        """An untolerated taint; the fence itself never repels its own keeper."""
        return any(
            taint.blocks and not taint.is_fence and not any(t.tolerates(taint) for t in leaf.spec.tolerations)
            for taint in candidate.entry.taints
        )

    def _satisfy_constraints(self, leaf: Leaf, candidate: Candidate) -> bool:
        claim = self._problem.claims[leaf.claim]
        for index, constraint in enumerate(claim.constraints):
            if not constraints.covers(constraint, leaf.name):
                continue
            value = constraints.lookup(
                candidate.entry.device.attributes, candidate.pool.driver, constraint.attribute
            )
            key = (leaf.claim, index)
            values = constraints.admit(constraint, self._attributes.get(key, ()), value)
            if values is None:
                if leaf.all_devices:
                    # Nothing else could be tried for the same device, so say what is wrong with the claim.
                    raise NodeError(
                        f"claim {claim.meta.name}, request {leaf.name}: device {candidate.entry.name} "
                        f"does not satisfy the constraint on {constraint.attribute}"
                    )
                return False
            self._tx.put(self._attributes, key, values)
        return True

    # --- shared counters ---

    def _draw_counters(self, candidate: Candidate) -> bool:
        pool = candidate.pool
        for use in candidate.entry.device.counters:
            for counter, amount in use.counters.items():
                key = (pool.id, use.counter_set, counter)
                before = self._counters.get(key)
                self._tx.put(self._counters, key, amount if before is None else before + amount)
        for (counter_set, counter), left in self._left_in(pool).items():
            drawn = self._counters.get((pool.id, counter_set, counter))
            if left.nano < (drawn.nano if drawn is not None else 0):
                return False
        return True

    def _left_in(self, pool: Pool) -> dict[tuple[str, str], Quantity]:
        """Counters left by what is allocated, over the whole pool; a shared device is charged once."""
        left = self._available.get(pool.id)
        if left is not None:
            return left
        left = {
            (name, counter): total
            for name, counters in pool.counter_sets.items()
            for counter, total in counters.items()
        }
        for entry in pool.devices:
            if entry.device.counters and self._ledger.occupancy((*pool.id, entry.name)).holds:
                for use in entry.device.counters:
                    for counter, amount in use.counters.items():
                        key = (use.counter_set, counter)
                        if key in left:
                            left[key] = left[key] - amount
        self._available[pool.id] = left
        return left


def _sum(first: Mapping[str, Quantity], second: Mapping[str, Quantity]) -> dict[str, Quantity]:
    total = dict(first)
    for name, amount in second.items():
        total[name] = total[name] + amount if name in total else amount
    return total
