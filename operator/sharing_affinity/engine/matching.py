"""Which pools have devices for a request, and where, kept up to date per *signature*.

A signature is the selectors of class and request together; requests of one kind share it. For each signature
the index knows the verdict on every device, which affinity and stock pools match at all, and, by extractor
set, on which nodes a matching device is clean or locked to which keys. So a decision goes straight to nodes
that may do: its cost does not grow with those that cannot.

Whatever changes (a pool, or who holds its devices) is only marked, and looked at again when a request of the
signature comes next.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sharing_affinity.allocator import Selectors
from sharing_affinity.allocator.prepare import Verdict
from sharing_affinity.api import DeviceClass, KeyMap, RequestSpec, quantity
from sharing_affinity.api.objects import Capacity, Extractor
from sharing_affinity.locks import Ledger, LockState, Occupancy
from sharing_affinity.pools import Pool, PoolDevice

_SIGNATURES: Final = 512
Signature = tuple[str, ...]
PoolId = tuple[str, str]
SetId = tuple[str, tuple[Extractor, ...]]
"""Driver and extractors: what keys follow from, given a claim."""


def signature(device_class: DeviceClass, spec: RequestSpec) -> Signature:
    return device_class.selectors + spec.selectors


class SortedNames:
    """Names in order, each as often as it was added."""

    __slots__ = ("_counts", "_names")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._names: list[str] = []

    def add(self, name: str) -> None:
        count = self._counts.get(name, 0)
        if not count:
            insort(self._names, name)
        self._counts[name] = count + 1

    def remove(self, name: str) -> None:
        count = self._counts[name] - 1
        if count:
            self._counts[name] = count
        else:
            del self._counts[name]
            del self._names[bisect_left(self._names, name)]

    def __contains__(self, name: str) -> bool:
        return name in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class _Place:
    """What one pool contributes: its node ("" for none of its own), and the state of its matching devices.

    ``keys`` are the locks with room left, ``locked`` all locks with the number of devices that have them.
    """

    node: str
    extractors: SetId
    keys: frozenset[KeyMap]
    clean: bool
    devices: int
    locked: Mapping[KeyMap, int]


@dataclass(slots=True)
class Tally:
    """Matching devices of all usable pools of one extractor set: their number, and how many have which
    lock."""

    devices: int = 0
    locked: Counter[KeyMap] = field(default_factory=Counter)


@dataclass(slots=True)
class Openings:
    """Nodes with a matching device that may take a request, for pools of one extractor set."""

    clean: SortedNames = field(default_factory=SortedNames)
    locked: dict[KeyMap, SortedNames] = field(default_factory=dict)


@dataclass(slots=True)
class Matches:
    """Everything known about one signature. Pools not listed match no device.

    ``sets`` are the usable affinity pools by extractor set; ``openings`` covers those of them that belong to
    one node, ``elsewhere`` names the others. ``tallies`` covers all of them.
    """

    verdicts: dict[PoolId, Mapping[str, Verdict]] = field(default_factory=dict)
    affinity: dict[PoolId, None] = field(default_factory=dict)
    stock: dict[PoolId, None] = field(default_factory=dict)
    sets: dict[SetId, dict[PoolId, None]] = field(default_factory=dict)
    openings: dict[SetId, Openings] = field(default_factory=dict)
    elsewhere: dict[PoolId, None] = field(default_factory=dict)
    tallies: dict[SetId, Tally] = field(default_factory=dict)
    nodes: SortedNames = field(default_factory=SortedNames)
    places: dict[PoolId, _Place] = field(default_factory=dict)
    changed: dict[PoolId, None] = field(default_factory=dict)
    touched: dict[PoolId, None] = field(default_factory=dict)


class MatchIndex:
    """Matches by signature over pools and a ledger that their owner changes."""

    def __init__(
        self, pools: Mapping[PoolId, Pool], ledger: Ledger, selectors: Selectors | None = None
    ) -> None:
        self._pools = pools
        self._ledger = ledger
        self._selectors = selectors or Selectors()
        self._entries: OrderedDict[Signature, Matches] = OrderedDict()

    def pool_changed(self, pool: PoolId) -> None:
        """Devices, validity or extractors may be other ones."""
        for entry in self._entries.values():
            entry.changed[pool] = None

    def pool_touched(self, pool: PoolId) -> None:
        """Holders of its devices may be other ones."""
        for entry in self._entries.values():
            entry.touched[pool] = None

    def matches(self, device_class: DeviceClass, spec: RequestSpec) -> Matches:
        key = signature(device_class, spec)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Matches(changed=dict.fromkeys(self._pools))
            if len(self._entries) > _SIGNATURES:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        if entry.changed:
            for pool_id in entry.changed:
                self._judge_pool(entry, key, pool_id)
                entry.touched[pool_id] = None
            entry.changed.clear()
        if entry.touched:
            for pool_id in entry.touched:
                self._locate(entry, pool_id)
            entry.touched.clear()
        return entry

    def verdicts(self, pool: Pool, device_class: DeviceClass, spec: RequestSpec) -> Mapping[str, Verdict]:
        return self.matches(device_class, spec).verdicts.get(pool.id, {})

    # --- which devices match ---

    def _judge_pool(self, entry: Matches, key: Signature, pool_id: PoolId) -> None:
        entry.verdicts.pop(pool_id, None)
        for known in (entry.affinity, entry.stock, entry.elsewhere):
            known.pop(pool_id, None)
        for extractors in [e for e, pools in entry.sets.items() if pool_id in pools]:
            del entry.sets[extractors][pool_id]
            if not entry.sets[extractors]:
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
        if pool.affinity and not pool.node_name:
            entry.elsewhere[pool_id] = None
        if pool.affinity and pool.usable:
            entry.sets.setdefault((pool.driver, pool.extractors), {})[pool_id] = None

    def _judge(self, key: Signature, driver: str, device: PoolDevice) -> Verdict:
        for expression in key:
            verdict = self._selectors.matches(expression, driver, device.device)
            if verdict is not True:
                return verdict
        return True

    # --- where they are, and in which state ---

    def _locate(self, entry: Matches, pool_id: PoolId) -> None:
        before = entry.places.get(pool_id)
        after = self._place(entry, pool_id)
        if before == after:
            return
        if before is not None:
            _remove(entry, before)
            del entry.places[pool_id]
        if after is not None:
            _add(entry, after)
            entry.places[pool_id] = after

    def _place(self, entry: Matches, pool_id: PoolId) -> _Place | None:
        verdicts = entry.verdicts.get(pool_id)
        pool = self._pools.get(pool_id)
        if verdicts is None or pool is None or not pool.affinity:
            return None
        keys: set[KeyMap] = set()
        locked: Counter[KeyMap] = Counter()
        devices = 0
        clean = False
        for device in pool.devices:
            if device.name not in verdicts:
                continue
            devices += 1
            occupancy = self._ledger.occupancy((*pool_id, device.name))
            if occupancy.state is LockState.CLEAN:
                clean = True
            elif occupancy.state is LockState.LOCKED:
                locked[occupancy.keys] += 1
                if not _is_used_up(occupancy, device):
                    keys.add(occupancy.keys)
        extractors = (pool.driver, pool.extractors)
        return _Place(pool.node_name, extractors, frozenset(keys), clean, devices, locked)


def _add(entry: Matches, place: _Place) -> None:
    if place.devices:
        tally = entry.tallies.setdefault(place.extractors, Tally())
        tally.devices += place.devices
        tally.locked.update(place.locked)
    if not place.node:
        return
    entry.nodes.add(place.node)
    if not place.clean and not place.keys:
        return
    openings = entry.openings.setdefault(place.extractors, Openings())
    if place.clean:
        openings.clean.add(place.node)
    for keys in place.keys:
        openings.locked.setdefault(keys, SortedNames()).add(place.node)


def _remove(entry: Matches, place: _Place) -> None:
    if place.devices:
        tally = entry.tallies[place.extractors]
        tally.devices -= place.devices
        # Subtraction keeps only what is left.
        tally.locked -= Counter(place.locked)
        if not tally.devices:
            del entry.tallies[place.extractors]
    if not place.node:
        return
    entry.nodes.remove(place.node)
    if not place.clean and not place.keys:
        return
    openings = entry.openings[place.extractors]
    if place.clean:
        openings.clean.remove(place.node)
    for keys in place.keys:
        openings.locked[keys].remove(place.node)
        if not len(openings.locked[keys]):
            del openings.locked[keys]
    if not len(openings.clean) and not openings.locked:
        del entry.openings[place.extractors]


def _is_used_up(occupancy: Occupancy, device: PoolDevice) -> bool:
    """Whether no request at all can be added: it is dedicated, or a capacity is below its least amount."""
    if occupancy.dedicated or not device.device.allow_multiple:
        return True
    for name, capacity in device.device.capacity.items():
        left = capacity.value.nano - occupancy.consumed.get(name, quantity.ZERO).nano
        if left < 0 or left < _least(capacity):
            return True
    return False


def _least(capacity: Capacity) -> int:
    policy = capacity.policy
    if policy is None:
        return 0
    if policy.minimum is not None:
        return policy.minimum.nano
    if policy.valid_values:
        return policy.valid_values[0].nano
    return 0
