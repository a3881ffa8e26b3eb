"""Who holds what, and the lock that follows from it.

The ledger maps each device to its holders: one entry per allocation result, under the UID of the claim.
Nothing else is stored. State, lock, consumed capacity and use are *derived* from the holders of a device, so
a lock cannot outlive its last holder, and releasing a claim twice is releasing it once.

A holder whose keys are unknown (``keys is None``) makes its device Unreconstructable; so do holders that
disagree (settled semantics 3 and 13, KEP "Scheduler Restart"). Holders with admin access do not appear here
at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sharing_affinity.api import KeyMap, Quantity

DeviceId = tuple[str, str, str]
"""Driver, pool, device: the identity of a device, at any generation."""


class LockState(StrEnum):
    CLEAN = "Clean"
    LOCKED = "Locked"
    UNRECONSTRUCTABLE = "Unreconstructable"


@dataclass(frozen=True, slots=True)
class Hold:
    """One allocation result on a device. ``share_id`` is empty for one that takes the whole device.

    ``keys``: what the claim's configs yield under the pool's extractors, ``None`` when that is not known,
    with the reason in ``doubt``. On a device outside affinity pools ``keys`` is empty and means nothing.
    """

    uid: str
    namespace: str
    claim: str
    request: str
    share_id: str
    consumed: Mapping[str, Quantity]
    keys: KeyMap | None
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What the holders of one device add up to."""

    holds: tuple[Hold, ...]
    state: LockState
    keys: KeyMap
    doubt: str
    dedicated: bool
    shared: bool
    consumed: Mapping[str, Quantity]


NOBODY = Occupancy((), LockState.CLEAN, (), "", False, False, {})


def derive(holds: Iterable[Hold]) -> Occupancy:
    """State, lock and consumption from holders; the order of holders does not matter."""
    holders = tuple(holds)
    if not holders:
        return NOBODY
    # Summed as integers: a full device has many holders, and this is on the way of every decision.
    sums: dict[str, int] = {}
    for hold in holders:
        for name, amount in hold.consumed.items():
            sums[name] = sums.get(name, 0) + amount.nano
    maps = {hold.keys for hold in holders}
    doubts = [hold.doubt or "its keys are not known" for hold in holders if hold.keys is None]
    keys: KeyMap = ()
    if doubts:
        state, doubt = LockState.UNRECONSTRUCTABLE, min(doubts)
    elif len(maps) > 1:
        state, doubt = LockState.UNRECONSTRUCTABLE, "its holders yield different keys"
    else:
        state, keys, doubt = LockState.LOCKED, maps.pop() or (), ""
    return Occupancy(
        holds=holders,
        state=state,
        keys=keys,
        doubt=doubt,
        dedicated=any(not hold.share_id for hold in holders),
        shared=any(hold.share_id for hold in holders),
        consumed={name: Quantity(nano) for name, nano in sums.items()},
    )


class Ledger:
    """Holders by device. Replacing or dropping a claim's holds is idempotent per claim UID."""

    def __init__(self) -> None:
        self._by_device: dict[DeviceId, dict[tuple[str, int], Hold]] = {}
        self._by_claim: dict[str, tuple[DeviceId, ...]] = {}
        self._by_pool: dict[tuple[str, str], dict[str, int]] = {}
        self._cache: dict[DeviceId, Occupancy] = {}

    def occupancy(self, device: DeviceId) -> Occupancy:
        found = self._cache.get(device)
        if found is None:
            holds = self._by_device.get(device)
            if holds is None:
                return NOBODY
            found = self._cache[device] = derive(holds.values())
        return found

    def place(self, uid: str, holds: Iterable[tuple[DeviceId, Hold]]) -> frozenset[DeviceId]:
        """The claim holds exactly this from now on. Returns the devices whose holders changed."""
        entries = tuple(holds)
        if self._holds(uid, entries):
            return frozenset()
        changed = set(self.drop(uid))
        devices = []
        for index, (device, hold) in enumerate(entries):
            self._by_device.setdefault(device, {})[(uid, index)] = hold
            self._cache.pop(device, None)
            devices.append(device)
            claims = self._by_pool.setdefault(device[:2], {})
            claims[uid] = claims.get(uid, 0) + 1
        if devices:
            self._by_claim[uid] = tuple(devices)
        return frozenset(changed.union(devices))

    def _holds(self, uid: str, entries: tuple[tuple[DeviceId, Hold], ...]) -> bool:
        """Whether a claim holds this already: it was assumed, and is seen now."""
        return self.devices_of(uid) == tuple(device for device, _ in entries) and all(
            self._by_device[device][uid, index] == hold for index, (device, hold) in enumerate(entries)
        )

    def drop(self, uid: str) -> frozenset[DeviceId]:
        """The claim holds nothing any more. Returns the devices it held."""
        devices = self._by_claim.pop(uid, ())
        for index, device in enumerate(devices):
            holds = self._by_device[device]
            holds.pop((uid, index), None)
            if not holds:
                del self._by_device[device]
            self._cache.pop(device, None)
            claims = self._by_pool[device[:2]]
            claims[uid] -= 1
            if not claims[uid]:
                del claims[uid]
                if not claims:
                    del self._by_pool[device[:2]]
        return frozenset(devices)

    def devices_of(self, uid: str) -> tuple[DeviceId, ...]:
        return self._by_claim.get(uid, ())

    def claim_of(self, uid: str) -> tuple[str, str] | None:
        """Namespace and name of a claim that holds anything."""
        devices = self._by_claim.get(uid)
        if devices is None:
            return None
        hold = self._by_device[devices[0]][(uid, 0)]
        return (hold.namespace, hold.claim)

    def claims_in(self, pool: tuple[str, str]) -> tuple[str, ...]:
        """UIDs of the claims that hold anything in a pool."""
        return tuple(self._by_pool.get(pool, ()))

    def pools(self) -> Iterator[tuple[str, str]]:
        """Pools in which anything is held."""
        return iter(self._by_pool)

    def devices(self) -> Iterator[DeviceId]:
        """All held devices."""
        return iter(self._by_device)

    def claims(self) -> Iterator[str]:
        """UIDs of all holders."""
        return iter(self._by_claim)
