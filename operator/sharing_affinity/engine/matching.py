"""Which pools have devices that a request's selectors match, kept up to date per *signature*.

A signature is the selectors of class and request together; requests of one kind share it. For each signature
the index knows, per pool, the verdict on every device, and which affinity and stock pools match at all. A
pool that changes is looked at again lazily, so neither an event nor a decision costs more than the pools it
concerns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sharing_affinity.allocator import Selectors
from sharing_affinity.allocator.prepare import Verdict
from sharing_affinity.api import DeviceClass, RequestSpec
from sharing_affinity.api.objects import Extractor
from sharing_affinity.pools import Pool, PoolDevice

_SIGNATURES: Final = 512
Signature = tuple[str, ...]
PoolId = tuple[str, str]


def signature(device_class: DeviceClass, spec: RequestSpec) -> Signature:
    return device_class.selectors + spec.selectors


@dataclass(slots=True)
class Matches:
    """Everything known about one signature. Pools not listed match no device."""

    verdicts: dict[PoolId, Mapping[str, Verdict]] = field(default_factory=dict)
    affinity: dict[PoolId, None] = field(default_factory=dict)
    stock: dict[PoolId, None] = field(default_factory=dict)
    sets: dict[tuple[Extractor, ...], dict[PoolId, None]] = field(default_factory=dict)
    dirty: dict[PoolId, None] = field(default_factory=dict)


class MatchIndex:
    """Matches by signature over a dictionary of pools that its owner changes."""

    def __init__(self, pools: Mapping[PoolId, Pool], selectors: Selectors | None = None) -> None:
        self._pools = pools
        self._selectors = selectors or Selectors()
        self._entries: OrderedDict[Signature, Matches] = OrderedDict()

    def pool_changed(self, pool: PoolId) -> None:
        for entry in self._entries.values():
            entry.dirty[pool] = None

    def matches(self, device_class: DeviceClass, spec: RequestSpec) -> Matches:
        key = signature(device_class, spec)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Matches(dirty=dict.fromkeys(self._pools))
            if len(self._entries) > _SIGNATURES:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        if entry.dirty:
            for pool in tuple(entry.dirty):
                self._refresh(entry, key, pool)
            entry.dirty.clear()
        return entry

    def verdicts(self, pool: Pool, device_class: DeviceClass, spec: RequestSpec) -> Mapping[str, Verdict]:
        return self.matches(device_class, spec).verdicts.get(pool.id, {})

    def _refresh(self, entry: Matches, key: Signature, pool_id: PoolId) -> None:
        entry.verdicts.pop(pool_id, None)
        entry.affinity.pop(pool_id, None)
        entry.stock.pop(pool_id, None)
        for extractors in tuple(entry.sets):
            pools = entry.sets[extractors]
            pools.pop(pool_id, None)
            if not pools:
                del entry.sets[extractors]
        pool = self._pools.get(pool_id)
        if pool is None:
            return
        verdicts = {}
        for device in pool.listed:
            verdict = self._judge(key, pool.driver, device)
            if verdict is not False:
                verdicts[device.name] = verdict
        if not verdicts:
            return
        entry.verdicts[pool_id] = verdicts
        (entry.affinity if pool.affinity else entry.stock)[pool_id] = None
        if pool.affinity and pool.usable:
            entry.sets.setdefault(pool.extractors, {})[pool_id] = None

    def _judge(self, key: Signature, driver: str, device: PoolDevice) -> Verdict:
        for expression in key:
            verdict = self._selectors.matches(expression, driver, device.device)
            if verdict is not True:
                return verdict
        return True
