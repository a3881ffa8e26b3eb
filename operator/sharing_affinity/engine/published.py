"""What drivers publish, joined into pools: slices, metadata slices and taint rules, validated together.

A pool is judged anew whenever one of its members changes. A rule may select every pool of the cluster; such
pools are only marked as stale, for the caller to refresh step by step. Where a pool's slices are and since
when each device has been fenced is kept beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from sharing_affinity.allocator import NodePool, pools_on_node
from sharing_affinity.api import Extractor, MetadataSlice, Node, ResourceSlice, TaintRule
from sharing_affinity.engine.types import Options, PoolId
from sharing_affinity.locks import DeviceId
from sharing_affinity.pools import Pool, validate

_ESTIMATES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A pool judged anew: what it was, what it is, and the metadata slices it was judged with."""

    id: PoolId
    before: Pool | None
    after: Pool | None
    metadata: frozenset[str]


class Published:
    """Members and pools. The ``put`` and ``drop`` methods return the pools whose members have changed:
    :meth:`refresh` them."""

    def __init__(self, options: Options, estimate: Callable[[str], int | None]) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.metadata: dict[str, MetadataSlice] = {}
        self.rules: dict[str, TaintRule] = {}
        self.pools: dict[PoolId, Pool] = {}
        self.stale: dict[PoolId, float] = {}
        """Pools that a rule's change has still to be applied to, and when it was seen."""
        self._options = options
        self._estimate = estimate
        self._estimates: dict[str, int | None] = {}
        self._sets: dict[tuple[Extractor, ...], tuple[Extractor, ...]] = {}
        self._members: dict[PoolId, tuple[dict[str, ResourceSlice], dict[str, MetadataSlice]]] = {}
        self._node_pools: dict[str, tuple[NodePool, ...]] = {}
        self._pools_by_node: dict[str, dict[PoolId, None]] = {}
        self._pools_anywhere: dict[PoolId, None] = {}
        self._fenced_since: dict[DeviceId, float] = {}
        self._fenced_in: dict[PoolId, frozenset[str]] = {}

    def put_slice(self, member: ResourceSlice) -> tuple[PoolId, ...]:
        left = self.drop_slice(member.meta.name)
        self.slices[member.meta.name] = member
        pool_id = (member.driver, member.pool)
        self._members.setdefault(pool_id, ({}, {}))[0][member.meta.name] = member
        return tuple(dict.fromkeys((*left, pool_id)))

    def put_metadata(self, meta: MetadataSlice) -> tuple[PoolId, ...]:
        left = self.drop_metadata(meta.meta.name)
        self.metadata[meta.meta.name] = meta
        pool_id = (meta.driver, meta.pool)
        self._members.setdefault(pool_id, ({}, {}))[1][meta.meta.name] = meta
        return tuple(dict.fromkeys((*left, pool_id)))

    def drop_slice(self, name: str) -> tuple[PoolId, ...]:
        member = self.slices.pop(name, None)
        return self._left((member.driver, member.pool), 0, name) if member is not None else ()

    def drop_metadata(self, name: str) -> tuple[PoolId, ...]:
        meta = self.metadata.pop(name, None)
        return self._left((meta.driver, meta.pool), 1, name) if meta is not None else ()

    def _left(self, pool_id: PoolId, side: int, name: str) -> tuple[PoolId, ...]:
        members = self._members[pool_id]
        del members[side][name]
        if not members[0] and not members[1]:
            del self._members[pool_id]
        return (pool_id,)

    def put_rule(self, rule: TaintRule) -> tuple[PoolId, ...]:
        before = self.rules.get(rule.meta.name)
        if before is not None and _does(before) == _does(rule):
            left: tuple[PoolId, ...] = ()
            self.rules[rule.meta.name] = _since(before, rule)
        else:
            # Changed, it keeps the time its taint was added at; what it selects now is fenced since now (H4).
            self.rules[rule.meta.name] = rule if before is None else _added(rule, None)
            left = self._opened(before) if before is not None else ()
        return tuple(dict.fromkeys((*left, *self._selected(rule))))

    def drop_rule(self, name: str) -> tuple[PoolId, ...]:
        rule = self.rules.pop(name, None)
        return self._opened(rule) if rule is not None else ()

    def _opened(self, rule: TaintRule) -> tuple[PoolId, ...]:
        """The pools of a rule that is no more. They may be judged later, after it is back; that the fence of
        devices that nothing else fences was gone is noted here."""
        pools = tuple(self._selected(rule))
        if not self._options.rule_fences or rule.taint is None or not rule.taint.is_fence:
            return pools
        others = [r for r in self.rules.values() if r.taint is not None and r.taint.is_fence]
        for pool_id in pools:
            for member in self._members[pool_id][0].values():
                for device in member.devices:
                    if not any(taint.is_fence for taint in device.taints) and not any(
                        r.fences(*pool_id, device.name) for r in others
                    ):
                        self._fenced_since.pop((*pool_id, device.name), None)
        return pools

    def _selected(self, rule: TaintRule) -> Iterable[PoolId]:
        return (i for i in self._members if rule.driver in ("", i[0]) and rule.pool in ("", i[1]))

    def refresh(self, pool_id: PoolId, now: float) -> Refreshed:
        """Judge a pool by its members of now."""
        self.stale.pop(pool_id, None)
        before = self.pools.get(pool_id)
        members = self._members.get(pool_id)
        self._forget_places(before)
        self._note_fences(pool_id, members[0].values() if members else (), now)
        if members is None:
            self.pools.pop(pool_id, None)
            return Refreshed(pool_id, before, None, frozenset())
        rules = [r for r in self.rules.values() if r.driver in ("", pool_id[0])]
        pool = validate(
            *pool_id,
            members[0].values(),
            members[1].values(),
            rules=rules,
            rule_fences=self._options.rule_fences,
            gate=self._options.sharing_affinity,
            estimate=self.estimate,
        )
        # Pools of one driver have the same extractors; one object for all makes them quick to compare.
        if len(self._sets) > _ESTIMATES:
            self._sets.clear()
        pool = replace(pool, extractors=self._sets.setdefault(pool.extractors, pool.extractors))
        self.pools[pool_id] = pool
        self._remember_places(pool)
        return Refreshed(pool_id, before, pool, frozenset(members[1]))

    def estimate(self, expression: str) -> int | None:
        """Worst-case cost, remembered; ``None`` when the expression does not compile."""
        if expression not in self._estimates:
            if len(self._estimates) > _ESTIMATES:
                self._estimates.clear()
            self._estimates[expression] = self._estimate(expression)
        return self._estimates[expression]

    def _remember_places(self, pool: Pool) -> None:
        if all(m.node_name for m in pool.members):
            for member in pool.members:
                self._pools_by_node.setdefault(member.node_name, {})[pool.id] = None
                self._node_pools.pop(member.node_name, None)
        else:
            self._pools_anywhere[pool.id] = None
            self._node_pools.clear()

    def _forget_places(self, pool: Pool | None) -> None:
        if pool is None:
            return
        if pool.id in self._pools_anywhere:
            del self._pools_anywhere[pool.id]
            self._node_pools.clear()
        for member in pool.members:
            here = self._pools_by_node.get(member.node_name)
            if here is not None:
                here.pop(pool.id, None)
                self._node_pools.pop(member.node_name, None)
                if not here:
                    del self._pools_by_node[member.node_name]

    def _note_fences(self, pool_id: PoolId, members: Iterable[ResourceSlice], now: float) -> None:
        """Since when each device has been fenced without a break, in every slice that lists it (H4)."""
        fenced: dict[str, bool] = {}
        added: dict[str, float] = {}
        for member in members:
            for device in member.devices:
                taints = [t for t in device.taints if t.is_fence]
                if not taints and self._options.rule_fences:
                    taints = [
                        r.taint
                        for r in self.rules.values()
                        if r.taint is not None and r.fences(*pool_id, device.name)
                    ]
                fenced[device.name] = bool(taints) and fenced.get(device.name, True)
                stamp = max((t.added for t in taints if t.added is not None), default=now)
                added[device.name] = max(stamp, added.get(device.name, stamp))
        current = frozenset(name for name, yes in fenced.items() if yes)
        for name in self._fenced_in.get(pool_id, frozenset()) - current:
            self._fenced_since.pop((*pool_id, name), None)
        for name in current:
            device_id = (*pool_id, name)
            since = min(added[name], now)
            self._fenced_since[device_id] = min(self._fenced_since.get(device_id, since), since)
        if current:
            self._fenced_in[pool_id] = current
        else:
            self._fenced_in.pop(pool_id, None)

    def settles_at(self, device: DeviceId) -> float:
        """When a device's fence is old enough to rely on."""
        # A pool fenced by its count has no taint to be young; the count was part of its publication.
        return self._fenced_since.get(device, 0.0) + self._options.fence_settle

    def node_pools(self, node: Node) -> tuple[NodePool, ...]:
        """The pools on a node in search order."""
        found = self._node_pools.get(node.name)
        if found is None:
            ids = [*self._pools_by_node.get(node.name, ()), *self._pools_anywhere]
            found = pools_on_node((self.pools[i] for i in dict.fromkeys(ids)), node.name, node.labels)
            self._node_pools[node.name] = found
        return found

    def forget_node(self, name: str) -> None:
        """The node is gone, or has other labels."""
        self._node_pools.pop(name, None)


def _since(before: TaintRule, rule: TaintRule) -> TaintRule:
    """The same rule, seen again: what is known about its age stays known."""
    if before.taint is None or before.taint.added is None:
        return _added(rule, None)
    return rule


def _added(rule: TaintRule, when: float | None) -> TaintRule:
    return rule if rule.taint is None else replace(rule, taint=replace(rule.taint, added=when))


def _does(rule: TaintRule) -> object:
    taint = rule.taint
    return (rule.driver, rule.pool, rule.device, rule.unsupported, taint and (taint.key, taint.effect))
