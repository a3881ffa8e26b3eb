"""Where the matching devices of one signature are, and in which state: the part of the index that follows
locks.

Each pool contributes one :class:`Place`, a value: its node, and what its matching devices have room for. The
sums over all pools (nodes with a clean device, nodes with room under a lock, how many devices have which
lock) change only by adding and removing places, so they are exact whatever the order of events.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from sharing_affinity.api import KeyMap, quantity
from sharing_affinity.api.objects import Capacity, Extractor
from sharing_affinity.locks import Ledger, LockState, Occupancy
from sharing_affinity.pools import Pool, PoolDevice

SetId = tuple[str, tuple[Extractor, ...]]
"""Driver and extractors: what keys follow from, given a claim."""


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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedNames) and (self._counts, self._names) == (other._counts, other._names)

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, name: str) -> bool:
        return name in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class Place:
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
class Whereabouts:
    """The places of all affinity pools with a matching device, and their sums.

    ``openings`` covers the pools that belong to one node, ``tallies`` all of them; ``nodes`` are those with
    any matching device.
    """

    places: dict[tuple[str, str], Place] = field(default_factory=dict)
    openings: dict[SetId, Openings] = field(default_factory=dict)
    tallies: dict[SetId, Tally] = field(default_factory=dict)
    nodes: SortedNames = field(default_factory=SortedNames)

    def put(self, pool: tuple[str, str], place: Place | None) -> None:
        """What a pool contributes from now on; ``None`` for nothing."""
        before = self.places.get(pool)
        if before == place:
            return
        if before is not None:
            _remove(self, before)
            del self.places[pool]
        if place is not None:
            _add(self, place)
            self.places[pool] = place


def place_of(pool: Pool, matching: Collection[str], ledger: Ledger) -> Place:
    """What a pool contributes, of whose devices those named in ``matching`` match."""
    keys: set[KeyMap] = set()
    locked: Counter[KeyMap] = Counter()
    devices = 0
    clean = False
    driver, name, occupancy_of = pool.driver, pool.name, ledger.occupancy
    for device in pool.devices:
        if device.device.name not in matching:
            continue
        devices += 1
        occupancy = occupancy_of((driver, name, device.device.name))
        if occupancy.state is LockState.CLEAN:
            clean = True
        elif occupancy.state is LockState.LOCKED:
            locked[occupancy.keys] += 1
            if occupancy.keys not in keys and not _is_used_up(occupancy, device):
                keys.add(occupancy.keys)
    return Place(pool.node_name, (pool.driver, pool.extractors), frozenset(keys), clean, devices, locked)


def _add(here: Whereabouts, place: Place) -> None:
    if place.devices:
        tally = here.tallies.setdefault(place.extractors, Tally())
        tally.devices += place.devices
        tally.locked.update(place.locked)
    if not place.node:
        return
    here.nodes.add(place.node)
    if not place.clean and not place.keys:
        return
    openings = here.openings.setdefault(place.extractors, Openings())
    if place.clean:
        openings.clean.add(place.node)
    for keys in place.keys:
        openings.locked.setdefault(keys, SortedNames()).add(place.node)


def _remove(here: Whereabouts, place: Place) -> None:
    if place.devices:
        tally = here.tallies[place.extractors]
        tally.devices -= place.devices
        # Subtraction keeps only what is left.
        tally.locked -= Counter(place.locked)
        if not tally.devices:
            del here.tallies[place.extractors]
    if not place.node:
        return
    here.nodes.remove(place.node)
    if not place.clean and not place.keys:
        return
    openings = here.openings[place.extractors]
    if place.clean:
        openings.clean.remove(place.node)
    for keys in place.keys:
        openings.locked[keys].remove(place.node)
        if not len(openings.locked[keys]):
            del openings.locked[keys]
    if not len(openings.clean) and not openings.locked:
        del here.openings[place.extractors]


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
