"""From a claim and a node's pools to what the search works on.

The order of devices is upstream's: pools by driver and name, those with binding conditions on the node after
all others; slices by name; devices as published. Mode All is resolved here, because what "all" means must not
depend on how far a search has come: one pool that cannot be judged makes the node unsuitable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sharing_affinity.allocator import capacity
from sharing_affinity.allocator.capacity import CapacityError
from sharing_affinity.allocator.model import Candidate, Leaf, NodeError, Requests
from sharing_affinity.api import Claim, DeviceClass, RequestSpec
from sharing_affinity.pools import Pool, PoolDevice, device_serves, serves


@dataclass(frozen=True, slots=True)
class NodePool:
    """A pool that has slices for a node, with the devices of these slices. An unusable pool has none.

    ``elsewhere`` names those of them that are for other nodes. They are never taken, but selectors are
    evaluated on them all the same, and an error counts: so does upstream, which looks at the node last.
    """

    pool: Pool
    devices: tuple[PoolDevice, ...]
    elsewhere: frozenset[str] = frozenset()


Verdict = bool | str
"""A selector's answer on one device: matched, not matched, or the text of an error."""
CandidatesOf = Callable[[NodePool, DeviceClass, RequestSpec], Sequence[Candidate]]
"""The devices of a pool on the node that class and request selectors match, or fail on, as published."""


def pools_on_node(pools: Iterable[Pool], node: str, labels: Mapping[str, str]) -> tuple[NodePool, ...]:
    """The pools with slices for a node, in search order."""
    plain: list[NodePool] = []
    binding: list[NodePool] = []
    for pool in sorted(pools, key=lambda p: p.id):
        relevant = [m for m in pool.members if serves(m, node, labels)]
        if not relevant:
            continue
        here = {m.meta.name for m in relevant}
        devices = tuple(d for d in pool.devices if d.slice.meta.name in here)
        elsewhere = frozenset(
            d.name for d in devices if d.slice.per_device and not device_serves(d.device, node, labels)
        )
        late = pool.usable and any(d.binding_conditions is not None for m in relevant for d in m.devices)
        (binding if late else plain).append(NodePool(pool, devices, elsewhere))
    return (*plain, *binding)


@dataclass(frozen=True, slots=True)
class Builder:
    """Prepares claims for one node. ``managed`` serves from affinity pools, otherwise from stock pools."""

    node_pools: Sequence[NodePool]
    classes: Mapping[str, DeviceClass]
    candidates_of: CandidatesOf
    managed: bool = True

    def requests(self, claims: Sequence[Claim]) -> Requests:
        """Raises :class:`NodeError` when a request cannot be judged on this node."""
        return tuple(
            tuple(
                tuple(self._leaf(index, claim, name, spec) for name, spec in request.alternatives())
                for request in claim.requests
            )
            for index, claim in enumerate(claims)
        )

    def _leaf(self, index: int, claim: Claim, name: str, spec: RequestSpec) -> Leaf:
        device_class = self.classes.get(spec.device_class)
        if device_class is None:
            raise NodeError(f"DeviceClass {spec.device_class} does not exist")
        every = spec.mode == "All"
        if every:
            candidates = tuple(self._all(claim, name, spec, device_class))
        else:
            candidates = tuple(
                candidate
                for node_pool in self.node_pools
                if spec.admin or node_pool.pool.affinity == self.managed
                for candidate in self.candidates_of(node_pool, device_class, spec)
            )
        count = len(candidates) if every else spec.count
        return Leaf(index, name, spec, device_class, candidates, every, count)

    def _all(
        self, claim: Claim, name: str, spec: RequestSpec, device_class: DeviceClass
    ) -> Iterable[Candidate]:
        where = f"claim {claim.meta.name}, request {name}"
        for node_pool in self.node_pools:
            if not node_pool.pool.usable:
                reason = _WITHHELD.get(node_pool.pool.state.value, "not usable")
                raise NodeError(f"{where}: asks for all devices, but pool {node_pool.pool.name} is {reason}")
        for node_pool in self.node_pools:
            for candidate in self.candidates_of(node_pool, device_class, spec):
                if candidate.error:
                    raise NodeError(candidate.error)
                device = candidate.entry.device
                try:
                    demand = capacity.demand(spec.capacity, device.capacity)
                except CapacityError as error:
                    raise NodeError(f"{where}: {error}") from None
                # Static capacity only: what is used up stays in "all" and makes the request fail.
                if demand.problem or capacity.fits(demand.amounts, device.capacity):
                    continue
                if not spec.admin and node_pool.pool.affinity != self.managed:
                    raise NodeError(
                        f"{where}: asks for all devices, and these are in fenced and stock pools together; "
                        "split it into two claims"
                    )
                yield candidate


_WITHHELD: Final = {
    "Incomplete": "being updated",
    "Stock": "being updated or invalid",
    "Invalid": "invalid",
    "Unsupported": "not understood",
}
