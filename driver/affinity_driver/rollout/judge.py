"""What other extractors would do to the holders of a pool's devices; pure.

The operator judges a holder by what its configs yield under the pool's extractors now, and by what its claim
was allocated with, if that was recorded (settled semantics 3 and 13). So a change is harmless to a device
when all its holders yield, under the new extractors, one and the same full key map, and the one on record.
Otherwise the device becomes Unreconstructable: nothing new is placed there until its holders are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from affinity_driver.publish.override import same_extractors
from sharing_affinity.api import AllocationResult, Claim, Extractor, KeyMap
from sharing_affinity.extraction import Evaluator, Extracted, Unsatisfied, extract, in_scope_configs


class State(StrEnum):
    """The operator's words for a device, and one for pools without extractors."""

    CLEAN = "Clean"
    LOCKED = "Locked"
    UNRECONSTRUCTABLE = "Unreconstructable"
    UNMANAGED = "Unmanaged"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A device under one set of extractors; ``problem`` says why it is Unreconstructable."""

    state: State
    keys: KeyMap = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """One allocation result. ``problem`` is why the new extractors do not suit it; empty when they do."""

    namespace: str
    claim: str
    request: str
    before: KeyMap | None
    after: KeyMap | None
    problem: str


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """One device before and after."""

    device: str
    before: Judgement
    after: Judgement
    holders: tuple[Holder, ...]

    @property
    def breaks(self) -> bool:
        """Whether the change closes a device that takes new claims today."""
        closed = State.UNRECONSTRUCTABLE
        return self.after.state is closed and self.before.state is not closed


@dataclass(frozen=True, slots=True)
class Waiting:
    """A claim without allocation that could use the pool today and could not after the change."""

    namespace: str
    claim: str
    request: str
    problem: str


@dataclass(frozen=True, slots=True)
class PoolChange:
    """One pool before and after."""

    pool: str
    before: tuple[Extractor, ...]
    after: tuple[Extractor, ...]
    devices: tuple[DeviceChange, ...]

    @property
    def same(self) -> bool:
        """Whether nothing changes."""
        return same_extractors(self.before, self.after)

    @property
    def idle(self) -> bool:
        """Whether nobody holds any of its devices."""
        return not any(device.holders for device in self.devices)

    @property
    def breaks(self) -> bool:
        """Whether the change would close a device."""
        return not self.same and any(device.breaks for device in self.devices)


def judge(
    driver: str,
    pools: Mapping[str, Iterable[str]],
    before: Mapping[str, Sequence[Extractor]],
    after: Mapping[str, Sequence[Extractor]],
    claims: Iterable[Claim],
    evaluator: Evaluator,
) -> tuple[PoolChange, ...]:
    """The change of every pool of ``driver`` in ``pools`` (name to devices), idle ones first.

    ``before`` and ``after`` are the pools' extractors; a pool without any is not managed.
    """
    holds: dict[tuple[str, str], list[tuple[Claim, AllocationResult]]] = {}
    for claim in claims:
        for result in claim.allocation.results if claim.allocation is not None else ():
            if result.driver == driver and not result.admin:
                holds.setdefault((result.pool, result.device), []).append((claim, result))
    changes = []
    for pool, names in pools.items():
        old, new = tuple(before.get(pool, ())), tuple(after.get(pool, ()))
        held = {device for owner, device in holds if owner == pool}
        devices = tuple(
            _device(name, holds.get((pool, name), []), old, new, evaluator)
            for name in sorted({*names, *held})
        )
        changes.append(PoolChange(pool, old, new, devices))
    return tuple(sorted(changes, key=lambda change: (not change.idle, change.pool)))


def left_out(
    driver: str,
    before: Sequence[Extractor],
    after: Sequence[Extractor],
    claims: Iterable[Claim],
    evaluator: Evaluator,
) -> tuple[Waiting, ...]:
    """Claims for ``driver`` that are not allocated, suit the old extractors and not the new.

    Only configs of the claim itself are looked at: a DeviceClass may still supply what is missing.
    """
    found = []
    for claim in claims:
        if claim.allocation is not None or not any(config.driver == driver for config in claim.configs):
            continue
        for request in claim.requests:
            configs = in_scope_configs(claim.configs, driver, request.name)
            if isinstance(extract(before, configs, evaluator), Extracted):
                _, problem = _yields(extract(after, configs, evaluator))
                if problem:
                    found.append(Waiting(*claim.key, request.name, problem))
    return tuple(sorted(found, key=lambda waiting: (waiting.namespace, waiting.claim, waiting.request)))


def _device(
    name: str,
    holds: Sequence[tuple[Claim, AllocationResult]],
    old: Sequence[Extractor],
    new: Sequence[Extractor],
    evaluator: Evaluator,
) -> DeviceChange:
    holders = []
    for claim, result in holds:
        before, _ = _keys(claim, result, old, evaluator)
        after, problem = _keys(claim, result, new, evaluator)
        holders.append(Holder(*claim.key, result.request, before, after, problem))
    holders.sort(key=lambda holder: (holder.namespace, holder.claim, holder.request))
    return DeviceChange(
        name,
        _judgement(old, [holder.before for holder in holders]),
        _judgement(new, [holder.after for holder in holders]),
        tuple(holders),
    )


def _judgement(extractors: Sequence[Extractor], keys: Sequence[KeyMap | None]) -> Judgement:
    if not extractors:
        return Judgement(State.UNMANAGED)
    if not keys:
        return Judgement(State.CLEAN)
    if None in keys:
        return Judgement(State.UNRECONSTRUCTABLE, problem="a holder's keys are not known or not as recorded")
    maps = {each for each in keys if each is not None}
    if len(maps) > 1:
        return Judgement(State.UNRECONSTRUCTABLE, problem="its holders yield different keys")
    return Judgement(State.LOCKED, maps.pop())


def _keys(
    claim: Claim, result: AllocationResult, extractors: Sequence[Extractor], evaluator: Evaluator
) -> tuple[KeyMap | None, str]:
    """What a holder yields, or None and why that does not count."""
    allocation = claim.allocation
    if allocation is None or not extractors:
        return (), ""
    configs = in_scope_configs(allocation.configs, result.driver, result.request)
    keys, problem = _yields(extract(extractors, configs, evaluator))
    recorded = _recorded(claim, result)
    if keys is not None and recorded is not None and recorded != keys:
        return None, f"was allocated with {_listed(recorded)} and would yield {_listed(keys)}"
    return keys, problem


def _yields(outcome: object) -> tuple[KeyMap | None, str]:
    match outcome:
        case Extracted(keys):
            return keys, ""
        case Unsatisfied(missing):
            return None, f"yields no value for {', '.join(missing)}"
        case _:
            return None, str(getattr(outcome, "message", outcome))


def _recorded(claim: Claim, result: AllocationResult) -> KeyMap | None:
    """The keys the claim was allocated with, where its record fits its allocation (H2)."""
    allocation = claim.allocation
    if claim.record is None or allocation is None or not allocation.fits(claim.record):
        return None
    return next((r.keys for r in claim.record.results if r.identity == result.identity), None)


def _listed(keys: KeyMap) -> str:
    return ", ".join(f"{name}={value}" for name, value in keys) or "no keys"
